"""Directory watches: one inotify instance for all of them.

Must not: know what the directories are. Upstream: asyncinotify. Downstream: tree.

A cgroup's own removal is reported by a watch on its parent only; a watch on the cgroup or on its files says nothing
(seen on 6.1 and 6.18). One instance, because a user may have 128 (fs.inotify.max_user_instances).
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable

from asyncinotify import Inotify, Mask, Watch

from edgeguardd.errors import KernelError
from edgeguardd.kernel.cgroupfs import MAY_NOT_LOOK, shown

_INTEREST = Mask.CREATE | Mask.DELETE | Mask.MOVE | Mask.ONLYDIR

# In one turn of the loop. An event is taken in 7 µs; what is told can open a target, which takes 1 ms.
_TAKEN_AT_ONCE = 128
_TOLD_AT_ONCE = 16

_REMEDY = "raise fs.inotify.max_user_watches and fs.inotify.max_user_instances"


class DirWatch:
    """One watched directory: the handle that add gives and remove takes. `watch` is None when it could not be kept."""

    __slots__ = ("callback", "path", "watch")

    def __init__(self, path: str, callback: Callable[[str], None]) -> None:
        self.path = path
        self.callback = callback
        self.watch: Watch | None = None


class TreeWatch:
    """Callbacks for entries of directories that come and go."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[], None], on_fault: Callable[[str], None]
    ) -> None:
        """`on_lost`: events were lost, look at everything. `on_fault`: a watch is not to be had, with the sentence."""
        self._loop = loop
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._inotify: Inotify | None = None
        self._watches: dict[int, DirWatch] = {}
        # What has changed and is not told yet, each once, by watch and name: who is told looks for himself.
        self._due: dict[tuple[int, str], None] = {}
        self._more: asyncio.Handle | None = None

    def add(self, path: str, callback: Callable[[str], None]) -> DirWatch | None:
        """Call back with the name of each entry that is made, removed or renamed. None: it has to be polled."""
        watched = DirWatch(path, callback)
        self._arm(watched)
        return watched if watched.watch is not None else None

    def remove(self, watched: DirWatch) -> None:
        """Stop watching. A directory that is gone is fine."""
        if watched.watch is None or self._inotify is None:
            return
        del self._watches[watched.watch.wd]
        # kernfs never ends a watch by itself, not even when the directory is removed: its link count stays. Other file
        # systems do, and then this is EINVAL.
        with contextlib.suppress(OSError):
            self._inotify.rm_watch(watched.watch)
        watched.watch = None

    def close(self) -> None:
        """Stop everything. Twice is fine."""
        self._watches.clear()
        self._due.clear()
        self._stop()

    def _start(self) -> Inotify:
        # sync_timeout=0: iterating gives what is there and returns, so that the loop stays in charge.
        inotify = Inotify(cache_size=64, sync_timeout=0)
        self._loop.add_reader(inotify.fd, self._dispatch)
        return inotify

    def _stop(self) -> None:
        if self._more is not None:
            self._more.cancel()
            self._more = None
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def _arm(self, watched: DirWatch) -> None:
        try:
            if self._inotify is None:
                _need_descriptors()
                self._inotify = self._start()
            watched.watch = self._inotify.add_watch(watched.path, _INTEREST)
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError as error:
            self._on_fault(f"cannot watch {shown(watched.path)}: {error.strerror}; {MAY_NOT_LOOK}")
            return
        except KernelError as error:
            self._on_fault(str(error))
            return
        except OSError as error:
            self._on_fault(f"cannot watch directories for changes: {os.strerror(error.errno or 0)}; {_REMEDY}")
            return
        self._watches[watched.watch.wd] = watched

    def _dispatch(self) -> None:
        """Take what has come, and tell some of it: who makes and removes directories without end delays nobody else."""
        inotify = self._inotify
        if inotify is None:
            return
        if self._more is not None:
            self._more.cancel()
            self._more = None
        taken = 0
        for event in itertools.islice(inotify, _TAKEN_AT_ONCE):
            taken += 1
            if Mask.Q_OVERFLOW in event.mask:
                self._start_again()
                return
            if event.watch is not None and event.name is not None:
                self._due[event.watch.wd, str(event.name)] = None
        for due in list(itertools.islice(self._due, _TOLD_AT_ONCE)):
            # What was told may have ended everything.
            if self._due.pop(due, False) is None:
                self._tell(*due)
        # The library may hold events that it has read already: the descriptor says nothing of them.
        if self._due or taken == _TAKEN_AT_ONCE:
            self._more = self._loop.call_soon(self._dispatch)

    def _tell(self, wd: int, name: str) -> None:
        watched = self._watches.get(wd)
        if watched is not None:
            watched.callback(name)

    def _start_again(self) -> None:
        """After an overflow: a new instance, so that no watch of a lost removal stays behind; then look everywhere."""
        old = list(self._watches.values())
        self._watches.clear()
        self._due.clear()
        self._stop()
        for watched in old:
            watched.watch = None
            self._arm(watched)
        self._on_lost()


def _need_descriptors() -> None:
    """Raises KernelError when there are no two more.

    The library takes two, and loses the first when there is no second (asyncinotify 4.4). Besides, inotify answers a
    full table of descriptors as it answers too many instances, and the remedy is another one.
    """
    try:
        spare = os.pipe()
    except OSError as error:
        raise KernelError(
            f"cannot watch directories for changes: {error.strerror}; raise LimitNOFILE= of the daemon"
        ) from None
    for fd in spare:
        os.close(fd)
