"""A recording through the engine again: as it was, or as it would have been under another configuration.

Must not: open files, compare, print. Upstream: recording, engine. Downstream: decisions, incidents, the command line.

As it was: the same events at the same times, timers included, give the same effects; where a segment follows without a
gap, the engine must stand as the recorded one stood, and `Opened.exact` says whether it does.
Under another configuration (`Changed`) the world stays as it was recorded: memory, counters, who was connected, what
was reported. What only answers the engine's own orders (acks, limits lifted, last resorts) is taken over where the
other engine has given the same order, and left out where it has not; its timers run on their own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, structs

from edgeguardd.core import checkpoint
from edgeguardd.core.config import Config, Policy
from edgeguardd.core.effects import (
    CancelTimer,
    CommandEnded,
    Deliver,
    Effect,
    PutBackLimit,
    RaiseLimit,
    RunLastResort,
    SetTimer,
    Thaw,
)
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    ConfigReloaded,
    Event,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    ReliefFailed,
    TargetAdded,
    TimerFired,
)
from edgeguardd.core.model import Action
from edgeguardd.core.recording import Clock, Header, RecordingError, Segment


class Opened(Struct, frozen=True):
    """A segment begins. The engine goes on from the segment before (continuous), or from the segment's own checkpoint.

    exact: whether the engine stands as the recorded one stood; None where nothing could tell otherwise.
    """

    header: Header
    engine: Engine
    continuous: bool
    exact: bool | None


class Step(Struct, frozen=True):
    """One event and what the engine made of it. `engine` is as it stands now, until the next step is asked for.

    defect: what the engine raised. The daemon survives that, and so does the replay.
    """

    now: float
    wall_s: float
    event: Event
    effects: list[Effect]
    engine: Engine
    defect: str | None = None


def recorded(
    segments: Iterable[Segment], unusable: Callable[[RecordingError], None] | None = None
) -> Iterator[Opened | Step]:
    """The segments as they were.

    unusable is told of each segment that is left out because its checkpoint does not fit this version; without it
    RecordingError is raised.
    """
    engine: Engine | None = None
    before: Segment | None = None
    for segment in segments:
        try:
            opened = _opened(segment, engine if _continues(before, segment) else None)
        except RecordingError as error:
            if unusable is None:
                raise
            unusable(error)
            continue
        yield opened
        engine, clock, before = opened.engine, segment.header.clock, segment
        for record in segment.events():
            if isinstance(record, Clock):
                clock = record
                continue
            now, event = record
            yield _step(engine, event, now, clock)


def _opened(segment: Segment, engine: Engine | None) -> Opened:
    """The segment's own state, except where only the engine that went on can stand in for it."""
    header = segment.header
    if engine is not None and checkpoint.encode(engine) == segment.state():
        return Opened(header, engine, True, True)
    try:
        return Opened(header, segment.engine(), engine is not None, None if engine is None else False)
    except RecordingError:
        if engine is not None:
            return Opened(header, engine, True, False)
        if header.segment == 0:  # nothing had happened yet
            return Opened(header, Engine(header.config.sampling, header.config.machine), False, False)
        raise


def _continues(before: Segment | None, segment: Segment) -> bool:
    """Whether no event is missing between two segments."""
    if before is None or not before.complete or before.damage is not None:
        return False
    last, header = before.header, segment.header
    return last.run == header.run and last.segment + 1 == header.segment


class Changed:
    """The segments as they would have been under `config`. Afterwards it tells what had to be left out.

    left_out    answers to orders that the other engine had not given, by kind
    by_defaults targets that the configuration does not name, and that its [defaults] were used for
    """

    def __init__(
        self,
        segments: Iterable[Segment],
        config: Config,
        unusable: Callable[[RecordingError], None] | None = None,
    ) -> None:
        """`segments` and `unusable` as for recorded()."""
        self.config = config
        self.left_out: Counter[str] = Counter()
        self.by_defaults: set[str] = set()
        self._segments = segments
        self._unusable = unusable
        self._then = _Shell()
        self._now = _Shell()
        self._clock = Clock(0.0, 0.0)

    def steps(self) -> Iterator[Opened | Step]:
        """What the other engine does, as recorded() gives it. Raises RecordingError."""
        for _, made in self.pairs():
            yield from made

    def pairs(self) -> Iterator[tuple[Opened | Step, list[Opened | Step]]]:
        """Each item of the recording, and what the other engine makes of it. Raises RecordingError."""
        self.left_out.clear()
        self.by_defaults.clear()
        engine: Engine | None = None
        for item in recorded(self._segments, self._unusable):
            if isinstance(item, Step):
                self._clock = Clock(item.wall_s, item.now)
                yield item, [] if engine is None else list(self._follow(engine, item))
                continue
            self._clock = item.header.clock
            if engine is not None and item.continuous:
                yield item, [Opened(item.header, engine, True, None)]
                continue
            engine = checkpoint.decode(checkpoint.encode(item.engine))
            self._then, self._now = _Shell(), _Shell()
            yield item, [Opened(item.header, engine, False, None), *self._adopt(engine, item.header.config)]

    def _adopt(self, engine: Engine, then: Config) -> Iterator[Step]:
        """Put the other configuration in force for what the checkpoint holds, as a reload does."""
        at = self._clock.monotonic_s
        if self.config != then:
            yield self._handle(engine, ConfigReloaded(self.config), at)
        for target in list(engine.targets.values()):
            if self._policy(target.name) != target.policy:
                yield self._handle(engine, TargetAdded(target.name, target.path, target.policy), at)

    def _follow(self, engine: Engine, step: Step) -> Iterator[Step]:
        """What the other engine sees of a recorded step: its own timers that ran out meanwhile, then the event."""
        while (due := self._now.due(step.now, self._then)) is not None:
            key, at = due
            yield self._handle(engine, TimerFired(key), at)
        event = self._translated(step.event)
        self._then.take(step.event, step.effects)
        if event is not None:
            yield self._handle(engine, event, step.now)

    def _handle(self, engine: Engine, event: Event, now: float) -> Step:
        match event:
            case TargetAdded():
                event = TargetAdded(event.target, event.path, self._policy(event.target))
            case ConfigReloaded():
                event = ConfigReloaded(self.config)
            case _:
                pass
        step = _step(engine, event, now, self._clock)
        self._now.take(event, step.effects)
        return step

    def _translated(self, event: Event) -> Event | None:
        """The event as the other engine has to see it; None: not at all."""
        if isinstance(event, TimerFired):
            return event if self._now.runs_with(event.key, self._then) else None
        if isinstance(event, AckReceived):
            return self._translated_ack(event)
        order = _order_behind(event)
        if order is not None and self._then.orders[order] > 0 and self._now.orders[order] <= 0:
            self.left_out[order[0]] += 1
            return None
        return event

    def _translated_ack(self, ack: AckReceived) -> AckReceived | None:
        """An answer to the same action, whatever number the other engine gave it."""
        key = (ack.subscriber, ack.seq)
        action = self._then.actions.get(key)
        if action is None:  # asked before the recording began, and known to both
            return ack
        # A server may answer a command that has run out, when the same action has been asked again: late, then as now.
        awaited = self._then.waiting.get((ack.subscriber, action), ack.seq)
        seq = self._now.waiting.get((ack.subscriber, action))
        if seq is not None and awaited == ack.seq:
            answer: AckReceived = structs.replace(ack, seq=seq)
            return answer
        if not self._then.waits(key) and seq != ack.seq and self._now.actions.get(key) is action:  # late for both
            return ack
        self.left_out["acks"] += 1
        return None

    def _policy(self, target: str) -> Policy:
        """How the configuration judges a target of this name: its own entry, the glob that finds it, the defaults."""
        for spec in self.config.targets:
            if target == spec.name or (spec.glob is not None and target.startswith(f"{spec.name}:")):
                return spec.policy
        self.by_defaults.add(target)
        return self.config.defaults


