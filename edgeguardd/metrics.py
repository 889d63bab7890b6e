"""What Prometheus sees: counted from the same events and effects that the engine saw, read out only when scraped.

Must not: decide anything, do work on the hot path beyond adding numbers. Upstream: core, the shells' plain counters.
Downstream: daemon (feeds it), serve.http (renders it). Names and meanings: the two tables below.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import Counter, Histogram
from prometheus_client.registry import Collector

from edgeguardd import __version__
from edgeguardd.core.effects import CommandEnded
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import CountersMoved, KillsNearRemoval
from edgeguardd.core.limits import Pressure
from edgeguardd.core.target import Target
from edgeguardd.logs import Output
from edgeguardd.recorder import Recorder
from edgeguardd.serve.gatestats import GateStats
from edgeguardd.serve.pressurewatch import WatchStats
from edgeguardd.serve.subscriberstats import SubscriberStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# From well under the budget of a reaction (1 ms) to hopeless.
REACTION_BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

# From a local bookkeeping call to the longest default deadline.
ANSWER_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# A scraper that comes every minute sees the last values of a dropped target a few times; at most so many are kept.
DEPARTED_VISIBLE_S = 300.0
MAX_DEPARTED = 1024

# name, what it is, how it is read off a target
TARGET_GAUGES: tuple[tuple[str, str, Callable[[Target], float | None]], ...] = (
    ("level", "Level: 0 normal, 1 elevated, 2 high, 3 critical, 4 emergency.", lambda t: float(t.level)),
    ("rung", "Rung of the ladder in force, numbered as levels.", lambda t: float(t.ledger.rung)),
    ("present", "1 while the target's cgroup exists and is watched.", lambda t: float(t.present)),
    ("degraded", "1 while the target's files cannot be read or understood.", lambda t: float(t.degraded is not None)),
    ("exhausted", "1 while every rung has been answered without help.", lambda t: float(t.ledger.exhausted)),
    ("relief", "1 while memory.high is lifted for a trim.", lambda t: float(t.relief.raised_bytes is not None)),
    ("lead_seconds", "How long before the limit a trim is asked for.", lambda t: t.lead_s),
    ("evicted_bytes", "Mapped pages that are gone and missed.", lambda t: t.gauge.evicted_bytes),
    ("refaulted_bytes_per_second", "Evicted pages read again.", lambda t: t.gauge.refault_bytes_per_s),
    ("needed_bytes", "Memory that cannot be dropped for free.", lambda t: t.gauge.needed_bytes),
    ("current_bytes", "memory.current.", lambda t: t.sample.usages[0].current_bytes if t.sample else None),
    ("static_bytes", "What the target holds at rest, as configured or reported.", lambda t: t.static_bytes),
    ("limit_bytes", "The limit that binds; absent without one.", lambda t: _of(t, lambda p: p.limit_bytes)),
    ("headroom_bytes", "Limit less needed bytes.", lambda t: _of(t, lambda p: p.headroom_bytes)),
    ("used_ratio", "Elastic range in use, 0 to 1.", lambda t: _of(t, lambda p: p.ratio)),
    ("growth_bytes_per_second", "Smoothed growth of needed bytes.", lambda t: t.gauge.growth.bytes_per_s),
    ("subscribers", "Inference servers subscribed.", lambda t: float(len(t.ledger.subscribers))),
    ("commands_outstanding", "Commands not yet ended.", lambda t: float(len(t.ledger.outstanding))),
)


class Metrics:
    """All metrics of one daemon, in a registry of their own."""

    def __init__(
        self,
        engine: Engine,
        subscribers: SubscriberStats,
        log: Output,
        recorder: Recorder,
        gate: GateStats,
        watches: WatchStats,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._events = Counter(
            "edgeguardd_memory_events",
            "memory.events counts seen, by target and key; monotonic across re-creation of the cgroup.",
            ["target", "event"],
            registry=self.registry,
        )
        self._kills_near = Counter(
            "edgeguardd_kills_near_removal",
            "Kills counted by the parent while the target's cgroup was removed: the target's or a neighbour's.",
            ["target"],
            registry=self.registry,
        )
        self._commands = Counter(
            "edgeguardd_commands",
            "Commands ended, by outcome.",
            ["target", "action", "outcome"],
            registry=self.registry,
        )
        self._freed = Counter(
            "edgeguardd_freed_bytes",
            "Bytes given back by commands: claimed in acks, and measured in needed bytes.",
            ["target", "source"],
            registry=self.registry,
        )
        self.reaction = Histogram(
            "edgeguardd_reaction_seconds",
            "From reading the kernel's files to the command handed to the subscriber's socket.",
            buckets=REACTION_BUCKETS_S,
            registry=self.registry,
        )
        self._answer = Histogram(
            "edgeguardd_answer_seconds",
            "From delivery of a command to its end.",
            ["action"],
            buckets=ANSWER_BUCKETS_S,
            registry=self.registry,
        )
        self.defects = Counter(
            "edgeguardd_defects", "Faults in the daemon itself that it survived.", registry=self.registry
        )
        self.reloads = Counter(
            "edgeguardd_reloads", "Configuration reloads, by result.", ["result"], registry=self.registry
        )
        self.registry.register(_LiveCollector(engine, subscribers, log, recorder, gate, watches))
        self._series: dict[str, set[tuple[Counter, tuple[str, ...]]]] = {}
        self._departed: dict[str, float] = {}

    def counted(self, moved: CountersMoved) -> None:
        """Add counter movements of a target's own file. Ancestors' counts are not this target's."""
        if not moved.local:
            return
        for key in moved.delta.__struct_fields__:
            delta = getattr(moved.delta, key)
            if delta:
                self._of(self._events, moved.target, key).inc(delta)

    def killed_near_removal(self, event: KillsNearRemoval) -> None:
        """Add kills that cannot be told from a neighbour's."""
        self._of(self._kills_near, event.target).inc(event.kills)

    def ended(self, end: CommandEnded) -> None:
        """Count a command's outcome, its time and its bytes."""
        self._of(self._commands, end.target, end.action.value, end.outcome.value).inc()
        self._answer.labels(end.action.value).observe(end.took_s)
        if end.claimed_bytes:
            self._of(self._freed, end.target, "claimed").inc(end.claimed_bytes)
        if end.freed_bytes is not None and end.freed_bytes > 0:
            self._of(self._freed, end.target, "measured").inc(end.freed_bytes)

    def departed(self, target: str, now: float) -> None:
        """A target is guarded no longer: its last values stay readable for a while, then its series go."""
        self._departed.pop(target, None)
        self._departed[target] = now + DEPARTED_VISIBLE_S
        while len(self._departed) > MAX_DEPARTED:
            self._forget(next(iter(self._departed)))

    def returned(self, target: str) -> None:
        """A departed target is guarded again: its counters go on where they were."""
        self._departed.pop(target, None)

    def render(self, now: float) -> bytes:
        """The text exposition, for /metrics."""
        for target in [name for name, until in self._departed.items() if until <= now]:
            self._forget(target)
        return generate_latest(self.registry)

    def _forget(self, target: str) -> None:
        del self._departed[target]
        for family, labels in self._series.pop(target, ()):
            family.remove(*labels)

    def _of(self, family: Counter, target: str, *labels: str) -> Counter:
        """A series of a target, remembered so that it can be dropped with the target."""
        self._series.setdefault(target, set()).add((family, (target, *labels)))
        return family.labels(target, *labels)


