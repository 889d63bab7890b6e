"""Wake-ups from kernel files: one nested epoll inside the event loop.

Must not: read the files. Upstream: asyncio, epoll. Downstream: nodes.

The loop itself cannot watch a kernfs file: such a file is always readable, so `loop.add_reader` on it spins. It changes
with EPOLLPRI, and an epoll descriptor is readable exactly while one of its files has changed.
"""

import asyncio
import enum
import errno
import select
from collections.abc import Callable

from msgspec import Struct

from edgeguardd.errors import KernelError

# The event bits of a kernfs file stay set until the file is read again (kernfs_generic_poll, fs/kernfs/file.c).
# Edge-triggered, a reader that fails to read costs one callback and not a spin.
_INTEREST = select.EPOLLPRI | select.EPOLLET
_MAX_AT_ONCE = 256
# What epoll_create(2) may answer.
_REMEDIES = {
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
    errno.ENFILE: "raise fs.file-max",
    errno.ENOMEM: "free memory on the machine, and start the daemon again",
}
_DEFAULT_REMEDY = "see the kernel log"


class Cause(enum.StrEnum):
    """Why the files of a target are read."""

    COUNTER = "counter"
    STALL = "stall"
    TIMER = "timer"


class Begun(Struct, frozen=True):
    """What a reading began with, and when the daemon began on it (the loop's clock). The kernel does not say when it
    counted; nothing before this moment can be measured here."""

    cause: Cause
    at: float


def _made_epoll() -> select.epoll:
    """Raises KernelError: without it nothing of what the kernel counts would be told in time."""
    try:
        return select.epoll()
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, _DEFAULT_REMEDY)
        raise KernelError(f"cannot be woken by the kernel's counters (epoll): {error.strerror}; {remedy}") from None


class Wakeups:
    """Callbacks for files that change. `woken_at`: when the loop last came here, by its clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises KernelError."""
        self._loop = loop
        self.woken_at = 0.0
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._epoll = _made_epoll()
        loop.add_reader(self._epoll.fileno(), self._dispatch)

    def add(self, fd: int, callback: Callable[[], None]) -> bool:
        """Call back after each change of the file, until remove; the callback has to read the file.

        False: this file cannot wake anybody (a regular file gives EPERM) and has to be polled.
        """
        try:
            self._epoll.register(fd, _INTEREST)
        except OSError:
            return False
        self._callbacks[fd] = callback
        return True

    def remove(self, fd: int) -> None:
        """Forget the file; call it before the descriptor is closed. Unknown descriptors are fine."""
        if self._callbacks.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Forget everything. Twice is fine."""
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._callbacks.clear()

    def _dispatch(self) -> None:
        self.woken_at = self._loop.time()
        # EPOLLERR comes with every change of a kernfs file and is no fault.
        for fd, _ in self._epoll.poll(0, _MAX_AT_ONCE):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()
