"""One target's life: appears, is sampled on each wake-up and on its timer, vanishes, appears again.

Must not: know specs or peers (targets does), judge figures (core does). Upstream: nodes, tree. Downstream: targets.

    wake-up of a counter file ─┐
    tasks wait for memory ─────┤
    timer of the target ───────┼─▶ _sample ─▶ SampleTaken | SampleFailed, then CountersMoved for each file that moved
    tree: cgroup is there ─────┘
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator

from edgeguardd.core import kernelfmt
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    Event,
    KillsNearRemoval,
    KillsWhileAway,
    SampleFailed,
    SampleTaken,
)
from edgeguardd.core.model import Counters, Sample
from edgeguardd.errors import KernelError
from edgeguardd.kernel import beats
from edgeguardd.kernel.cgroupfs import CgroupGoneError, CgroupRoot
from edgeguardd.kernel.guarded import Guarded, Link
from edgeguardd.kernel.neighbourhood import Neighbourhood
from edgeguardd.kernel.nodes import Nodes, Reading, Watched
from edgeguardd.kernel.pressure import StallAlarm
from edgeguardd.kernel.tree import Follower, Place, Tree
from edgeguardd.kernel.wakeups import Begun, Cause, Wakeups

# Sentences about PSI are said once each; garbled files could make many.
_MAX_SAID = 64

_NOTHING_COUNTED = Counters(*(0 for _ in Counters.__struct_fields__))

# An OOM kill follows its `oom` within a few milliseconds, on a slow machine too; the wake-up for it within 10.
SECOND_LOOK_S = 0.001
SECOND_LOOKS = 10

# Readings of one round: what several targets share is read once.
Round = dict[Watched[Guarded], Reading]


class Sampler:
    """Keeps the files of the targets given to it, and tells what they hold.

    `begun`: what the reading that is being told began with; None between readings, and for one that an answer is
    judged by.
    """

    def __init__(
        self,
        root: CgroupRoot,
        tree: Tree,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        on_fault: Callable[[str], None],
    ) -> None:
        self.slow_s = 1.0
        self.begun: Begun | None = None
        self._tree = tree
        self._loop = loop
        self._emit = emit
        self._clock = clock
        self._on_fault = on_fault
        self._wakeups = Wakeups(loop)
        self._nodes: Nodes[Guarded] = Nodes(root, self._wakeups, self._woken)
        self._psi_said: set[str] = set()
        self._numbers = itertools.count()

    def start(self, target: Guarded, *, fresh: bool = False) -> None:
        """Begin to follow the target's path. `fresh`: its cgroup has just been made, so all that it counts is news."""
        target.follower = Follower(lambda place: self._attach(target, place), lambda _: self._detach(target))
        target.place = self._tree.follow(target.path, target.follower)
        target.was_absent = fresh or not target.place.present
        target.looked_at = self._clock()
        target.number = next(self._numbers)
        if target.place.present:
            self._attach(target, target.place)
        self._set_timer(target)

    def stop(self, target: Guarded) -> None:
        """Follow it no more; tell nothing."""
        self._cancel_timer(target)
        self._release(target)
        if target.place is not None and target.follower is not None:
            self._tree.unfollow(target.place, target.follower)
        target.place = target.follower = None

    def leave(self, target: Guarded) -> None:
        """As stop, but tell that its cgroup is gone if it was there: the target will follow another."""
        self._detach(target)
        self.stop(target)

    def sample_now(self, target: Guarded) -> None:
        """Read and tell at once."""
        if target.attached:
            self._sample(target, {})

    def set_interval(self, target: Guarded, interval_s: float) -> None:
        """Sample at this interval from now on; a shorter one counts from the last timed sample."""
        if interval_s != target.interval_s:
            target.interval_s = interval_s
            self._set_timer(target)

    def close(self) -> None:
        """Let go of epoll and all files; the targets have been stopped before."""
        self._nodes.close()
        self._wakeups.close()

    # What makes a sample due

    def _woken(self, watched: Watched[Guarded]) -> None:
        readings: Round = {}
        with self._because(Cause.COUNTER, self._wakeups.woken_at):
            for target in list(watched.users):
                self._sample(target, readings)

    def _stalled(self, target: Guarded) -> None:
        with self._because(Cause.STALL, self._loop.time()):
            self.sample_now(target)

    def _tick(self, target: Guarded) -> None:
        target.looked_at = self._clock()
        self._set_timer(target)
        with self._because(Cause.TIMER, self._loop.time()):
            self._look(target)

    def _look(self, target: Guarded) -> None:
        place = target.place
        if place is None:
            return
        identity = place.identity
        self._tree.check(place)
        if target.place is not place or place.identity is not identity:
            # It vanished or appeared just now, and that has been told.
            return
        if target.attached:
            if self._recheck_ancestors(target):
                self._sample(target, {})
            else:
                self._gone(target)
        elif place.present:
            self._attach(target, place)

    @contextlib.contextmanager
    def _because(self, cause: Cause, at: float) -> Iterator[None]:
        """Meanwhile `begun` says so."""
        self.begun = Begun(cause, at)
        try:
            yield
        finally:
            self.begun = None

    def _set_timer(self, target: Guarded) -> None:
        """One timer a target, whoever sets it: what is told while it starts or ticks may change the interval."""
        self._cancel_timer(target)
        if target.place is None:
            return
        interval_s = target.interval_s if target.attached else max(target.interval_s, self.slow_s)
        wait_s = beats.due(target.looked_at, interval_s, target.number) - self._clock()
        target.timer = self._loop.call_later(min(interval_s, max(0.0, wait_s)), self._tick, target)

    def _cancel_timer(self, target: Guarded) -> None:
        if target.timer is not None:
            target.timer.cancel()
            target.timer = None

    # There and gone

    def _attach(self, target: Guarded, place: Place) -> None:
        """Open the files and tell. What cannot be opened is tried again by the timer."""
        if target.attached or target.place is not place:
            return
        seen = _NOTHING_COUNTED if target.was_absent and target.told is None else target.told
        try:
            self._link(target, place, seen, own=True)
            for above in place.ancestors():
                self._link(target, above, None, own=False)
        except CgroupGoneError:
            self._release(target)
            return
        except KernelError as error:
            self._release(target)
            # In a directory that was just removed no file is found either: then the tree is about to tell.
            if self._tree.holds(place):
                self._fail(target, str(error))
            return
        target.was_absent = False
        target.told = None
        target.attached_at = self._clock()
        if place.parent is not None:
            target.neighbourhood = Neighbourhood(place.parent)
        target.alarm = StallAlarm(
            target.links[0].watched.node.pressure,
            self._loop,
            self._clock,
            lambda: self._stalled(target),
            self._say_of_psi,
        )
        self._emit(CgroupAppeared(target.name))
        self._sample(target, {})

    def _link(self, target: Guarded, place: Place, seen: Counters | None, *, own: bool) -> None:
        target.links.append(Link(place.path, self._nodes.use(place, target, own=own), seen))

    def _gone(self, target: Guarded) -> None:
        """A file answered that its cgroup is gone, and will do so for ever.

        If the directory went too, the tree finds out by itself. If only the controller was switched off, the timer
        tries the same directory again; then the counters may go on where they were, for where another controller needs
        it the kernel only hides it: `io` does (cgroup_apply_control_disable, kernel/cgroup/cgroup.c; seen on 6.1).
        """
        self._detach(target, target.links[0].seen)

    def _detach(self, target: Guarded, told: Counters | None = None) -> None:
        """Its files are dead: read them a last time if that can be, let go of them, and tell."""
        if target.attached:
            self._sample(target, {}, last=True)
        if target.place is None:
            return
        known = target.attached or target.failure is not None
        near = target.neighbourhood
        kills = 0 if near is None else near.unexplained()
        self._release(target)
        target.was_absent, target.told = True, told
        target.failure = target.fault = None
        self.set_interval(target, self.slow_s)
        if near is not None and kills:
            self._emit(KillsNearRemoval(target.name, near.path, kills))
        if known:
            self._emit(CgroupVanished(target.name))

    def _release(self, target: Guarded) -> None:
        for link in target.links:
            self._nodes.leave(link.place_path, link.watched, target)
        target.links = []
        if target.neighbourhood is not None:
            target.neighbourhood.close()
            target.neighbourhood = None
        if target.alarm is not None:
            target.alarm.close()
            target.alarm = None
        if target.second_look is not None:
            target.second_look.cancel()
            target.second_look = None
        target.looks_left = 0

    # Reading and telling

    def _recheck_ancestors(self, target: Guarded) -> bool:
        """Which of them have a limit by now. False: the files of one are dead, so all have to be opened again."""
        try:
            for link in target.links[1:]:
                self._nodes.recheck(link.watched)
        except CgroupGoneError:
            return False
        return True

    def _sample(self, target: Guarded, readings: Round, *, last: bool = False) -> None:
        """Read the target's cgroup and its limited ancestors, each once a round, and tell."""
        near = target.neighbourhood

        kills_before = None if near is None else near.kills()
        read: list[tuple[Link, Reading]] = []
        dead = not self._read(target, readings, read)
        if read:
            if near is not None:
                near.explain(kills_before, _new_kills(*read[0]))
            target.looked_at = self._clock()
            # What was counted is told even if an ancestor's files died meanwhile; figures without its limit are not.
            self._tell_all(target, read, sample=not dead and not (last and read[0][1].usage is None))
        if dead and not last and target.attached:
            self._gone(target)

    def _read(self, target: Guarded, readings: Round, read: list[tuple[Link, Reading]]) -> bool:
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

    def _tell_all(self, target: Guarded, read: list[tuple[Link, Reading]], *, sample: bool) -> None:
        moves = [move for move in (self._move(target, link, reading) for link, reading in read) if move is not None]
        if sample:
            self._tell(target, [reading for _, reading in read])
        self._look_again(target, moves)
        for move in moves:
            # What was told may have ended the target: its last subscriber was disconnected.
            if target.place is not None:
                self._emit(move)

    def _look_again(self, target: Guarded, moves: list[CountersMoved]) -> None:
        """After an `oom` the kill is counted within moments, but its wake-up comes up to 10 ms later (kernfs merges
        them), and by then the cgroup may have been removed: look for it at once."""
        own = next((move.delta for move in moves if move.local), None)
        if own is not None and own.oom_kill:
            target.looks_left = 0
        elif own is not None and own.oom:
            target.looks_left = SECOND_LOOKS
        if target.looks_left > 0 and target.second_look is None:
            target.second_look = self._loop.call_later(SECOND_LOOK_S, self._second_look, target)

    def _second_look(self, target: Guarded) -> None:
        target.second_look = None
        target.looks_left -= 1
        with self._because(Cause.TIMER, self._loop.time()):
            self.sample_now(target)

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

    def _tell(self, target: Guarded, readings: list[Reading]) -> None:
        own = readings[0]
        if own.usage is None:
            self._fail(target, own.fault or "cannot read the cgroup")
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

    def _follow_stalls(self, target: Guarded, some_us: int | None) -> None:
        if target.alarm is not None:
            target.alarm.follow(target.policy.psi_ratio, some_us)
        fault = target.links[0].watched.node.pressure.fault
        if fault is not None:
            self._say_of_psi(fault)

    def _say_of_psi(self, sentence: str) -> None:
        """Once, for all targets: everything works without."""
        if sentence not in self._psi_said and len(self._psi_said) < _MAX_SAID:
            self._psi_said.add(sentence)
            self._on_fault(sentence)

    def _fail(self, target: Guarded, reason: str) -> None:
        """A target that cannot be read is told of once for each reason, and tried again by its timer."""
        target.errors += 1
        if reason != target.failure:
            target.failure = reason
            self._emit(SampleFailed(target.name, reason))


def _new_kills(link: Link, reading: Reading) -> int:
    """Kills of this reading that have not been told yet."""
    if reading.counters is None or reading.counters.oom_kill is None:
        return 0
    told = 0 if link.seen is None or link.seen.oom_kill is None else link.seen.oom_kill
    return max(0, reading.counters.oom_kill - told)
