"""From a level to commands, and from answers to the next command: one target's ladder, up and down.

Must not: judge memory (policy does), read a clock, know sockets. Upstream: ladder, commands, restores. Downstream:
engine.

The rung is what is in force: it rises with the level at once, and one further when a round of commands brought
nothing; it falls one at a time, each after its own dwell.
"""

from edgeguardd.core.commands import Commands, Numbers, Outstanding
from edgeguardd.core.config import Policy, Step
from edgeguardd.core.effects import CancelTimer, Effect, Fact, Note, SetTimer
from edgeguardd.core.events import AckReceived
from edgeguardd.core.growth import Lead
from edgeguardd.core.kept import Course
from edgeguardd.core.ladder import Situation, parameters_of, restrictions
from edgeguardd.core.model import AckStatus, Action, InForce, Level, Outcome, Parameters
from edgeguardd.core.restores import Restores, Subscriber

# At the floor repeats stop until needed bytes have grown by this share of the limit.
FLOOR_GROWTH_SHARE = 0.02

# Requests are let in again when there is room for so many of them: one would close the gate at once.
REOPEN_REQUESTS = 2

_OUTCOME_OF = {
    AckStatus.FAILED: Outcome.FAILED,
    AckStatus.UNSUPPORTED: Outcome.UNSUPPORTED,
}

# Answers of a server that is there: what it cannot give after these is what it holds at rest.
_ANSWERS = frozenset({Outcome.INEFFECTIVE, Outcome.FAILED, Outcome.UNSUPPORTED})


