"""A stand-in for a kernel file that wakes: urgent data on a TCP socket is told by EPOLLPRI, as kernfs and PSI do.

Must not: use the code under test. Upstream: tests. Downstream: the loopback interface.
"""

import socket
import struct

_RESET = struct.pack("ii", 1, 0)


class Urgent:
    """A connected TCP pair: `fd` wakes at each change() of the other end, and is told an error after die()."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.sender = socket.create_connection(server.getsockname())
            self.receiver, _ = server.accept()

    @property
    def fd(self) -> int:
        return self.receiver.fileno()

    def change(self) -> None:
        """Wake it."""
        self.sender.send(b"!", socket.MSG_OOB)

    def die(self) -> None:
        """Give it EPOLLERR for good, as a PSI trigger has whose cgroup is gone."""
        self.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.sender.close()

    def close(self) -> None:
        """Close both ends."""
        self.sender.close()
        self.receiver.close()
