"""One target's commands on their way: sent, answered, verified, ended. Each ends exactly once (model.Outcome).

Must not: choose commands (ledger does), judge memory beyond what left it. Upstream: model, effects. Downstream: ledger.
"""

from collections import deque

from msgspec import Struct, structs

from edgeguardd.core.effects import CancelTimer, CommandEnded, Deliver, Effect, Fact, Note, Refuse, SetTimer
from edgeguardd.core.events import AckReceived
from edgeguardd.core.ladder import VOIDED_BY, Situation
from edgeguardd.core.model import AckEffect, Action, Command, Outcome, Parameters

# A trim that freed less than this share of what was asked for did not help: the next rung is asked.
EFFECT_SHARE = 0.10

# Freed pages leave the counters with the call that frees them, but another thread of the server may make it, or an
# allocator that gives back late: so long after `done` they have to be gone.
VERIFY_S = 0.5

REMEMBERED_ENDED = 256

# What leaves needed bytes while any other command is on its way is not that command's doing.
FREEING = frozenset({Action.TRIM_KV_CACHE, Action.UNLOAD_MODEL})


class Numbers(Struct):
    """The last number given to a command: one row for all targets, so that no number comes twice in an epoch."""

    last: int = 0

    def next(self) -> int:
        """One more."""
        self.last += 1
        return self.last


class Outstanding(Struct):
    """A command on its way. `done`: the subscriber says so, and memory is being looked at.

    subscriber      below 0: it was there before the daemon was restarted, and has not come back yet
    told            whether the subscriber has heard of it
    credited_bytes  what has left since delivery, and was counted for another command that ended before
    ends_by         when it ends though its subscriber be still away: set by the first restart, moved by no later one
    """

    command: Command
    subscriber: int
    sent_at: float
    needed_at_send: int | None
    due_at: float
    accepted: bool = False
    done: bool = False
    claimed_bytes: int | None = None
    message: str | None = None
    told: bool = True
    credited_bytes: int = 0
    ends_by: float | None = None

    def freed_bytes(self, at: Situation) -> int | None:
        """What has left needed bytes since delivery; None: not known."""
        if self.needed_at_send is None or at.needed_bytes is None:
            return None
        return self.needed_at_send - at.needed_bytes

    def helped(self, at: Situation) -> bool:
        """Whether memory came back: a tenth of what was asked, or enough to be below the marks."""
        asked = self.command.parameters.release_bytes
        if self.command.action is not Action.TRIM_KV_CACHE or not asked or not at.pressing:
            return True
        freed = self.freed_bytes(at)
        return freed is None or freed >= EFFECT_SHARE * asked


