"""How systemd parses the value of a setting, a kind of value each.

Must not: know keys or rules, read files. Upstream: systemdvalues, words, commands. Downstream: settings, unit.
Sources: src/core/load-fragment.c (config_parse_…), systemd.exec(5), systemd.resource-control(5), systemd.service(5).
A parser gets what was set before and the text, and answers what holds from now on. It raises IgnoredError where systemd
says so in the journal and keeps what was there, and RefusedError where systemd does not load the unit at all.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from edgeguardd.core import systemdvalues as values
from edgeguardd.isolate import commands, specifiers, words
from edgeguardd.isolate import unitnames as names
from edgeguardd.isolate.commands import IgnoredError, RefusedError

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "io", "blkio", "memory", "devices", "pids")
DELEGATED = frozenset(("cpu", "cpuset", "io", "memory", "pids"))
_BY_NUMBER = """
    chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service
    net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin
    sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override
    mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
CAPABILITIES = tuple(_BY_NUMBER.split())  # include/uapi/linux/capability.h
ALL_CAPABILITIES = frozenset(CAPABILITIES)


class Place(Struct, frozen=True):
    """For whom a value is parsed: the unit, and the machine it runs on."""

    unit: str
    memory_bytes: int
    page_bytes: int
    user: bool = False
    fragment: str = ""
    version: int = 252

    def expand(self, text: str) -> str | None:
        """The text with specifiers put in; None when one cannot be resolved."""
        return specifiers.expanded(text, self.unit, fragment=self.fragment, user=self.user)


_T = TypeVar("_T")
Parser = Callable[[Any, str, Place], Any]


def boolean(_old: Any, text: str, _place: Place) -> bool:
    """yes or no in systemd's words."""
    value = values.boolean(text)
    if value is None:
        raise IgnoredError("neither yes nor no; write yes or no, and comments on lines of their own")
    return value


def fatal_boolean(old: Any, text: str, place: Place) -> bool:
    """A boolean without which systemd does not load the unit."""
    try:
        return boolean(old, text, place)
    except IgnoredError:
        raise RefusedError("neither yes nor no; write yes or no") from None


def memory(*, zero: bool = False, empty: int = values.INFINITE) -> Parser:
    """Bytes, a share of the machine's memory, or infinity."""

    def parse(_old: Any, text: str, place: Place) -> int:
        if not text:
            return empty
        if text == "infinity":
            return values.INFINITE
        parts = values.share(text)
        size = values.size(text) if parts is None else values.share_of(parts, place.memory_bytes, place.page_bytes)
        if size is None:
            raise IgnoredError(
                "no size; write bytes, a number with K, M, G or T such as 4G, a share such as 80%, or infinity"
            )
        if size >= values.INFINITE or (size == 0 and not zero):
            raise IgnoredError("out of range; write at least 1, or infinity")
        return size

    return parse


def score(_old: Any, text: str, _place: Place) -> int | None:
    """OOMScoreAdjust=."""
    if not text:
        return None
    value = values.integer(text)
    if value is None:
        raise IgnoredError("no whole number; write one from -1000 to 1000")
    if not -1000 <= value <= 1000:
        raise IgnoredError("out of range; write a number from -1000 to 1000")
    return value


def span(_old: Any, text: str, _place: Place) -> int:
    """A time span, in microseconds."""
    value = values.time_span(text)
    if value is None:
        raise IgnoredError("no time span; write seconds, or a number with a unit such as 500ms or 1min 30s")
    return value


def count(_old: Any, text: str, _place: Place) -> int:
    """A number from 0 (safe_atou)."""
    value = values.integer(text)
    if value is None or value < 0:
        raise IgnoredError("no number; write one from 0")
    return value


def word_of(*allowed: str, yes: str = "", no: str = "", empty: str = "") -> Parser:
    """One word of a list, exactly; with `yes` and `no` also a boolean, which stands for these words."""

    def parse(_old: Any, text: str, _place: Place) -> str:
        if empty and not text:
            return empty
        if yes:
            value = values.boolean(text)
            if value is not None:
                return yes if value else no
        if text not in allowed:
            raise IgnoredError(f"none of {', '.join(allowed)}, as written here")
        return text

    return parse


def delegate(old: frozenset[str] | None, text: str, place: Place) -> frozenset[str] | None:
    """Delegate=: None for off, else the controllers that are handed over."""
    if names.type_of(place.unit) not in ("service", "scope"):
        raise IgnoredError("a unit of this type cannot delegate; remove it")
    if not text:
        return frozenset()
    value = values.boolean(text)
    if value is not None:
        return DELEGATED if value else None
    return (old or frozenset()) | _known_words(text, CONTROLLERS)


