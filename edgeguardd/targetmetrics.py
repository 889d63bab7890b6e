"""What Prometheus sees of each target at the moment of a scrape: one table, read off the engine and the shells.

Must not: keep anything, compute anything that policy has not. Upstream: engine, kernel.targets, kernel.relief.
Downstream: metrics.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from edgeguardd.core import limits
from edgeguardd.core.engine import Engine
from edgeguardd.core.limits import Pressure
from edgeguardd.core.model import InForce
from edgeguardd.core.target import Target
from edgeguardd.kernel.guarded import TargetStatus


class View(Struct, frozen=True):
    """One target at one moment; `raised_at`: since when its memory.high has been lifted."""

    labels: dict[str, str]
    target: Target
    watched: TargetStatus | None
    raised_at: float | None
    obeyed: InForce
    now: float


def _seen(view: View, figure: float | None) -> float | None:
    """Not what was seen last, where nothing can be seen now."""
    return None if view.target.degraded is not None else figure


def _throttled_s(view: View) -> float:
    since = view.target.gauge.high_since
    return 0.0 if since is None else max(0.0, view.now - since)


# name, what it is, how it is read; None: not known, and then the series is not there
TARGET_GAUGES: tuple[tuple[str, str, Callable[[View], float | None]], ...] = (
    ("level", "Level: 0 normal, 1 elevated, 2 high, 3 critical, 4 emergency.", lambda v: v.target.level),
    ("rung", "Rung of the ladder in force, numbered as levels.", lambda v: v.target.ledger.rung),
    ("present", "1 while the target's cgroup exists and is watched.", lambda v: v.target.present),
    ("degraded", "1 while the target's files cannot be read or understood.", lambda v: v.target.degraded is not None),
    (
        "sample_age_seconds",
        "How old the last sample is, by the monotonic clock: a board's wall clock may jump.",
        lambda v: None if v.watched is None else v.watched.sample_age_s,
    ),
    ("needed_bytes", "Memory that cannot be dropped for free.", lambda v: _seen(v, v.target.gauge.needed_bytes)),
    (
        "current_bytes",
        "memory.current.",
        lambda v: _seen(v, v.target.sample.usages[0].current_bytes if v.target.sample else None),
    ),
    ("static_bytes", "What the target holds at rest, as configured or reported.", lambda v: v.target.static_bytes),
    ("limit_bytes", "The limit that binds; absent without one.", lambda v: _of(v, lambda p: p.limit_bytes)),
    ("headroom_bytes", "Limit less needed bytes.", lambda v: _seen(v, _of(v, lambda p: p.headroom_bytes))),
    ("used_ratio", "Elastic range in use, 0 to 1.", lambda v: _seen(v, _of(v, lambda p: max(0.0, p.ratio)))),
    (
        "growth_bytes_per_second",
        "Smoothed growth of needed bytes.",
        lambda v: _seen(v, v.target.gauge.growth.bytes_per_s),
    ),
    ("lead_seconds", "How long before the limit a trim is asked for.", lambda v: v.target.lead_s),
    (
        "stalled_ratio",
        "Share of the time between the last two samples in which some task waited for memory (PSI).",
        lambda v: v.target.gauge.psi_ratio,
    ),
    ("evicted_bytes", "Mapped pages that are gone and missed.", lambda v: v.target.gauge.evicted_bytes),
    ("refaulted_bytes_per_second", "Evicted pages read again.", lambda v: v.target.gauge.refault_bytes_per_s),
    (
        "throttled_seconds",
        "How long memory.high has throttled by now without needed bytes falling; 0 while it does not.",
        _throttled_s,
    ),
    (
        "livelock",
        "1 while memory.high has throttled for longer than `livelock` and nothing comes of it.",
        lambda v: _throttled_s(v) >= v.target.policy.livelock_s,
    ),
    ("relief", "1 while memory.high is lifted for a trim.", lambda v: v.raised_at is not None),
    (
        "relief_seconds",
        "How long memory.high has been lifted by now; 0 while it is not.",
        lambda v: 0.0 if v.raised_at is None else max(0.0, v.now - v.raised_at),
    ),
    ("subscribers", "Inference servers subscribed.", lambda v: sum(s > 0 for s in v.target.ledger.subscribers)),
    ("commands_outstanding", "Commands not yet ended.", lambda v: len(v.target.ledger.outstanding)),
    (
        "oldest_command_seconds",
        "How long the oldest of these has been on its way; 0 without any.",
        lambda v: max((v.now - o.sent_at for o in v.target.ledger.outstanding.values()), default=0.0),
    ),
    ("exhausted", "1 while every rung has been answered without help.", lambda v: v.target.ledger.exhausted),
    (
        "helpless",
        "1 while a rung is in force and nobody is left who could give anything.",
        lambda v: v.target.ledger.helpless(),
    ),
    ("last_resort", "1 while the daemon itself is at a last resort.", lambda v: v.target.resorting),
    ("batch_ratio", "Share of the configured batch that servers may run now.", lambda v: v.obeyed.max_batch_ratio),
    ("accepts_requests", "1 while no server has been told to reject.", lambda v: v.obeyed.accept_requests),
    ("model_loaded", "1 while no server has been told to unload.", lambda v: v.obeyed.model_loaded),
)


class TargetCollector(Collector):
    """One family a row of the table, one series a target; and where the levels begin."""

    def __init__(
        self,
        engine: Engine,
        watched: Callable[[], Mapping[str, TargetStatus]],
        raised_at: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._watched = watched
        self._raised_at = raised_at
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        views = self._views()
        for name, text, read in TARGET_GAUGES:
            family = GaugeMetricFamily(f"edgeguardd_target_{name}", text, labels=["target"])
            # Not add_metric, which makes a dictionary for each of a few thousand samples.
            family.samples = [
                Sample(family.name, view.labels, value) for view in views if (value := read(view)) is not None
            ]
            yield family
        yield _marks(views)

    def _views(self) -> list[View]:
        watched, raised_at, now = self._watched(), self._raised_at(), self._clock()
        return [
            View({"target": name}, target, watched.get(name), raised_at.get(name), target.ledger.obeyed(), now)
            for name, target in self._engine.targets.items()
        ]


def _marks(views: Iterable[View]) -> Metric:
    text = "The needed bytes at which a level begins under the limit that binds."
    family = GaugeMetricFamily("edgeguardd_target_mark_bytes", text, labels=["target", "mark"])
    for view in views:
        pressure = view.target.gauge.pressure
        if pressure is not None:
            at = limits.marks(view.target.policy, pressure)
            family.add_metric([view.target.name, "elevated"], at.elevated_bytes)
            family.add_metric([view.target.name, "high"], at.high_bytes)
            family.add_metric([view.target.name, "critical"], at.critical_bytes)
    return family


def _of(view: View, read: Callable[[Pressure], float]) -> float | None:
    pressure = view.target.gauge.pressure
    return None if pressure is None else read(pressure)
