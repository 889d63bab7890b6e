"""The path on one screen: handle(event, now) -> effects.

    figures, counters ──▶ guard: policy ──level──▶ ledger ──▶ commands       answers ──▶ subscribers ──▶ ledger
    timers ──▶ deadline, verify, restore: ledger, and after each of them guard: relief, last resort

Must not: do I/O, read a clock, decide anything that policy (levels) or ledger (commands) decides.
Upstream: guard, subscribers, resume. Downstream: dispatch, replay.
The same events at the same times give the same effects, always: that is what makes an incident replayable.
"""

from typing import assert_never

from msgspec import structs

from edgeguardd.core import gate, resort, resume
from edgeguardd.core.commands import Numbers
from edgeguardd.core.config import Config, MachineConfig, SamplingConfig
from edgeguardd.core.effects import AnswerGate, Effect, Fact, Note, PutBackLimit, SetTimer
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
from edgeguardd.core.guard import Guard
from edgeguardd.core.kept import learned_only
from edgeguardd.core.subscribers import Subscribers
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
        self.guard = Guard(sampling or SamplingConfig(), machine or MachineConfig())
        self.targets = self.guard.targets
        self.machine = self.guard.machine
        self.numbers = Numbers()
        self._subscribers = Subscribers(self.guard)
        self._kept = StateRecalled((), resume.keep_machine(self.machine), 0, 0.0)
        self._last_absent = 0

    def handle(self, event: Event, now: float) -> list[Effect]:  # noqa: C901, PLR0912  one row an event
        """Take one fact, at one time; return what is to be done, in order."""
        out: list[Effect] = []
        match event:
            case SampleTaken():
                self.guard.sampled(event, now, out)
            case CountersMoved():
                self.guard.counted(event, now, out)
            case MachineSampled():
                self.guard.machine_sampled(event, now, out)
            case AckReceived():
                self._subscribers.acked(event, now, out)
            case TimerFired():
                self._fired(event, now, out)
            case SubscriberJoined():
                self._subscribers.joined(event, now, out)
            case SubscriberLeft():
                self._subscribers.left(event, now, out)
            case ReportReceived():
                self._subscribers.reported(event, now, out)
            case AdmitAsked():
                self._subscribers.asked(event, now, out)
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
                self.guard.appeared(event, out)
            case CgroupVanished():
                self.guard.vanished(event, now, out)
            case SampleFailed():
                self.guard.degraded(event, now, out)
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
        self.guard.after(target, self.guard.situation(target, now), out)

    def _resorted(self, event: LastResortEnded, now: float, out: list[Effect]) -> None:
        target = self.targets.get(event.target)
        fields: dict[str, Fact] = {"target": event.target, "action": event.action.value, "outcome": event.outcome}
        severity = "error" if event.outcome == "failed" else "warning"
        out.append(Note(severity, "last_resort_ended", {**fields, "message": event.message}))
        if target is not None:
            resort.ended(target, event, now, out)

    def _fired(self, event: TimerFired, now: float, out: list[Effect]) -> None:
        kind, _, rest = event.key.partition(":")
        seq, _, name = rest.partition(":") if kind in {"deadline", "verify"} else ("", "", rest)
        target = self.targets.get(name)
        if target is None:
            return
        at = self.guard.situation(target, now)
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
                self.guard.age(target, now, out)
            case "putback":
                out.append(PutBackLimit(target.name))
            case "relief":
                target.relief.renew()
            case "thaw":
                resort.thaw(target, out)
            case "return":
                resume.give_up(target, at, out)
        self.guard.after(target, at, out)

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
        self.guard.judge(target, now, out)

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
        self.guard.give_up_relief(target, out)
        self._subscribers.dropped(target, out)

    def _reconfigured(self, config: Config, out: list[Effect]) -> None:
        self.guard.sampling = config.sampling
        self.guard.machine_config = config.machine
        out.append(Note("info", "configuration_in_force", {"targets": len(config.targets)}))
