"""Kind of kernel file -> what the daemon makes of its bytes, as a JSON object: the table behind `edgeguardctl parse`.

Must not: read files, or hold a format of its own (kernelfmt and procfmt do). Upstream: kernelfmt, procfmt.
Downstream: cli.parse.
Every parser of KINDS takes bytes and raises FormatError, and nothing else. Absent well-known keys are null.
"""

import errno
import re
from collections.abc import Callable, Mapping
from functools import partial

from edgeguardd.core import kernelfmt, procfmt

Json = dict[str, object]
Parser = Callable[[bytes], Json]

_STAT_KEYS = (
    *("anon", "file", "kernel", "kernel_stack", "pagetables", "sec_pagetables", "percpu", "sock", "vmalloc", "shmem"),
    *("zswap", "zswapped", "file_mapped", "file_dirty", "file_writeback", "swapcached"),
    *("inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"),
    *("slab_reclaimable", "slab_unreclaimable", "slab", "pgfault", "pgmajfault"),
    *("workingset_refault", "workingset_refault_anon", "workingset_refault_file"),
)
_MEMINFO_KEYS = (
    *("MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "SwapCached", "SwapTotal", "SwapFree"),
    *("Zswap", "Zswapped", "Shmem", "SReclaimable", "SUnreclaim", "HighTotal", "HighFree", "LowTotal", "LowFree"),
    *("CmaTotal", "CmaFree", "NvMapMemFree", "NvMapMemUsed", "HugePages_Total"),
)
_EVENTS = ("memory.events", "memory.events.local")
_LIMITS = (
    *("memory.max", "memory.high", "memory.low", "memory.min", "memory.swap.max", "memory.swap.high"),
    *("memory.zswap.max", "pids.max", "cgroup.max.depth", "cgroup.max.descendants"),
)
_NUMBERS = (
    *("memory.current", "memory.peak", "memory.swap.current", "memory.swap.peak", "memory.zswap.current"),
    *("memory.oom.group", "pids.current", "pids.peak", "cgroup.freeze", "cgroup.pressure"),
    *("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt"),
)
_V1_LIMITS = (
    *("memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.memsw.limit_in_bytes"),
    "memory.kmem.limit_in_bytes",
)
_FLAT_KEYED: Mapping[str, tuple[str, ...]] = {
    "memory.swap.events": ("high", "max", "fail"),
    "cgroup.events": ("populated", "frozen"),
    "cgroup.stat": ("nr_descendants", "nr_dying_descendants"),
    "cpu.stat": ("usage_usec", "user_usec", "system_usec"),
    "pids.events": ("max",),
}
_PRESSURES = tuple(
    name for what in ("memory", "cpu", "io", "irq") for name in (f"{what}.pressure", f"/proc/pressure/{what}")
)
_WORDS = ("cgroup.controllers", "cgroup.subtree_control")

_PROC_PID = re.compile(r"/proc/(?:PID|self|thread-self|\d+)/(cgroup|mountinfo)")


def _events(name: str, data: bytes) -> Json:
    counters = kernelfmt.memory_events(data, name)
    return {name: getattr(counters, name) for name in counters.__struct_fields__}


def _flat_keyed(name: str, well_known: tuple[str, ...], data: bytes) -> Json:
    found = kernelfmt.flat_keyed(data, name)
    return dict.fromkeys(well_known) | {key: value for key, value in found.items() if value is not None}


def _stat(data: bytes) -> Json:
    shown = _flat_keyed("memory.stat", _STAT_KEYS, data)
    wanted = kernelfmt.memory_stat(data)
    active, inactive = shown["active_file"], shown["inactive_file"]
    # What reclaim looks at for file pages is these two lists; shmem is on the anon lists and not among it.
    known = isinstance(active, int) and isinstance(inactive, int)
    return shown | {
        "reclaimable_file": active + inactive if known else None,  # type: ignore[operator]
        "needed_bytes": kernelfmt.needed_bytes(wanted),
        "refaults": kernelfmt.refaults(wanted),
    }


def _limit(name: str, data: bytes) -> Json:
    value = kernelfmt.limit(data, name)
    return {"value": value, "unlimited": value is None}


def _v1_limit(name: str, data: bytes) -> Json:
    value = kernelfmt.v1_limit(data, name)
    return {"value": value, "unlimited": value is None}


def _number(name: str, data: bytes) -> Json:
    return {"value": kernelfmt.number(data, name)}


def _cpu_max(data: bytes) -> Json:
    value = kernelfmt.cpu_max(data)
    return {"quota": value.quota_us, "period": value.period_us}


def _pressure(name: str, data: bytes) -> Json:
    value = kernelfmt.pressure(data, name)
    if value is None:
        return {"supported": False}
    return {"some": _stall(value.some), "full": _stall(value.full)}


def _stall(stall: kernelfmt.Stall | None) -> Json | None:
    if stall is None:
        return None
    return {"avg10": stall.avg10, "avg60": stall.avg60, "avg300": stall.avg300, "total": stall.total_us}


def _words(data: bytes) -> Json:
    return {"value": list(kernelfmt.words(data))}


def _membership(data: bytes) -> Json:
    value = procfmt.membership(data)
    # A process is listed once for each mounted hierarchy, and a controller belongs to one hierarchy: where no v1 line
    # has memory and a v2 line exists, memory is v2's, unless the controller is off altogether (/proc/cgroups tells).
    controller = "v1" if value.memory_v1_path is not None else "v2" if value.v2_path is not None else None
    return {
        "v2_path": value.v2_path,
        "deleted": value.deleted,
        "memory_controller": controller,
        "usable_v2_memory": controller == "v2",
        "memory_v1_path": value.memory_v1_path,
        "outside_namespace": value.outside_namespace,
    }


def _controllers(data: bytes) -> Json:
    value = procfmt.controllers(data)
    return {"memory_enabled": value.memory_enabled, "memory_hierarchy": value.memory_hierarchy}


def _mounts(data: bytes) -> Json:
    value = procfmt.mounts(data)
    return {"cgroup2": list(value.cgroup2), "memory_v1": list(value.memory_v1)}


def _meminfo(data: bytes) -> Json:
    value = procfmt.meminfo(data)
    return {
        **dict.fromkeys(_MEMINFO_KEYS),
        **value.values,
        "swap_used": value.swap_used_kb,
        "implausible": list(value.implausible),
        "without_unit": list(value.without_unit),
    }


KINDS: Mapping[str, Parser] = {
    **{name: partial(_events, name) for name in _EVENTS},
    "memory.stat": _stat,
    **{name: partial(_limit, name) for name in _LIMITS},
    **{name: partial(_number, name) for name in _NUMBERS},
    **{name: partial(_v1_limit, name) for name in _V1_LIMITS},
    **{name: partial(_flat_keyed, name, keys) for name, keys in _FLAT_KEYED.items()},
    **{name: partial(_pressure, name) for name in _PRESSURES},
    **dict.fromkeys(_WORDS, _words),
    "cpu.max": _cpu_max,
    "/proc/PID/cgroup": _membership,
    "/proc/PID/mountinfo": _mounts,
    "/proc/cgroups": _controllers,
    "/proc/meminfo": _meminfo,
}


def kind_of(word: str) -> str | None:
    """The row of KINDS that a word names: a kind, /proc/self/cgroup or any pid's, or the full path of such a file."""
    if word in KINDS:
        return word
    proc = _PROC_PID.fullmatch(word)
    if proc:
        return f"/proc/PID/{proc[1]}"
    base = word.rpartition("/")[2]
    return base if base in KINDS else None


def read_error(kind: str, number: int) -> Json | None:
    """What the daemon makes of a read of this kind that failed with this errno; None: a plain error.

    ENODEV: the cgroup is gone and its descriptor dead for good. ESRCH and ENOENT on /proc/PID: the process is gone.
    EOPNOTSUPP on a PSI file: compiled in and switched off (psi=0). ENOENT: this kernel, or the root cgroup, has no such
    file.
    """
    if number == errno.ENODEV:
        return {"cgroup_removed": True, "drop_watch": True}
    if kind in _PRESSURES:
        if number == errno.EOPNOTSUPP:
            return {"psi_available": False, "log_once": True, "other_metrics_unaffected": True}
        return {"psi_available": False} if number == errno.ENOENT else None
    if kind == "/proc/PID/cgroup":
        return {"process_gone": True} if number in (errno.ENOENT, errno.ESRCH) else None
    if number == errno.ENOENT and not kind.startswith("/proc/"):
        return {"value": None, "feature_missing": True}
    return None
