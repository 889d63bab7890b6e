"""The path of one event, top to bottom: one queue of facts, one match over orders, in order.

    wake-up      kernel.wakeups, kernel.pressure     epoll, or a timer
    sample       kernel.targets                      files of the target and of what limits it  --emit-->
    judge        core.engine, core.policy            handle(event, now): the level
    command      core.ledger                         the rung's commands, as orders
    write down   keeper                              before anybody hears of them
    carry out    here, then serve.subscribers        the command's line in the subscriber's socket
    verify       peerevents, core.ledger             memory is read again before a final ack is judged
    escalate     core.ledger, core.relief, resort    on what did not leave, or a deadline: a timer's event, as above
    restore      core.ledger                         rung by rung, once the level has been low for its time

Must not: judge memory or choose commands (core does), wait for anything. Upstream: every shell. Downstream: daemon.
"""

from collections import deque
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct

from edgeguardd import decisionlog
from edgeguardd.access import Access
from edgeguardd.core.config import Config
from edgeguardd.core.effects import (
    AnnounceLevel,
    AnswerAdmit,
    AnswerGate,
    CancelTimer,
    CommandEnded,
    Deliver,
    Disconnect,
    Effect,
    Note,
    PutBackLimit,
    RaiseLimit,
    Refuse,
    RunLastResort,
    SampleEvery,
    SetTimer,
    SignalPressure,
    Thaw,
    Welcome,
)
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    CountersMoved,
    Event,
    KillsWhileAway,
    LastResortEnded,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.gate import Gate
from edgeguardd.keeper import Keeper
from edgeguardd.kernel.lastresort import LastResorts
from edgeguardd.kernel.relief import Relief
from edgeguardd.kernel.targets import Targets
from edgeguardd.metrics import Metrics
from edgeguardd.oomreports import OomReports
from edgeguardd.pages import Pages
from edgeguardd.recorder import Recorder
from edgeguardd.serve.pressurewatch import PressureWatchServer
from edgeguardd.serve.subscribers import SubscriberServer
from edgeguardd.supervision import Supervision
from edgeguardd.timers import Timers


class EventQueue:
    """Facts from the shells, each with its time. `handle` takes them one after the other, and is set before the first.

    Its `emit` is what shells are made with; what handles a fact is made of the shells.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.handle: Callable[[Event, float], None] = _nobody
        self._clock = clock
        self._waiting: deque[tuple[Event, float]] = deque()
        self._draining = False

    def emit(self, event: Event) -> None:
        """Take a fact. Facts that arise while orders are carried out wait their turn."""
        self._waiting.append((event, self._clock()))
        if self._draining:
            return
        self._draining = True
        try:
            while self._waiting:
                event, at = self._waiting.popleft()
                self.handle(event, at)
        finally:
            self._draining = False


class Shells(Struct, frozen=True, kw_only=True):
    """Who carries orders out, and who keeps something of what has happened."""

    subscribers: SubscriberServer
    targets: Targets
    timers: Timers
    relief: Relief
    last_resorts: LastResorts
    gate: Gate
    watches: PressureWatchServer
    access: Access
    supervision: Supervision
    keeper: Keeper
    recorder: Recorder
    metrics: Metrics
    pages: Pages
    oom: OomReports


class Dispatch:
    """Hands each fact to the engine and carries out what it orders. `config` may be replaced at any time.

    soon  calls after what is going on now (loop.call_soon)
    """

    def __init__(self, engine: Engine, shells: Shells, config: Config, soon: Callable[..., object]) -> None:
        self.config = config
        self._engine = engine
        self._to = shells
        self._soon = soon

    def handle(self, event: Event, at: float) -> None:
        """One fact, from what it changes to what follows from it."""
        self._before(event)
        # What has come and what was done is written down afterwards: that takes longer than a command on its way. What
        # a restart must not lose comes first: one write into room that is there.
        done: list[Effect] = []
        try:
            effects = self._engine.handle(event, at)
            self._to.keeper.note(event, effects, at)
            for effect in effects:
                self._carry_out(effect)
                done.append(effect)
        finally:
            self._to.recorder.record(event, at)
            decisionlog.done(done)
        if isinstance(event, TargetDropped):
            self._to.metrics.departed(event.target, at)
            self._soon(self._to.watches.place_again, event.target)

    def _before(self, event: Event) -> None:
        """What the shell itself keeps of an event: counters, the log."""
        to = self._to
        to.metrics.happened(event)
        match event:
            case CountersMoved():
                to.oom.counted(event)
            case KillsWhileAway():
                to.oom.missed(event.target, event.kills)
            case LastResortEnded():
                to.pages.resorted(event)
            case TargetAdded():
                # It may have moved: to another slice, say.
                self._soon(to.access.put_out_strangers, to.subscribers, event.target)
            case SubscriberJoined():
                decisionlog.subscriber_joined(event)
            case SubscriberLeft():
                decisionlog.subscriber_left(event)
            case _:
                pass

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901, PLR0912  one row an effect
        to = self._to
        match effect:
            case Deliver():
                to.subscribers.deliver(effect)
                if effect.again:
                    to.metrics.told_again(effect)
                else:
                    to.metrics.sent(effect)
            case AnnounceLevel():
                to.subscribers.announce(effect)
                to.recorder.flush_soon()
                # The command that follows from the level goes first.
                self._soon(to.supervision.tell_status)
            case SetTimer():
                to.timers.set(effect.key, effect.at)
            case CancelTimer():
                to.timers.cancel(effect.key)
            case SampleEvery():
                to.targets.set_interval(effect.target, effect.interval_s)
            case CommandEnded():
                to.pages.ended(effect)
                to.metrics.ended(effect)
            case RaiseLimit():
                path = to.targets.path_of(effect.target)
                to.relief.raise_limit(effect.target, path, effect.from_bytes, effect.to_bytes)
            case PutBackLimit():
                to.relief.put_back(effect.target)
            case RunLastResort():
                path, unit = to.targets.path_of(effect.target), self._unit_of(effect.target)
                to.last_resorts.run(effect.target, path, effect.step, effect.step.unit or unit, effect.reclaim_bytes)
            case Thaw():
                to.last_resorts.thaw(effect.target)
            case Welcome():
                to.subscribers.welcome(effect)
            case AnswerAdmit():
                to.subscribers.answer(effect)
            case AnswerGate():
                to.gate.answered(effect)
            case SignalPressure():
                to.watches.signal(effect.target)
            case Refuse():
                to.subscribers.refuse(effect)
            case Disconnect():
                to.subscribers.disconnect(effect.subscriber, effect.reason)
            case Note():
                pass  # a line of the log, and nothing else
            case _:
                assert_never(effect)

    def _unit_of(self, target: str) -> str | None:
        """The unit that a target was configured by, for restarting it."""
        return next((spec.unit for spec in self.config.targets if spec.name == target), None)


def _nobody(event: Event, _at: float) -> None:
    raise RuntimeError(f"{type(event).__name__} before there is anybody to handle it")
