"""From samples and counters to a level: marks, time to the limit, thrash, PSI, livelock, hysteresis.

Must not: send commands (ledger does), read a clock, keep more than O(1) per target.
Upstream: model, config, growth, limits. Downstream: engine, status (marks).
Up at once, down one step at a time. Each rule is a function of its own that gives a level and why, or nothing; the
worst counts. The rules and their reasons: docs/explanation/policy.md.
"""

from collections.abc import Iterator

from msgspec import Struct, field

from edgeguardd.core.config import Policy, SamplingConfig
from edgeguardd.core.events import CountersMoved
from edgeguardd.core.growth import Growth, Lead
from edgeguardd.core.limits import (
    Pressure,
    describe,
    lifted,
    mark_level,
    marks,
    needed,
    pressure_of,
    slack_bytes,
    worst_pressure,
)
from edgeguardd.core.model import Counters, Level, Sample, Usage

# counter, the level it calls for at least, whether an ancestor's counts as well; the loudest first
COUNTER_LEVELS = (
    ("oom_group_kill", Level.EMERGENCY, False),
    ("oom_kill", Level.EMERGENCY, False),
    ("oom", Level.EMERGENCY, True),
    ("max", Level.CRITICAL, True),
    ("high", Level.HIGH, True),
)

# Sample so often that a mark cannot be crossed unseen by more than this part of the way to it.
SAMPLES_TO_MARK = 4

# At rest, with so much of the way from what is held to the first mark still to go and no growth, every second look is
# left out. What comes all that way between two looks is told by the kernel's own counters, and by tasks that wait.
REST_RATIO = 0.5
REST_TIMES = 2
# Samples older than this many slow intervals mean that the daemon sees nothing any more.
STALE_INTERVALS = 5

# Little headroom, for signs that mean nothing without it: so much of the limit is in use, cache included.
FULL_RATIO = 0.90

# Mapped pages that were here and are gone, as a share of the limit: fewer are the noise of a busy server.
EVICTED_RATIO = 0.05

# Evicted pages that nobody has read again for so long are not missed.
REFAULT_MEMORY_S = 5.0

# A rate over less time than this says nothing.
SHORTEST_SPAN_S = 0.05

# `high` counts of one livelock come closer together than this.
LIVELOCK_GAP_S = 1.0

# A level that rises again so soon after it fell is flapping: each time doubles the dwell, up to the limit.
FLAP_WINDOW_S = 60.0
MAX_FLAPS = 3

# Growth below this share of the limit a second is standing still, for learning what is held at rest.
STILL_RATIO_PER_S = 0.002

# A model that was unloaded is back when so much is needed of what was held at rest with it.
BACK_RATIO = 0.9


class Gauge(Struct):
    """What policy remembers of one target between samples."""

    level: Level = Level.NORMAL
    reason: str = "not sampled yet"
    # what the last sample alone calls for, and the figures that do
    called: Level = Level.NORMAL
    calls: str = "not sampled yet"
    changed_at: float | None = None
    pressure: Pressure | None = None
    needed_bytes: int | None = None
    sampled_at: float | None = None
    growth: Growth = field(default_factory=Growth)
    lead: Lead = field(default_factory=Lead)
    undercut_since: float | None = None
    # thrash
    refaulted_bytes: int | None = None
    refault_bytes_per_s: float = 0.0
    refaulted_at: float = float("-inf")
    mapped_peak_bytes: int = 0
    evicted_bytes: int = 0
    psi_us: int | None = None
    psi_ratio: float | None = None
    # livelock
    high_since: float | None = None
    high_last: float | None = None
    high_needed_bytes: int = 0
    # what is held at rest
    still_since: float | None = None
    learned_static_bytes: int | None = None
    unloaded: bool = False
    # flapping
    fell_at: float | None = None
    flaps: int = 0


