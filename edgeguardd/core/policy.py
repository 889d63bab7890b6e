"""From samples and counters to a level: marks, growth, hysteresis.

Must not: send commands (ledger does), read a clock, keep more than O(1) per target.
Upstream: model, config. Downstream: engine, ledger (mark arithmetic), status (marks).
The rules are docs/adr/0003 (needed bytes) and design: up at once, down one step at a time.
"""

from msgspec import Struct

from edgeguardd.core.config import Mark, Policy, SamplingConfig
from edgeguardd.core.events import CountersMoved
from edgeguardd.core.model import Counters, Level, LimitKind, Sample, Usage

# Growth is smoothed over about this time: long enough to span the bursts of a single request, short enough that a
# ramp is seen within a few samples.
GROWTH_HORIZON_S = 2.0

# Sample so often that a mark cannot be crossed unseen by more than this part of the way to it.
SAMPLES_TO_MARK = 4


class Pressure(Struct, frozen=True):
    """How one limit stands: the figures behind a level.

    ratio is the elastic range in use, (needed − static) ÷ (limit − static); headroom_bytes is limit − needed and is
    negative when the limit has been crossed.
    """

    path: str
    kind: LimitKind
    limit_bytes: int
    needed_bytes: int
    static_bytes: int
    ratio: float

    @property
    def headroom_bytes(self) -> int:
        """What is left below the limit, in bytes."""
        return self.limit_bytes - self.needed_bytes


class Gauge(Struct):
    """What policy remembers of one target between samples."""

    level: Level = Level.NORMAL
    reason: str = "not sampled yet"
    pressure: Pressure | None = None
    needed_bytes: int | None = None
    sampled_at: float | None = None
    growth_bytes_per_s: float = 0.0
    undercut_since: float | None = None


def observe(gauge: Gauge, policy: Policy, static_bytes: int, sample: Sample, now: float) -> None:
    """Take one sample into the gauge: pressure, growth, and the level it calls for. Up at once, down slowly."""
    own = sample.usages[0]
    _learn_growth(gauge, needed(own), now)
    gauge.pressure = pressure = worst_pressure(policy, static_bytes, sample)
    raw = Level.NORMAL if pressure is None else mark_level(policy, pressure)
    if raw > gauge.level:
        _raise(gauge, raw, describe(pressure))
    else:
        _lower(gauge, policy, now)


def count(gauge: Gauge, policy: Policy, static_bytes: int, sample: Sample, moved: CountersMoved) -> str | None:
    """Take counter movements into the gauge. Returns why they raise nothing, if they do not; None if they count.

    An ancestor's kills may be a sibling's, so only its limit events count there; and only when that ancestor itself
    is near its limit.
    """
    called = _counter_level(moved.delta, moved.local)
    if called is None:
        return None
    level, key = called
    if level < Level.EMERGENCY or not moved.local:
        usage = next((u for u in sample.usages if u.path == moved.path), None)
        near = None if usage is None else _pressure(usage, static_bytes)
        if near is None or not _reached(policy.elevated, near):
            return f"{key} moved while needed bytes are far from the limit: page cache is being recycled"
    if level > gauge.level:
        _raise(gauge, level, f"{key} of {moved.path} counted up by {getattr(moved.delta, key)}")
    gauge.undercut_since = None
    return None


def worst_pressure(policy: Policy, static_bytes: int, sample: Sample) -> Pressure | None:
    """The limit on the way to the root that is nearest to being met, or None where nothing is limited."""
    found = [p for usage in sample.usages if (p := _pressure(usage, static_bytes)) is not None]
    return max(found, key=lambda p: (mark_level(policy, p), p.ratio), default=None)


def mark_level(policy: Policy, pressure: Pressure) -> Level:
    """The highest level whose mark is reached."""
    if _reached(policy.critical, pressure):
        return Level.CRITICAL
    if _reached(policy.high, pressure):
        return Level.HIGH
    if _reached(policy.elevated, pressure):
        return Level.ELEVATED
    return Level.NORMAL


def mark_bytes(mark: Mark, pressure: Pressure) -> int:
    """The needed bytes at which a mark is reached under this limit."""
    if mark.headroom_bytes is not None:
        return pressure.limit_bytes - mark.headroom_bytes
    ratio = mark.ratio if mark.ratio is not None else 1.0
    return pressure.static_bytes + int(ratio * (pressure.limit_bytes - pressure.static_bytes))


