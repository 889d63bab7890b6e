"""The path on one screen: handle(event, now) -> effects.

Must not: do I/O, read a clock, decide anything that policy (levels) or ledger (commands) decides.
Upstream: policy, ledger, admission. Downstream: daemon, replay.
The same events at the same times give the same effects, always: that is what makes an incident replayable.
"""

from typing import assert_never

from msgspec import Struct

from edgeguardd.core import policy as policies
from edgeguardd.core.admission import RESERVATION_S, Admissions
from edgeguardd.core.config import Config, Policy, SamplingConfig
from edgeguardd.core.effects import (
    AnnounceLevel,
    AnswerAdmit,
    Disconnect,
    Effect,
    Fact,
    Note,
    Refuse,
    SampleEvery,
    Welcome,
)
from edgeguardd.core.events import (
    AckReceived,
    AdmitAsked,
    CgroupAppeared,
    CgroupVanished,
    ConfigReloaded,
    CountersMoved,
    Event,
    KillsNearRemoval,
    ReportReceived,
    SampleFailed,
    SampleTaken,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
    TimerFired,
)
from edgeguardd.core.ladder import Situation
from edgeguardd.core.ledger import Ledger, Subscriber
from edgeguardd.core.model import InForce, Level, Report, Role, Sample


class Target(Struct):
    """Everything known of one target."""

    name: str
    path: str
    policy: Policy
    gauge: policies.Gauge
    ledger: Ledger
    admissions: Admissions
    reports: dict[int, Report] = {}
    sample: Sample | None = None
    present: bool = False
    degraded: str | None = None
    interval_s: float | None = None
    recycling_noted: bool = False

    @property
    def static_bytes(self) -> int:
        """What the target holds at rest: configured, else the sum of what its subscribers report, else unknown (0)."""
        if self.policy.static_bytes is not None:
            return self.policy.static_bytes
        return sum(report.static_bytes or 0 for report in self.reports.values())

    def situation(self, now: float) -> Situation:
        """What policy says at this moment, for the ledger."""
        gauge = self.gauge
        pressure = gauge.pressure
        if pressure is None:
            return Situation(now, gauge.level, gauge.reason, False, gauge.needed_bytes, None, None)
        return Situation(
            now,
            gauge.level,
            gauge.reason,
            policies.mark_level(self.policy, pressure) >= Level.ELEVATED,
            pressure.needed_bytes,
            pressure.limit_bytes,
            policies.release_goal(self.policy, pressure),
        )


