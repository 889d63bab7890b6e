"""Who owns a state directory: one flock on it, for as long as a daemon (or `edgeguardd put-back`) lives.

Must not: wait, be fatal. Upstream: fcntl. Downstream: daemon, keeper, leftovers. What is lifted or frozen is put back
only by who holds it, and written down only there: two owners would undo each other's work.
"""

import errno
import fcntl
import os

from edgeguardd.ownfiles import is_at, unseen
from edgeguardd.state import StateError


class StateLock:
    """The lock of one directory, taken at once if it can be. `elsewhere`: another process has it; that is for good."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.elsewhere = False
        self._fd: int | None = None
        self._why = ""
        self._take()

    @property
    def held(self) -> bool:
        """Whether the directory is ours."""
        return self._fd is not None

    def renew(self) -> bool:
        """Let go of what does not stand at the path any more, removed or with another one in its place; try anew.

        Whether there was such a loss; what is there now may be another process's. Raises StateError where that cannot
        be told, and then everything is as before.
        """
        try:
            lost = self._fd is not None and not is_at(self._fd, self.directory)
        except OSError as error:
            raise StateError(unseen(self.directory, error)) from None
        if lost:
            self.release()
            self._why = "it was removed"
        if self._fd is None and not self.elsewhere:
            self._take()
        return lost

    def require(self) -> None:
        """Raises StateError when the directory is not ours. One that could not be opened before is tried again."""
        if self._fd is None and not self.elsewhere:
            self._take()
        if self._fd is None:
            raise StateError(f"cannot keep state in {self.directory}: {self._why}; set state_directory")

    def release(self) -> None:
        """Let the next one have it. Call it when everything has been put back; twice is fine."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _take(self) -> None:
        try:
            fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:  # said by whoever wants to write there
            self._why = os.strerror(error.errno or errno.EIO)
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            self.elsewhere, self._why = True, "another edgeguardd does"
        except OSError as error:
            os.close(fd)
            self._why = f"it cannot be locked ({os.strerror(error.errno or errno.EIO)})"
        else:
            self._fd = fd
