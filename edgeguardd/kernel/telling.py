"""What the files of one target hold, as facts: figures, what the counters moved, what cannot be read.

    read ─▶ [cgroup, its reading], the target's own first ─▶ moves: CountersMoved for each file that moved
                                                          └▶ tell: SampleTaken | SampleFailed

Must not: choose when (sampler does), judge figures (core does). Upstream: nodes. Downstream: sampler.
"""

from collections.abc import Callable

from edgeguardd.core import kernelfmt
from edgeguardd.core.events import CountersMoved, Event, KillsWhileAway, SampleFailed, SampleTaken
from edgeguardd.core.model import Sample
from edgeguardd.kernel.cgroupfs import CgroupGoneError
from edgeguardd.kernel.guarded import Guarded, Link
from edgeguardd.kernel.nodes import Reading, Watched

# Sentences about PSI are said once each; garbled files could make many.
_MAX_SAID = 64

# Readings of one round: what several targets share is read once.
Round = dict[Watched[Guarded], Reading]


class Telling:
    """For all targets. What is told is remembered with each target's links."""

    def __init__(
        self, emit: Callable[[Event], None], clock: Callable[[], float], on_fault: Callable[[str], None]
    ) -> None:
        self._emit = emit
        self._clock = clock
        self._on_fault = on_fault
        self._psi_said: set[str] = set()

    def read(self, target: Guarded, readings: Round, read: list[tuple[Link, Reading]]) -> bool:
        """Add a reading of each cgroup that is to be read, the target's own first. False: the files of one are dead."""
        try:
            for link in target.links:
                if not link.watched.limited:
                    link.seen = None
                    continue
                if link.watched not in readings:
                    readings[link.watched] = link.watched.read()
                read.append((link, readings[link.watched]))
        except CgroupGoneError:
            return False
        return True

    def moves(self, target: Guarded, read: list[tuple[Link, Reading]]) -> list[CountersMoved]:
        """What each cgroup counted since the target was last told; it counts as told from here on."""
        return [move for move in (self._move(target, link, reading) for link, reading in read) if move is not None]

    def tell(self, target: Guarded, readings: list[Reading]) -> None:
        """The figures of one round, the target's own first, or that it has none."""
        own = readings[0]
        if own.usage is None:
            self.fail(target, own.fault or "cannot read the cgroup")
            return
        target.failure = None
        target.sampled_at = self._clock()
        faults = [reading.fault for reading in readings] + [link.watched.fault for link in target.links]
        fault = next((fault for fault in faults if fault is not None), None)
        if fault is not None and fault != target.fault:
            target.errors += 1
            self._on_fault(f"{target.name} is watched in part only: {fault}")
        target.fault = fault
        self._follow_stalls(target, own.usage.psi_some_us)
        usages = tuple(reading.usage for reading in readings if reading.usage is not None)
        self._emit(SampleTaken(Sample(target.name, usages)))

    def fail(self, target: Guarded, reason: str) -> None:
        """A target that cannot be read is told of once for each reason, and tried again by its timer."""
        target.errors += 1
        if reason != target.failure:
            target.failure = reason
            self._emit(SampleFailed(target.name, reason))

    def say_of_psi(self, sentence: str) -> None:
        """Once, for all targets: everything works without."""
        if sentence not in self._psi_said and len(self._psi_said) < _MAX_SAID:
            self._psi_said.add(sentence)
            self._on_fault(sentence)

    def _move(self, target: Guarded, link: Link, reading: Reading) -> CountersMoved | None:
        """What the cgroup counted since the target was last told; it counts as told from here on."""
        if reading.counters is None or reading.counters == link.seen:
            return None
        if link.seen is None:
            link.seen = reading.counters
            self._tell_missed(target, link)
            return None
        change = kernelfmt.delta(reading.counters, link.seen)
        link.seen = kernelfmt.latest(reading.counters, link.seen)
        if not kernelfmt.moved(change):
            return None
        return CountersMoved(target.name, link.watched.node.path, link.watched.own, change)

    def _tell_missed(self, target: Guarded, link: Link) -> None:
        """The first look at what a run before this one has left: what the cgroup has killed since, or all of a new one.

        It raises no level: that comes from memory as it is now.
        """
        if not link.watched.own or target.before is None or target.place is None:
            return
        before, target.before = target.before, None
        counted = None if link.seen is None else link.seen.oom_kill
        identity = target.place.identity
        new_cgroup = identity is None or identity[1] != before.inode
        told = 0 if new_cgroup else before.kills
        if counted is not None and told is not None and counted > told:
            self._emit(KillsWhileAway(target.name, counted - told, new_cgroup))

    def _follow_stalls(self, target: Guarded, some_us: int | None) -> None:
        if target.alarm is not None:
            target.alarm.follow(target.policy.psi_ratio, some_us)
        fault = target.links[0].watched.node.pressure.fault
        if fault is not None:
            self.say_of_psi(fault)


def new_kills(link: Link, reading: Reading) -> int:
    """Kills of this reading that have not been told yet."""
    if reading.counters is None or reading.counters.oom_kill is None:
        return 0
    told = 0 if link.seen is None or link.seen.oom_kill is None else link.seen.oom_kill
    return max(0, reading.counters.oom_kill - told)
