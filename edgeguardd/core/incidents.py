"""Incidents of a replay: from the first level above normal of a target until it is normal again.

Must not: replay, print, draw. Upstream: replay, decisions. Downstream: the command line.
A recording can begin or end in the middle of one; then `began_before` or `how_ended` says so.
"""

import enum
from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from edgeguardd.core import limits
from edgeguardd.core.decisions import Decision, Kind, of_step
from edgeguardd.core.effects import AnnounceLevel, CommandEnded
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import AckReceived, CountersMoved, KillsNearRemoval, SampleTaken, TargetAdded, TargetDropped
from edgeguardd.core.model import Action, Level
from edgeguardd.core.replay import Opened, Step
from edgeguardd.core.target import Target

# What led to it, and how it settled: restores come after the level is normal again.
BEFORE_S = 20.0
AFTER_S = 15.0
MAX_BEFORE_POINTS = 512
# More than a wide screen has columns. A longer curve keeps the highest of two neighbours: peaks are what matters.
MAX_POINTS = 4096
# What a page lists; an incident of days has more, and its beginning is what explains it.
MAX_STORY = 1000


class HowEnded(enum.StrEnum):
    """Why an incident is over, as far as the recording tells."""

    NORMAL = "normal"
    DROPPED = "dropped"
    RECORDING_ENDS = "recording_ends"


class Point(Struct, frozen=True):
    """One sample: needed bytes, and the limit that binds with its marks. Limits are None where nothing is limited."""

    wall_s: float
    needed_bytes: int
    static_bytes: int
    limit_bytes: int | None = None
    elevated_bytes: int | None = None
    high_bytes: int | None = None
    critical_bytes: int | None = None


class Moment(Struct, frozen=True):
    """A fact from outside that belongs to the story: an ack, counters that moved."""

    wall_s: float
    what: str
    sentence: str
    seq: int | None = None


class Incident(Struct):
    """One incident. Times are wall-clock seconds; the story and the curve reach a little to either side.

    commands does not count restores; freed_bytes is what left while commands were out;
    untold is how much of the story was too much to keep.
    """

    target: str
    start_s: float
    end_s: float
    worst: Level
    began_before: bool = False
    how_ended: HowEnded = HowEnded.RECORDING_ENDS
    commands: int = 0
    last_resorts: int = 0
    freed_bytes: int = 0
    granted: int = 0
    refused: int = 0
    untold: int = 0
    curve: list[Point] = field(default_factory=list)
    levels: list[tuple[float, Level]] = field(default_factory=list)
    story: list[Decision | Moment] = field(default_factory=list)

    @property
    def duration_s(self) -> float:
        """How long the target was above normal, as far as it is known."""
        return self.end_s - self.start_s


def incidents(steps: Iterable[Opened | Step]) -> list[Incident]:
    """The incidents of all targets, in the order of their beginning."""
    watch = _Watch()
    for step in steps:
        watch.take(step)
    watch.end()
    return sorted(watch.found, key=lambda incident: incident.start_s)


