"""A stand-in for /dev/kmsg: a socket that keeps records apart, as the device does, and what a record looks like.

Must not: imitate the kernel's buffer; what that does is in tests/kernel. Upstream: unit tests.
"""

import socket
from collections.abc import Iterable

from edgeguardd.kernel.kmsg import Kmsg
from tests.support.oomlogs import MODERN


class FakeKmsg:
    """The writing end; each `open` gives a reader of its own that gets what was written so far, then what comes."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self._ends: list[socket.socket] = []

    def open(self) -> Kmsg:
        """As Kmsg.open: at the oldest record."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        for record in self.records:
            here.send(record)
        self._ends.append(here)
        return Kmsg(there.detach())

    def write(self, message: str, *, facility: int = 0, level: int = 4) -> None:
        """The kernel (or with another facility, somebody) prints a message."""
        seq = len(self.records)
        record = f"{facility << 3 | level},{seq},{1_000_000 + seq},-;{message}\n".encode()
        self.records.append(record)
        for end in list(self._ends):
            try:
                end.send(record)
            except BrokenPipeError:  # that reader is gone
                self._ends.remove(end)
                end.close()

    def kill(self, pid: int, path: str = "/egtest") -> None:
        """A whole report about one process."""
        self.write_all(message.replace("7055", str(pid)).replace("/egtest", path) for message in MODERN)

    def write_all(self, messages: Iterable[str]) -> None:
        """One message after the other."""
        for message in messages:
            self.write(message)

    def close(self) -> None:
        """Take the device away."""
        for end in self._ends:
            end.close()
        self._ends.clear()
