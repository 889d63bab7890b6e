"""A loaded unit -> what is in force for it, in the words of `systemctl show`: the `effective` of the audit.

Must not: judge. Upstream: unit. Downstream: rules, reports, cli.audit.
Sources: unit_patch_contexts() in src/core/unit.c, cgroup_context_apply() in src/core/cgroup.c (252).
"""

from typing import Any

from edgeguardd.core import systemdvalues as values
from edgeguardd.isolate.settingvalues import ALL_CAPABILITIES
from edgeguardd.isolate.unit import LOADED, Unit, slice_of

INFINITY = "infinity"

_SIZES = ("MemoryHigh", "MemoryMax", "MemorySwapMax")
_GUARANTEES = ("MemoryMin", "MemoryLow")
_EXEC_KINDS = ("service", "socket", "mount", "swap")
_DROPPED_BY = {  # what the sandbox takes out of the bounding set
    "ProtectKernelModules": {"sys_module"},
    "ProtectKernelLogs": {"syslog"},
    "ProtectClock": {"sys_time", "wake_alarm"},
    "PrivateDevices": {"mknod", "sys_rawio"},
}


def effective(unit: Unit) -> dict[str, Any]:
    """Key -> value. Sizes in bytes or "infinity"; what is not set is None; time spans in systemd's words."""
    if unit.load_state != LOADED:
        return {"load_state": unit.load_state}
    shown: dict[str, Any] = {"load_state": unit.load_state, "Slice": slice_of(unit)}
    if unit.slices or unit.kind == "slice":
        shown |= _memory(unit)
    if unit.kind in _EXEC_KINDS:
        shown |= _execution(unit)
    if unit.kind == "service":
        shown |= _service(unit)
    return shown


def size(number: int | None) -> int | str | None:
    """Bytes, or "infinity" for no limit."""
    return INFINITY if number == values.INFINITE else number


def applied_guarantee(unit: Unit, key: str) -> int:
    """MemoryMin or MemoryLow that systemd writes: the unit's own, else the nearest Default… of a slice above."""
    own: int | None = unit.values[key]
    if own is not None:
        return own
    inherited = (above.values.get(f"Default{key}") for above in unit.slices if above.load_state == LOADED)
    return next((found for found in inherited if found is not None), 0)


def memory_limit_applies(unit: Unit) -> bool:
    """Whether MemoryLimit= becomes memory.max: only while none of the newer settings is there."""
    guaranteed = any(applied_guarantee(unit, key) > 0 for key in _GUARANTEES)
    limit: int = unit.values["MemoryLimit"]
    return limit != values.INFINITE and not guaranteed and all(unit.values[key] == values.INFINITE for key in _SIZES)


def hard_limit(unit: Unit) -> int:
    """What systemd writes to memory.max of the unit itself."""
    limit: int = unit.values["MemoryLimit"] if memory_limit_applies(unit) else unit.values["MemoryMax"]
    return limit


def tightest(unit: Unit, key: str) -> tuple[int, Unit]:
    """The least MemoryHigh or MemoryMax on the way to the root, and the unit that has it."""
    found = (unit.values[key] if key != "MemoryMax" else hard_limit(unit), unit)
    for above in unit.slices:
        if above.load_state == LOADED:
            limit = above.values[key] if key != "MemoryMax" else hard_limit(above)
            found = (limit, above) if limit < found[0] else found
    return found


def disabled_controllers(unit: Unit) -> dict[str, Unit]:
    """Controller -> the unit, it or a slice above, whose DisableControllers= takes it away from this unit."""
    return {
        one: place for place in reversed((unit, *unit.slices)) for one in place.values.get("DisableControllers", ())
    }


def bounding_set(unit: Unit) -> frozenset[str]:
    """The capabilities that are left, what the sandbox takes away taken away."""
    dropped = {one for key, gone in _DROPPED_BY.items() if unit.values[key] for one in gone}
    kept: frozenset[str] = unit.values["CapabilityBoundingSet"]
    return kept - dropped


def _memory(unit: Unit) -> dict[str, Any]:
    given = unit.values
    shown: dict[str, Any] = {key: size(given[key]) for key in _SIZES}
    shown |= {key: size(applied_guarantee(unit, key)) for key in _GUARANTEES}
    if given["MemoryLimit"] != values.INFINITE:
        shown["MemoryLimit"] = given["MemoryLimit"]
    for key in ("MemoryZSwapMax", *(key for key in given if key.startswith(("StartupMemory", "DefaultMemory")))):
        if key in unit.set_at:
            shown[key] = size(given[key])
    shown["EffectiveMemoryMax"] = size(tightest(unit, "MemoryMax")[0])
    shown["EffectiveMemoryHigh"] = size(tightest(unit, "MemoryHigh")[0])
    shown["MemoryAccounting"] = "yes" if given["MemoryAccounting"] else "no"
    shown["Delegate"] = "no" if given["Delegate"] is None else "yes"
    if given["Delegate"]:
        shown["DelegateControllers"] = " ".join(sorted(given["Delegate"]))
    if given["DisableControllers"]:
        shown["DisableControllers"] = " ".join(sorted(given["DisableControllers"]))
    shown |= {key: given[key] for key in ("ManagedOOMSwap", "ManagedOOMMemoryPressure", "ManagedOOMPreference")}
    parts = given["ManagedOOMMemoryPressureLimit"]
    shown["ManagedOOMMemoryPressureLimit"] = f"{parts // 100}.{parts % 100:02d}%"
    return shown


def _execution(unit: Unit) -> dict[str, Any]:
    given, dynamic = unit.values, unit.values["DynamicUser"]
    home = "read-only" if dynamic and given["ProtectHome"] == "no" else given["ProtectHome"]
    kept = bounding_set(unit)
    return {
        "OOMScoreAdjust": given["OOMScoreAdjust"],
        "NoNewPrivileges": given["NoNewPrivileges"] or dynamic,
        "ProtectSystem": "strict" if dynamic else given["ProtectSystem"],
        "ProtectHome": home,
        "DynamicUser": dynamic,
        "User": given["User"],
        "CapabilityBoundingSet": "all" if kept == ALL_CAPABILITIES else " ".join(f"cap_{one}" for one in sorted(kept)),
        "AmbientCapabilities": " ".join(f"cap_{one}" for one in sorted(given["AmbientCapabilities"])),
        "ReadWritePaths": list(given["ReadWritePaths"]),
    }


def _service(unit: Unit) -> dict[str, Any]:
    given = unit.values
    lines = [command.line() for command in given["ExecStart"]]
    return {
        "Type": given["Type"],
        "OOMPolicy": oom_policy(unit),
        "Restart": given["Restart"],
        "RestartSec": values.shown_span(given["RestartSec"]),
        "ExecStart": lines[0] if len(lines) == 1 else lines,
        "StartLimitIntervalSec": values.shown_span(given["StartLimitIntervalSec"]),
        "StartLimitBurst": given["StartLimitBurst"],
    }


def oom_policy(unit: Unit) -> str:
    """OOMPolicy=, else continue for what delegates its cgroup, stop for the rest."""
    return unit.values["OOMPolicy"] or ("stop" if unit.values["Delegate"] is None else "continue")
