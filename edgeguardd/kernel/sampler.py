"""One target's life: appears, is sampled on each wake-up and on its timer, vanishes, appears again.

Must not: know specs or peers (wishes, targets do), judge figures (core does). Upstream: nodes, tree,
telling. Downstream: roster, targets.

    wake-up of a counter file ─┐
    tasks wait for memory ─────┤
    timer of the target ───────┼─▶ _sample ─▶ SampleTaken | SampleFailed, then CountersMoved for each file that moved
    tree: cgroup is there ─────┘
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator

from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    Event,
    KillsNearRemoval,
)
from edgeguardd.core.model import Counters
from edgeguardd.errors import KernelError
from edgeguardd.kernel import beats
from edgeguardd.kernel.cgroupfs import CgroupGoneError, CgroupRoot
from edgeguardd.kernel.guarded import Guarded, Link
from edgeguardd.kernel.neighbourhood import Neighbourhood
from edgeguardd.kernel.nodes import Nodes, Reading, Watched
from edgeguardd.kernel.pressure import StallAlarm
from edgeguardd.kernel.telling import Round, Telling, new_kills
from edgeguardd.kernel.tree import Follower, Place, Tree
from edgeguardd.kernel.wakeups import Begun, Cause, Wakeups

_NOTHING_COUNTED = Counters(*(0 for _ in Counters.__struct_fields__))

# An OOM kill follows its `oom` within a few milliseconds, on a slow machine too; the wake-up for it within 10.
SECOND_LOOK_S = 0.001
SECOND_LOOKS = 10


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
        self._telling = Telling(emit, clock, on_fault)
        self._wakeups = Wakeups(loop)
        self._nodes: Nodes[Guarded] = Nodes(root, self._wakeups, self._woken)
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

    def sample_older(self, targets: Iterable[Guarded], than: float) -> None:
        """Read and tell at once of those whose figures were read before this time; what they share is read once."""
        readings: Round = {}
        for target in targets:
            if target.attached and (target.sampled_at is None or target.sampled_at < than):
                self._sample(target, readings)

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
                self._telling.fail(target, str(error))
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
            self._telling.say_of_psi,
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
        dead = not self._telling.read(target, readings, read)
        if read:
            if near is not None:
                near.explain(kills_before, new_kills(*read[0]))
            target.looked_at = self._clock()
            # What was counted is told even if an ancestor's files died meanwhile; figures without its limit are not.
            self._tell_all(target, read, sample=not dead and not (last and read[0][1].usage is None))
        if dead and not last and target.attached:
            self._gone(target)

    def _tell_all(self, target: Guarded, read: list[tuple[Link, Reading]], *, sample: bool) -> None:
        moves = self._telling.moves(target, read)
        if sample:
            self._telling.tell(target, [reading for _, reading in read])
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
