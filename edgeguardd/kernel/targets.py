"""The targets: which cgroups are guarded, by whose wish, and under which name.

Must not: read memory files (sampler does), judge figures (core does). Upstream: sampler, resolve, tree.
Downstream: daemon, which gets everything that happens through `emit`.

    TargetSpec ─▶ resolve ─▶ path ─▶ tree: is it there? ─▶ sampler: files, wake-ups, timer ─▶ emit(Event)
    a subscriber's own cgroup ─▶ path ─┘
"""

import asyncio
import os
from collections.abc import Callable, Sequence

from edgeguardd.core.config import Policy, SamplingConfig, TargetSpec
from edgeguardd.core.events import Event, TargetAdded, TargetDropped
from edgeguardd.errors import TargetError
from edgeguardd.kernel.cgroupfs import EVENTS, MAY_NOT_LOOK, CgroupRoot, normal_path, shown, target_path
from edgeguardd.kernel.guarded import Guarded, Standing, TargetStatus, standing_of, status_of
from edgeguardd.kernel.names import found_name
from edgeguardd.kernel.resolve import Glob, Pattern, Search, Unit, rank
from edgeguardd.kernel.sampler import Sampler
from edgeguardd.kernel.tree import Tree
from edgeguardd.kernel.treewatch import TreeWatch
from edgeguardd.kernel.viewpoint import Viewpoint
from edgeguardd.kernel.wakeups import Begun

# Faults are said once each; what is remembered of them is bounded.
_MAX_SAID = 256
# Whoever makes cgroups that match a glob may make many.
_MAX_TURNED_AWAY = 4096


class _Wish:
    """One spec in force, the search behind it if it names no path, and the targets that came of it, by path."""

    def __init__(self, spec: TargetSpec) -> None:
        self.spec = spec
        self.search: Search | None = None
        self.searching = False
        self.targets: dict[str, Guarded] = {}


