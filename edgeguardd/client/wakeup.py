"""How the socket's thread waits: for the socket, for another thread, or for a time.

Must not: know what is sent or received. Upstream: nothing. Downstream: blocking.
"""

import os
import select
import socket
import threading

# How long one wait takes at most, whatever times it is told: poll(2) counts milliseconds in an int.
MOST_WAIT_S = 3600.0
_NO_FD = -1


class Wakeup:
    """An eventfd that ends another thread's wait. Open it before that thread starts; a closed one wakes nobody."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may wake in the middle of anything.
        self._lock = threading.RLock()
        self._fd = _NO_FD

    def open(self) -> None:
        """Make it ready."""
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def close(self) -> None:
        """Give the descriptor back."""
        with self._lock:
            fd, self._fd = self._fd, _NO_FD
            if fd != _NO_FD:
                os.close(fd)

    def forget(self) -> None:
        """In a forked child: the descriptor is shared with the parent, and the lock may be taken for ever."""
        self._lock = threading.RLock()
        self.close()

    def wake(self) -> None:
        """End the wait, the present one or the next. From any thread."""
        with self._lock:
            if self._fd != _NO_FD:
                os.eventfd_write(self._fd, 1)

    def wait(self, wait_s: float, sock: socket.socket | None = None, *, writing: bool = False) -> bool:
        """Wait for something to read, for room if `writing`, for wake(), or so long. Whether there is something."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        if sock is not None:
            poller.register(sock, select.POLLIN | (select.POLLOUT if writing else 0))
        # One more millisecond: a time that is rounded down is not reached yet when the wait is over.
        ready = dict(poller.poll(min(max(0.0, wait_s), MOST_WAIT_S) * 1000 + 1))
        if self._fd in ready:
            os.eventfd_read(self._fd)
        return sock is not None and bool(ready.get(sock.fileno(), 0) & ~select.POLLOUT)
