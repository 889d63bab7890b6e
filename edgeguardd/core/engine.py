"""The path on one screen: handle(event, now) -> effects.

Must not: do I/O, read a clock, decide anything that policy (levels) or ledger (commands) decides.
Upstream: policy, ledger, sharing, relief, resort. Downstream: daemon, replay.
The same events at the same times give the same effects, always: that is what makes an incident replayable.
"""

from typing import assert_never

from msgspec import structs

from edgeguardd.core import gate, limits, resort, resume
from edgeguardd.core import machine as machines
from edgeguardd.core import policy as policies
from edgeguardd.core.commands import Numbers
from edgeguardd.core.config import Config, MachineConfig, SamplingConfig
from edgeguardd.core.effects import (
    AnnounceLevel,
    AnswerAdmit,
    AnswerGate,
    Disconnect,
    Effect,
    Fact,
    Note,
    PutBackLimit,
    Refuse,
    SampleEvery,
    SetTimer,
    SignalPressure,
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
    GateAsked,
    KillsNearRemoval,
    KillsWhileAway,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    MachineSampled,
    ReliefFailed,
    ReportReceived,
    SampleFailed,
    SampleTaken,
    StateRecalled,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
    TimerFired,
)
from edgeguardd.core.hint import MACHINE_REPEAT_S, Hint
from edgeguardd.core.kept import learned_only
from edgeguardd.core.ladder import Situation
from edgeguardd.core.ledger import Subscriber
from edgeguardd.core.model import InForce, Level, Report, Role, Sample
from edgeguardd.core.relief import Phase, Relief
from edgeguardd.core.sharing import announced, share_of
from edgeguardd.core.target import Target

# A limit that could not be put back is tried again soon, one that could not be lifted after a while: the cause may
# have been a moment's (somebody else wrote it, the disk was full), and each try is said.
PUT_BACK_AGAIN_S = 5.0
RELIEF_AGAIN_S = 60.0