class _Watch:
    """Goes along with a replay and collects."""

    def __init__(self) -> None:
        self.found: list[Incident] = []
        self._open: dict[str, Incident] = {}
        self._settling: dict[str, Incident] = {}
        self._before: dict[str, deque[Point]] = {}
        # target -> until when the bytes freed have been counted, and how many there were

    def take(self, step: Opened | Step) -> None:
        """The next step."""
        if isinstance(step, Opened):
            if not step.continuous:
                self._start_over(step)
            return
        if isinstance(step.event, SampleTaken):
            self._sampled(step, step.event)
        elif isinstance(step.event, TargetAdded):  # after a restart it goes on where it was
            self._go_on(step.engine.targets.get(step.event.target), step.wall_s)
        elif (moment := _moment(step)) is not None:
            self._tell(*moment)
        for decision in of_step(step):
            self._decided(decision)
        if isinstance(step.event, TargetDropped):
            self._over(step.event.target, step.wall_s, HowEnded.DROPPED)

    def end(self) -> None:
        """The recording ends."""
        for target in list(self._open):
            self._over(target, self._open[target].end_s, HowEnded.RECORDING_ENDS)

    def _start_over(self, opened: Opened) -> None:
        """Events are missing, or another run begins: whatever went on is over, and what stands above normal goes on."""
        self.end()
        self._settling.clear()
        self._before.clear()
        for target in opened.engine.targets.values():
            self._go_on(target, opened.header.clock.wall_s)

    def _go_on(self, target: Target | None, at: float) -> None:
        """What stood above normal before anybody looked."""
        if target is not None and target.level > Level.NORMAL and target.name not in self._open:
            incident = Incident(target.name, at, at, target.level, began_before=True)
            incident.levels.append((at, target.level))
            self._begin(incident)

    def _sampled(self, step: Step, event: SampleTaken) -> None:
        target = event.sample.target
        point = _point(step.engine, target, step.wall_s)
        if point is None:
            return
        incident = self._of(target, step.wall_s)
        if incident is not None:
            incident.curve.append(point)
            if len(incident.curve) > MAX_POINTS:
                incident.curve[:] = thinned(incident.curve)
        self._before.setdefault(target, deque(maxlen=MAX_BEFORE_POINTS)).append(point)

    def _decided(self, decision: Decision) -> None:
        change = decision.effect
        if isinstance(change, AnnounceLevel) and change.was is Level.NORMAL and decision.target not in self._open:
            self._rise(decision)
        incident = self._of(decision.target, decision.wall_s)
        if incident is None:
            return
        if decision.kind is Kind.ADMISSION:
            incident.granted += decision.what == "granted"
            incident.refused += decision.what == "refused"
            return
        _add(incident, decision)
        incident.commands += decision.kind is Kind.COMMAND and decision.what != Action.RESTORE
        incident.last_resorts += decision.kind is Kind.LAST_RESORT and decision.what != "thaw"
        if isinstance(change, CommandEnded):
            incident.freed_bytes += max(0, change.freed_bytes or 0)
        if isinstance(change, AnnounceLevel):
            incident.levels.append((decision.wall_s, change.level))
            incident.worst = max(incident.worst, change.level)
            if change.level is Level.NORMAL:
                self._over(decision.target, decision.wall_s, HowEnded.NORMAL)

    def _rise(self, decision: Decision) -> None:
        incident = Incident(decision.target, decision.wall_s, decision.wall_s, Level.NORMAL)
        since_s = decision.wall_s - BEFORE_S
        incident.curve += [p for p in self._before.get(decision.target, ()) if p.wall_s >= since_s]
        self._begin(incident)

    def _begin(self, incident: Incident) -> None:
        self._settling.pop(incident.target, None)
        self._open[incident.target] = incident
        self.found.append(incident)

    def _over(self, target: str, at_s: float, how: HowEnded) -> None:
        incident = self._open.pop(target, None)
        if incident is not None:
            incident.how_ended, incident.end_s = how, at_s
            self._settling[target] = incident

    def _of(self, target: str, at_s: float) -> Incident | None:
        """The incident that something at this time belongs to: the one that goes on, or has just ended."""
        incident = self._open.get(target)
        if incident is not None:
            incident.end_s = at_s
            return incident
        incident = self._settling.get(target)
        return incident if incident is not None and at_s <= incident.end_s + AFTER_S else None

    def _tell(self, target: str, moment: Moment) -> None:
        incident = self._of(target, moment.wall_s)
        if incident is not None:
            _add(incident, moment)


def _add(incident: Incident, told: Decision | Moment) -> None:
    if len(incident.story) < MAX_STORY:
        incident.story.append(told)
    else:
        incident.untold += 1


def thinned(curve: list[Point]) -> list[Point]:
    """Half as many points: of each two the one with more needed bytes."""
    pairs = zip(curve[::2], curve[1::2], strict=False)
    kept = [max(pair, key=lambda point: point.needed_bytes) for pair in pairs]
    return kept + (curve[-1:] if len(curve) % 2 else [])


def _point(engine: Engine, name: str, wall_s: float) -> Point | None:
    target = engine.targets.get(name)
    if target is None or target.gauge.needed_bytes is None:
        return None
    pressure = target.gauge.pressure
    if pressure is None:
        return Point(wall_s, target.gauge.needed_bytes, target.static_bytes)
    marks = limits.marks(target.policy, pressure)
    return Point(
        wall_s,
        pressure.needed_bytes,
        pressure.static_bytes,
        pressure.limit_bytes,
        marks.elevated_bytes,
        marks.high_bytes,
        marks.critical_bytes,
    )


def _moment(step: Step) -> tuple[str, Moment] | None:
    """What of an event itself belongs to the story, and of which target."""
    match step.event:
        case AckReceived() as ack:
            homes = (t.name for t in step.engine.targets.values() if ack.subscriber in t.ledger.subscribers)
            said = "" if ack.message is None else f": {ack.message}"
            sentence = f"subscriber {ack.subscriber} answers #{ack.seq}: {ack.status}{said}"
            return next(homes, ""), Moment(step.wall_s, "ack", sentence, ack.seq)
        case CountersMoved() as moved:
            counts = ((key, getattr(moved.delta, key)) for key in moved.delta.__struct_fields__)
            sentence = ", ".join(f"{key} +{count}" for key, count in counts if count)
            return moved.target, Moment(step.wall_s, "counters", f"{sentence} in memory.events of {moved.path}")
        case KillsNearRemoval() as near:
            return near.target, Moment(step.wall_s, "kills", f"{near.kills} kills near the removal of the cgroup")
        case _:
            return None
