"""The kinds of values a configuration key can take: TOML value -> Python value, and back to TOML text.

Must not: know keys or sections (configtable does), or look at more than one value at a time (configcheck does).
Upstream: core.config values. Downstream: configtable, configparse, the command line's overrides.
Every parser raises ValueError("what it must be; what to write") and nothing else.
"""

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct

from edgeguardd.core.config import Mark
from edgeguardd.core.text import printable

T = TypeVar("T")

MAX_SHOWN_CHARS = 60
_QUOTE = '"'
MAX_SIZE_BYTES = 2**63 - 1
MAX_UID = 2**32 - 2  # 2^32 - 1 means "no user" to the kernel

# Upper case, as in systemd's parse_size() (src/basic/parse-util.c). "GB" and "gb" are refused: some mean base 1000.
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*(?:([KMGT])(?:iB)?)?", re.ASCII)
_NEARLY_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B|bytes?)?", re.ASCII | re.IGNORECASE)
_SIZE_UNITS: dict[str, int] = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DURATION = re.compile(r"(?:\d{1,12}(?:\.\d{1,9})?\s*(?:us|ms|s|min|h)\s*)+", re.ASCII)
_DURATION_PART = re.compile(r"([\d.]+)\s*(us|ms|s|min|h)", re.ASCII)
# Divisors for the small units: 300 / 1000 is the nearest float to 0.3, 300 * 0.001 is not.
_DURATION_UNITS = {"us": (1, 1_000_000), "ms": (1, 1000), "s": (1, 1), "min": (60, 1), "h": (3600, 1)}
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)


class Kind(Struct, frozen=True):
    """A kind of value: what the reference says it accepts, how it is read, and how it is written as TOML."""

    accepts: str
    parse: Callable[[object], Any]
    show: Callable[[Any], str]


def shown(value: object) -> str:
    """A TOML value as an error message shows it: short, printable, whatever it is."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{printable(value, MAX_SHOWN_CHARS)}"'
    if isinstance(value, list | dict):
        return "[…]" if isinstance(value, list) else "{…}"
    if isinstance(value, int) and value.bit_length() > 128:  # repr() refuses thousands of digits
        return f"(a number of {value.bit_length()} bits)"
    return printable(repr(value) if isinstance(value, int | float) else str(value), MAX_SHOWN_CHARS)


def quoted(text: str) -> str:
    """A string as TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def boolean() -> Kind:
    """true or false."""

    def parse(value: object) -> bool:
        if isinstance(value, bool):
            return value
        raise ValueError("it must be true or false; write it without quotes")

    return Kind("true or false", parse, lambda value: "true" if value else "false")


def switch(on: str, off: str) -> Kind:
    """One of two words, for what may get more words than two one day."""
    word = choice(on, off)
    return Kind(word.accepts, lambda value: word.parse(value) == on, lambda value: quoted(on if value else off))


