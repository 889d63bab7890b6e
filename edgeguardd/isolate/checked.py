"""Settings that the audit does not read but whose values it checks: what systemd ignores is a fault all the same.

Must not: know rules. Upstream: values. Downstream: unit.
Sources: the parsers of src/core/load-fragment.c that load-fragment-gperf.gperf.in names for these keys; seen with 252.
"""

from collections.abc import Callable, Mapping

from edgeguardd.core import systemdvalues as values

_BOOLEANS = """
    Accept AllowIsolate BlockIOAccounting Broadcast CPUAccounting CPUSchedulingResetOnFork DefaultDependencies
    FlushPending ForceUnmount FreeBind GuessMainPID IOAccounting IPAccounting IgnoreOnIsolate IgnoreSIGPIPE
    KeepAlive LazyUnmount LockPersonality MemoryDenyWriteExecute NoDelay NonBlocking PassCredentials PassPacketInfo
    PassSecurity PermissionsStartOnly PrivateIPC PrivateMounts PrivateNetwork ProtectKernelTunables ReadWriteOnly
    RefuseManualStart RefuseManualStop RemoveIPC RemoveOnStop RestrictRealtime RestrictSUIDSGID ReusePort
    RootDirectoryStartOnly SendSIGHUP SendSIGKILL SloppyOptions StopWhenUnneeded SyslogLevelPrefix TTYReset
    TTYVHangup TTYVTDisallocate TasksAccounting Transparent
"""
# Booleans that have got more words since (257).
_ALMOST = "PrivateTmp PrivateUsers ProtectControlGroups ProtectHostname"
_SPANS = """
    LogRateLimitIntervalSec RuntimeRandomizedExtraSec TimeoutCleanSec TimeoutSec TimeoutStartSec TimeoutStopSec
    WatchdogSec
"""
_YES_OR_NO = "neither yes nor no; write yes or no, and comments on lines of their own"
_SPAN = "no time span; write seconds, or a number with a unit such as 500ms or 1min 30s"


def fault(key: str, text: str, version: int) -> str | None:
    """Why systemd ignores this value of a key; None when it takes it, or when nothing is known of the key."""
    check = _CHECKS.get(key)
    if key in _ALMOST.split() and version > 252:
        return None
    return check(text) if check is not None else None


def _boolean(text: str) -> str | None:
    return _YES_OR_NO if values.boolean(text) is None else None


def _span(text: str) -> str | None:
    return _SPAN if values.time_span(text) is None else None


def _tasks(text: str) -> str | None:
    kept = text in ("", "infinity") or values.share(text) is not None or values.unsigned(text)
    return None if kept else "no number of tasks; write a number from 1, a share such as 10%, or infinity"


def _quota(text: str) -> str | None:
    return None if not text or values.share_unbounded(text) else "no share of CPU time; write one such as 150%"


def _weight(text: str) -> str | None:
    number = values.unsigned(text)
    kept = not text or (number is not None and 1 <= number <= 10_000)
    return None if kept else "no weight; write a number from 1 to 10000"


def _cpu_weight(text: str) -> str | None:
    return None if text == "idle" else _weight(text)


def _nice(text: str) -> str | None:
    number = values.integer(text)
    kept = not text or (number is not None and -20 <= number <= 19)
    return None if kept else "no nice level; write a number from -20 to 19"


_CHECKS: Mapping[str, Callable[[str], str | None]] = {
    **dict.fromkeys((*_BOOLEANS.split(), *_ALMOST.split()), _boolean),
    **dict.fromkeys(_SPANS.split(), _span),
    "TasksMax": _tasks,
    "CPUQuota": _quota,
    "CPUWeight": _cpu_weight,
    "StartupCPUWeight": _cpu_weight,
    "IOWeight": _weight,
    "StartupIOWeight": _weight,
    "Nice": _nice,
}
