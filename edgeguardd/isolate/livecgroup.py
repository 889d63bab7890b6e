"""What the kernel really has for a running unit: its cgroup's files, its controllers, its processes' scores.

Must not: judge, write. Upstream: unit. Downstream: cli.audit.
"""

import os

from edgeguardd.isolate import unitnames as names
from edgeguardd.isolate.findings import Live
from edgeguardd.isolate.unit import LOADED, Unit

FILES = ("memory.min", "memory.low", "memory.high", "memory.max", "memory.swap.max")
_MAX_PROCESSES = 64
_MAX_FILE_BYTES = 65536


def cgroup_of(unit: Unit) -> str:
    """Where systemd puts a unit of the system, relative to the root of cgroup v2."""
    above = [one.name for one in reversed(unit.slices) if one.name != names.ROOT_SLICE]
    own = [] if unit.name == names.ROOT_SLICE else [unit.name]
    return "/" + "/".join([*above, *own])


def look(unit: Unit, cgroup_root: str, proc: str = "/proc") -> Live | None:
    """The figures of a unit that runs; None for one that has no cgroup."""
    if unit.load_state != LOADED or unit.kind not in names.WITH_CGROUP:
        return None
    place = cgroup_of(unit)
    directory = os.path.join(cgroup_root, place.lstrip("/"))
    if not os.path.isdir(directory):
        return None
    found = {file: text for file in FILES if (text := _text(f"{directory}/{file}")) is not None}
    controllers = _text(f"{directory}/cgroup.controllers")
    pids = [int(pid) for pid in (_text(f"{directory}/cgroup.procs") or "").split() if pid.isdigit()]
    scores = {
        pid: score for pid in pids[:_MAX_PROCESSES] if (score := _score(f"{proc}/{pid}/oom_score_adj")) is not None
    }
    return Live(place, found, None if controllers is None else frozenset(controllers.split()), scores, has_swap(proc))


def memory_bytes(proc: str = "/proc") -> int | None:
    """MemTotal of this machine."""
    return _meminfo(proc, "MemTotal:")


def has_swap(proc: str = "/proc") -> bool | None:
    """Whether this machine has swap; None when it does not tell."""
    total = _meminfo(proc, "SwapTotal:")
    return None if total is None else total > 0


def _meminfo(proc: str, key: str) -> int | None:
    lines = (_text(f"{proc}/meminfo") or "").splitlines()
    fields = next((line.split() for line in lines if line.startswith(key)), [])
    return int(fields[1]) * 1024 if len(fields) >= 2 and fields[1].isdigit() else None


def _score(path: str) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.removeprefix("-").isdigit() else None


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return None