def observe(
    gauge: Gauge, policy: Policy, static_bytes: int | None, sample: Sample, now: float, *, loaded: bool = True
) -> None:
    """Take one sample into the gauge, and the level it calls for.

    static_bytes: as reported or configured, or None. loaded: whether the model may be in memory.
    """
    own = sample.usages[0]
    elapsed_s = 0.0 if gauge.sampled_at is None else now - gauge.sampled_at
    gauge.growth.learn(needed(own), now, static_of(gauge, static_bytes))
    _learn_thrash(gauge, own, elapsed_s, now)
    gauge.needed_bytes = needed(own)
    gauge.sampled_at = now
    gauge.pressure = worst_pressure(policy, static_of(gauge, static_bytes), sample, gauge.evicted_bytes)
    _learn_static(gauge, policy, now, loaded)
    level, reason = worst_call(gauge, policy, own, now)
    gauge.called, gauge.calls = level, reason
    if level > gauge.level:
        _raise(gauge, level, reason, now)
    else:
        _lower(gauge, policy, level, now)


def worst_call(gauge: Gauge, policy: Policy, own: Usage, now: float) -> tuple[Level, str]:
    """The worst of what the rules call for, and why."""
    return max(_calls(gauge, policy, own, now), key=lambda call: call[0], default=(Level.NORMAL, describe(None)))


def count(
    gauge: Gauge, policy: Policy, static_bytes: int | None, sample: Sample, moved: CountersMoved, now: float
) -> str | None:
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
        near = None if usage is None else pressure_of(usage, static_of(gauge, static_bytes))
        if near is None or mark_level(policy, lifted(near, gauge.evicted_bytes)) is Level.NORMAL:
            return f"{key} moved while needed bytes are far from the limit: page cache is being recycled"
        if moved.delta.high:
            _note_high(gauge, now)
    if level > gauge.level:
        _raise(gauge, level, f"{key} of {moved.path} counted up by {getattr(moved.delta, key)}", now)
    gauge.undercut_since = None
    return None


def static_of(gauge: Gauge, static_bytes: int | None) -> int:
    """What the target holds at rest: reported or configured, else learned, else nothing is known and all may go."""
    return (gauge.learned_static_bytes or 0) if static_bytes is None else static_bytes


def learn_floor(gauge: Gauge, floor_bytes: int) -> None:
    """The whole ladder was asked and nothing came: what is left is what the target holds at rest, model included."""
    if gauge.unloaded:
        return
    gauge.learned_static_bytes = floor_bytes


def sampling_interval(gauge: Gauge, policy: Policy, sampling: SamplingConfig) -> float:
    """Seconds to the next sample: fast at and above the marks and under growth towards them, else slow, or at rest."""
    pressure = gauge.pressure
    if pressure is None:
        return sampling.slow_s
    if gauge.level > Level.NORMAL or gauge.refault_bytes_per_s >= policy.thrash_ratio_per_s * pressure.limit_bytes:
        return sampling.fast_s
    mark_bytes = marks(policy, pressure).elevated_bytes
    until_mark_s = gauge.growth.suspected_time_to(mark_bytes - pressure.needed_bytes)
    if until_mark_s is None:
        resting = mark_bytes - pressure.needed_bytes >= REST_RATIO * (mark_bytes - pressure.static_bytes)
        return sampling.slow_s * REST_TIMES if resting else sampling.slow_s
    return min(sampling.slow_s, max(sampling.fast_s, until_mark_s / SAMPLES_TO_MARK))


def stale_after_s(sampling: SamplingConfig) -> float:
    """How old the last sample of a target may be before nothing is seen any more: well beyond the interval at rest."""
    return STALE_INTERVALS * sampling.slow_s


# The rules


def _calls(gauge: Gauge, policy: Policy, own: Usage, now: float) -> Iterator[tuple[Level, str]]:
    pressure = gauge.pressure
    if pressure is None:
        return
    marked = mark_level(policy, pressure)
    yield marked, describe(pressure)
    yield from _time_to_limit(gauge, policy, pressure)
    yield from _thrash(gauge, policy, pressure, own)
    yield from _livelock(gauge, policy, pressure, now)
    if marked > Level.NORMAL and gauge.psi_ratio is not None and gauge.psi_ratio >= policy.psi_ratio:
        yield Level.HIGH, f"tasks wait for memory {gauge.psi_ratio:.0%} of the time, and {describe(pressure)}"


