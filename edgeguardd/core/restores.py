"""One server's lasting restrictions, and how it is freed of them: a restore is owed until it has been obeyed.

Must not: choose what is in force (ledger does). Upstream: commands. Downstream: ledger, resume.
"""

from collections.abc import Iterable

from msgspec import Struct

from edgeguardd.core.commands import Commands
from edgeguardd.core.effects import Effect, Fact, Note, SetTimer
from edgeguardd.core.ladder import Situation
from edgeguardd.core.model import Action, InForce, Outcome, Parameters

# A restore may include loading a model again; a wrong guess here only delays the retry.
RESTORE_DEADLINE_S = 30.0

# A restore that failed is tried again after a pause that doubles; after so many it is said, and tried on.
RESTORE_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
RESTORE_ATTEMPTS_SAID = 3


class Subscriber(Struct):
    """One inference server of this target. A number below 0: it is expected back (resume).

    applied  the lasting steps that need not be asked again: on their way, or done
    told     the lasting steps that may be in force there: a server that answers late, or says `failed`, may have obeyed
    """

    id: int
    name: str
    supports: frozenset[Action]
    applied: dict[Action, Parameters] = {}
    told: dict[Action, Parameters] = {}
    restore_attempts: int = 0
    restore_at: float | None = None
    pid: int = 0


def arm_owed(target: str, subscribers: Iterable[Subscriber], out: list[Effect]) -> None:
    """A target's one timer for it: for whoever is owed a restore first."""
    owed = [one.restore_at for one in subscribers if one.restore_at is not None]
    if owed:
        out.append(SetTimer(f"owed:{target}", min(owed)))


class Restores:
    """Those of one target's servers."""

    def __init__(self, target: str, commands: Commands, subscribers: dict[int, Subscriber]) -> None:
        self.target = target
        self._commands = commands
        self._subscribers = subscribers

    def anew(self, subscriber: Subscriber, state: InForce, at: Situation, out: list[Effect]) -> None:
        """Tell it what is still in force; what was tried before does not count."""
        subscriber.restore_attempts = 0
        self._send(subscriber, state, at, out)

    def again(self, state: InForce, at: Situation, out: list[Effect]) -> None:
        """Tell everybody whose pause after a failure is over."""
        for subscriber in self._subscribers.values():
            if subscriber.restore_at is not None and subscriber.restore_at <= at.now:
                self._send(subscriber, state, at, out)
        arm_owed(self.target, self._subscribers.values(), out)

    def ended(self, subscriber: Subscriber, outcome: Outcome, at: Situation, out: list[Effect]) -> None:
        """What was restored is not in force any more; what could not be is tried again, for as long as it is owed."""
        if outcome is Outcome.DONE:
            subscriber.told = dict(subscriber.applied)
            return
        if subscriber.restore_attempts == RESTORE_ATTEMPTS_SAID or outcome is Outcome.UNSUPPORTED:
            fields: dict[str, Fact] = {"target": self.target, "subscriber": subscriber.name, "outcome": outcome.value}
            out.append(Note("error", "restore_failed", fields))
        if outcome is not Outcome.UNSUPPORTED:
            pause_s = min(LONGEST_PAUSE_S, RESTORE_PAUSE_S * 2.0 ** min(subscriber.restore_attempts, 8))
            subscriber.restore_at = at.now + pause_s
            arm_owed(self.target, self._subscribers.values(), out)

    def _send(self, subscriber: Subscriber, state: InForce, at: Situation, out: list[Effect]) -> None:
        parameters = Parameters(
            max_batch_ratio=state.max_batch_ratio,
            accept_requests=state.accept_requests,
            model_loaded=state.model_loaded,
        )
        subscriber.restore_attempts += 1
        subscriber.restore_at = None
        self._commands.send(subscriber.id, Action.RESTORE, parameters, RESTORE_DEADLINE_S, at, out)