class Ledger:
    """One target's commands. Every method takes the situation and appends the effects to `out`.

    exhausted    every rung was asked and nothing came
    floor_bytes  the needed bytes at which that was, if the server itself answered: what it holds at rest
    rejecting    whether requests are to be rejected now: the rung says so, and there is no room for one more
    """

    def __init__(self, target: str, policy: Policy, lead: Lead, numbers: Numbers) -> None:
        self.target = target
        self.policy = policy
        self.rung = Level.NORMAL
        self.subscribers: dict[int, Subscriber] = {}
        self.commands = Commands(target, numbers)
        self.exhausted = False
        self.floor_bytes: int | None = None
        self.rejecting = False
        self.course = Course()
        self._lead = lead
        self._restores = Restores(target, self.commands, self.subscribers)
        self._restore_armed = False

    @property
    def outstanding(self) -> dict[int, Outstanding]:
        """The commands on their way, by sequence number."""
        return self.commands.outstanding

    def in_force(self, supports: frozenset[Action] | None = None) -> InForce:
        """The lasting restrictions of the present rung, for a server that can do these (None: anything)."""
        rung = self.policy.ladder.rung(self.rung)
        steps = tuple(s for s in rung if supports is None or s.action in supports)
        state = restrictions(steps)
        return InForce(state.max_batch_ratio, state.accept_requests or not self.rejecting, state.model_loaded)

    def obeyed(self) -> InForce:
        """The lasting restrictions that some server has been told and not been freed of: what status shows."""
        told = [parameters for subscriber in self.subscribers.values() for parameters in subscriber.told.values()]
        ratios = [p.max_batch_ratio for p in told if p.max_batch_ratio is not None]
        return InForce(
            min(ratios, default=1.0),
            all(p.accept_requests is not False for p in told),
            all(p.model_loaded is not False for p in told),
        )

    def helpless(self) -> bool:
        """Whether nobody is left who could give anything: the last resort's hour."""
        if self.rung is Level.NORMAL:
            return False
        steps = {step.action for step in self.policy.ladder.rung(self.rung)}
        return self.exhausted or not any(steps & s.supports for s in self.subscribers.values())

    def join(self, subscriber: Subscriber, at: Situation, out: list[Effect]) -> None:
        """A server subscribed: it gets the present rung at once."""
        self.subscribers[subscriber.id] = subscriber
        for step in self.policy.ladder.rung(self.rung):
            # A model loaded since the kill is not to be thrown out for it, unless memory is short again.
            if step.action is not Action.UNLOAD_MODEL or at.pressing:
                self._ask(subscriber, step, at, out)

    def catch_up(self, subscriber: Subscriber, at: Situation, out: list[Effect]) -> None:
        """A server is back that was told before: the lasting steps that it has not been told. Trims follow samples."""
        for step in self.policy.ladder.rung(self.rung):
            if step.action not in (Action.TRIM_KV_CACHE, Action.UNLOAD_MODEL):
                self._ask(subscriber, step, at, out)

    def leave(self, subscriber_id: int, at: Situation, out: list[Effect]) -> None:
        """A server is gone: its commands are lost, and others may have to give more."""
        if self.subscribers.pop(subscriber_id, None) is None:
            return
        for one in self.commands.of(subscriber_id):
            self.commands.end(one, Outcome.LOST, at, out)
        if self.rung > Level.NORMAL and not self.subscribers:
            self._note_nobody(at, out)
        self._judge_round(at, out)

    def follow(self, at: Situation, out: list[Effect]) -> None:
        """After each sample and level change: verify, climb with the level, repeat within it, restore below it."""
        for one in list(self.outstanding.values()):
            if one.done and one.helped(at):
                self._finish(one, Outcome.DONE, at, out)
        if at.level > self.rung:
            self._climb(at.level, at, out)
        elif self._may_repeat(at):
            self._repeat(at, out)
        self._mind_the_gate(at, out)
        if self.rung > at.level and not self._restore_armed:
            self._restore_armed = True
            out.append(SetTimer(f"restore:{self.target}", at.now + self.policy.restore_dwell_s))
        elif self.rung <= at.level:
            self._disarm_restore(out)

    def ack(self, ack: AckReceived, at: Situation, out: list[Effect]) -> None:
        """An answer. `done` is believed only as far as needed bytes fell."""
        one = self.commands.answered(ack, out)
        if one is None or one.done:
            return
        match ack.status:
            case AckStatus.ACCEPTED:
                one.accepted = True
            case AckStatus.DONE:
                if self.commands.verify(one, ack, at, out):
                    self._finish(one, Outcome.DONE if one.helped(at) else Outcome.INEFFECTIVE, at, out)
            case AckStatus.FAILED | AckStatus.UNSUPPORTED:
                one.message = ack.message
                self._finish(one, _OUTCOME_OF[ack.status], at, out)

    def verified(self, seq: int, at: Situation, out: list[Effect]) -> None:
        """The time for the bytes of a `done` to leave is over."""
        one = self.outstanding.get(seq)
        if one is not None:
            self._finish(one, Outcome.DONE if one.helped(at) else Outcome.INEFFECTIVE, at, out)

    def deadline(self, seq: int, at: Situation, out: list[Effect]) -> None:
        """A command's time is over without a final answer."""
        one = self.outstanding.get(seq)
        if one is not None:
            self._finish(one, Outcome.EXPIRED, at, out)

    def restore_due(self, at: Situation, out: list[Effect]) -> None:
        """The restore dwell is over: give back one rung, if the level still allows it."""
        self._restore_armed = False
        if self.rung > at.level and not self._must_hold(at):
            self._step_down(Level(self.rung - 1), at, out)
        self.follow(at, out)

    def restore_owed(self, at: Situation, out: list[Effect]) -> None:
        """The pause after a failed restore is over for somebody."""
        self._restores.again(self.in_force(), at, out)

    def reset(self, at: Situation, out: list[Effect]) -> None:
        """The cgroup is gone: whatever was asked of its processes is void; bridges outside it are restored."""
        for one in list(self.outstanding.values()):
            self.commands.end(one, Outcome.DROPPED, at, out)
        if self.rung > Level.NORMAL:
            self._step_down(Level.NORMAL, at, out)
        self._disarm_restore(out)

    def close(self, at: Situation, out: list[Effect]) -> None:
        """The target is guarded no longer: restore everybody, then let every command end."""
        self.reset(at, out)
        for one in list(self.outstanding.values()):
            self.commands.end(one, Outcome.DROPPED, at, out)

    # Climbing

    def _climb(self, to: Level, at: Situation, out: list[Effect]) -> None:
        self.rung = to
        self.course.held_at_bytes = at.needed_bytes
        self.course.freed = False
        self._disarm_restore(out)
        self._begin_round(at)
        for subscriber in self.subscribers.values():
            self._ask_rung(subscriber, at, out)
        if self.helpless():
            self._note_nobody(at, out)

    def _repeat(self, at: Situation, out: list[Effect]) -> None:
        self.exhausted = False
        self.course.rest_bytes = None
        self._begin_round(at)
        for subscriber in self._idle():
            self._ask_rung(subscriber, at, out)

    def _idle(self) -> list[Subscriber]:
        """Those who have answered: one server's long command does not hold up the others."""
        busy = {o.subscriber for o in self.outstanding.values() if o.command.action is not Action.RESTORE}
        return [subscriber for subscriber in self.subscribers.values() if subscriber.id not in busy]

    def _begin_round(self, at: Situation) -> None:
        self.course.repeat_at = at.now + self.policy.repeat_s
        self.course.helped = self.course.answered = False
        self.rejecting = self._must_reject(at)

    def _ask_rung(self, subscriber: Subscriber, at: Situation, out: list[Effect]) -> None:
        for step in self.policy.ladder.rung(self.rung):
            self._ask(subscriber, step, at, out)

    def _may_repeat(self, at: Situation) -> bool:
        if not at.pressing or self.rung is Level.NORMAL or at.now < self.course.repeat_at or not self._idle():
            return False
        return self.course.rest_bytes is None or self._has_grown(at, self.course.rest_bytes)

    def _judge_round(self, at: Situation, out: list[Effect]) -> None:
        """When every command of the round has ended and none helped, the next rung is asked at once."""
        if self.commands.degrading or self.course.helped or not at.pressing or not self.subscribers:
            return
        # Unloading the model is for a kernel that is about to kill, not for a cache that will not shrink.
        top = Level.EMERGENCY if at.level >= Level.CRITICAL else Level.CRITICAL
        if self.rung >= top:
            self._rest_at_floor(at, out)
            return
        to = Level(self.rung + 1)
        fields: dict[str, Fact] = {"target": self.target, "level": at.level.word, "rung": to.word}
        out.append(Note("warning", "escalated", {**fields, "needed_bytes": at.needed_bytes}))
        self._climb(to, at, out)

    def _rest_at_floor(self, at: Situation, out: list[Effect]) -> None:
        if not self.exhausted:
            fields: dict[str, Fact] = {"target": self.target, "level": at.level.word, "needed_bytes": at.needed_bytes}
            out.append(Note("error", "ladder_exhausted", fields))
        self.exhausted = True
        self.course.rest_bytes = at.needed_bytes
        if self.course.answered:
            self.floor_bytes = at.needed_bytes

    def _note_nobody(self, at: Situation, out: list[Effect]) -> None:
        fields: dict[str, Fact] = {"target": self.target, "level": at.level.word, "subscribers": len(self.subscribers)}
        out.append(Note("error" if at.level >= Level.CRITICAL else "warning", "nobody_to_ask", fields))

    # Asking and ending

    def _ask(self, subscriber: Subscriber, step: Step, at: Situation, out: list[Effect]) -> bool:
        """Deliver one step, unless it is not supported, not needed, or in force already. True if it went out."""
        if step.action not in subscriber.supports:
            return False
        if step.action is Action.REJECT_REQUESTS and not self.rejecting:
            return False
        if step.action is Action.TRIM_KV_CACHE and at.needed_bytes is not None and not at.release_bytes:
            return False
        parameters = parameters_of(step, at)
        if step.action is not Action.TRIM_KV_CACHE:
            if subscriber.applied.get(step.action) == parameters:
                return False
            subscriber.applied[step.action] = subscriber.told[step.action] = parameters
        self.commands.send(subscriber.id, step.action, parameters, step.deadline_s, at, out)
        return True

    def _finish(self, one: Outstanding, outcome: Outcome, at: Situation, out: list[Effect]) -> None:
        """End a command that was answered or ran out; a failure is asked again in the next round, then judged."""
        self.commands.end(one, outcome, at, out)
        subscriber, action = self.subscribers[one.subscriber], one.command.action
        if action is Action.RESTORE:
            self._restores.ended(subscriber, outcome, at, out)
            return
        if outcome is Outcome.DONE:
            self.course.helped = True
            if action is Action.TRIM_KV_CACHE and one.command.parameters.release_bytes:
                self.course.freed = True
                self._lead.learn(at.now - one.sent_at)
        elif outcome in _ANSWERS:
            self.course.answered = True
        if outcome is Outcome.UNSUPPORTED:
            subscriber.supports -= {action}
            subscriber.told.pop(action, None)
        if outcome not in (Outcome.DONE, Outcome.INEFFECTIVE):
            subscriber.applied.pop(action, None)
        self._judge_round(at, out)

    # The gate

    def _must_reject(self, at: Situation) -> bool:
        """Rejecting follows what a request needs, where that is known; without it, and in an emergency, the rung."""
        if all(step.action is not Action.REJECT_REQUESTS for step in self.policy.ladder.rung(self.rung)):
            return False
        if at.level >= Level.EMERGENCY or at.room_bytes is None or at.request_bytes is None:
            return True
        requests = REOPEN_REQUESTS if self.rejecting else 1
        return at.room_bytes < requests * at.request_bytes

    def _mind_the_gate(self, at: Situation, out: list[Effect]) -> None:
        """Between two rungs the room may come or go: close or open for requests with it."""
        must = self._must_reject(at)
        if must is self.rejecting:
            return
        self.rejecting = must
        for subscriber in self.subscribers.values():
            if must:
                for step in self.policy.ladder.rung(self.rung):
                    if step.action is Action.REJECT_REQUESTS:
                        self._ask(subscriber, step, at, out)
            elif Action.REJECT_REQUESTS in subscriber.told:
                subscriber.applied.pop(Action.REJECT_REQUESTS, None)
                self._restores.anew(subscriber, self.in_force(), at, out)

    # Restoring

    def _must_hold(self, at: Situation) -> bool:
        """A rung above the level was reached because less did not help. It stays while memory is critical or grows, and
        where somebody can trim, until a trim has helped or the ladder has ended. A target that rests at its floor gets
        its capacity back, as do servers that can only be restricted."""
        if not at.pressing or at.needed_bytes is None or not self.subscribers:
            return False
        if at.level >= Level.CRITICAL:
            return True
        if self._has_grown(at, self.course.held_at_bytes):
            # Asked again after the next dwell: growth that has ended holds nothing.
            self.course.held_at_bytes = at.needed_bytes
            return True
        can_trim = any(Action.TRIM_KV_CACHE in s.supports for s in self.subscribers.values())
        return can_trim and not self.exhausted and not self.course.freed

    def _has_grown(self, at: Situation, since_bytes: int | None) -> bool:
        if since_bytes is None or at.needed_bytes is None:
            return True
        return at.needed_bytes > since_bytes + FLOOR_GROWTH_SHARE * (at.limit_bytes or 0)

    def _disarm_restore(self, out: list[Effect]) -> None:
        if self._restore_armed:
            self._restore_armed = False
            out.append(CancelTimer(f"restore:{self.target}"))

    def _step_down(self, to: Level, at: Situation, out: list[Effect]) -> None:
        """Put a lower rung in force and tell everybody whose restrictions it lifts."""
        self.rung = to
        self.rejecting = self._must_reject(at)
        for subscriber in self.subscribers.values():
            subscriber.applied = self._lasting_steps(subscriber, at)
            if subscriber.told != subscriber.applied:
                self._restores.anew(subscriber, self.in_force(), at, out)
        if to is Level.NORMAL:
            self.exhausted = False
            self.course.rest_bytes = None
            out.append(Note("info", "restored", {"target": self.target, "subscribers": len(self.subscribers)}))

    def _lasting_steps(self, subscriber: Subscriber, at: Situation) -> dict[Action, Parameters]:
        return {
            step.action: parameters_of(step, at)
            for step in self.policy.ladder.rung(self.rung)
            if step.action is not Action.TRIM_KV_CACHE
            and step.action in subscriber.supports
            and (self.rejecting or step.action is not Action.REJECT_REQUESTS)
        }