class Engine:
    """Facts in, orders out. `targets` may be read by status and metrics, and written by nobody else."""

    def __init__(self, sampling: SamplingConfig | None = None) -> None:
        self.targets: dict[str, Target] = {}
        self._sampling = sampling or SamplingConfig()
        self._home: dict[int, str] = {}

    def handle(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0912  one row an event
        """Take one fact, at one time; return what is to be done, in order."""
        out: list[Effect] = []
        match event:
            case SampleTaken():
                self._sampled(event, now, out)
            case CountersMoved():
                self._counted(event, now, out)
            case AckReceived():
                self._acked(event, now, out)
            case TimerFired():
                self._fired(event, now, out)
            case SubscriberJoined():
                self._joined(event, now, out)
            case SubscriberLeft():
                self._left(event, now, out)
            case ReportReceived():
                self._reported(event, now, out)
            case AdmitAsked():
                self._asked(event, now, out)
            case TargetAdded():
                self._added(event, now, out)
            case TargetDropped():
                self._dropped(event, now, out)
            case CgroupAppeared():
                self._appeared(event, out)
            case CgroupVanished():
                self._vanished(event, now, out)
            case SampleFailed():
                self._degraded(event, out)
            case KillsNearRemoval():
                near: dict[str, Fact] = {"target": event.target, "parent": event.parent, "kills": event.kills}
                out.append(Note("warning", "kills_near_removal", near))
            case ConfigReloaded():
                self._reconfigured(event.config, out)
            case _:
                assert_never(event)
        return out

    def worst_level(self) -> Level:
        """The highest level of all targets: what systemd's status line says."""
        return max((target.gauge.level for target in self.targets.values()), default=Level.NORMAL)

    # From the kernel

    def _sampled(self, event: SampleTaken, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.sample.target)
        if target is None:
            return
        if target.degraded is not None:
            target.degraded = None
            out.append(Note("info", "target_readable_again", {"target": target.name}))
        was = target.gauge.level
        target.sample = event.sample
        policies.observe(target.gauge, target.policy, target.static_bytes, event.sample, now)
        self._follow(target, was, now, out)

    def _counted(self, event: CountersMoved, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is None:
            return
        was = target.gauge.level
        # A kill counts also where the figures could not be read.
        sample = target.sample or Sample(target.name, ())
        ignored = policies.count(target.gauge, target.policy, target.static_bytes, sample, event)
        if ignored is not None:
            if not target.recycling_noted:
                target.recycling_noted = True
                out.append(Note("info", "counters_without_pressure", {"target": target.name, "reason": ignored}))
            return
        self._follow(target, was, now, out)

    def _follow(self, target: Target, was: Level, now: float, out: list[Effect]) -> None:
        """After each look at memory: say the level, let the ledger act, choose how soon to look again."""
        level = target.gauge.level
        if level is not was:
            out.append(AnnounceLevel(target.name, level, was, target.gauge.reason))
            if level is Level.NORMAL:
                target.recycling_noted = False
        target.ledger.follow(target.situation(now), out)
        interval_s = policies.sampling_interval(target.gauge, target.policy, self._sampling)
        if interval_s != target.interval_s:
            target.interval_s = interval_s
            out.append(SampleEvery(target.name, interval_s))

    def _degraded(self, event: SampleFailed, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is not None and target.degraded != event.reason:
            target.degraded = event.reason
            out.append(Note("warning", "target_degraded", {"target": target.name, "reason": event.reason}))

    def _appeared(self, event: CgroupAppeared, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is not None:
            target.present = True
            out.append(Note("info", "cgroup_appeared", {"target": target.name, "path": target.path}))

    def _vanished(self, event: CgroupVanished, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is None:
            return
        out.append(Note("info", "cgroup_vanished", {"target": target.name, "path": target.path}))
        target.present = False
        was = target.gauge.level
        target.gauge = policies.Gauge(reason="the cgroup was removed")
        target.sample = None
        target.degraded = None
        target.interval_s = None
        if was is not Level.NORMAL:
            out.append(AnnounceLevel(target.name, Level.NORMAL, was, target.gauge.reason))
        target.ledger.reset(target.situation(now), out)

    # From subscribers

    def _joined(self, event: SubscriberJoined, now: float, out: list[Effect]) -> None:
        if event.role is Role.OBSERVER or event.target is None:
            target = self.targets.get(event.target or "")
            level = self.worst_level() if target is None else target.gauge.level
            in_force = InForce() if target is None else target.ledger.in_force()
            out.append(Welcome(event.subscriber, event.target, level, in_force))
            return
        target = self.targets.get(event.target)
        if target is None:
            out.append(Disconnect(event.subscriber, f"target {event.target} is not guarded any more"))
            return
        self._home[event.subscriber] = target.name
        out.append(Welcome(event.subscriber, target.name, target.gauge.level, target.ledger.in_force()))
        subscriber = Subscriber(event.subscriber, event.name, event.supports)
        target.ledger.join(subscriber, target.situation(now), out)

    def _left(self, event: SubscriberLeft, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        self._home.pop(event.subscriber, None)
        if target is not None:
            target.reports.pop(event.subscriber, None)
            target.admissions.leave(event.subscriber)
            target.ledger.leave(event.subscriber, target.situation(now), out)

    def _acked(self, event: AckReceived, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        if target is None:
            text = f"cannot take the ack of seq {event.seq}: you serve no target"
            out.append(Refuse(event.subscriber, "unknown_seq", text))
            return
        target.ledger.ack(event, target.situation(now), out)

    def _reported(self, event: ReportReceived, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        if target is None:
            return
        old = target.reports.get(event.subscriber, Report())
        target.reports[event.subscriber] = _merged(old, event.report)
        target.admissions.finish(event.subscriber, event.finished)
        if target.sample is not None and event.report.static_bytes is not None:
            was = target.gauge.level
            policies.observe(target.gauge, target.policy, target.static_bytes, target.sample, now)
            self._follow(target, was, now, out)

    def _asked(self, event: AdmitAsked, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        if target is None:
            out.append(Refuse(event.subscriber, "not_allowed", "cannot admit: an observer takes no requests"))
            return
        refusal: str | None = None
        pressure = target.gauge.pressure
        if not target.ledger.in_force().accept_requests:
            refusal = f"requests are being rejected: {target.gauge.reason}"
        else:
            room = None
            if pressure is not None:
                room = policies.mark_bytes(target.policy.critical, pressure) - pressure.needed_bytes
            key = (event.subscriber, event.id)
            refusal = target.admissions.decide(key, _wanted_bytes(event, target), room, now)
        if refusal is None:
            out.append(AnswerAdmit(event.subscriber, event.id, True, "it fits"))
        else:
            retry_s = min(RESERVATION_S, target.policy.dwell_s)
            out.append(AnswerAdmit(event.subscriber, event.id, False, refusal, retry_s))

    # From the clock and the operator

    def _fired(self, event: TimerFired, now: float, out: list[Effect]) -> None:
        kind, _, rest = event.key.partition(":")
        if kind == "deadline":
            seq, _, name = rest.partition(":")
            target = self.targets.get(name)
            if target is not None:
                target.ledger.deadline(int(seq), target.situation(now), out)
        elif kind == "restore":
            target = self.targets.get(rest)
            if target is not None:
                target.ledger.restore_due(target.situation(now), out)

    def _added(self, event: TargetAdded, now: float, out: list[Effect]) -> None:
        known = self.targets.get(event.target)
        if known is None:
            self.targets[event.target] = Target(
                event.target,
                event.path,
                event.policy,
                policies.Gauge(),
                Ledger(event.target, event.policy),
                Admissions(),
            )
            return
        known.path = event.path
        known.policy = known.ledger.policy = event.policy
        if known.sample is not None:
            was = known.gauge.level
            policies.observe(known.gauge, known.policy, known.static_bytes, known.sample, now)
            self._follow(known, was, now, out)

    def _dropped(self, event: TargetDropped, now: float, out: list[Effect]) -> None:
        target = self.targets.pop(event.target, None)
        if target is None:
            return
        target.ledger.close(target.situation(now), out)
        for subscriber in target.ledger.subscribers:
            self._home.pop(subscriber, None)
            out.append(Disconnect(subscriber, f"target {target.name} is not guarded any more"))

    def _reconfigured(self, config: Config, out: list[Effect]) -> None:
        self._sampling = config.sampling
        out.append(Note("info", "configuration_in_force", {"targets": len(config.targets)}))

    def _home_of(self, subscriber: int) -> Target | None:
        return self.targets.get(self._home.get(subscriber, ""))


def _merged(old: Report, new: Report) -> Report:
    """The last word on each figure."""
    return Report(
        *(
            old_value if new_value is None else new_value
            for old_value, new_value in ((getattr(old, name), getattr(new, name)) for name in Report.__struct_fields__)
        )
    )


def _wanted_bytes(event: AdmitAsked, target: Target) -> int | None:
    if event.bytes is not None:
        return event.bytes
    report = target.reports.get(event.subscriber)
    if event.tokens is None or report is None or report.bytes_per_token is None:
        return None
    return event.tokens * report.bytes_per_token