class Commands:
    """The commands of one target, by sequence number. `ended`: the numbers of the last ones that ended."""

    def __init__(self, target: str, numbers: Numbers) -> None:
        self.target = target
        self.outstanding: dict[int, Outstanding] = {}
        self.ended: deque[int] = deque(maxlen=REMEMBERED_ENDED)
        self._numbers = numbers

    def of(self, subscriber: int) -> list[Outstanding]:
        """Those on their way to one subscriber."""
        return [o for o in self.outstanding.values() if o.subscriber == subscriber]

    @property
    def trimming(self) -> bool:
        """Whether a trim is on its way: the server should not be throttled now."""
        return any(o.command.action is Action.TRIM_KV_CACHE for o in self.outstanding.values())

    @property
    def degrading(self) -> bool:
        """Whether anything but a restore is on its way."""
        return any(o.command.action is not Action.RESTORE for o in self.outstanding.values())

    def send(
        self,
        subscriber: int,
        action: Action,
        parameters: Parameters,
        deadline_s: float,
        at: Situation,
        out: list[Effect],
    ) -> None:
        """Deliver one, in place of those that it makes void."""
        voided = VOIDED_BY.get(action, frozenset()) | {action}
        for older in self.of(subscriber):
            if older.command.action in voided:
                self.end(older, Outcome.SUPERSEDED, at, out)
        seq, due_at = self._numbers.next(), at.now + deadline_s
        command = Command(seq, self.target, action, parameters, at.level, at.reason, deadline_s)
        self.outstanding[seq] = Outstanding(command, subscriber, at.now, at.needed_bytes, due_at, told=subscriber > 0)
        if subscriber > 0:  # the others are told when they come back
            out.append(Deliver(subscriber, command))
        out.append(SetTimer(self._key("deadline", seq), due_at))

    def resume(self, one: Outstanding, grace_s: float, now: float, out: list[Effect]) -> None:
        """One that was on its way before a restart still is; memory is looked at anew, if it was being looked at.

        It does not end before the grace is over: nobody can answer before he is let in. But all restarts together
        give it one grace behind its time, or behind the first start after that.
        """
        seq = one.command.seq
        self.outstanding[seq] = one
        if one.ends_by is None:
            one.ends_by = max(one.due_at, now) + grace_s
        out.append(SetTimer(self._key("deadline", seq), _end(one, now + grace_s)))
        if one.done:
            out.append(SetTimer(self._key("verify", seq), now + VERIFY_S))

    def tell_again(self, one: Outstanding, least_s: float, now: float, out: list[Effect]) -> None:
        """Its subscriber is here again: it has the time that is left, and `least_s` if that is within its grace."""
        end = _end(one, now + least_s)
        left_s = end - now
        out.append(SetTimer(self._key("deadline", one.command.seq), end))
        if not one.done and left_s > 0:
            out.append(Deliver(one.subscriber, structs.replace(one.command, deadline_s=left_s), again=one.told))
            one.told = True

    def answered(self, ack: AckReceived, out: list[Effect]) -> Outstanding | None:
        """The command that an ack is about; None: it is about none, and has been told so."""
        found = self.outstanding.get(ack.seq)
        if found is not None and found.subscriber == ack.subscriber:
            return found
        if ack.seq in self.ended:
            late: dict[str, Fact] = {"target": self.target, "subscriber": ack.subscriber, "seq": ack.seq}
            out.append(Note("info", "late_ack", {**late, "status": ack.status.value}))
        else:
            text = f"cannot take the ack of seq {ack.seq}: no such command is outstanding for you"
            out.append(Refuse(ack.subscriber, "unknown_seq", text))
        return None

    def verify(self, one: Outstanding, ack: AckReceived, at: Situation, out: list[Effect]) -> bool:
        """`done` was said. True: memory shows it, or cannot show it any more. False: it gets VERIFY_S to show."""
        one.done, one.claimed_bytes, one.message = True, ack.released_bytes, ack.message
        if one.helped(at) or ack.effect in (AckEffect.LOGICAL, AckEffect.NONE):
            return True
        out.append(SetTimer(self._key("verify", ack.seq), at.now + VERIFY_S))
        return False

    def end(self, one: Outstanding, outcome: Outcome, at: Situation, out: list[Effect]) -> None:
        """The one end of a command."""
        command = one.command
        del self.outstanding[command.seq]
        self.ended.append(command.seq)
        out.append(CancelTimer(self._key("deadline", command.seq)))
        if one.done:
            out.append(CancelTimer(self._key("verify", command.seq)))
        freed_bytes = self._credit(one, at) if command.action in FREEING else None
        out.append(
            CommandEnded(
                one.subscriber,
                command.seq,
                self.target,
                command.action,
                outcome,
                at.now - one.sent_at,
                one.claimed_bytes,
                freed_bytes,
                one.message,
            )
        )

    def _credit(self, one: Outstanding, at: Situation) -> int | None:
        """What this one is credited with: each byte goes to the first command that ends after it has left."""
        left = one.freed_bytes(at)
        if left is None:
            return None
        own = left - one.credited_bytes
        for other in self.outstanding.values():
            if other.command.action in FREEING:
                seen = (other.freed_bytes(at) or 0) - other.credited_bytes
                other.credited_bytes += max(0, min(own, seen))
        return own

    def _key(self, kind: str, seq: int) -> str:
        return f"{kind}:{seq}:{self.target}"


def _end(one: Outstanding, wanted: float) -> float:
    """When its time is over, if it is to have some until `wanted`: not before its deadline, and by `ends_by`."""
    return max(one.due_at, wanted if one.ends_by is None else min(wanted, one.ends_by))