class Engine:
    """Facts in, orders out. `targets` may be read by status and metrics, and written by nobody else.

    numbers  the last number given to a command
    """

    def __init__(self, sampling: SamplingConfig | None = None, machine: MachineConfig | None = None) -> None:
        self.targets: dict[str, Target] = {}
        self.machine = machines.MachineGauge()
        self.numbers = Numbers()
        self._sampling = sampling or SamplingConfig()
        self._machine_config = machine or MachineConfig()
        self._machine_hint = Hint()
        self._home: dict[int, str] = {}
        self._kept = StateRecalled((), resume.keep_machine(self.machine), 0, 0.0)
        self._last_absent = 0

    def handle(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0912  one row an event
        """Take one fact, at one time; return what is to be done, in order."""
        out: list[Effect] = []
        match event:
            case SampleTaken():
                self._sampled(event, now, out)
            case CountersMoved():
                self._counted(event, now, out)
            case MachineSampled():
                self._machine_sampled(event, now, out)
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
            case GateAsked():
                self._gate_asked(event, now, out)
            case LimitRaised() | LimitPutBack() | ReliefFailed():
                self._relieved(event, now, out)
            case LastResortEnded():
                self._resorted(event, now, out)
            case TargetAdded():
                self._added(event, now, out)
            case TargetDropped():
                self._dropped(event, now, out)
            case CgroupAppeared():
                self._appeared(event, out)
            case CgroupVanished():
                self._vanished(event, now, out)
            case SampleFailed():
                self._degraded(event, now, out)
            case KillsNearRemoval():
                near: dict[str, Fact] = {"target": event.target, "parent": event.parent, "kills": event.kills}
                out.append(Note("warning", "kills_near_removal", near))
            case KillsWhileAway():
                away: dict[str, Fact] = {"target": event.target, "kills": event.kills, "new_cgroup": event.new_cgroup}
                out.append(Note("warning", "kills_while_away", away))
            case StateRecalled():
                self._recalled(event)
            case ConfigReloaded():
                self._reconfigured(event.config, out)
            case _:
                assert_never(event)
        return out

    def worst_level(self) -> Level:
        """The highest level of all targets and of the machine: what systemd's status line says."""
        return max((target.level for target in self.targets.values()), default=self.machine.level)

    # From the kernel

    def _sampled(self, event: SampleTaken, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.sample.target)
        if target is None:
            return
        if target.degraded is not None:
            target.degraded = None
            out.append(Note("info", "target_readable_again", {"target": target.name}))
        own, *ancestors = event.sample.usages
        target.sample = Sample(target.name, (target.relief.judged(own), *ancestors))
        self._judge(target, now, out)

    def _counted(self, event: CountersMoved, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is None:
            return
        # A kill counts also where the figures could not be read.
        sample = target.sample or Sample(target.name, ())
        ignored = policies.count(target.gauge, target.policy, target.given_static_bytes, sample, event, now)
        if ignored is None:
            self._follow(target, now, out)
        elif not target.recycling_noted:
            target.recycling_noted = True
            out.append(Note("info", "counters_without_pressure", {"target": target.name, "reason": ignored}))

    def _machine_sampled(self, event: MachineSampled, now: float, out: list[Effect]) -> None:
        was = self.machine.level
        machines.observe(self.machine, self._machine_config, event.sample, now)
        level = self.machine.level
        if level is not was:
            fields: dict[str, Fact] = {"level": level.word, "was": was.word, "why": self.machine.reason}
            out.append(Note("warning" if level > was else "info", "machine_level_changed", fields))
        if self._machine_hint.due(level, MACHINE_REPEAT_S, now):
            out.append(SignalPressure(None))
        if level > Level.NORMAL or level is not was:
            for target in self.targets.values():
                self._follow(target, now, out)

    def _judge(self, target: Target, now: float, out: list[Effect]) -> None:
        """Look at the last sample again, as the rules are now."""
        if target.sample is not None:
            target.observe(target.sample, now)
            self._follow(target, now, out)

    def _follow(self, target: Target, now: float, out: list[Effect]) -> None:
        """After each look at memory: say the level, let the ledger act, choose how soon to look again."""
        share = share_of(target, self.targets.values(), self.machine)
        if share.deferred:
            self._look_at_others(target, out)
        at = target.situation(now, share)
        level, reason = announced(target, at, self.machine)
        if level is not target.level:
            out.append(AnnounceLevel(target.name, level, target.level, reason))
            target.level, target.reason, target.level_at = level, reason, now
            if level is Level.NORMAL:
                target.recycling_noted = False
        self._note_limits(target, out)
        target.ledger.follow(at, out)
        if target.hint.due(target.hint_level(at), target.policy.repeat_s, now):
            out.append(SignalPressure(target.name))
        self._after(target, at, out)
        interval_s = policies.sampling_interval(target.gauge, target.policy, self._sampling)
        if interval_s != target.interval_s:
            target.interval_s = interval_s
            out.append(SampleEvery(target.name, interval_s))

    def _after(self, target: Target, at: Situation, out: list[Effect]) -> None:
        """What follows from the state of the commands: a floor learned, a limit lifted or put back, the last resort."""
        if target.ledger.floor_bytes is not None:
            policies.learn_floor(target.gauge, target.ledger.floor_bytes)
            target.ledger.floor_bytes = None
        own = None if target.sample is None else target.sample.usages[0]
        target.relief.follow(target.name, target.policy, own, target.ledger.commands.trimming, out)
        resort.follow(target, at, out)

    def _degraded(self, event: SampleFailed, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is not None and target.degraded != event.reason:
            target.degraded = event.reason
            out.append(Note("warning", "target_degraded", {"target": target.name, "reason": event.reason}))
            out.append(SetTimer(f"blind:{target.name}", now + target.policy.dwell_s))

    def _age(self, target: Target, now: float, out: list[Effect]) -> None:
        """While nothing can be read, a level that only counters called for falls back to what was last seen."""
        if target.degraded is not None:
            policies.age(target.gauge)
            self._follow(target, now, out)
            out.append(SetTimer(f"blind:{target.name}", now + target.policy.dwell_s))

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
        # What its trims took is still true of the next server under this name.
        target.gauge = policies.Gauge(
            reason="its cgroup is gone, or has no memory controller any more", lead=target.gauge.lead
        )
        target.sample = target.degraded = target.interval_s = None
        was, target.level, target.reason = target.level, Level.NORMAL, target.gauge.reason
        if was is not Level.NORMAL:
            target.level_at = now
            out.append(AnnounceLevel(target.name, Level.NORMAL, was, target.reason))
        target.ledger.reset(target.situation(now), out)
        self._give_up_relief(target, out)
        resort.reset(target)

    # From subscribers

    def _joined(self, event: SubscriberJoined, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target or "")
        if event.role is Role.OBSERVER or event.target is None:
            level = self.worst_level() if target is None else target.level
            in_force = InForce() if target is None else target.ledger.in_force()
            out.append(Welcome(event.subscriber, event.target, level, in_force))
            return
        if target is None:
            out.append(Disconnect(event.subscriber, f"target {event.target} is not guarded any more"))
            return
        self._home[event.subscriber] = target.name
        in_force = target.ledger.in_force(event.supports)
        out.append(Welcome(event.subscriber, target.name, target.level, in_force))
        at = self._situation(target, now)
        was = resume.absent_of(target.ledger, event.name, event.pid)
        if was is None:
            joined = Subscriber(event.subscriber, event.name, event.supports, pid=event.pid)
            target.ledger.join(joined, at, out)
        else:
            resume.come_back(target, was, event.subscriber, event.supports, at, out)
        self._after(target, at, out)

    def _left(self, event: SubscriberLeft, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        self._home.pop(event.subscriber, None)
        if target is not None:
            target.reports.pop(event.subscriber, None)
            target.admissions.leave(event.subscriber)
            at = self._situation(target, now)
            target.ledger.leave(event.subscriber, at, out)
            self._after(target, at, out)

    def _acked(self, event: AckReceived, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        if target is None:
            text = f"cannot take the ack of seq {event.seq}: you serve no target"
            out.append(Refuse(event.subscriber, "unknown_seq", text))
            return
        at = self._situation(target, now)
        target.ledger.ack(event, at, out)
        self._after(target, at, out)

    def _reported(self, event: ReportReceived, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        if target is None:
            return
        old = target.reports.get(event.subscriber, Report())
        target.reports[event.subscriber] = _merged(old, event.report)
        target.admissions.finish(event.subscriber, event.finished)
        if event.report.static_bytes is not None:
            self._judge(target, now, out)

    def _asked(self, event: AdmitAsked, now: float, out: list[Effect]) -> None:
        target = self._home_of(event.subscriber)
        if target is None:
            out.append(Refuse(event.subscriber, "not_allowed", "cannot admit: an observer takes no requests"))
            return
        refusal = gate.closed(target)
        if refusal is None:
            key = (event.subscriber, event.id)
            refusal = target.admissions.decide(key, _wanted_bytes(event, target), target.room_bytes(), now)
        if refusal is None:
            out.append(AnswerAdmit(event.subscriber, event.id, True, "it fits"))
        else:
            out.append(AnswerAdmit(event.subscriber, event.id, False, refusal, gate.retry_after_s(target)))

    def _gate_asked(self, event: GateAsked, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is None:
            out.append(AnswerGate(event.target, False, "no such target is guarded", gate.LEAST_RETRY_S))
            return
        refusal = gate.closed(target)
        if refusal is None:
            refusal = target.admissions.let_through(event.bytes, target.room_bytes(), event.hold_s, now)
        if refusal is None:
            out.append(AnswerGate(target.name, True, "it fits"))
        else:
            out.append(AnswerGate(target.name, False, refusal, gate.retry_after_s(target)))

    # What the daemon did itself

    def _relieved(self, event: LimitRaised | LimitPutBack | ReliefFailed, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is None:
            return
        match event:
            case LimitRaised():
                target.relief.raised(event.high_bytes, event.raised_bytes)
                fields: dict[str, Fact] = {"target": target.name, "from": event.high_bytes, "to": event.raised_bytes}
                out.append(Note("info", "limit_raised", fields))
            case LimitPutBack():
                if event.outcome == "failed":
                    out.append(SetTimer(f"putback:{target.name}", now + PUT_BACK_AGAIN_S))
                else:
                    target.relief.put_back()
                fields = {"target": target.name, "outcome": event.outcome, "message": event.message}
                out.append(Note("info" if event.outcome == "restored" else "warning", "limit_put_back", fields))
            case ReliefFailed():
                target.relief.failed()
                out.append(SetTimer(f"relief:{target.name}", now + RELIEF_AGAIN_S))
                out.append(Note("warning", "no_relief", {"target": target.name, "message": event.message}))
        self._after(target, self._situation(target, now), out)

    def _resorted(self, event: LastResortEnded, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        fields: dict[str, Fact] = {"target": event.target, "action": event.action.value, "outcome": event.outcome}
        severity = "error" if event.outcome == "failed" else "warning"
        out.append(Note(severity, "last_resort_ended", {**fields, "message": event.message}))
        if target is not None:
            resort.ended(target, event, now, out)

    # From the clock and the operator

    def _fired(self, event: TimerFired, now: float, out: list[Effect]) -> None:
        kind, _, rest = event.key.partition(":")
        seq, _, name = rest.partition(":") if kind in {"deadline", "verify"} else ("", "", rest)
        target = self.targets.get(name)
        if target is None:
            return
        at = self._situation(target, now)
        match kind:
            case "deadline":
                target.ledger.deadline(int(seq), at, out)
            case "verify":
                target.ledger.verified(int(seq), at, out)
            case "restore":
                target.ledger.restore_due(at, out)
            case "owed":
                target.ledger.restore_owed(at, out)
            case "blind":
                self._age(target, now, out)
            case "putback":
                out.append(PutBackLimit(target.name))
            case "relief":
                target.relief.renew()
            case "thaw":
                resort.thaw(target, out)
            case "return":
                resume.give_up(target, at, out)
        self._after(target, at, out)

    def _added(self, event: TargetAdded, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        if target is None:
            target = Target.new(event.target, event.path, event.policy, self.numbers)
            self.targets[event.target] = target
            self._recall(target, now, out)
            return
        target.path = event.path
        target.policy = target.ledger.policy = event.policy
        target.relief.renew()
        self._judge(target, now, out)

    def _recalled(self, event: StateRecalled) -> None:
        self._kept = event
        self.numbers.last = max(self.numbers.last, event.last_seq)
        self.machine.level, self.machine.reason = event.machine.level, event.machine.reason

    def _recall(self, target: Target, now: float, out: list[Effect]) -> None:
        """A target that a run before this one knew goes on from where it was."""
        kept = next((kept for kept in self._kept.targets if kept.name == target.name), None)
        if kept is not None:
            known = kept if kept.path == target.path else learned_only(kept)
            self._last_absent = resume.recall(target, known, now, self._kept.wait_s, self._last_absent, out)
            self._kept = structs.replace(self._kept, targets=tuple(k for k in self._kept.targets if k is not kept))

    def _dropped(self, event: TargetDropped, now: float, out: list[Effect]) -> None:
        target = self.targets.pop(event.target, None)
        if target is None:
            return
        target.ledger.close(target.situation(now), out)
        self._give_up_relief(target, out)
        for subscriber in target.ledger.subscribers:
            self._home.pop(subscriber, None)
            out.append(Disconnect(subscriber, f"target {target.name} is not guarded any more"))

    def _reconfigured(self, config: Config, out: list[Effect]) -> None:
        self._sampling = config.sampling
        self._machine_config = config.machine
        out.append(Note("info", "configuration_in_force", {"targets": len(config.targets)}))

    # Helpers

    def _situation(self, target: Target, now: float) -> Situation:
        return target.situation(now, share_of(target, self.targets.values(), self.machine))

    def _look_at_others(self, target: Target, out: list[Effect]) -> None:
        """A shared limit binds, and another gives first: its figures have to be as fresh as this target's."""
        fast_s = self._sampling.fast_s
        for other in self.targets.values():
            if other is not target and other.limit_path == target.limit_path and other.interval_s != fast_s:
                other.interval_s = fast_s
                out.append(SampleEvery(other.name, other.interval_s))

    def _note_limits(self, target: Target, out: list[Effect]) -> None:
        """Say once what the figures do not allow: no limit, static bytes beyond it, a mark that is met at rest."""
        pressure, static = target.gauge.pressure, target.given_static_bytes
        seen = (None if pressure is None else pressure.limit_bytes, static)
        if target.sample is None or target.limits_noted == seen:
            return
        target.limits_noted = seen
        fields: dict[str, Fact] = {"target": target.name, "limit_bytes": seen[0], "static_bytes": static}
        if pressure is None:
            out.append(Note("warning", "no_limit", {"target": target.name, "judged_by": "the machine alone"}))
        elif static is not None and static >= pressure.limit_bytes:
            out.append(Note("warning", "static_over_limit", {**fields, "judged_by": "the plain share"}))
        elif limits.unmeetable(target.policy, pressure):
            out.append(Note("warning", "marks_below_rest", fields))

    def _give_up_relief(self, target: Target, out: list[Effect]) -> None:
        if target.relief.phase not in (Phase.RESTING, Phase.UNAVAILABLE):
            out.append(PutBackLimit(target.name))
        target.relief = Relief()

    def _home_of(self, subscriber: int) -> Target | None:
        return self.targets.get(self._home.get(subscriber, ""))


def _merged(old: Report, new: Report) -> Report:
    """The last word on each figure."""
    names = Report.__struct_fields__
    return Report(*(getattr(old, n) if getattr(new, n) is None else getattr(new, n) for n in names))


def _wanted_bytes(event: AdmitAsked, target: Target) -> int | None:
    if event.bytes is not None:
        return event.bytes
    report = target.reports.get(event.subscriber)
    if event.tokens is None or report is None or report.bytes_per_token is None:
        return None
    return event.tokens * report.bytes_per_token
