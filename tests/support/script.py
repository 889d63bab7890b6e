"""Scripts for the engine: memory goes so, answers come so, time passes; what was ordered?

Time is virtual: timers that the engine sets fire in order as `pass_time` moves on.
"""

from typing import TypeVar

from edgeguardd.core.config import Policy, SamplingConfig
from edgeguardd.core.effects import CancelTimer, CommandEnded, Deliver, Effect, Note, SetTimer
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    CgroupAppeared,
    CountersMoved,
    Event,
    SampleTaken,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TimerFired,
)
from edgeguardd.core.model import (
    AckEffect,
    AckStatus,
    Action,
    Command,
    Counters,
    Level,
    Role,
    Sample,
    Usage,
)
from edgeguardd.core.target import Target

MIB = 1 << 20
EVERYTHING = frozenset(Action) - {Action.RESTORE}

E = TypeVar("E", bound=Effect)


def usage(
    path: str = "/llm",
    needed_mib: float = 0,
    high_mib: float | None = None,
    max_mib: float | None = 1000,
    **figures: int,
) -> Usage:
    """One cgroup's figures, in MiB; others, as they are, in `figures`."""
    known = {"current_bytes": int(needed_mib * MIB), **figures}
    return Usage(
        path=path,
        needed_bytes=int(needed_mib * MIB),
        high_bytes=None if high_mib is None else int(high_mib * MIB),
        max_bytes=None if max_mib is None else int(max_mib * MIB),
        **known,
    )


class Script:
    """An engine with one target /llm under memory.max = 1000 MiB, driven by hand."""

    def __init__(self, policy: Policy | None = None, sampling: SamplingConfig | None = None) -> None:
        self.engine = Engine(sampling)
        self.policy = policy or Policy()
        self.now = 100.0
        self.effects: list[Effect] = []
        self.timers: dict[str, float] = {}
        self.needed_mib = 0.0
        self.do(TargetAdded("llm", "/llm", self.policy))
        self.do(CgroupAppeared("llm"))

    @property
    def target(self) -> Target:
        return self.engine.targets["llm"]

    def level(self) -> Level:
        """The target's level now."""
        return self.target.level

    def do(self, event: Event) -> list[Effect]:
        """One event, now. The effects are returned, and kept in `effects`."""
        new = self.engine.handle(event, self.now)
        for effect in new:
            if isinstance(effect, SetTimer):
                self.timers[effect.key] = effect.at
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.key, None)
        self.effects += new
        return new

    def join(self, subscriber: int = 1, supports: frozenset[Action] = EVERYTHING) -> list[Effect]:
        return self.do(SubscriberJoined(subscriber, f"server{subscriber}", Role.INFERENCE, "llm", supports))

    def leave(self, subscriber: int = 1) -> list[Effect]:
        return self.do(SubscriberLeft(subscriber, "closed"))

    def need(self, mib: float, *, high_mib: float | None = None, max_mib: float | None = 1000) -> list[Effect]:
        """A sample shows so many needed MiB."""
        self.needed_mib = mib
        return self.do(SampleTaken(Sample("llm", (usage("/llm", mib, high_mib, max_mib),))))

    def ramp(self, to_mib: float, mib_per_s: float, every_s: float = 0.1) -> list[Effect]:
        """Needed bytes go there at this rate, sampled all the way."""
        seen = len(self.effects)
        step = mib_per_s * every_s * (1 if to_mib >= self.needed_mib else -1)
        while abs(to_mib - self.needed_mib) > abs(step):
            self.needed_mib += step
            self.pass_time(every_s, every=every_s)
        self.needed_mib = to_mib
        self.pass_time(every_s, every=every_s)
        return self.effects[seen:]

    def move(self, *, path: str = "/llm", **delta: int) -> list[Effect]:
        """memory.events counted up."""
        return self.do(CountersMoved("llm", path, path == "/llm", Counters(**delta)))

    def ack(
        self,
        command: Command,
        status: AckStatus = AckStatus.DONE,
        subscriber: int = 1,
        effect: AckEffect | None = AckEffect.RELEASED,
    ) -> list[Effect]:
        return self.do(AckReceived(subscriber, command.seq, status, effect, command.parameters.release_bytes))

    def pass_time(self, seconds: float, every: float = 0.5, sample: bool = True) -> list[Effect]:
        """Time passes: due timers fire at their time, and the same memory is sampled again and again."""
        until = self.now + seconds
        seen = len(self.effects)
        while self.now < until:
            step_end = min(until, self.now + every)
            while due := [(at, key) for key, at in self.timers.items() if at <= step_end]:
                at, key = min(due)
                del self.timers[key]
                self.now = max(self.now, at)
                self.do(TimerFired(key))
            self.now = step_end
            if sample:
                self.need(self.needed_mib)
        return self.effects[seen:]


def of(effects: list[Effect], kind: type[E]) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def notes(effects: list[Effect], event: str) -> list[Note]:
    """The facts of one name that the engine wants said."""
    return [note for note in of(effects, Note) if note.event == event]


def commands(effects: list[Effect], subscriber: int | None = None) -> list[Command]:
    """The commands delivered, in order."""
    return [e.command for e in of(effects, Deliver) if subscriber in (None, e.subscriber)]


def actions(effects: list[Effect], subscriber: int | None = None) -> list[str]:
    """The actions of the commands delivered, in order."""
    return [command.action.value for command in commands(effects, subscriber)]


def outcomes(effects: list[Effect]) -> list[tuple[str, str]]:
    """(action, outcome) of every command that ended, in order."""
    return [(e.action.value, e.outcome.value) for e in of(effects, CommandEnded)]