class _Shell:
    """What a daemon around one engine would know: its timers, and the orders that wait for an answer."""

    def __init__(self) -> None:
        self.timers: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self.actions: dict[tuple[int, int], Action] = {}
        self.waiting: dict[tuple[int, Action], int] = {}
        self.orders: Counter[tuple[str, str]] = Counter()

    def take(self, event: Event, effects: list[Effect]) -> None:
        """An event that the engine has handled, and its effects."""
        if isinstance(event, TimerFired):
            self.timers.pop(event.key, None)
        answered = _order_behind(event)
        if answered is not None and self.orders[answered] > 0:
            self.orders[answered] -= 1
        for effect in effects:
            order = _order(effect)
            if order is not None:
                self.orders[order] += 1
            match effect:
                case SetTimer():
                    self.timers[effect.key] = effect.at
                    self.cancelled.discard(effect.key)
                case CancelTimer():
                    self.timers.pop(effect.key, None)
                    self.cancelled.add(effect.key)
                case Deliver():
                    command = effect.command
                    self.actions[effect.subscriber, command.seq] = command.action
                    self.waiting[effect.subscriber, command.action] = command.seq
                case CommandEnded():
                    if self.waiting.get((effect.subscriber, effect.action)) == effect.seq:
                        del self.waiting[effect.subscriber, effect.action]
                case _:
                    pass

    def waits(self, key: tuple[int, int]) -> bool:
        """Whether the command of this subscriber and number has no outcome yet."""
        subscriber, seq = key
        return key in self.actions and self.waiting.get((subscriber, self.actions[key])) == seq

    def due(self, now: float, then: "_Shell") -> tuple[str, float] | None:
        """The next timer that ran out before `now`. One that the recorded daemon had too rings when that one did."""
        ran_out = [(at, key) for key, at in self.timers.items() if at <= now and then.timers.get(key) != at]
        if not ran_out:
            return None
        at, key = min(ran_out)
        return key, at

    def runs_with(self, key: str, then: "_Shell") -> bool:
        """Whether a timer that rang in the recording is this engine's too: set alike, or before the recording began."""
        if key in then.timers:
            return self.timers.get(key) == then.timers[key]
        return key not in self.timers and key not in self.cancelled


def _step(engine: Engine, event: Event, now: float, clock: Clock) -> Step:
    defect: str | None = None
    effects: list[Effect] = []
    try:
        effects = engine.handle(event, now)
    except Exception as error:  # the daemon's edge survives any defect of the engine; so has whoever wants to see it
        defect = f"{type(error).__name__}: {error}"
    return Step(now, clock.wall(now), event, effects, engine, defect)


def _order(effect: Effect) -> tuple[str, str] | None:
    """An order that an event answers, as (kind, target); None: it is none, or has no answer."""
    match effect:
        case RaiseLimit():
            return "limits raised", effect.target
        case PutBackLimit():
            return "limits put back", effect.target
        case RunLastResort():
            return f"last resorts ({effect.step.action})", effect.target
        case Thaw():
            return "thaws", effect.target
        case _:
            return None


def _order_behind(event: Event) -> tuple[str, str] | None:
    """Which of these orders an event answers; None: it is a fact of its own."""
    match event:
        case LimitRaised() | ReliefFailed():
            return "limits raised", event.target
        case LimitPutBack():
            return "limits put back", event.target
        case LastResortEnded(outcome="thawed"):
            return "thaws", event.target
        case LastResortEnded():
            return f"last resorts ({event.action})", event.target
        case _:
            return None
