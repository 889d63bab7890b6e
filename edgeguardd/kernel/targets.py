"""The targets: which cgroups are guarded, by whose wish, and under which name.

    wishes: TargetSpec ─▶ resolve ─▶ path ─▶ roster ─▶ tree: is it there? ─▶ sampler: files, wake-ups, timer ─▶ emit
    here: a subscriber's own cgroup ─▶ path ─┘

Must not: read memory files (sampler does), judge figures (core does). Upstream: wishes, roster, sampler.
Downstream: daemon, which gets everything that happens through `emit`.
"""

import asyncio
import os
from collections.abc import Callable, Sequence

from edgeguardd.core.config import Policy, SamplingConfig, TargetSpec
from edgeguardd.core.events import Event
from edgeguardd.errors import TargetError
from edgeguardd.kernel.cgroupfs import EVENTS, MAY_NOT_LOOK, CgroupRoot, normal_path, shown, target_path
from edgeguardd.kernel.guarded import Guarded, Standing, TargetStatus, standing_of, status_of
from edgeguardd.kernel.names import found_name
from edgeguardd.kernel.roster import Roster
from edgeguardd.kernel.sampler import Sampler
from edgeguardd.kernel.tree import Tree
from edgeguardd.kernel.treewatch import TreeWatch
from edgeguardd.kernel.viewpoint import Viewpoint
from edgeguardd.kernel.wakeups import Begun
from edgeguardd.kernel.wishes import Wishes

# Faults are said once each; what is remembered of them is bounded.
_MAX_SAID = 256


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
        self.faults: list[str] = []
        self._root = root
        self._viewpoint = Viewpoint(root)
        self._loop = loop
        self._on_fault = on_fault
        self._watch = TreeWatch(loop, self._look_everywhere, self._fault)
        self._tree = Tree(root, self._watch, self._fault)
        self._sampler = Sampler(root, self._tree, loop, emit, clock or loop.time, self._fault)
        self._roster = Roster(self._sampler, loop, emit, max_targets)
        self._wishes = Wishes(root, self._tree, self._roster, self._fault, self._say)
        self._poll_timer: asyncio.TimerHandle | None = None

    def expect(self, standing: dict[str, Standing]) -> None:
        """By name, where a run before this one has left its targets. Call it before there are any."""
        self._roster.before = dict(standing)

    # What the configuration wants

    def apply(self, specs: Sequence[TargetSpec], sampling: SamplingConfig, defaults: Policy | None = None) -> None:
        """Guard what the specs name, and nothing else that a spec named before; what stays the same is not touched.

        `defaults`: how the targets of guard_peer are judged from now on; None: as before.
        """
        was_slow_s, self._sampler.slow_s = self._sampler.slow_s, sampling.slow_s
        for target in self._roster.targets.values():
            # Beyond it too, where the engine has chosen more than that at rest; it does so again after the next look.
            if target.interval_s >= was_slow_s != sampling.slow_s:
                self._sampler.set_interval(target, sampling.slow_s)
        self._wishes.apply(specs)
        if defaults is not None:
            for target in [target for target in self._roster.targets.values() if target.dynamic]:
                self._roster.judge_by(target, defaults)

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
            self._roster.begin(target, fresh=False)
        target.peers += 1
        return target.name

    def join_peer(self, name: str) -> str:
        """As guard_peer, for a subscriber that names its target. Raises TargetError when there is none."""
        target = self._roster.targets.get(name)
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
        target = self._roster.targets.get(name)
        if target is None:
            return
        target.peers = max(0, target.peers - 1)
        if target.dynamic and not target.peers:
            self._roster.drop(target)

    def contains(self, name: str, cgroup_path: str) -> bool:
        """Whether a cgroup is the target's own or inside it."""
        target = self._roster.targets.get(name)
        try:
            return target is not None and _is_inside(normal_path(cgroup_path), target.path)
        except TargetError:
            return False

    def _home(self, path: str) -> Guarded | None:
        exact = [target for target in self._roster.targets.values() if target.path == path]
        if exact:
            return min(exact, key=lambda target: target.dynamic)
        around = [
            target for target in self._roster.targets.values() if not target.dynamic and _is_inside(path, target.path)
        ]
        return max(around, key=lambda target: len(target.path), default=None)

    def _dynamic(self, path: str, policy: Policy) -> Guarded:
        name = found_name(target_path(path))
        if name in self._roster.targets or self._roster.full:
            raise TargetError(
                f"cannot guard {name}: {len(self._roster.targets)} targets are guarded; raise max_targets"
            )
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
        return self._roster.made(name, path, policy, dynamic=True)

    # What the daemon asks

    @property
    def begun(self) -> Begun | None:
        """What the reading that is being told began with; None: nothing is being read, or for the sake of an answer."""
        return self._sampler.begun

    def names(self) -> list[str]:
        """The targets, in the order in which they came."""
        return list(self._roster.targets)

    def path_of(self, name: str) -> str:
        """Where a target's cgroup is, below the root and as opening needs it; "" for an unknown name."""
        target = self._roster.targets.get(name)
        return "" if target is None else target.path

    def standing(self, name: str) -> Standing:
        """What the next run has to know of a target; nothing for an unknown name."""
        target = self._roster.targets.get(name)
        return Standing() if target is None else standing_of(target)

    def set_interval(self, name: str, interval_s: float) -> None:
        """Sample the target at this interval from now on. Unknown names are fine."""
        target = self._roster.targets.get(name)
        if target is not None:
            self._sampler.set_interval(target, interval_s)

    def sample_now(self, name: str) -> None:
        """Sample the target at once, if its cgroup is there. Unknown names are fine."""
        target = self._roster.targets.get(name)
        if target is not None:
            self._sampler.sample_now(target)

    def sample_older(self, than: float) -> None:
        """Sample at once whatever was last read before this time."""
        # What is told may end a target.
        self._sampler.sample_older(list(self._roster.targets.values()), than)

    def status(self, now: float | None = None) -> dict[str, TargetStatus]:
        """Name -> row, for status and metrics."""
        at = self._loop.time() if now is None else now
        return {name: status_of(target, shown(target.path), at) for name, target in self._roster.targets.items()}

    def oldest_sample_age_s(self, now: float) -> float | None:
        """The age of the oldest last sample of the targets that exist; None: there is none. For health.

        A target whose files fail has an old sample; one that never gave any counts from when its files were opened.
        """
        ages = [
            now - (target.attached_at if target.sampled_at is None else target.sampled_at)
            for target in self._roster.targets.values()
            if target.attached
        ]
        return max(ages, default=None)

    def oldest_look_age_s(self, now: float) -> float | None:
        """How long ago the target that waits longest was last tried, whatever came of it. For the watchdog.

        A restart cures a daemon that does not look any more, not a kernel file that cannot be read.
        """
        return max(
            (now - target.looked_at for target in self._roster.targets.values() if target.attached), default=None
        )

    def close(self) -> None:
        """Stop, tell nothing, leave no descriptor. Twice is fine."""
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._wishes.close()
        for target in self._roster.targets.values():
            self._sampler.stop(target)
        self._roster.targets.clear()
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


def _is_inside(path: str, around: str) -> bool:
    return path == around or path.startswith(around.rstrip("/") + "/")
