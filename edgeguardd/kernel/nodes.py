"""The open cgroups, each read once for all the targets that stand on it, and woken by its own counters.

Must not: emit events, know targets by name. Upstream: cgroupfs, wakeups, tree. Downstream: targets.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from edgeguardd.core.model import Counters, Usage
from edgeguardd.errors import EdgeguardError
from edgeguardd.kernel.cgroupfs import CgroupGoneError, CgroupRoot, Node, shown
from edgeguardd.kernel.tree import Place
from edgeguardd.kernel.wakeups import Wakeups

User = TypeVar("User")


class Reading(Struct, frozen=True):
    """One reading of one cgroup. What could not be read is None, and `fault` says why."""

    usage: Usage | None
    counters: Counters | None
    fault: str | None


class Watched(Generic[User]):
    """One open cgroup and those who use it.

    `limited`: it is read at all: every target's own cgroup is, an ancestor only while it has a limit.
    `woken_fd`: whose change wakes the daemon; None: only the slow poll sees the counters.
    """

    def __init__(self, node: Node, *, own: bool) -> None:
        self.node = node
        self.own = own
        self.users: list[User] = []
        self.limited = own
        self.woken_fd: int | None = None
        self.fault: str | None = None

    def read(self) -> Reading:
        """Figures and counters; each is tried whatever became of the other. Raises CgroupGoneError, nothing else."""
        usage: Usage | None = None
        counters: Counters | None = None
        fault: str | None = None
        # The counters first: a kill is worth more than a figure, and reading them makes the next wake-up possible.
        try:
            counters = self.node.counters()
        except CgroupGoneError:
            raise
        except EdgeguardError as error:
            fault = str(error)
        try:
            usage = self.node.usage()
            fault = fault or self.node.fault
        except CgroupGoneError:
            raise
        except EdgeguardError as error:
            fault = str(error)
        return Reading(usage, counters, fault)


class Nodes(Generic[User]):
    """Opens each cgroup once, however many targets stand on it, and closes it with the last of them."""

    def __init__(self, root: CgroupRoot, wakeups: Wakeups, on_wake: Callable[[Watched[User]], None]) -> None:
        self._root = root
        self._wakeups = wakeups
        self._on_wake = on_wake
        self._open: dict[tuple[str, bool], Watched[User]] = {}

    def use(self, place: Place, user: User, *, own: bool) -> Watched[User]:
        """The cgroup at a place, until leave. Raises KernelError when it cannot be opened; absent: CgroupGoneError."""
        if place.dir_fd is None:
            raise CgroupGoneError(f"cannot open {shown(self._root.full(place.path))}: the cgroup was removed")
        key = (place.path, own)
        watched = self._open.get(key)
        # Others may still hold dead files: they find out at their own next look.
        if watched is None or watched.node.is_dead():
            node = Node(self._root.full(place.path), place.dir_fd, shown(place.path), own=own)
            watched = Watched(node, own=own)
            try:
                if own:
                    self._wake(watched)
                else:
                    self.recheck(watched)
            except CgroupGoneError:
                self._close(watched)
                raise
            self._open[key] = watched
        watched.users.append(user)
        return watched

    def leave(self, place_path: str, watched: Watched[User], user: User) -> None:
        """The counterpart of use."""
        watched.users.remove(user)
        if not watched.users:
            self._close(watched)
            if self._open.get((place_path, watched.own)) is watched:
                del self._open[place_path, watched.own]

    def recheck(self, watched: Watched[User]) -> None:
        """Whether an ancestor has a limit by now, or no longer. Raises CgroupGoneError."""
        try:
            limited = watched.node.limits() != (None, None)
            watched.fault = None
        except CgroupGoneError:
            raise
        except EdgeguardError as error:
            # Unknown is not "no limit": keep what was known.
            watched.fault = str(error)
            return
        if limited and not watched.limited:
            self._wake(watched)
        elif watched.limited and not limited:
            self._sleep(watched)
        watched.limited = limited

    def close(self) -> None:
        """Close everything."""
        for watched in self._open.values():
            self._close(watched)
        self._open.clear()

    def _wake(self, watched: Watched[User]) -> None:
        fd: int | None = None
        try:
            fd = watched.node.events_fd
            # Read once before waiting: a kernfs file that was never read counts as changed.
            watched.node.counters()
        except CgroupGoneError:
            raise
        except EdgeguardError:
            # Each reading meets the same error and reports it.
            pass
        if fd is not None and self._wakeups.add(fd, lambda: self._on_wake(watched)):
            watched.woken_fd = fd

    def _sleep(self, watched: Watched[User]) -> None:
        if watched.woken_fd is not None:
            self._wakeups.remove(watched.woken_fd)
            watched.woken_fd = None

    def _close(self, watched: Watched[User]) -> None:
        self._sleep(watched)
        watched.node.close()
