"""Specifiers in values: %i, %n, %t and the others, as systemd puts them in (unit_full_printf, systemd.unit(5)).

Must not: ask the machine: what only the running system knows (host name, boot id, uid) stays as it is written.
Upstream: unitnames. Downstream: commands, settings.
"""

import re

from edgeguardd.isolate import unitnames as names

# What %T and %V stand for in a unit; nothing is put there.
_TMP, _VAR_TMP = "/tmp", "/var/tmp"  # noqa: S108
_OF_THE_MACHINE = frozenset("abcdlmoqrsvwyABHMRWY")
_SPECIFIER = re.compile(r"%(.)", re.DOTALL)
_SYSTEM = {
    "t": "/run",
    "S": "/var/lib",
    "C": "/var/cache",
    "L": "/var/log",
    "E": "/etc",
    "T": _TMP,
    "V": _VAR_TMP,
    "u": "root",
    "U": "0",
    "g": "root",
    "G": "0",
    "h": "/root",
}
_USER = {
    "t": "/run/user/%U",
    "S": "%h/.local/state",
    "C": "%h/.cache",
    "L": "%h/.local/state/log",
    "E": "%h/.config",
    "T": _TMP,
    "V": _VAR_TMP,
}


def expanded(text: str, name: str, *, fragment: str = "", user: bool = False) -> str | None:
    """The text with the unit's own specifiers put in.

    None: one cannot be resolved: a letter that stands for nothing, or `%I` of a name with a broken escape. A percent
    sign before anything else stays.
    """
    if "%" not in text:
        return text
    table = _table(name, fragment, user=user)
    unresolved = False

    def one(found: re.Match[str]) -> str:
        nonlocal unresolved
        if found[1] not in table:
            unresolved = unresolved or (found[1].isascii() and found[1].isalnum() and found[1] not in _OF_THE_MACHINE)
            return found[0]
        value = table[found[1]]
        unresolved = unresolved or value is None
        return value or ""

    put_in = _SPECIFIER.sub(one, text)
    return None if unresolved else put_in


def _table(name: str, fragment: str, *, user: bool) -> dict[str, str | None]:
    prefix, instance = names.prefix_of(name), names.instance_of(name)
    last = prefix.rpartition("-")[2]
    path = names.unescaped(prefix if instance is None else instance)
    return {
        "%": "%",
        "n": name,
        "N": name.rpartition(".")[0],
        "p": prefix,
        "P": names.unescaped(prefix),
        "i": instance or "",
        "I": names.unescaped(instance or ""),
        "j": last,
        "J": names.unescaped(last),
        "f": None if path is None else "/" + path.lstrip("/"),
        **({"y": fragment, "Y": fragment.rpartition("/")[0]} if fragment else {}),
        **(_USER if user else _SYSTEM),
    }
