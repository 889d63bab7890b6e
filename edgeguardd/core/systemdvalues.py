"""Numbers as systemd reads them: strtol and strtoull with all they let pass, sizes, shares, time spans, booleans.

Must not: know a key. Upstream: nothing. Downstream: isolate (settings, effective), configprovision.
Each function answers the value, or None for what systemd refuses. Sources: src/basic/parse-util.c, time-util.c,
percent-util.c; the table of spellings in tests/cases/units was seen with systemd 252.
"""

import re

INFINITE = 2**64 - 1  # CGROUP_LIMIT_MAX, USEC_INFINITY: no limit
INT_MAX = 2**31 - 1

_BLANKS = " \t\n\r"
_TRUE = frozenset(("1", "yes", "y", "true", "t", "on"))
_FALSE = frozenset(("0", "no", "n", "false", "f", "off"))
_SIZE_FACTORS = (("E", 60), ("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10), ("B", 0), ("", 0))
_MAX_DIGITS = 80  # more than 2^64 has, in any base: enough to see that a number is out of range
_C_NUMBER = {
    base: re.compile(rf"[ \t\n\r\v\f]*([+-]?)({digits})", re.ASCII)
    for base, digits in ((0, "0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*"), (2, "[01]+"), (8, "[0-7]+"), (10, "[0-9]+"))
}

_S = 1_000_000
# The first that fits wins, so longer words stand before their beginnings (time-util.c, extract_multiplier).
_TIME_UNITS = (
    *((word, _S) for word in ("seconds", "second", "sec", "s")),
    *((word, 60 * _S) for word in ("minutes", "minute", "min")),
    *((word, 2_629_800 * _S) for word in ("months", "month", "M")),
    *((word, 1000) for word in ("msec", "ms")),
    ("m", 60 * _S),
    *((word, 3600 * _S) for word in ("hours", "hour", "hr", "h")),
    *((word, 86_400 * _S) for word in ("days", "day", "d")),
    *((word, 604_800 * _S) for word in ("weeks", "week", "w")),
    *((word, 31_557_600 * _S) for word in ("years", "year", "y")),
    *((word, 1) for word in ("usec", "us", "\u03bcs", "\u00b5s")),
)
_SHOWN_UNITS = (
    *(("y", 31_557_600 * _S), ("month", 2_629_800 * _S), ("w", 604_800 * _S), ("d", 86_400 * _S), ("h", 3600 * _S)),
    *(("min", 60 * _S), ("s", _S), ("ms", 1000), ("us", 1)),
)


def boolean(text: str) -> bool | None:
    """1 yes y true t on, 0 no n false f off, in any case."""
    word = text.lower() if text.isascii() else text
    return True if word in _TRUE else False if word in _FALSE else None


def integer(text: str) -> int | None:
    """An int of C, decimal, 0x, 0b, 0o, or octal with a leading 0 (safe_atoi)."""
    at = _skip(text, 0)
    base = {"0b": 2, "0B": 2, "0o": 8, "0O": 8}.get(text[at : at + 2], 0)
    found = _strtol(text, at + 2 if base else at, base)
    if found is None or found[1] != len(text) or not -INT_MAX - 1 <= found[0] <= INT_MAX:
        return None
    return found[0]


def size(text: str) -> int | None:
    """Bytes: numbers with E P T G M K B of base 1024, in falling order, which add up: "1G 512M", "1.5G"."""
    total = place = at = 0
    while True:
        read = _one_size(text, at, place)
        if read is None:
            return None
        number, at, place = read
        total += number
        if total > INFINITE:
            return None
        if at == len(text):
            return total


def _one_size(text: str, at: int, least: int) -> tuple[int, int, int] | None:
    """One number with its suffix, of _SIZE_FACTORS[least:]: bytes, where it ends, and which may follow."""
    at = _skip(text, at)
    read = None if text[at : at + 1] == "-" else _strtoull(text, at)
    if read is None:
        return None
    whole, at = read
    fraction = 0.0
    if text[at : at + 1] == ".":
        behind = _digits(text, at + 1)
        if len(behind) > _MAX_DIGITS or int(behind or 0) > INFINITE:
            return None
        fraction = float(int(behind or 0))
        for _ in behind:
            fraction /= 10
        at += 1 + len(behind)
    at = _skip(text, at)
    place = next((i for i in range(least, len(_SIZE_FACTORS)) if text.startswith(_SIZE_FACTORS[i][0], at)), -1)
    suffix, power = _SIZE_FACTORS[place]
    if place < 0 or whole + (fraction > 0) > INFINITE >> power:
        return None
    return (whole << power) + int(fraction * (1 << power)), at + len(suffix), place + 1


def unsigned(text: str) -> int | None:
    """An unsigned 64-bit number of C, in the bases of integer() (safe_atou64)."""
    at = _skip(text, 0)
    base = {"0b": 2, "0B": 2, "0o": 8, "0O": 8}.get(text[at : at + 2], 0)
    found = _strtol(text, at + 2 if base else at, base)
    if found is None or found[1] != len(text) or text[at : at + 1] == "-" or not 0 <= found[0] <= INFINITE:
        return None
    return found[0]


def share(text: str) -> int | None:
    """Parts of 10,000: "80%", "87.55%", "875.5‰", "8755‱"; at most the whole."""
    parts = share_unbounded(text)
    return parts if parts is not None and parts <= 10_000 else None


def share_unbounded(text: str) -> int | None:
    """The same, of more than one whole: "150%"."""
    parts = _parts(text)
    return parts if parts is not None and 0 <= parts <= INT_MAX else None


def share_of(parts: int, memory_bytes: int, page_bytes: int) -> int:
    """That share of the memory, in whole pages (physical_memory_scale)."""
    return memory_bytes // page_bytes * parts // 10_000 * page_bytes


def time_span(text: str) -> int | None:
    """Microseconds: "5", "500ms", "1min 30s", "infinity"."""
    at = _skip(text, 0)
    if text.startswith("infinity", at):
        return INFINITE if _skip(text, at + 8) == len(text) else None
    total = 0
    something = False
    while True:
        at = _skip(text, at)
        if at == len(text):
            return total if something else None
        read = _one_span(text, at)
        if read is None:
            return None
        span_us, at = read
        total += span_us
        if total >= INFINITE:
            return None
        something = True


def shown_span(span_us: int, accuracy_us: int = _S) -> str:
    """A time span in systemd's words (format_timespan): "1min 30s", "500ms"; less than the accuracy is left out."""
    if span_us == INFINITE:
        return "infinity"
    if span_us <= 0:
        return "0"
    words: list[str] = []
    rest = span_us
    for unit, factor in _SHOWN_UNITS:
        if rest <= 0 or (rest < accuracy_us and words):
            break
        if rest < factor:
            continue
        whole, below = divmod(rest, factor)
        dotted = _dotted(rest, whole, below, factor, accuracy_us)
        if dotted:
            words.append(dotted + unit)
            break
        words.append(f"{whole}{unit}")
        rest = below
    return " ".join(words)


def _dotted(rest: int, whole: int, below: int, factor: int, accuracy_us: int) -> str:
    """ "1.5": below a minute, when the accuracy lets something behind the dot."""
    if rest >= 60 * _S or below == 0:
        return ""
    places = len(str(factor)) - len(str(accuracy_us))
    return f"{whole}.{below // accuracy_us:0{places}d}" if places > 0 else ""


def _one_span(text: str, at: int) -> tuple[int, int] | None:
    """One number with its unit: microseconds, and where it ends."""
    if text[at] == "-":
        return None
    found = _strtol(text, at, 10)
    whole, end = found if found is not None else (0, at)
    if not 0 <= whole < 2**63:
        return None
    behind = ""
    after = end
    if text[end : end + 1] == ".":
        behind = _digits(text, end + 1)
        after = end + 1 + len(behind)
        if not behind:
            return None
    elif end == at:
        return None
    unit_at = _skip(text, after)
    word, factor = next(((w, f) for w, f in _TIME_UNITS if text.startswith(w, unit_at)), ("", _S))
    stop = unit_at + len(word)
    if (stop == after and stop != len(text)) or whole >= INFINITE // factor:
        return None
    span_us = whole * factor
    part = factor // 10
    for digit in behind:
        if part == 0:
            break
        span_us += int(digit) * part
        part //= 10
    return span_us, stop


def _parts(text: str) -> int | None:
    if text.endswith("\u2031"):
        return integer(text[:-1])
    for symbol, places in (("\u2030", 1), ("%", 2)):
        if text.endswith(symbol):
            whole, dot, behind = text[:-1].partition(".")
            if dot and not (1 <= len(behind) <= places and behind.isascii() and behind.isdigit()):
                return None
            number = integer(whole)
            if number is None or number < 0:
                return None
            return number * (10 if places == 1 else 100) + int(behind.ljust(places, "0"))
    return None


def _digits(text: str, at: int) -> str:
    end = at
    while end < len(text) and text[end] in "0123456789":
        end += 1
    return text[at:end]


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


def _strtoull(text: str, at: int) -> tuple[int, int] | None:
    """strtoull(…, 10) from `at`: the number and where it ends; None for no number, or one that is out of range."""
    found = _strtol(text, at, 10)
    if found is None or abs(found[0]) > INFINITE:
        return None
    return found[0] % (INFINITE + 1), found[1]


def _strtol(text: str, at: int, base: int) -> tuple[int, int] | None:
    """strtol from `at`: the number and where it ends, blanks and a sign before it included; None for none.

    Base 0: 0x1F, 017, 15. Of a "0x" alone the 0 counts.
    """
    found = _C_NUMBER[base].match(text, at)
    if found is None:
        return None
    digits = found[2]
    if base == 0:
        base = 16 if digits[1:2] in ("x", "X") else 8 if digits.startswith("0") else 10
    digits = digits.lstrip("0xX")
    # A number of a megabyte is out of every range; int() would take its time, or refuse it.
    number = INFINITE + 1 if len(digits) > _MAX_DIGITS else int(digits or "0", base)
    return (-number if found[1] == "-" else number), found.end()