def controllers(old: frozenset[str], text: str, _place: Place) -> frozenset[str]:
    """DisableControllers=."""
    return old | _known_words(text, CONTROLLERS) if text else frozenset()


def capabilities(initial: frozenset[str]) -> Parser:
    """CapabilityBoundingSet= and AmbientCapabilities=: lists add up, "~" takes away, an empty one resets."""

    def parse(old: frozenset[str], text: str, place: Place) -> frozenset[str]:
        invert = text.startswith("~")
        given = _capabilities(text.removeprefix("~"), place.version)
        if not given or old == initial:
            return ALL_CAPABILITIES - given if invert else given
        return old - given if invert else old | given

    return parse


def paths(old: Sequence[str], text: str, place: Place) -> Sequence[str]:
    """ReadWritePaths= and its kin: absolute, perhaps with "-" or "+" before it; an empty value resets."""
    if not text:
        return ()
    found: list[str] = []
    for word in _words(text):
        path = place.expand(word)
        bare = (path or "").removeprefix("-").removeprefix("+")
        parts = [part for part in bare.split("/") if part not in ("", ".")]
        if bare.startswith("/") and ".." not in parts:
            found.append(f"{(path or '')[: len(path or '') - len(bare)]}/{'/'.join(parts)}")
    return _more(old, found)


def slice_name(_old: Any, text: str, place: Place) -> str:
    """Slice=."""
    name = place.expand(text)
    if name is None or not names.valid(name) or names.type_of(name) != "slice" or "@" in name:
        raise IgnoredError("not the name of a slice; write one such as inference.slice")
    if names.type_of(place.unit) == "slice":
        raise IgnoredError("a slice lies in the one that its name says; remove it")
    return name


def exec_list(old: Sequence[commands.Command], text: str, place: Place) -> Sequence[commands.Command]:
    """ExecStart= and its kin: they add up, an empty value resets."""
    return _more(old, commands.parse(text, place.expand)) if text else ()


def expanded(_old: Any, text: str, place: Place) -> str:
    """Text with specifiers."""
    value = place.expand(text)
    if value is None:
        raise IgnoredError("cannot resolve its specifiers")
    return value


def account(_old: Any, text: str, place: Place) -> str:
    """User= and Group=: a name or a number; a wrong one is fatal."""
    if not text:
        return ""
    name = place.expand(text) or ""
    if not name or name in (".", "..") or name != name.strip() or not name.isprintable() or set(name) & set(":/"):
        raise RefusedError("no name and no number of a user or group")
    return name


def accounts(old: Sequence[str], text: str, place: Place) -> Sequence[str]:
    """SupplementaryGroups=."""
    return _more(old, [account("", word, place) for word in _words(text)]) if text else ()


def fatal_path(_old: Any, text: str, place: Place) -> str:
    """A path without which systemd does not load the unit; with "-" before it, it may be missing or wrong."""
    path = place.expand(text.removeprefix("-"))
    if text and text != "~" and (path is None or not path.startswith("/")):
        raise (IgnoredError if text.startswith("-") else RefusedError)("not an absolute path")
    return path or ""


def service_type(_old: Any, text: str, place: Place) -> str:
    """Type=."""
    since_253 = ("notify-reload",) if place.version >= 253 else ()
    return str(word_of("simple", "exec", "forking", "oneshot", "dbus", "notify", "idle", *since_253)(None, text, place))


def pressure_share(_old: Any, text: str, _place: Place) -> int:
    """ManagedOOMMemoryPressureLimit=, in parts of 10,000; 0 is "not set"."""
    parts = values.share(text) if text else 0
    if parts is None:
        raise IgnoredError("no share; write one such as 60%")
    return parts


def _more(old: Sequence[_T], found: list[_T]) -> list[_T]:
    """What was there, and more. The list is the unit's own and grows in place: copies would take a square of time."""
    if not isinstance(old, list):
        return [*old, *found]
    old.extend(found)
    return old


def _capabilities(text: str, version: int) -> frozenset[str]:
    """The capabilities of a list, by name in any case, or by number; an open quote ended it until 252, not in 257."""
    numbered = {str(number): name for number, name in enumerate(CAPABILITIES)}
    found = [word.lower() for word in words.split(text, tolerant=True, open_quotes=version > 252)]
    return frozenset(
        numbered.get(word, word.removeprefix("cap_"))
        for word in found
        if word in numbered or (word.startswith("cap_") and word.removeprefix("cap_") in ALL_CAPABILITIES)
    )


def _words(text: str) -> list[str]:
    try:
        return words.split(text)
    except words.UnbalancedError:
        raise IgnoredError("a quote or an escape is not closed; close it") from None


def _known_words(text: str, known: tuple[str, ...]) -> frozenset[str]:
    """Those words of a list that are known; systemd leaves out the others."""
    return frozenset(word for word in _words(text) if word in known)
