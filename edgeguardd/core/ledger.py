"""From a level to commands, and from answers to the next command: one target's ladder, deadlines and restores.

Must not: judge memory (policy does), read a clock, know sockets. Upstream: config, model, effects. Downstream: engine.

The rung is what is in force: it rises with the level at once, and one further when a round of commands brought
nothing; it falls one at a time, each after its own dwell. Each command ends exactly once (model.Outcome).
"""

from collections import deque

from msgspec import Struct

from edgeguardd.core.config import Policy, Step
from edgeguardd.core.effects import CancelTimer, CommandEnded, Deliver, Effect, Fact, Note, Refuse, SetTimer
from edgeguardd.core.events import AckReceived
from edgeguardd.core.ladder import VOIDED_BY, Situation, parameters_of, restrictions
from edgeguardd.core.model import AckStatus, Action, Command, InForce, Level, Outcome, Parameters

# A trim that freed less than this share of what was asked for did not help: the next rung is asked.
EFFECT_SHARE = 0.10

# At the floor repeats stop until needed bytes have grown by this share of the limit.
FLOOR_GROWTH_SHARE = 0.02

# A restore may include loading a model again; a wrong guess here only delays the retry.
RESTORE_DEADLINE_S = 30.0


RESTORE_ATTEMPTS = 3
REMEMBERED_ENDED = 64

_OUTCOME_OF = {
    AckStatus.FAILED: Outcome.FAILED,
    AckStatus.UNSUPPORTED: Outcome.UNSUPPORTED,
}


class Subscriber(Struct):
    """One inference server of this target. `applied` is what it was last told of each lasting action."""

    id: int
    name: str
    supports: frozenset[Action]
    applied: dict[Action, Parameters] = {}
    restore_attempts: int = 0


class Outstanding(Struct):
    """A command on its way: delivered, not yet ended."""

    command: Command
    subscriber: int
    sent_at: float
    needed_at_send: int | None
    accepted: bool = False