def release_goal(policy: Policy, pressure: Pressure) -> int:
    """The needed bytes that a trim should bring the target down to: below elevated by the hysteresis."""
    slack = int(policy.hysteresis_ratio * (pressure.limit_bytes - pressure.static_bytes))
    return max(pressure.static_bytes, mark_bytes(policy.elevated, pressure) - slack)


def sampling_interval(gauge: Gauge, policy: Policy, sampling: SamplingConfig) -> float:
    """Seconds to the next sample: fast at and above the marks and under growth towards them, else slow."""
    pressure = gauge.pressure
    if pressure is None:
        return sampling.slow_s
    if gauge.level > Level.NORMAL:
        return sampling.fast_s
    distance = mark_bytes(policy.elevated, pressure) - pressure.needed_bytes
    if gauge.growth_bytes_per_s <= 0:
        return sampling.slow_s
    until_mark_s = distance / gauge.growth_bytes_per_s
    return min(sampling.slow_s, max(sampling.fast_s, until_mark_s / SAMPLES_TO_MARK))


def needed(usage: Usage) -> int:
    """Needed bytes, or all of memory.current where memory.stat could not tell: pessimistic, never blind."""
    return usage.current_bytes if usage.needed_bytes is None else usage.needed_bytes


def _pressure(usage: Usage, static_bytes: int) -> Pressure | None:
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
    in_use = needed(usage)
    ratio = (in_use - static) / (limit - static) if limit > static else 1.0
    return Pressure(usage.path, kind, limit, in_use, static, ratio)


def _reached(mark: Mark, pressure: Pressure) -> bool:
    return pressure.needed_bytes >= mark_bytes(mark, pressure)


def _counter_level(delta: Counters, local: bool) -> tuple[Level, str] | None:
    """The level that counter movements call for at least, and the counter that calls loudest."""
    rows = (
        ("oom_group_kill", Level.EMERGENCY, local),
        ("oom_kill", Level.EMERGENCY, local),
        ("oom", Level.EMERGENCY, True),
        ("max", Level.CRITICAL, True),
        ("high", Level.HIGH, True),
    )
    return next(((level, key) for key, level, counts in rows if counts and getattr(delta, key)), None)


def _learn_growth(gauge: Gauge, needed_bytes: int, now: float) -> None:
    if gauge.sampled_at is not None and gauge.needed_bytes is not None and now > gauge.sampled_at:
        elapsed = now - gauge.sampled_at
        rate = (needed_bytes - gauge.needed_bytes) / elapsed
        weight = min(1.0, elapsed / GROWTH_HORIZON_S)
        gauge.growth_bytes_per_s += weight * (rate - gauge.growth_bytes_per_s)
    gauge.needed_bytes = needed_bytes
    gauge.sampled_at = now


def _raise(gauge: Gauge, level: Level, reason: str) -> None:
    gauge.level = level
    gauge.reason = reason
    gauge.undercut_since = None


def _lower(gauge: Gauge, policy: Policy, now: float) -> None:
    """One step down when the mark, less the hysteresis, has been undercut for the dwell time."""
    if gauge.level is Level.NORMAL:
        return
    if gauge.pressure is not None and _held_level(policy, gauge.pressure) >= gauge.level:
        gauge.undercut_since = None
        return
    if gauge.undercut_since is None:
        gauge.undercut_since = now
    if now - gauge.undercut_since >= policy.dwell_s:
        gauge.level = Level(gauge.level - 1)
        gauge.undercut_since = now
        gauge.reason = f"below the mark for {policy.dwell_s:g} s: {describe(gauge.pressure)}"


def _held_level(policy: Policy, pressure: Pressure) -> Level:
    """The level that needed bytes plus the hysteresis would have: what holds a level up."""
    slack = int(policy.hysteresis_ratio * (pressure.limit_bytes - pressure.static_bytes))
    lifted = Pressure(
        pressure.path,
        pressure.kind,
        pressure.limit_bytes,
        pressure.needed_bytes + slack,
        pressure.static_bytes,
        pressure.ratio + policy.hysteresis_ratio,
    )
    return mark_level(policy, lifted)


def describe(pressure: Pressure | None) -> str:
    """The figures of a pressure as one clause for reasons and logs."""
    if pressure is None:
        return "no limit on the way to the root"
    mib = 1 << 20
    return (
        f"needed {pressure.needed_bytes / mib:.1f} MiB is {pressure.ratio:.0%} of the range below "
        f"{pressure.kind} {pressure.limit_bytes / mib:.1f} MiB of {pressure.path}"
    )
