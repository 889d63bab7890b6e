"""What of an event and its orders goes into the journal, before anybody hears of it; and whose records are old by it.

Must not: write, decide. Upstream: keeper, with the engine as it is after the event. Downstream: journal, records.
"""

from collections.abc import Iterable
from typing import Final

from edgeguardd.core import resume
from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Deliver, Effect
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    CgroupAppeared,
    CountersMoved,
    Event,
    KillsWhileAway,
    SampleTaken,
    SubscriberJoined,
    SubscriberLeft,
    TargetDropped,
)
from edgeguardd.kernel.targets import Targets
from edgeguardd.recalled import Appeared, Entry, Killed, Leveled, Sent, Spent, quoted

# What is held at rest is kept when it has moved by this part of it.
LEARNED_PART: Final = 64


class Entries:
    """Of one engine.

    last        the number of the last entry
    told_again  commands that were told once more: nothing new is kept of them
    changed     targets whose records are old by now, and gone: those that are none any more; who writes takes from both
    """

    def __init__(self, engine: Engine, targets: Targets, last: int) -> None:
        self.last = last
        self.told_again = 0
        self.changed: set[str] = set()
        self.gone: set[str] = set()
        self._engine = engine
        self._targets = targets
        self._static: dict[str, int] = {}

    def of(self, event: Event, effects: Iterable[Effect]) -> list[Entry]:
        """What is to be written now, in order."""
        found: list[Entry] = []
        for effect in effects:
            match effect:
                case Deliver():
                    self._sent(effect, found)
                case AnnounceLevel():
                    self._leveled(effect, found)
                case CommandEnded():
                    self.changed.add(effect.target)
                case _:
                    pass
        self._happened(event, found)
        return found

    def _happened(self, event: Event, found: list[Entry]) -> None:
        match event:
            case SampleTaken():
                self._learned(event.sample.target)
            case CountersMoved() if event.local and event.delta.oom_kill:
                self._killed(event.target, found)
            case KillsWhileAway():
                self._killed(event.target, found)
            case CgroupAppeared():
                self._appeared(event.target, found)
            case SubscriberJoined() if event.target is not None:
                self.changed.add(event.target)
            case SubscriberLeft():
                self.changed |= {name for name, target in self._engine.targets.items() if target.ledger.rung}
            case TargetDropped():
                self._static.pop(event.target, None)
                self.gone.add(event.target)
            case _:
                pass

    def _sent(self, order: Deliver, found: list[Entry]) -> None:
        target = self._engine.targets.get(order.command.target)
        if order.again:
            self.told_again += 1
            return
        if target is None:
            # The last that is said of a target that was dropped: its number is one command's all the same.
            found.append(Spent(self._next(), order.command.target, order.command.seq))
            return
        one = target.ledger.outstanding.get(order.command.seq)
        to = target.ledger.subscribers.get(order.subscriber)
        # One that was superseded by the next in the same breath is owed to nobody.
        if one is not None and to is not None:
            found.append(Sent(self._next(), target.name, to.name, to.pid, target.ledger.rung, resume.kept_command(one)))
        else:
            found.append(Spent(self._next(), target.name, order.command.seq))
        self.changed.add(target.name)

    def _leveled(self, change: AnnounceLevel, found: list[Entry]) -> None:
        target = self._engine.targets.get(change.target)
        if target is not None:
            gauge, rung = target.gauge, target.ledger.rung
            found.append(
                Leveled(self._next(), target.name, gauge.level, gauge.reason, target.level, target.reason, rung)
            )
            self.changed.add(target.name)

    def _killed(self, name: str, found: list[Entry]) -> None:
        found.append(Killed(self._next(), name, self._targets.standing(name).kills or 0))
        self.changed.add(name)

    def _appeared(self, name: str, found: list[Entry]) -> None:
        target = self._engine.targets.get(name)
        if target is not None:
            at = self._targets.standing(name)
            found.append(Appeared(self._next(), name, quoted(at.path), target.path, at.inode, at.kills, at.dynamic))
            self.changed.add(name)

    def _learned(self, name: str) -> None:
        target = self._engine.targets.get(name)
        learned = None if target is None else target.gauge.learned_static_bytes
        known = self._static.get(name)
        if learned is not None and (known is None or abs(learned - known) * LEARNED_PART > known):
            self._static[name] = learned
            self.changed.add(name)

    def _next(self) -> int:
        self.last += 1
        return self.last
