"""What Prometheus sees: counted from the same events and effects that the engine saw, read out only when scraped.

Must not: decide anything, do work on the hot path beyond adding numbers. Upstream: core, the shells' plain counters.
Downstream: daemon (feeds it), serve.http (renders it). What is only read off at a scrape: targetmetrics, selfmetrics.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.metrics import Counter, Gauge

from edgeguardd import exposition
from edgeguardd.core.effects import CommandEnded, Deliver
from edgeguardd.core.events import (
    AckReceived,
    CgroupAppeared,
    CountersMoved,
    Event,
    KillsNearRemoval,
    KillsWhileAway,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    ReliefFailed,
    SubscriberJoined,
    TargetAdded,
)
from edgeguardd.core.model import Action, Counters, Level, Outcome, Role
from edgeguardd.exposition import Format
from edgeguardd.latency import Latency
from edgeguardd.selfmetrics import MachineCollector, SelfCollector, Sources
from edgeguardd.series import TargetCounters
from edgeguardd.targetmetrics import TargetCollector

# name, what it is, labels beside `target`
TARGET_COUNTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "memory_events",
        "memory.events counts seen, by target and key; monotonic across re-creation of the cgroup.",
        ("event",),
    ),
    (
        "kills_near_removal",
        "Kills counted by the parent while the target's cgroup was removed: the target's or a neighbour's.",
        (),
    ),
    (
        "kills_while_away",
        "Kills that memory.events had counted while no daemon looked; they are not in memory_events.",
        (),
    ),
    ("target_appearances", "Times that the target's cgroup came to be there, the first look included.", ()),
    ("commands_sent", "Commands handed to a connection.", ("action",)),
    ("commands_told_again", "Commands told again after a restart, with the same number and parameters.", ()),
    ("commands", "Commands ended, by outcome.", ("action", "outcome")),
    ("freed_bytes", "Bytes given back by commands: claimed in acks, and measured in needed bytes.", ("source",)),
    ("reliefs", "What became of lifting memory.high and of putting it back.", ("outcome",)),
    ("last_resorts", "Last resorts ended.", ("action", "outcome")),
)

# What alerts ask for, and therefore begins at zero with the target, or with a server that may be asked.
COUNTED_FROM_ZERO = ("high", "max", "oom", "oom_kill")
OUTCOMES_FROM_ZERO = (Outcome.EXPIRED, Outcome.FAILED, Outcome.INEFFECTIVE)


class Metrics:
    """All metrics of one daemon, in a registry of their own. on_forget: a target's series are gone."""

    def __init__(self, sources: Sources) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.on_forget: Callable[[str], None] = lambda _: None
        ProcessCollector(registry=self.registry)
        self._targets = TargetCounters(TARGET_COUNTERS, self._forgotten)
        self.registry.register(self._targets)
        self._latency = Latency(self.registry, sources.begun, sources.clock, sources.epoch)
        self.defects = Counter(
            "edgeguardd_defects", "Faults in the daemon itself that it survived.", registry=self.registry
        )
        self._reloads = Counter(
            "edgeguardd_reloads", "Configuration reloads, by result.", ["result"], registry=self.registry
        )
        self._reloaded = Gauge(
            "edgeguardd_config_last_reload_successful",
            "1 while the configuration on disk was taken when it was last read.",
            registry=self.registry,
        )
        self._reloaded.set(1)
        self.registry.register(TargetCollector(sources.engine, sources.watched, sources.raised_at, sources.clock))
        self.registry.register(MachineCollector(sources.engine, sources.clock))
        self.registry.register(SelfCollector(sources))

    # Facts, before the engine takes them

    def happened(self, event: Event) -> None:
        """Count what an event says."""
        match event:
            case CountersMoved():
                self._counted(event)
            case TargetAdded():
                self._added(event)
            case CgroupAppeared():
                self._targets.count("target_appearances", event.target)
            case KillsNearRemoval():
                self._targets.count("kills_near_removal", event.target, by=event.kills)
            case KillsWhileAway():
                self._targets.count("kills_while_away", event.target, by=event.kills)
            case SubscriberJoined():
                self._joined(event)
            case LimitRaised():
                self._targets.count("reliefs", event.target, "raised")
            case LimitPutBack():
                self._targets.count("reliefs", event.target, event.outcome)
            case ReliefFailed():
                self._targets.count("reliefs", event.target, "refused")
            case LastResortEnded():
                self._targets.count("last_resorts", event.target, event.action.value, event.outcome)
            case _:
                pass

    def acked(self, target: str, ack: AckReceived) -> None:
        """An answer was read, and is not judged yet."""
        self._latency.acked(target, ack)

    def _counted(self, moved: CountersMoved) -> None:
        """Add counter movements of a target's own file. Ancestors' counts are not this target's."""
        if not moved.local:
            return
        for key in Counters.__struct_fields__:
            delta = getattr(moved.delta, key)
            if delta:
                self._targets.count("memory_events", moved.target, key, by=delta)

    def _added(self, event: TargetAdded) -> None:
        target = event.target
        self._targets.arrived(target)
        for key in COUNTED_FROM_ZERO:
            self._targets.begin("memory_events", target, key)
        self._targets.begin("kills_near_removal", target)
        self._targets.begin("kills_while_away", target)
        self._targets.begin("commands_told_again", target)
        self._targets.begin("target_appearances", target)
        for step in (step for level in Level for step in event.policy.last_resort.steps(level)):
            for outcome in ("done", "failed"):
                self._targets.begin("last_resorts", target, step.action.value, outcome)

    def _joined(self, event: SubscriberJoined) -> None:
        if event.role is not Role.INFERENCE or event.target is None:
            return
        for action in (*sorted(event.supports), Action.RESTORE):
            for outcome in OUTCOMES_FROM_ZERO:
                if outcome is not Outcome.INEFFECTIVE or action is Action.TRIM_KV_CACHE:
                    self._targets.begin("commands", event.target, action.value, outcome.value)

    # Orders, as they are carried out

    def sent(self, order: Deliver) -> None:
        """A command was handed to its connection."""
        command = order.command
        exemplar = self._latency.delivered(order)
        self._targets.count("commands_sent", command.target, command.action.value, exemplar=exemplar)

    def told_again(self, order: Deliver) -> None:
        """A command of the run before was handed to the connection of a subscriber that is back."""
        self._targets.count("commands_told_again", order.command.target)

    def ended(self, end: CommandEnded) -> None:
        """Count a command's outcome, its time and its bytes."""
        exemplar = self._latency.ended(end)
        self._targets.count("commands", end.target, end.action.value, end.outcome.value, exemplar=exemplar)
        if end.claimed_bytes:
            self._targets.count("freed_bytes", end.target, "claimed", by=end.claimed_bytes)
        if end.freed_bytes is not None and end.freed_bytes > 0:
            self._targets.count("freed_bytes", end.target, "measured", by=end.freed_bytes, exemplar=exemplar)

    def departed(self, target: str, now: float) -> None:
        """A target is guarded no longer."""
        self._targets.departed(target, now)

    def _forgotten(self, target: str) -> None:
        self.on_forget(target)

    def reloaded(self, *, applied: bool) -> None:
        """The configuration was read again."""
        self._reloads.labels("applied" if applied else "rejected").inc()
        self._reloaded.set(applied)

    def written(self, form: Format, now: float) -> bytes:
        """All of it, for /metrics."""
        self._targets.expire(now)
        return exposition.written(self.registry.collect(), form)
