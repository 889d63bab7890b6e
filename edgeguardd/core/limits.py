"""How one limit stands: needed bytes against it, its marks, and what a trim should bring it down to.

Must not: remember anything. Upstream: model, config. Downstream: policy, engine, status.
"""

from msgspec import Struct, structs

from edgeguardd.core.config import Mark, Policy
from edgeguardd.core.model import Level, LimitKind, Sample, Usage

# A trim that is obeyed to the byte must let the level fall: a little more than the hysteresis below the mark.
GOAL_SLACKS = 1.2


class Pressure(Struct, frozen=True):
    """One limit and what stands below it: the figures behind a level.

    ratio is the elastic range in use, (needed − static) ÷ (limit − static); headroom_bytes is limit − needed and is
    negative when the limit has been crossed.
    """

    path: str
    kind: LimitKind
    limit_bytes: int
    needed_bytes: int
    static_bytes: int

    @property
    def headroom_bytes(self) -> int:
        """What is left below the limit, in bytes."""
        return self.limit_bytes - self.needed_bytes

    @property
    def ratio(self) -> float:
        """The elastic range in use."""
        elastic = self.limit_bytes - self.static_bytes
        return (self.needed_bytes - self.static_bytes) / elastic if elastic > 0 else 1.0


def worst_pressure(policy: Policy, static_bytes: int, sample: Sample, evicted_bytes: int = 0) -> Pressure | None:
    """The limit on the way to the root that is nearest to being met, or None where nothing is limited.

    evicted_bytes are mapped pages that the target works with and that are being read again: needed, and not there.
    """
    found = [
        lifted(pressure, evicted_bytes)
        for usage in sample.usages
        if (pressure := pressure_of(usage, static_bytes)) is not None
    ]
    return max(found, key=lambda p: (mark_level(policy, p), p.ratio), default=None)


def pressure_of(usage: Usage, static_bytes: int) -> Pressure | None:
    """How the nearer limit of one cgroup stands; None without a limit."""
    limits = [
        (limit, kind)
        for limit, kind in ((usage.high_bytes, LimitKind.HIGH), (usage.max_bytes, LimitKind.MAX))
        if limit is not None
    ]
    if not limits:
        return None
    limit, kind = min(limits)
    # A server that claims more static bytes than its limit is wrong about one of them: judge it by the plain share.
    static = static_bytes if static_bytes < limit else 0
    return Pressure(usage.path, kind, limit, needed(usage), static)


def lifted(pressure: Pressure, by_bytes: int) -> Pressure:
    """The same limit with more needed bytes."""
    return structs.replace(pressure, needed_bytes=pressure.needed_bytes + by_bytes) if by_bytes else pressure


class Marks(Struct, frozen=True):
    """The needed bytes at which each level begins under one limit. They rise, and none is met at rest."""

    elevated_bytes: int
    high_bytes: int
    critical_bytes: int


def marks(policy: Policy, pressure: Pressure) -> Marks:
    """The marks under this limit.

    Marks in bytes of headroom and marks in shares may cross, and headroom may be more than there is above what the
    target holds at rest: a lower level then begins with the higher one at the latest, and none below the least mark.
    """
    least = _least_mark(policy, pressure)
    critical = max(least, _mark_bytes(policy.critical, pressure))
    high = max(least, min(critical, _mark_bytes(policy.high, pressure)))
    elevated = max(least, min(high, _mark_bytes(policy.elevated, pressure)))
    return Marks(elevated, high, critical)


def unmeetable(policy: Policy, pressure: Pressure) -> bool:
    """Whether some mark, as it is written, would be met at rest."""
    least = _least_mark(policy, pressure)
    return any(_mark_bytes(mark, pressure) < least for mark in (policy.elevated, policy.high, policy.critical))


def mark_level(policy: Policy, pressure: Pressure) -> Level:
    """The highest level whose mark is reached."""
    at = marks(policy, pressure)
    if pressure.needed_bytes >= at.critical_bytes:
        return Level.CRITICAL
    if pressure.needed_bytes >= at.high_bytes:
        return Level.HIGH
    if pressure.needed_bytes >= at.elevated_bytes:
        return Level.ELEVATED
    return Level.NORMAL


def slack_bytes(policy: Policy, pressure: Pressure) -> int:
    """The hysteresis under this limit, in bytes."""
    return int(policy.hysteresis_ratio * (pressure.limit_bytes - pressure.static_bytes))


def release_goal(policy: Policy, pressure: Pressure) -> int:
    """The needed bytes that a trim should bring the limit down to: below what still holds the level up."""
    slack = GOAL_SLACKS * slack_bytes(policy, pressure)
    return max(pressure.static_bytes, marks(policy, pressure).elevated_bytes - int(slack))


def _least_mark(policy: Policy, pressure: Pressure) -> int:
    """Twice the hysteresis above rest: a target at rest is below every mark, and by the hysteresis below it."""
    return pressure.static_bytes + 2 * slack_bytes(policy, pressure)


def _mark_bytes(mark: Mark, pressure: Pressure) -> int:
    if mark.headroom_bytes is not None:
        return pressure.limit_bytes - mark.headroom_bytes
    ratio = mark.ratio if mark.ratio is not None else 1.0
    return pressure.static_bytes + int(ratio * (pressure.limit_bytes - pressure.static_bytes))


def needed(usage: Usage) -> int:
    """Needed bytes, or all of memory.current where memory.stat could not tell: pessimistic, never blind."""
    return usage.current_bytes if usage.needed_bytes is None else usage.needed_bytes


def describe(pressure: Pressure | None) -> str:
    """The figures of a pressure as one clause for reasons and logs."""
    if pressure is None:
        return "no limit on the way to the root"
    mib = 1 << 20
    return (
        f"needed {pressure.needed_bytes / mib:.1f} MiB is {pressure.ratio:.0%} of the range below "
        f"{pressure.kind} {pressure.limit_bytes / mib:.1f} MiB of {pressure.path}"
    )