class Ledger:
    """One target's commands. Every method takes the situation and appends the effects to `out`."""

    def __init__(self, target: str, policy: Policy) -> None:
        self.target = target
        self.policy = policy
        self.rung = Level.NORMAL
        self.subscribers: dict[int, Subscriber] = {}
        self.outstanding: dict[int, Outstanding] = {}
        self.exhausted = False
        self._last_seq = 0
        self._repeat_at = 0.0
        self._round_helped = False
        self._floor_bytes: int | None = None
        self._climbed_at_bytes: int | None = None
        self._restore_armed = False
        self._ended: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_ENDED)

    def in_force(self) -> InForce:
        """The lasting restrictions of the present rung."""
        return restrictions(self.policy.ladder.rung(self.rung))

    def join(self, subscriber: Subscriber, at: Situation, out: list[Effect]) -> None:
        """A server subscribed: it gets the present rung at once."""
        self.subscribers[subscriber.id] = subscriber
        for step in self.policy.ladder.rung(self.rung):
            self._ask(subscriber, step, at, out)

    def leave(self, subscriber_id: int, at: Situation, out: list[Effect]) -> None:
        """A server is gone: its commands are lost, and others may have to give more."""
        if self.subscribers.pop(subscriber_id, None) is None:
            return
        for command in [o for o in self.outstanding.values() if o.subscriber == subscriber_id]:
            self._end(command, Outcome.LOST, None, at, out)
        if self.rung > Level.NORMAL and not self.subscribers:
            self._note_nobody(at, out)
        self._judge_round(at, out)

    def follow(self, at: Situation, out: list[Effect]) -> None:
        """After each sample and level change: climb with the level, repeat within it, arm and disarm restoring."""
        if at.level > self.rung:
            self._climb(at.level, at, out)
        elif self._may_repeat(at):
            self._repeat(at, out)
        if self.rung > at.level and not self._restore_armed:
            self._restore_armed = True
            out.append(SetTimer(f"restore:{self.target}", at.now + self.policy.restore_dwell_s))
        elif self.rung <= at.level:
            self._disarm_restore(out)

    def _disarm_restore(self, out: list[Effect]) -> None:
        if self._restore_armed:
            self._restore_armed = False
            out.append(CancelTimer(f"restore:{self.target}"))

    def ack(self, ack: AckReceived, at: Situation, out: list[Effect]) -> None:
        """An answer. `done` is believed only as far as needed bytes fell."""
        command = self.outstanding.get(ack.seq)
        if command is None or command.subscriber != ack.subscriber:
            self._refuse_ack(ack, out)
            return
        match ack.status:
            case AckStatus.ACCEPTED:
                command.accepted = True
                return
            case AckStatus.DONE:
                outcome = Outcome.DONE if self._helped(command, at) else Outcome.INEFFECTIVE
            case AckStatus.FAILED | AckStatus.UNSUPPORTED:
                outcome = _OUTCOME_OF[ack.status]
        self._end(command, outcome, ack.released_bytes, at, out, ack.message)
        self._after_end(command, outcome, at, out)

    def deadline(self, seq: int, at: Situation, out: list[Effect]) -> None:
        """A command's time is over without a final answer."""
        command = self.outstanding.get(seq)
        if command is not None:
            self._end(command, Outcome.EXPIRED, None, at, out)
            self._after_end(command, Outcome.EXPIRED, at, out)

    def restore_due(self, at: Situation, out: list[Effect]) -> None:
        """The restore dwell is over: give back one rung, if the level still allows it."""
        self._restore_armed = False
        if self.rung > at.level and not self._must_hold(at):
            self._step_down(Level(self.rung - 1), at, out)
        self.follow(at, out)

    def _must_hold(self, at: Situation) -> bool:
        """A rung above the level was reached because less did not help. It stays while memory is critical or grows;
        a target that merely rests at its floor gets its capacity back."""
        if not at.pressing or at.needed_bytes is None:
            return False
        return at.level >= Level.CRITICAL or self._has_grown(at, self._climbed_at_bytes)

    def _has_grown(self, at: Situation, since_bytes: int | None) -> bool:
        if since_bytes is None or at.needed_bytes is None:
            return True
        return at.needed_bytes > since_bytes + FLOOR_GROWTH_SHARE * (at.limit_bytes or 0)

    def reset(self, at: Situation, out: list[Effect]) -> None:
        """The cgroup is gone: whatever was asked of its processes is void; bridges outside it are restored."""
        for command in list(self.outstanding.values()):
            self._end(command, Outcome.DROPPED, None, at, out)
        if self.rung > Level.NORMAL:
            self._step_down(Level.NORMAL, at, out)
        self._disarm_restore(out)

    def close(self, at: Situation, out: list[Effect]) -> None:
        """The target is guarded no longer: restore everybody, then let every command end."""
        self.reset(at, out)
        for command in list(self.outstanding.values()):
            self._end(command, Outcome.DROPPED, None, at, out)

    # Climbing

    def _climb(self, to: Level, at: Situation, out: list[Effect]) -> None:
        self.rung = to
        self._climbed_at_bytes = at.needed_bytes
        self._disarm_restore(out)
        self._round_helped = False
        self._repeat_at = at.now + self.policy.repeat_s
        asked = [
            self._ask(subscriber, step, at, out)
            for subscriber in self.subscribers.values()
            for step in self.policy.ladder.rung(to)
        ]
        if not any(asked) and not self.outstanding:
            self._note_nobody(at, out)

    def _note_nobody(self, at: Situation, out: list[Effect]) -> None:
        fields: dict[str, Fact] = {"target": self.target, "level": at.level.word, "subscribers": len(self.subscribers)}
        out.append(Note("error" if at.level >= Level.CRITICAL else "warning", "nobody_to_ask", fields))

    def _repeat(self, at: Situation, out: list[Effect]) -> None:
        self._repeat_at = at.now + self.policy.repeat_s
        self._round_helped = False
        self.exhausted = False
        self._floor_bytes = None
        for subscriber in self.subscribers.values():
            for step in self.policy.ladder.rung(self.rung):
                self._ask(subscriber, step, at, out)

    def _may_repeat(self, at: Situation) -> bool:
        if not at.pressing or self.rung is Level.NORMAL or at.now < self._repeat_at or self.outstanding:
            return False
        return self._floor_bytes is None or self._has_grown(at, self._floor_bytes)

    def _judge_round(self, at: Situation, out: list[Effect]) -> None:
        """When every command of the round has ended and none helped, the next rung is asked at once."""
        waiting = any(o.command.action is not Action.RESTORE for o in self.outstanding.values())
        if waiting or self._round_helped or not at.pressing or not self.subscribers:
            return
        # Unloading the model is for a kernel that is about to kill, not for a cache that will not shrink.
        top = Level.EMERGENCY if at.level >= Level.CRITICAL else Level.CRITICAL
        if self.rung >= top:
            self._rest_at_floor(at, out)
            return
        to = Level(self.rung + 1)
        fields = {
            "target": self.target,
            "level": at.level.word,
            "rung": to.word,
            "needed_bytes": at.needed_bytes,
        }
        out.append(Note("warning", "escalated", fields))
        self._climb(to, at, out)

    def _rest_at_floor(self, at: Situation, out: list[Effect]) -> None:
        if not self.exhausted:
            fields: dict[str, Fact] = {"target": self.target, "level": at.level.word, "needed_bytes": at.needed_bytes}
            out.append(Note("error", "ladder_exhausted", fields))
        self.exhausted = True
        self._floor_bytes = at.needed_bytes

    # One command's life

    def _ask(self, subscriber: Subscriber, step: Step, at: Situation, out: list[Effect]) -> bool:
        """Deliver one step, unless it is not supported or is in force already. True if it went out."""
        if step.action not in subscriber.supports:
            return False
        parameters = parameters_of(step, at)
        if step.action is not Action.TRIM_KV_CACHE:
            if subscriber.applied.get(step.action) == parameters:
                return False
            subscriber.applied[step.action] = parameters
        self._send(subscriber, step.action, parameters, step.deadline_s, at, out)
        return True

    def _send(
        self,
        subscriber: Subscriber,
        action: Action,
        parameters: Parameters,
        deadline_s: float,
        at: Situation,
        out: list[Effect],
    ) -> None:
        voided = VOIDED_BY.get(action, frozenset()) | {action}
        for older in list(self.outstanding.values()):
            if older.subscriber == subscriber.id and older.command.action in voided:
                self._end(older, Outcome.SUPERSEDED, None, at, out)
        self._last_seq += 1
        command = Command(self._last_seq, self.target, action, parameters, at.level, at.reason, deadline_s)
        self.outstanding[command.seq] = Outstanding(command, subscriber.id, at.now, at.needed_bytes)
        out.append(Deliver(subscriber.id, command))
        out.append(SetTimer(self._deadline_key(command.seq), at.now + deadline_s))

    def _end(
        self,
        ended: Outstanding,
        outcome: Outcome,
        claimed_bytes: int | None,
        at: Situation,
        out: list[Effect],
        message: str | None = None,
    ) -> None:
        command = ended.command
        del self.outstanding[command.seq]
        self._ended.append((ended.subscriber, command.seq))
        if outcome is Outcome.DONE and command.action is not Action.RESTORE:
            self._round_helped = True
        out.append(CancelTimer(self._deadline_key(command.seq)))
        out.append(
            CommandEnded(
                ended.subscriber,
                command.seq,
                self.target,
                command.action,
                outcome,
                at.now - ended.sent_at,
                claimed_bytes,
                _freed(ended, at),
                message,
            )
        )

    def _after_end(self, ended: Outstanding, outcome: Outcome, at: Situation, out: list[Effect]) -> None:
        """A failure is forgotten as a state, so that the step is asked again; then the round is judged."""
        subscriber = self.subscribers[ended.subscriber]
        action = ended.command.action
        if action is Action.RESTORE:
            self._after_restore(subscriber, outcome, at, out)
            return
        if outcome is Outcome.UNSUPPORTED:
            subscriber.supports -= {action}
        if outcome not in (Outcome.DONE, Outcome.INEFFECTIVE):
            subscriber.applied.pop(action, None)
        self._judge_round(at, out)

    def _helped(self, command: Outstanding, at: Situation) -> bool:
        asked = command.command.parameters.release_bytes
        if command.command.action is not Action.TRIM_KV_CACHE or not asked or not at.pressing:
            return True
        freed = _freed(command, at)
        return freed is None or freed >= EFFECT_SHARE * asked

    def _refuse_ack(self, ack: AckReceived, out: list[Effect]) -> None:
        if (ack.subscriber, ack.seq) in self._ended:
            fields: dict[str, Fact] = {
                "target": self.target,
                "subscriber": ack.subscriber,
                "seq": ack.seq,
                "status": ack.status.value,
            }
            out.append(Note("info", "late_ack", fields))
            return
        text = f"cannot take the ack of seq {ack.seq}: no such command is outstanding for you"
        out.append(Refuse(ack.subscriber, "unknown_seq", text))

    def _deadline_key(self, seq: int) -> str:
        return f"deadline:{seq}:{self.target}"

    # Restoring

    def _step_down(self, to: Level, at: Situation, out: list[Effect]) -> None:
        """Put a lower rung in force and tell everybody whose restrictions it lifts."""
        self.rung = to
        for subscriber in self.subscribers.values():
            wanted = self._lasting_steps(subscriber, at)
            if subscriber.applied != wanted:
                subscriber.applied = wanted
                subscriber.restore_attempts = 0
                self._restore(subscriber, at, out)
        if to is Level.NORMAL:
            self.exhausted = False
            self._floor_bytes = None
            out.append(Note("info", "restored", {"target": self.target, "subscribers": len(self.subscribers)}))

    def _restore(self, subscriber: Subscriber, at: Situation, out: list[Effect]) -> None:
        state = self.in_force()
        parameters = Parameters(
            max_batch_ratio=state.max_batch_ratio,
            accept_requests=state.accept_requests,
            model_loaded=state.model_loaded,
        )
        subscriber.restore_attempts += 1
        self._send(subscriber, Action.RESTORE, parameters, RESTORE_DEADLINE_S, at, out)

    def _lasting_steps(self, subscriber: Subscriber, at: Situation) -> dict[Action, Parameters]:
        return {
            step.action: parameters_of(step, at)
            for step in self.policy.ladder.rung(self.rung)
            if step.action is not Action.TRIM_KV_CACHE and step.action in subscriber.supports
        }

    def _after_restore(self, subscriber: Subscriber, outcome: Outcome, at: Situation, out: list[Effect]) -> None:
        if outcome is Outcome.DONE:
            subscriber.restore_attempts = 0
        elif subscriber.restore_attempts < RESTORE_ATTEMPTS and outcome is not Outcome.UNSUPPORTED:
            self._restore(subscriber, at, out)
        else:
            fields: dict[str, Fact] = {"target": self.target, "subscriber": subscriber.name, "outcome": outcome.value}
            out.append(Note("error", "restore_failed", fields))


def _freed(command: Outstanding, at: Situation) -> int | None:
    if command.needed_at_send is None or at.needed_bytes is None:
        return None
    return command.needed_at_send - at.needed_bytes
