"""What the running systemd says of a unit: `systemctl show`, asked first where it answers.

Must not: judge, change anything. Upstream: unit, values. Downstream: cli.audit.
Files may have changed since the last daemon-reload, and `systemctl set-property` writes past them: what systemd says
is what is in force, and where the two differ that is a finding.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, structs

from edgeguardd.core import systemdvalues as values
from edgeguardd.isolate.unit import LOADED, Unit

_TIMEOUT_S = 10
# Not set by most units; systemd then shows what system.conf or the unit's name give.
_DEFAULTED = ("OOMPolicy", "Slice")
_SIZES = ("MemoryMin", "MemoryLow", "MemoryHigh", "MemoryMax", "MemorySwapMax")
_WORDS = ("ProtectSystem", "ProtectHome", "Restart", "OOMPolicy", "Slice")


class Shown(Struct, frozen=True):
    """The answer: our key -> the value as settings has it, and the words of systemctl."""

    values: Mapping[str, Any]
    words: Mapping[str, str]


def version() -> int | None:
    """Of the installed systemd; None without one."""
    answer = _run("--version")
    fields = (answer or "").split()
    return int(fields[1]) if len(fields) > 1 and fields[0] == "systemd" and fields[1].isdigit() else None


def show(name: str, *, user: bool) -> Shown | None:
    """What systemd has for a unit; None where systemd is not running, or has not loaded it."""
    asked = (*_SIZES, *_WORDS, "NoNewPrivileges", "RestartUSec", "LoadState")
    answer = _run(*(["--user"] if user else []), "show", f"--property={','.join(asked)}", "--", name)
    if answer is None:
        return None
    words = dict(line.partition("=")[::2] for line in answer.splitlines() if "=" in line)
    return Shown(parsed(words), words) if words.get("LoadState") == LOADED else None


def parsed(words: Mapping[str, str]) -> dict[str, Any]:
    """Our values for those keys that systemctl answered and that can be read."""
    found: dict[str, Any] = {}
    for key in _SIZES:
        _take(found, key, words.get(key), _size)
    for key in _WORDS:
        _take(found, key, words.get(key), lambda text: text or None)
    _take(found, "NoNewPrivileges", words.get("NoNewPrivileges"), values.boolean)
    _take(found, "RestartSec", words.get("RestartUSec"), values.time_span)
    return found


def in_force(unit: Unit, shown: Shown) -> tuple[Unit, list[str]]:
    """The unit with what systemd has, and in words where that is not what the files say.

    What the files do not set is no difference; a guarantee then stays unset, since a slice above may give one.
    """
    dynamic = unit.values["DynamicUser"]
    implied = {"NoNewPrivileges": True, "ProtectSystem": "strict", "ProtectHome": "read-only"} if dynamic else {}
    other: list[str] = []
    for key, there in shown.values.items():
        ours = unit.values.get(key)
        if ours is None or ours == there or implied.get(key) == there:
            continue
        asked = "RestartUSec" if key == "RestartSec" else key
        other.append(f"{key} is {shown.words.get(asked)} in systemd")
    known = {key: there for key, there in shown.values.items() if unit.values.get(key) is not None or key in _DEFAULTED}
    return structs.replace(unit, values={**unit.values, **known}), other


def _size(text: str) -> int | None:
    return values.INFINITE if text == "infinity" else int(text) if text.isascii() and text.isdigit() else None


def _take(found: dict[str, Any], key: str, text: str | None, parse: Callable[[str], Any]) -> None:
    value = parse(text) if text is not None else None
    if value is not None:
        found[key] = value


def _run(*words: str) -> str | None:
    program = shutil.which("systemctl")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603  fixed words, and a name that unitnames.valid has passed behind "--"
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
