"""What another configuration would have changed: per target and episode, what comes earlier, later, never, or anew.

Must not: replay, print. Upstream: decisions of two replays of the same recording. Downstream: the command line.
An episode is a span in which either side has the target above normal. In it the first time of each thing counts, since
that is what a mark decides: when the first trim goes out, whether requests are ever rejected, when all is well again.
"""

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

from edgeguardd.core.decisions import Decision, Kind
from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Effect
from edgeguardd.core.model import Level, Outcome

# Episodes of the two sides that come so close belong to one story.
TOGETHER_S = 5.0
# Finer differences are those of one event's handling, not of a decision.
SAME_S = 0.001

# In the order of a story: levels, then what was ordered, then how it ended.
_ORDER = (Kind.LEVEL, Kind.RELIEF, Kind.COMMAND, Kind.LAST_RESORT, Kind.NOTE, Kind.OUTCOME, Kind.ADMISSION)

# Of these the number says it all: when the first one came follows from the orders.
COUNTED = frozenset({Kind.OUTCOME, Kind.ADMISSION})

_VAIN = frozenset({Outcome.EXPIRED, Outcome.INEFFECTIVE})

_OVER = (Kind.LEVEL, Level.NORMAL.word)


class Change(Struct, frozen=True):
    """One thing that happens at another time, or so many times more or less. Times: wall-clock seconds of the first.

    guess: it first comes after an order that nobody could answer, since in the recording it was not given.
    """

    kind: Kind
    what: str
    recorded_s: float | None
    changed_s: float | None
    recorded_times: int
    changed_times: int
    guess: bool = False

    @property
    def earlier_s(self) -> float | None:
        """How much earlier it comes under the other configuration; negative: later; None: only one side has it."""
        if self.recorded_s is None or self.changed_s is None:
            return None
        return self.recorded_s - self.changed_s


class Episode(Struct, frozen=True):
    """One span of one target (wall-clock seconds), and what is different in it."""

    target: str
    start_s: float
    end_s: float
    changes: tuple[Change, ...]


def difference(recorded: Iterable[Decision], changed: Iterable[Decision]) -> list[Episode]:
    """The episodes in which anything is different, in the order of their beginning."""
    sides = (list(recorded), list(changed))
    # What concerns no target is the daemon's own, such as that the other configuration is in force.
    targets = dict.fromkeys(decision.target for side in sides for decision in side if decision.target)
    found = []
    for target in targets:
        mine = [[decision for decision in side if decision.target == target] for side in sides]
        for start_s, end_s, then, now in _episodes(*mine):
            changes = tuple(_changes(then, now))
            if changes:
                found.append(Episode(target, start_s, end_s, changes))
    return sorted(found, key=lambda episode: episode.start_s)


def _episodes(
    then: list[Decision], now: list[Decision]
) -> Iterator[tuple[float, float, list[Decision], list[Decision]]]:
    """The spans above normal of either side, together with what each side decided from there to the next span."""
    everything = sorted(decision.wall_s for decision in (*then, *now))
    if not everything:
        return
    spans = sorted([*_raised(then, everything[-1]), *_raised(now, everything[-1])])
    merged: list[tuple[float, float]] = []
    for start_s, end_s in spans:
        if merged and start_s <= merged[-1][1] + TOGETHER_S:
            merged[-1] = (merged[-1][0], max(end_s, merged[-1][1]))
        else:
            merged.append((start_s, end_s))
    # What lies before the first span, or has none, is told as well.
    if not merged or everything[0] < merged[0][0]:
        merged.insert(0, (everything[0], everything[0]))
    for (start_s, end_s), (next_s, _) in zip(merged, [*merged[1:], (float("inf"), 0.0)], strict=True):
        yield start_s, end_s, _within(then, start_s, next_s), _within(now, start_s, next_s)


def _within(decisions: list[Decision], start_s: float, end_s: float) -> list[Decision]:
    return [decision for decision in decisions if start_s <= decision.wall_s < end_s]


def _raised(decisions: list[Decision], last_s: float) -> Iterator[tuple[float, float]]:
    """The spans above normal. One that has no end in the recording lasts to its last moment."""
    since: float | None = None
    for decision in decisions:
        if isinstance(decision.effect, AnnounceLevel):
            if decision.effect.level is Level.NORMAL:
                yield decision.wall_s if since is None else since, decision.wall_s
                since = None
            elif since is None:
                since = decision.wall_s
    if since is not None:
        yield since, last_s


def _changes(then: list[Decision], now: list[Decision]) -> Iterator[Change]:
    """What is different in one episode, in the order of a story."""
    firsts = [_firsts(then), _firsts(now)]
    unsure_s = min(_vain(then, now), default=math.inf)
    keys = dict.fromkeys([*firsts[0], *firsts[1]])
    for kind, what in sorted(keys, key=lambda key: _ORDER.index(key[0])):
        (recorded_s, recorded_times), (changed_s, changed_times) = (
            side.get((kind, what), (None, 0)) for side in firsts
        )
        # Levels follow memory, which stays as it was; all else follows from answers, too.
        guess = kind is not Kind.LEVEL and changed_s is not None and changed_s >= unsure_s
        change = Change(kind, what, recorded_s, changed_s, recorded_times, changed_times, guess)
        earlier_s = change.earlier_s
        moved = earlier_s is None or (kind not in COUNTED and abs(earlier_s) > SAME_S)
        if moved or recorded_times != changed_times:
            yield change


def _vain(then: list[Decision], now: list[Decision]) -> Iterator[float]:
    """When orders of the other side ended without effect that were not given, or ended otherwise, in the recording."""
    known = {_ending(decision.effect, decision.wall_s) for decision in then}
    for decision in now:
        end = decision.effect
        if isinstance(end, CommandEnded) and end.outcome in _VAIN and _ending(end, decision.wall_s) not in known:
            yield decision.wall_s


def _ending(effect: Effect, wall_s: float) -> tuple[int, str, str, float] | None:
    if not isinstance(effect, CommandEnded):
        return None
    return effect.subscriber, effect.action, effect.outcome, round(wall_s, 2)


def _firsts(decisions: list[Decision]) -> dict[tuple[Kind, str], tuple[float | None, int]]:
    """(kind, word) -> the time of the first and how many."""
    found: dict[tuple[Kind, str], tuple[float | None, int]] = {}
    for decision in decisions:
        for key in _keys(decision):
            first_s, times = found.get(key, (decision.wall_s, 0))
            # Of normal the last time counts: when it was over.
            found[key] = (decision.wall_s if key == _OVER else first_s, times + 1)
    return found


def _keys(decision: Decision) -> Iterator[tuple[Kind, str]]:
    """What a decision counts as. A rise reaches every level on its way; a fall counts when it ends at normal."""
    if not isinstance(decision.effect, AnnounceLevel):
        yield decision.kind, decision.what
        return
    if decision.effect.level is Level.NORMAL:
        yield _OVER
    for level in range(decision.effect.was + 1, decision.effect.level + 1):
        yield Kind.LEVEL, Level(level).word
