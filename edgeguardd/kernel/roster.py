"""The targets that there are, by name: how one begins, moves, is judged and ends.

Must not: know specs or peers, read memory files. Upstream: sampler. Downstream: wishes, targets.
"""

import asyncio
from collections.abc import Callable

from edgeguardd.core.config import Policy
from edgeguardd.core.events import Event, TargetAdded, TargetDropped
from edgeguardd.kernel.cgroupfs import shown
from edgeguardd.kernel.guarded import Guarded, Standing
from edgeguardd.kernel.sampler import Sampler


class Roster:
    """At most `most` of them. `on_room` is called, a moment later, when one has ended."""

    def __init__(
        self, sampler: Sampler, loop: asyncio.AbstractEventLoop, emit: Callable[[Event], None], most: int
    ) -> None:
        self.targets: dict[str, Guarded] = {}
        self.most = most
        self.before: dict[str, Standing] = {}
        self.on_room: Callable[[], None] | None = None
        self._sampler = sampler
        self._loop = loop
        self._emit = emit

    @property
    def full(self) -> bool:
        """Whether there is room for no more."""
        return len(self.targets) >= self.most

    def made(self, name: str, path: str, policy: Policy, *, dynamic: bool) -> Guarded:
        """One that is not guarded yet."""
        return Guarded(name, path, policy, self._sampler.slow_s, dynamic=dynamic)

    def begin(self, target: Guarded, *, fresh: bool) -> None:
        """Guard it. `fresh`: its cgroup has just been made."""
        self.targets[target.name] = target
        before = self.before.pop(target.name, None)
        target.before = before if before is not None and before.path == target.path else None
        self._emit(TargetAdded(target.name, shown(target.path), target.policy))
        self._sampler.start(target, fresh=fresh)

    def move(self, target: Guarded, path: str, *, fresh: bool) -> None:
        """Its cgroup is another one from now on: the unit runs in another slice."""
        self._sampler.leave(target)
        target.path = path
        self._emit(TargetAdded(target.name, shown(path), target.policy))
        self._sampler.start(target, fresh=fresh)

    def judge_by(self, target: Guarded, policy: Policy) -> None:
        """By these rules from now on."""
        if target.policy != policy:
            target.policy = policy
            self._emit(TargetAdded(target.name, shown(target.path), policy))

    def drop(self, target: Guarded) -> None:
        """Guard it no longer."""
        self._sampler.stop(target)
        del self.targets[target.name]
        self._emit(TargetDropped(target.name))
        if self.on_room is not None:
            self._loop.call_soon(self.on_room)