def _time_to_limit(gauge: Gauge, policy: Policy, pressure: Pressure) -> Iterator[tuple[Level, str]]:
    """Shorter than a trim takes: there is only just time to obey. Shorter than half of it: there is not."""
    until_s = gauge.growth.time_to(pressure.headroom_bytes)
    lead_s = gauge.lead.seconds(policy.lead_floor_s, policy.lead_ceiling_s)
    if until_s is None or until_s >= lead_s:
        return
    level = Level.HIGH if until_s < lead_s / 2 else Level.ELEVATED
    rate = gauge.growth.bytes_per_s / (1 << 20)
    yield (
        level,
        f"at {rate:.1f} MiB/s the limit is {until_s:.2f} s away, a trim takes {lead_s:.2f} s; {describe(pressure)}",
    )


def _thrash(gauge: Gauge, policy: Policy, pressure: Pressure, own: Usage) -> Iterator[tuple[Level, str]]:
    """Pages the server works with are evicted and read again: it is slow long before anything counts `oom`."""
    if gauge.refault_bytes_per_s < policy.thrash_ratio_per_s * pressure.limit_bytes:
        return
    if own.current_bytes < FULL_RATIO * pressure.limit_bytes:
        return
    waiting = gauge.psi_ratio is not None and gauge.psi_ratio >= policy.psi_ratio
    if gauge.evicted_bytes >= EVICTED_RATIO * pressure.limit_bytes or waiting:
        rate = gauge.refault_bytes_per_s / (1 << 20)
        gone = gauge.evicted_bytes / (1 << 20)
        yield Level.HIGH, f"{rate:.1f} MiB/s of evicted pages are read again, {gone:.1f} MiB of mapped file are gone"


def _livelock(gauge: Gauge, policy: Policy, pressure: Pressure, now: float) -> Iterator[tuple[Level, str]]:
    """`high` counts for seconds and needed bytes do not fall: the kernel throttles, and nothing comes of it."""
    if gauge.high_since is None or gauge.high_last is None:
        return
    if now - gauge.high_last > LIVELOCK_GAP_S:
        gauge.high_since = gauge.high_last = None
        return
    if pressure.needed_bytes < gauge.high_needed_bytes:
        gauge.high_since, gauge.high_needed_bytes = now, pressure.needed_bytes
    lasts_s = now - gauge.high_since
    if lasts_s >= policy.livelock_s:
        yield Level.CRITICAL, f"memory.high has throttled for {lasts_s:.1f} s without needed bytes falling"


def _note_high(gauge: Gauge, now: float) -> None:
    if gauge.high_since is None:
        gauge.high_since = now
        gauge.high_needed_bytes = 0 if gauge.pressure is None else gauge.pressure.needed_bytes
    gauge.high_last = now


def _counter_level(delta: Counters, local: bool) -> tuple[Level, str] | None:
    """The level that counter movements call for at least, and the counter that calls loudest."""
    called = (
        (level, key) for key, level, of_ancestors in COUNTER_LEVELS if (local or of_ancestors) and getattr(delta, key)
    )
    return next(called, None)


# What is learned on the way


def _learn_thrash(gauge: Gauge, own: Usage, elapsed_s: float, now: float) -> None:
    """Refaults and stall per second; mapped pages that are gone while they come back count as evicted, not as freed."""
    if elapsed_s >= SHORTEST_SPAN_S:
        if own.refaulted_bytes is not None and gauge.refaulted_bytes is not None:
            gauge.refault_bytes_per_s = max(0, own.refaulted_bytes - gauge.refaulted_bytes) / elapsed_s
        if own.psi_some_us is not None and gauge.psi_us is not None:
            gauge.psi_ratio = max(0, own.psi_some_us - gauge.psi_us) / 1e6 / elapsed_s
    if elapsed_s >= SHORTEST_SPAN_S or gauge.refaulted_bytes is None:
        gauge.refaulted_bytes, gauge.psi_us = own.refaulted_bytes, own.psi_some_us
    if gauge.refault_bytes_per_s > 0:
        gauge.refaulted_at = now
    mapped_bytes = own.mapped_bytes or 0
    if now - gauge.refaulted_at > REFAULT_MEMORY_S:
        # Nothing comes back: what is not mapped any more was given up, not taken.
        gauge.mapped_peak_bytes = mapped_bytes
    gauge.mapped_peak_bytes = max(gauge.mapped_peak_bytes, mapped_bytes)
    refaulting = now - gauge.refaulted_at <= REFAULT_MEMORY_S
    gauge.evicted_bytes = gauge.mapped_peak_bytes - mapped_bytes if refaulting else 0