class _LiveCollector(Collector):
    """Reads figures off the engine and the subscriber server at scrape time; nothing is stored twice."""

    def __init__(
        self,
        engine: Engine,
        subscribers: SubscriberStats,
        log: Output,
        recorder: Recorder,
        gate: GateStats,
        watches: WatchStats,
    ) -> None:
        self._gate, self._watches = gate, watches
        self._engine = engine
        self._subscribers = subscribers
        self._log = log
        self._recorder = recorder

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("edgeguardd_build_info", "Version, as a label.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build
        targets = list(self._engine.targets.values())
        for name, text, read in TARGET_GAUGES:
            family = GaugeMetricFamily(f"edgeguardd_target_{name}", text, labels=["target"])
            for target in targets:
                value = read(target)
                if value is not None:
                    family.add_metric([target.name], value)
            yield family
        yield from self._of_machine()
        yield from self._socket()

    def _of_machine(self) -> Iterator[Metric]:
        gauge = self._engine.machine
        yield GaugeMetricFamily(
            "edgeguardd_machine_level", "Level of the whole machine, as targets'.", value=gauge.level
        )
        if gauge.sample is not None:
            available = gauge.sample.available_bytes
            yield GaugeMetricFamily("edgeguardd_machine_available_bytes", "MemAvailable.", value=available)
            text = "Memory that would bring the machine below its first mark."
            yield GaugeMetricFamily("edgeguardd_machine_wanted_bytes", text, value=gauge.wanted_bytes)

    def _socket(self) -> Iterator[Metric]:
        stats, recorder, watches = self._subscribers, self._recorder.stats, self._watches
        for name, text, gauge in (
            ("subscribers", "Connections to the subscriber socket.", stats.current),
            ("subscribers_stalled", "Connections that do not take what is sent.", stats.stalled),
            ("pressure_watchers", "Programs connected to the pressure-watch sockets.", watches.current),
        ):
            yield GaugeMetricFamily(f"edgeguardd_{name}", text, value=gauge)
        for name, text, count in (
            ("connections", "Connections accepted on the subscriber socket.", stats.accepted),
            ("connections_refused", "Connections ended before a welcome: too many, refused, no hello.", stats.refused),
            ("lines_received", "Protocol lines received.", stats.lines_in),
            ("lines_sent", "Protocol lines sent.", stats.lines_out),
            ("lines_throttled", "Times a flooding peer was made to wait.", stats.throttled),
            ("commands_replaced", "Unsent commands replaced by a newer one of the same action.", stats.replaced),
            ("answers_dropped", "Unsent answers dropped for newer ones.", stats.dropped),
            ("pressure_signals", "Memory pressure told to programs that watch.", watches.signals),
            ("pressure_signals_unread", "Signals not sent, as those before them were still unread.", watches.unread),
            ("recorder_events", "Events written to the flight recorder.", recorder.written),
            ("recorder_events_dropped", "Events that the flight recorder could not write.", recorder.dropped),
            ("log_lines_dropped", "Log lines that nobody took.", self._log.dropped_lines),
            ("log_lines_suppressed", "Log lines beyond the rate of their event.", self._log.suppressed_lines),
        ):
            yield CounterMetricFamily(f"edgeguardd_{name}", text, value=count)
        errors = CounterMetricFamily("edgeguardd_protocol_errors", "Error lines sent.", labels=["code"])
        for code, count in sorted(stats.errors.items()):
            errors.add_metric([code], count)
        yield errors
        answers = CounterMetricFamily("edgeguardd_gate_answers", "Answers to proxies.", labels=["mode", "answer"])
        for (mode, answer), count in sorted(self._gate.answers.items()):
            answers.add_metric([mode, answer], count)
        yield answers


def _of(target: Target, read: Callable[[Pressure], float]) -> float | None:
    return None if target.gauge.pressure is None else read(target.gauge.pressure)