def integer(low: int, high: int) -> Kind:
    """A whole number within bounds, both included."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"it must be a whole number; write one from {low} to {high}")  # noqa: TRY004 - as in text
        if not low <= value <= high:
            raise ValueError(f"it is out of bounds; write a whole number from {low} to {high}")
        return value

    return Kind(f"a whole number from {low} to {high}", parse, str)


def choice(*words: str) -> Kind:
    """One of a few words."""
    accepts = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'

    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise ValueError(f"it is none of the words known here; write {accepts}")

    return Kind(accepts, parse, quoted)


def text(accepts: str, check: Callable[[str], None]) -> Kind:
    """A string that `check` lets pass; check raises ValueError with the sentence."""

    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("it must be text; put it in quotes")  # noqa: TRY004 - the one error of all parsers
        if "\0" in value:
            raise ValueError("it holds a NUL character; take it out")
        check(value)
        return value

    return Kind(accepts, parse, quoted)


def size(low_bytes: int = 1) -> Kind:
    """Bytes, at least low_bytes: a whole number, or a string with K, M, G, T or KiB, MiB, GiB, TiB, of base 1024."""
    bounds = "above 0" if low_bytes == 1 else f"from {show_size(low_bytes).strip(_QUOTE)} on"

    def parse(value: object) -> int:
        bytes_ = _size_bytes(value)
        if bytes_ is None or not low_bytes <= bytes_ <= MAX_SIZE_BYTES:
            raise ValueError(
                f"a size is {bounds}, in bytes or with K, M, G or T (KiB, MiB, GiB, TiB) of base 1024; "
                + (_size_remedy(value) if bytes_ is None else 'write "512M" or "1.5G"')
            )
        return bytes_

    return Kind(f'a size {bounds}: bytes, or "512M", "1.5GiB" (base 1024)', parse, show_size)


def duration(high_s: float, low_s: float = 0.0) -> Kind:
    """Seconds: a number, or a string with units. Above low_s (from it on if it is not 0) and at most high_s."""
    bounds = f"above 0 and at most {_plain_duration(high_s)}"
    if low_s:
        bounds = f"from {_plain_duration(low_s)} to {_plain_duration(high_s)}"

    def parse(value: object) -> float:
        seconds = _duration_s(value)
        if seconds is None:
            raise ValueError('a duration is seconds or a text with us, ms, s, min or h; write 5 or "500ms"')
        if not (low_s <= seconds <= high_s and seconds > 0):
            raise ValueError(f"it is out of bounds; write a duration {bounds}")
        return seconds

    return Kind(f'a duration {bounds}: seconds, or "500ms", "5s", "2min"', parse, show_duration)


def share(low: float, high: float, *, open_ends: bool = False) -> Kind:
    """A ratio of 0…1: a number or a percent. Between the bounds; open_ends leaves the bounds themselves out."""
    bounds = f"above {low:g} and below {high:g}" if open_ends else f"from {low:g} to {high:g}"

    def parse(value: object) -> float:
        ratio = _ratio(value)
        if ratio is None or not 0 <= ratio <= 1:
            raise ValueError('a share is between 0 and 1, or a percent such as "60%"; ' + _share_remedy(value))
        if not low <= ratio <= high or (open_ends and ratio in {low, high}):
            raise ValueError(f"it is out of bounds; write a share {bounds}")
        return ratio

    return Kind(f'a share {bounds}, or a percent such as "60%"', parse, show_share)


def mark() -> Kind:
    """Where a level begins: a share, or a table {headroom = SIZE}."""
    the_size = size()

    def parse(value: object) -> Mark:
        if isinstance(value, dict):
            if set(value) != {"headroom"}:
                raise ValueError('a mark of headroom has that one key; write {headroom = "512M"}')
            return Mark(headroom_bytes=the_size.parse(value["headroom"]))
        ratio = _ratio(value)
        if ratio is None or not 0 < ratio <= 1:
            raise ValueError(
                'a share is between 0 and 1, or a percent such as "60%"; '
                + _share_remedy(value)
                + ', or {headroom = "512M"} for bytes left'
            )
        return Mark(ratio=ratio)

    def show(value: Mark) -> str:
        if value.headroom_bytes is not None:
            return f"{{headroom = {show_size(value.headroom_bytes)}}}"
        return show_share(value.ratio or 0.0)

    return Kind('a share above 0 and at most 1, a percent such as "60%", or {headroom = SIZE}', parse, show)


def file_mode() -> Kind:
    """A socket's mode: "0660", or 0o660 in TOML's own octal.

    A decimal number cannot slip through: whoever writes 660 for 0o660 is above 0o777, and so is every decimal
    whose digits spell a mode that lets the owner connect.
    """

    def parse(value: object) -> int:
        mode = value
        if isinstance(value, str) and re.fullmatch(r"(?:0o)?[0-7]{3,4}", value, re.ASCII):
            mode = int(value.removeprefix("0o"), 8)
        if not isinstance(mode, int) or isinstance(mode, bool) or not 0 <= mode <= 0o777:
            raise ValueError('a mode is octal digits in quotes; write "0660"')
        if mode & 0o600 != 0o600 or mode & 0o111:
            raise ValueError('a socket needs read and write for its owner and no execute bits; write "0660"')
        return mode

    return Kind('an octal mode such as "0660"', parse, lambda value: f'"{value:04o}"')


def uids() -> Kind:
    """A set of user numbers."""

    def parse(value: object) -> frozenset[int]:
        wrong = "it must be an array of user numbers; write [0, 1000] (`id -u NAME` tells the number)"
        if not isinstance(value, list) or len(value) > 1024:
            raise ValueError(wrong)
        for uid in value:
            if not isinstance(uid, int) or isinstance(uid, bool) or not 0 <= uid <= MAX_UID:
                raise ValueError(wrong)
        return frozenset(value)

    return Kind("an array of user numbers", parse, lambda value: f"[{', '.join(str(uid) for uid in sorted(value))}]")


def texts(accepts: str, check: Callable[[str], None]) -> Kind:
    """A set of strings that `check` lets pass."""
    one = text(accepts, check)

    def parse(value: object) -> frozenset[str]:
        if not isinstance(value, list) or len(value) > 1024:
            raise ValueError(f"it must be an array of texts; write an array of {accepts}")
        return frozenset(one.parse(item) for item in value)

    return Kind(f"an array of {accepts}", parse, lambda value: f"[{', '.join(quoted(item) for item in sorted(value))}]")


def show_size(size_bytes: int) -> str:
    """Bytes in the largest unit that loses nothing."""
    for unit in ("T", "G", "M", "K"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f'"{size_bytes // _SIZE_UNITS[unit]}{unit}"'
    return str(size_bytes)


def show_duration(seconds: float) -> str:
    """Seconds with the unit that loses nothing, else the plain number."""
    if seconds.is_integer():
        for unit in ("h", "min"):
            if seconds and seconds % _DURATION_UNITS[unit][0] == 0:
                return f'"{int(seconds) // _DURATION_UNITS[unit][0]}{unit}"'
        return f'"{int(seconds)}s"'
    if round(seconds * 1000) / 1000 == seconds:
        return f'"{round(seconds * 1000)}ms"'
    return repr(seconds)


def show_share(ratio: float) -> str:
    """A ratio as percent where that loses nothing, else the plain number."""
    percent = f"{ratio * 100:.6f}".rstrip("0").rstrip(".")
    return f'"{percent}%"' if float(percent) / 100 == ratio else repr(ratio)


def _size_bytes(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        number, unit = found.groups()
        whole, _, fraction = number.partition(".")
        scale = _SIZE_UNITS[unit or ""]
        tenths: int = 10 ** len(fraction)
        return int(whole) * scale + int(fraction or "0") * scale // tenths
    return None


def _size_remedy(value: object) -> str:
    if isinstance(value, str) and (found := _NEARLY_SIZE.fullmatch(value.strip())):
        return f'write "{found[1]}{found[2].upper()}" if that is meant'
    return 'write "512M" or "1.5G"'


def _duration_s(value: object) -> float | None:
    if isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        total = 0.0
        for number, unit in _DURATION_PART.findall(value):
            factor, divisor = _DURATION_UNITS[unit]
            total += float(number) * factor / divisor
        return total
    return _number(value)


def _ratio(value: object) -> float | None:
    if isinstance(value, str) and (found := _PERCENT.fullmatch(value.strip())):
        return float(found[1]) / 100
    return _number(value)


def _number(value: object) -> float | None:
    """A finite number as float; None for anything else, true and false included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and value.bit_length() > 64:
        return None
    return float(value) if math.isfinite(value) else None


def _share_remedy(value: object) -> str:
    number = _number(value)
    if number is not None and 1 < number <= 100:
        return f'write "{number:g}%" if that many percent are meant'
    return 'write 0.6 or "60%"'


def _plain_duration(seconds: float) -> str:
    return show_duration(float(seconds)).strip('"')
