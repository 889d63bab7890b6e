"""What systemd itself makes of unit files: `systemd --test` loads them and prints all it has, and nothing is started.

It runs as any user but root. Skips by name where systemd is not installed, or cannot do this here.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAM = next((path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if os.path.exists(path)), None)
NOBODY = 65534
TIMEOUT_S = 60
_UNLIMITED = str(2**64 - 1)
_SIZES = ("MemoryMin", "MemoryLow", "MemoryHigh", "MemoryMax", "MemorySwapMax")
_WORDS = (
    *("Slice", "ProtectSystem", "ProtectHome", "Restart", "RestartSec", "OOMPolicy", "Type", "Delegate"),
    *("ManagedOOMSwap", "ManagedOOMMemoryPressure", "ManagedOOMPreference", "ManagedOOMMemoryPressureLimit"),
)
# What every service needs besides itself, so that loading it complains of nothing.
_TARGETS = ("sysinit", "basic", "shutdown", "sockets")


@contextmanager
def folder() -> Iterator[str]:
    """A directory that everybody can read, unlike pytest's."""
    path = tempfile.mkdtemp(prefix="eg-units-", dir="/tmp")
    os.chmod(path, 0o755)  # noqa: S103  for the user that systemd runs as
    try:
        yield path
    finally:
        shutil.rmtree(path)


def version() -> int:
    """Of the installed systemd; skips without one."""
    if PROGRAM is None:
        pytest.skip("needs systemd: no /usr/lib/systemd/systemd here")
    words = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return int(words[1])


def loaded(units: Sequence[str], folders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Name or alias -> what systemd has for the unit, in the keys and values of the audit's `effective`."""
    version()
    assert PROGRAM is not None
    with folder() as own:
        wanted = " ".join(units)
        _write(f"{own}/wanted.target", f"[Unit]\nDefaultDependencies=no\nWants={wanted}\n")
        for target in _TARGETS:
            _write(f"{own}/{target}.target", "[Unit]\nDefaultDependencies=no\n")
        somebody = NOBODY if os.geteuid() == 0 else None
        done = subprocess.run(
            [PROGRAM, "--test", "--system", "--unit=wanted.target", "--no-pager"],
            env={"SYSTEMD_UNIT_PATH": ":".join((*folders, own)), "HOME": "/root", "PATH": os.defpath},
            user=somebody,
            group=somebody,
            extra_groups=None if somebody is None else [],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    # Newer versions draw the arrow.
    dump = done.stdout.decode(errors="replace").replace("\u2192 ", "-> ")
    if "-> Unit wanted.target:" not in dump:
        pytest.skip(f"needs systemd --test: it says {done.stderr.decode(errors='replace').strip()[-200:]!r}")
    found: dict[str, dict[str, Any]] = {}
    for block in re.split(r"^\t-> Unit ", dump.partition("-> By jobs:")[0], flags=re.MULTILINE)[1:]:
        name, _, rest = block.partition(":\n")
        fields = _fields(rest)
        for one in (name, *fields.get("Alias", ())):
            found[one] = {"name": name, **_effective(fields)}
    return found


def _fields(block: str) -> dict[str, list[str]]:
    """Key -> its values. Command lines get the key of what they are for."""
    fields: dict[str, list[str]] = {}
    command = ""
    for line in block.split("\n"):
        key, _, value = line.strip(" \t").partition(":")
        if key.startswith("-> "):
            command = key[3:]
        elif key == "Command Line":
            fields.setdefault(command, []).append(value.strip(" \t"))
        else:
            fields.setdefault(key, []).append(value.strip(" \t"))
    return fields


def _effective(fields: dict[str, list[str]]) -> dict[str, Any]:
    first = {key: values[0] for key, values in fields.items()}
    state = first.get("Unit Load State")
    if state != "loaded":
        return {"load_state": state}
    shown: dict[str, Any] = {"load_state": state, "fragment": first.get("Fragment Path")}
    shown["drop_ins"] = fields.get("DropIn Path", [])
    shown["aliases"] = sorted(fields.get("Alias", []))
    shown |= {key: _size(first[key]) for key in _SIZES if key in first}
    shown |= {key: first[key] for key in _WORDS if key in first}
    if shown.get("Delegate", "no") != "no":
        shown["Delegate"] = "yes"  # newer versions name the controllers
    # Run by a user, it shows what that user's manager would set: 100.
    if first.get("OOMScoreAdjust", "100") != "100":
        shown["OOMScoreAdjust"] = int(first["OOMScoreAdjust"])
    if "CapabilityBoundingSet" in first:
        shown["CapabilityBoundingSet"] = " ".join(sorted(first["CapabilityBoundingSet"].split()))
    lines = fields.get("ExecStart", [])
    if lines:
        shown["ExecStart"] = lines[0] if len(lines) == 1 else lines
    return shown


def _size(text: str) -> int | str:
    return "infinity" if text == _UNLIMITED else int(text)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