class Targets:
    """Everything that is guarded. All of it happens on the loop's thread."""

    def __init__(
        self,
        root: CgroupRoot,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[Event], None],
        clock: Callable[[], float] | None = None,
        *,
        max_targets: int = 256,
        on_fault: Callable[[str], None] | None = None,
    ) -> None:
        """`clock`: monotonic seconds, the loop's when left out.

        `on_fault` gets, once each, the sentences about what works only in part (no inotify, no descriptors left).
        Raises KernelError when the root cannot be opened.
        """
        self.max_targets = max_targets
        self.faults: list[str] = []
        self._root = root
        self._viewpoint = Viewpoint(root)
        self._loop = loop
        self._emit = emit
        self._on_fault = on_fault
        self._watch = TreeWatch(loop, self._look_everywhere, self._fault)
        self._tree = Tree(root, self._watch, self._fault)
        self._sampler = Sampler(root, self._tree, loop, emit, clock or loop.time, self._fault)
        self._wishes: dict[str, _Wish] = {}
        self._targets: dict[str, Guarded] = {}
        # Found when max_targets was reached, by name: they take the places of those that end.
        self._turned_away: dict[str, tuple[_Wish, str]] = {}
        self._before: dict[str, Standing] = {}
        self._poll_timer: asyncio.TimerHandle | None = None

    def expect(self, standing: dict[str, Standing]) -> None:
        """By name, where a run before this one has left its targets. Call it before there are any."""
        self._before = dict(standing)

    # What the configuration wants

    def apply(self, specs: Sequence[TargetSpec], sampling: SamplingConfig, defaults: Policy | None = None) -> None:
        """Guard what the specs name, and nothing else that a spec named before; what stays the same is not touched.

        `defaults`: how the targets of guard_peer are judged from now on; None: as before.
        """
        was_slow_s, self._sampler.slow_s = self._sampler.slow_s, sampling.slow_s
        for target in self._targets.values():
            if target.interval_s >= was_slow_s:
                self._sampler.set_interval(target, sampling.slow_s)
        wanted = {spec.name: spec for spec in specs}
        for name, wish in list(self._wishes.items()):
            if name not in wanted or not _same_place(wish.spec, wanted[name]):
                self._withdraw(name)
        for spec in specs:
            known = self._wishes.get(spec.name)
            if known is None:
                self._fulfil(spec)
            elif known.spec != spec:
                known.spec = spec
                for target in list(known.targets.values()):
                    self._judge_by(target, spec.policy)
        if defaults is not None:
            for target in [target for target in self._targets.values() if target.dynamic]:
                self._judge_by(target, defaults)

    def _judge_by(self, target: Guarded, policy: Policy) -> None:
        if target.policy != policy:
            target.policy = policy
            self._emit(TargetAdded(target.name, shown(target.path), policy))

    def _fulfil(self, spec: TargetSpec) -> None:
        wish = self._wishes[spec.name] = _Wish(spec)
        try:
            if spec.path is not None:
                self._add(wish, spec.name, target_path(spec.path))
                return
            pattern: Pattern = Glob(spec.glob or "/") if spec.unit is None else Unit(spec.unit)
        except TargetError as error:
            self._fault(str(error))
            return
        wish.searching = True
        wish.search = Search(
            self._root,
            self._tree,
            pattern,
            lambda path: self._found(wish, path, many=pattern.many),
            lambda path: self._lost(wish, path, many=pattern.many),
            self._fault,
            self._say,
        )
        wish.search.start()
        wish.searching = False
        if isinstance(pattern, Unit) and not pattern.many:
            self._add(wish, spec.name, _best(wish.search.matches) or pattern.usual_path)

    def _withdraw(self, name: str) -> None:
        wish = self._wishes.pop(name)
        if wish.search is not None:
            wish.search.close()
        self._turned_away = {name: waits for name, waits in self._turned_away.items() if waits[0] is not wish}
        for path in list(wish.targets):
            self._drop(wish.targets.pop(path))

    def _found(self, wish: _Wish, path: str, *, many: bool) -> None:
        """A cgroup matches. Found after the first look, it has just been made.

        A unit is followed where it runs; the system's is it even while a user has one of that name.
        """
        if many:
            self._add(wish, found_name(path, f"{wish.spec.name}:"), path, fresh=not wish.searching)
            return
        for target in list(wish.targets.values()):
            runs = target.place is not None and target.place.present
            if path != target.path and (not runs or rank(path) < rank(target.path)):
                self._move(wish, target, path, fresh=True)

    def _lost(self, wish: _Wish, path: str, *, many: bool) -> None:
        target = wish.targets.get(path)
        if many:
            self._turned_away.pop(found_name(path, f"{wish.spec.name}:"), None)
        if target is None or wish.search is None:
            return
        if many:
            self._drop(wish.targets.pop(path))
            return
        other = _best(wish.search.matches)
        if other is not None:
            self._move(wish, target, other, fresh=False)

    def _move(self, wish: _Wish, target: Guarded, path: str, *, fresh: bool) -> None:
        """The unit runs in another slice now."""
        self._sampler.leave(target)
        del wish.targets[target.path]
        wish.targets[path] = target
        target.path = path
        self._emit(TargetAdded(target.name, shown(path), target.policy))
        self._sampler.start(target, fresh=fresh)

    def _add(self, wish: _Wish, name: str, path: str, *, fresh: bool = False) -> None:
        if name in self._targets or len(self._targets) >= self.max_targets:
            why = "the name is taken" if name in self._targets else f"max_targets = {self.max_targets} is reached"
            self._fault(f"cannot guard {name}: {why}; change it in the configuration")
            if name not in self._targets and len(self._turned_away) < _MAX_TURNED_AWAY:
                self._turned_away[name] = wish, path
            return
        target = Guarded(name, path, wish.spec.policy, self._sampler.slow_s, dynamic=False)
        wish.targets[path] = target
        self._begin(target, fresh=fresh)

    def _begin(self, target: Guarded, *, fresh: bool) -> None:
        self._targets[target.name] = target
        before = self._before.pop(target.name, None)
        target.before = before if before is not None and before.path == target.path else None
        self._emit(TargetAdded(target.name, shown(target.path), target.policy))
        self._sampler.start(target, fresh=fresh)

    def _drop(self, target: Guarded) -> None:
        self._sampler.stop(target)
        del self._targets[target.name]
        self._emit(TargetDropped(target.name))
        if self._turned_away:
            self._loop.call_soon(self._take_in)

    def _take_in(self) -> None:
        """There is room for some that there was none for."""
        for name, (wish, path) in list(self._turned_away.items()):
            if len(self._targets) >= self.max_targets:
                return
            del self._turned_away[name]
            # A unit, which has the name of its spec, may run elsewhere by now.
            runs_in = _best(wish.search.matches) if wish.search is not None and name == wish.spec.name else None
            self._add(wish, name, runs_in or path)

    # What subscribers want

    def located(self, peer_path: str) -> str:
        """Where the tree has the cgroup that /proc/PID/cgroup told. Raises TargetError for one outside of the tree."""
        return self._viewpoint.located(peer_path)

    def guard_peer(self, cgroup_path: str, policy: Policy) -> str:
        """The target of a subscriber that says "self" and lives in this cgroup; release_peer is the counterpart.

        An existing target of exactly this cgroup, else the nearest configured one around it, else a new one that lasts
        as long as its subscribers. Raises TargetError.
        """
        path = normal_path(cgroup_path)
        target = self._home(path)
        if target is None:
            target = self._dynamic(path, policy)
            self._begin(target, fresh=False)
        target.peers += 1
        return target.name

    def join_peer(self, name: str) -> str:
        """As guard_peer, for a subscriber that names its target. Raises TargetError when there is none."""
        target = self._targets.get(name)
        if target is None:
            raise TargetError(f"cannot serve {name}: no such target; see edgeguardctl status")
        target.peers += 1
        return target.name

    def join_home(self, cgroup_path: str) -> str:
        """As guard_peer, but only where something is guarded already. Raises TargetError."""
        target = self._home(normal_path(cgroup_path))
        if target is None:
            raise TargetError(f"cannot find a target around {cgroup_path}: nothing there is guarded")
        target.peers += 1
        return target.name

    def release_peer(self, name: str) -> None:
        """A subscriber of the target left. A target that exists for its subscribers only ends with the last of them."""
        target = self._targets.get(name)
        if target is None:
            return
        target.peers = max(0, target.peers - 1)
        if target.dynamic and not target.peers:
            self._drop(target)

    def contains(self, name: str, cgroup_path: str) -> bool:
        """Whether a cgroup is the target's own or inside it."""
        target = self._targets.get(name)
        try:
            return target is not None and _is_inside(normal_path(cgroup_path), target.path)
        except TargetError:
            return False

    def _home(self, path: str) -> Guarded | None:
        exact = [target for target in self._targets.values() if target.path == path]
        if exact:
            return min(exact, key=lambda target: target.dynamic)
        around = [target for target in self._targets.values() if not target.dynamic and _is_inside(path, target.path)]
        return max(around, key=lambda target: len(target.path), default=None)

    def _dynamic(self, path: str, policy: Policy) -> Guarded:
        name = found_name(target_path(path))
        if name in self._targets or len(self._targets) >= self.max_targets:
            raise TargetError(f"cannot guard {name}: {len(self._targets)} targets are guarded; raise max_targets")
        full = self._root.full(path)
        try:
            os.stat(f"{full}/{EVENTS}")
        except PermissionError as error:
            raise TargetError(f"cannot guard {name}: {error.strerror}; {MAY_NOT_LOOK}") from None
        except OSError:
            if not os.path.isdir(full):
                why = f"no such cgroup in {self._root.path}; check cgroup_root"
            elif path == "/":
                name = "the root cgroup"
                why = (
                    "it has no limits and no counters; start the server as a systemd service or in a cgroup of its own"
                )
            else:
                why = "the memory controller is not enabled there; set MemoryAccounting=yes on the unit"
            raise TargetError(f"cannot guard {name}: {why}") from None
        return Guarded(name, path, policy, self._sampler.slow_s, dynamic=True)

    # What the daemon asks

    @property
    def begun(self) -> Begun | None:
        """What the reading that is being told began with; None: nothing is being read, or for the sake of an answer."""
        return self._sampler.begun

    def names(self) -> list[str]:
        """The targets, in the order in which they came."""
        return list(self._targets)

    def path_of(self, name: str) -> str:
        """Where a target's cgroup is, below the root and as opening needs it; "" for an unknown name."""
        target = self._targets.get(name)
        return "" if target is None else target.path

    def standing(self, name: str) -> Standing:
        """What the next run has to know of a target; nothing for an unknown name."""
        target = self._targets.get(name)
        return Standing() if target is None else standing_of(target)

    def set_interval(self, name: str, interval_s: float) -> None:
        """Sample the target at this interval from now on. Unknown names are fine."""
        target = self._targets.get(name)
        if target is not None:
            self._sampler.set_interval(target, interval_s)

    def sample_now(self, name: str) -> None:
        """Sample the target at once, if its cgroup is there. Unknown names are fine."""
        target = self._targets.get(name)
        if target is not None:
            self._sampler.sample_now(target)

    def status(self, now: float | None = None) -> dict[str, TargetStatus]:
        """Name -> row, for status and metrics."""
        at = self._loop.time() if now is None else now
        return {name: status_of(target, shown(target.path), at) for name, target in self._targets.items()}

    def oldest_sample_age_s(self, now: float) -> float | None:
        """The age of the oldest last sample of the targets that exist; None: there is none. For health.

        A target whose files fail has an old sample; one that never gave any counts from when its files were opened.
        """
        ages = [
            now - (target.attached_at if target.sampled_at is None else target.sampled_at)
            for target in self._targets.values()
            if target.attached
        ]
        return max(ages, default=None)

    def oldest_look_age_s(self, now: float) -> float | None:
        """How long ago the target that waits longest was last tried, whatever came of it. For the watchdog.

        A restart cures a daemon that does not look any more, not a kernel file that cannot be read.
        """
        return max((now - target.looked_at for target in self._targets.values() if target.attached), default=None)

    def close(self) -> None:
        """Stop, tell nothing, leave no descriptor. Twice is fine."""
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        for wish in self._wishes.values():
            if wish.search is not None:
                wish.search.close()
        for target in self._targets.values():
            self._sampler.stop(target)
        self._wishes.clear()
        self._targets.clear()
        self._turned_away.clear()
        self._sampler.close()
        self._watch.close()
        self._tree.close()

    # When directories cannot be watched

    def _fault(self, sentence: str) -> None:
        """Say it once; from the first one on, directories are polled as long as one is not watched."""
        self._say(sentence)
        if self._poll_timer is None:
            self._poll_timer = self._loop.call_later(self._sampler.slow_s, self._poll)

    def _say(self, sentence: str) -> None:
        if sentence not in self.faults and len(self.faults) < _MAX_SAID:
            self.faults.append(sentence)
            if self._on_fault is not None:
                self._on_fault(sentence)

    def _poll(self) -> None:
        self._poll_timer = None
        self._tree.check_all()
        if self._tree.polling and self._poll_timer is None:
            self._poll_timer = self._loop.call_later(self._sampler.slow_s, self._poll)

    def _look_everywhere(self) -> None:
        self._tree.check_all()


def _same_place(old: TargetSpec, new: TargetSpec) -> bool:
    return (old.path, old.unit, old.glob) == (new.path, new.unit, new.glob)


def _best(paths: set[str]) -> str | None:
    """Of several cgroups of one unit (a user's and the system's) the one that is it."""
    return min(paths, key=rank, default=None)


def _is_inside(path: str, around: str) -> bool:
    return path == around or path.startswith(around.rstrip("/") + "/")