def _learn_static(gauge: Gauge, policy: Policy, now: float, loaded: bool) -> None:
    """Needed bytes that stood still for a while at a normal level are held at rest; from then on their minimum is.

    What is needed without the model says nothing, from its unloading until most of it is back.
    """
    pressure, learned = gauge.pressure, gauge.learned_static_bytes
    if pressure is None or gauge.needed_bytes is None:
        return
    back = learned is None or gauge.needed_bytes >= BACK_RATIO * learned
    gauge.unloaded = not loaded or (gauge.unloaded and not back)
    if gauge.unloaded:
        gauge.still_since = None
        return
    if learned is not None:
        gauge.learned_static_bytes = min(learned, gauge.needed_bytes)
        return
    still = abs(gauge.growth.still) <= STILL_RATIO_PER_S * pressure.limit_bytes
    if not still or gauge.level is not Level.NORMAL:
        gauge.still_since = None
    elif gauge.still_since is None:
        gauge.still_since = now
    elif now - gauge.still_since >= policy.settle_s:
        gauge.learned_static_bytes = gauge.needed_bytes


# Up at once, down slowly


def _raise(gauge: Gauge, level: Level, reason: str, now: float) -> None:
    if gauge.fell_at is not None and now - gauge.fell_at < FLAP_WINDOW_S:
        gauge.flaps = bounded_flaps(gauge.flaps + 1)
    gauge.fell_at = None
    gauge.level = level
    gauge.reason = reason
    gauge.changed_at = now
    gauge.undercut_since = None


def _lower(gauge: Gauge, policy: Policy, called: Level, now: float) -> None:
    """One step down when everything, the marks less the hysteresis, has been undercut for the dwell time."""
    if gauge.level is Level.NORMAL:
        if gauge.fell_at is not None and now - gauge.fell_at >= FLAP_WINDOW_S:
            gauge.fell_at, gauge.flaps = None, 0
        return
    if called >= gauge.level or _held_level(policy, gauge.pressure) >= gauge.level:
        gauge.undercut_since = None
        return
    if gauge.undercut_since is None:
        gauge.undercut_since = now
    dwell_s = dwell(gauge, policy)
    if now - gauge.undercut_since >= dwell_s:
        gauge.level = Level(gauge.level - 1)
        gauge.undercut_since = gauge.fell_at = now
        gauge.reason = f"below the mark for {dwell_s:g} s: {describe(gauge.pressure)}"


def why(gauge: Gauge, now: float) -> str:
    """What there is to say at this moment: what has just raised the level, else what calls now, else what does not."""
    return gauge.reason if gauge.changed_at == now else gauge.calls


def age(gauge: Gauge) -> None:
    """One step down towards what was last seen, where nothing can be seen any more."""
    if gauge.level > gauge.called:
        gauge.level = Level(gauge.level - 1)
        gauge.reason = "nothing was counted for the dwell time, and nothing can be read"


def dwell(gauge: Gauge, policy: Policy) -> float:
    """How long a mark has to be undercut before the level falls: longer for a target that flaps."""
    return float(policy.dwell_s * 2**gauge.flaps)


def bounded_flaps(count: int) -> int:
    """How often a target has flapped, as far as it counts; what a record says may be any number."""
    return max(0, min(MAX_FLAPS, count))


def _held_level(policy: Policy, pressure: Pressure | None) -> Level:
    """The level that needed bytes plus the hysteresis would have: what holds a level up."""
    if pressure is None:
        return Level.NORMAL
    return mark_level(policy, lifted(pressure, slack_bytes(policy, pressure)))
