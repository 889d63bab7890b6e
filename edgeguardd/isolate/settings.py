"""The settings the audit reads: key -> how systemd parses its value, and what holds without one.

Must not: parse, know rules. Upstream: settingvalues. Downstream: unit, auditpage.
Sources: systemd.exec(5), systemd.resource-control(5), systemd.service(5).
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from edgeguardd.core import systemdvalues as values
from edgeguardd.isolate.settingvalues import (
    ALL_CAPABILITIES,
    Parser,
    account,
    accounts,
    boolean,
    capabilities,
    controllers,
    count,
    delegate,
    exec_list,
    expanded,
    fatal_boolean,
    fatal_path,
    memory,
    paths,
    pressure_share,
    score,
    service_type,
    slice_name,
    span,
    word_of,
)


class Setting(Struct, frozen=True):
    """A key with its parser and the value of a unit that does not set it. `also`: what else it is called."""

    key: str
    parse: Parser
    default: Any
    also: tuple[str, ...] = ()


_GUARANTEE = memory(zero=True, empty=0)
_LIMIT = memory()
_SWAP = memory(zero=True)
_KILL = word_of("auto", "kill", empty="auto")

ACTIONS = word_of(
    *("none", "reboot", "reboot-force", "reboot-immediate", "poweroff", "poweroff-force", "poweroff-immediate"),
    *("exit", "exit-force", "soft-reboot", "soft-reboot-force", "kexec", "kexec-force", "halt", "halt-force"),
    "halt-immediate",
)

SETTINGS = (
    Setting("MemoryMin", _GUARANTEE, None),
    Setting("MemoryLow", _GUARANTEE, None),
    Setting("DefaultMemoryMin", _GUARANTEE, None),
    Setting("DefaultMemoryLow", _GUARANTEE, None),
    Setting("MemoryHigh", _LIMIT, values.INFINITE),
    Setting("MemoryMax", _LIMIT, values.INFINITE),
    Setting("MemorySwapMax", _SWAP, values.INFINITE),
    Setting("MemoryZSwapMax", _SWAP, values.INFINITE),
    Setting("MemoryLimit", _LIMIT, values.INFINITE),
    Setting("StartupMemoryLow", _GUARANTEE, None),
    Setting("StartupMemoryHigh", _LIMIT, None),
    Setting("StartupMemoryMax", _LIMIT, None),
    Setting("StartupMemorySwapMax", _SWAP, None),
    Setting("StartupMemoryZSwapMax", _SWAP, None),
    Setting("MemoryAccounting", boolean, True),
    Setting("Slice", slice_name, None),
    Setting("Delegate", delegate, None),
    Setting("DisableControllers", controllers, frozenset()),
    Setting("ManagedOOMSwap", _KILL, "auto"),
    Setting("ManagedOOMMemoryPressure", _KILL, "auto"),
    Setting("ManagedOOMMemoryPressureLimit", pressure_share, 0),
    Setting("ManagedOOMPreference", word_of("none", "avoid", "omit"), "none"),
    Setting("OOMScoreAdjust", score, None),
    Setting("OOMPolicy", word_of("continue", "stop", "kill"), None),
    Setting("NoNewPrivileges", boolean, False),
    Setting("ProtectSystem", word_of("no", "yes", "full", "strict", yes="yes", no="no"), "no"),
    Setting("ProtectHome", word_of("no", "yes", "read-only", "tmpfs", yes="yes", no="no"), "no"),
    Setting("DynamicUser", fatal_boolean, False),
    Setting("PrivateDevices", boolean, False),
    Setting("ProtectClock", boolean, False),
    Setting("ProtectKernelLogs", boolean, False),
    Setting("ProtectKernelModules", boolean, False),
    Setting("CapabilityBoundingSet", capabilities(ALL_CAPABILITIES), ALL_CAPABILITIES),
    Setting("AmbientCapabilities", capabilities(frozenset()), frozenset()),
    Setting("ReadWritePaths", paths, (), ("ReadWriteDirectories",)),
    Setting("ReadOnlyPaths", paths, (), ("ReadOnlyDirectories",)),
    Setting("InaccessiblePaths", paths, (), ("InaccessibleDirectories",)),
    Setting("User", account, ""),
    Setting("Group", account, ""),
    Setting("SupplementaryGroups", accounts, ()),
    Setting("WorkingDirectory", fatal_path, ""),
    Setting("RootDirectory", fatal_path, ""),
    Setting("RootImage", fatal_path, ""),
    Setting("Type", service_type, None),
    Setting("BusName", expanded, ""),
    Setting("RemainAfterExit", boolean, False),
    Setting(
        "Restart",
        word_of("no", "on-success", "on-failure", "on-abnormal", "on-watchdog", "on-abort", "always"),
        "no",
    ),
    Setting("RestartSec", span, 100_000),
    Setting("RestartSteps", count, 0),
    Setting("RuntimeMaxSec", span, values.INFINITE),
    Setting("ExecStart", exec_list, ()),
    Setting("ExecStartPre", exec_list, ()),
    Setting("ExecStartPost", exec_list, ()),
    Setting("ExecCondition", exec_list, ()),
    Setting("ExecReload", exec_list, ()),
    Setting("ExecStop", exec_list, ()),
    Setting("ExecStopPost", exec_list, ()),
    Setting("StartLimitIntervalSec", span, 10_000_000, ("StartLimitInterval",)),
    Setting("StartLimitBurst", count, 5),
    Setting("SuccessAction", ACTIONS, "none"),
    Setting("PAMName", expanded, ""),
    Setting("KillMode", word_of("control-group", "process", "mixed", "none", empty="control-group"), "control-group"),
    Setting("ExitType", word_of("main", "cgroup"), "main"),
)

BY_KEY: Mapping[str, Setting] = {
    **{row.key: row for row in SETTINGS},
    **{other: row for row in SETTINGS for other in row.also},
}
