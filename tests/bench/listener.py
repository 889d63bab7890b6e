"""A subscriber that stamps the moment at which each piece of lines could be read, and does nothing else meanwhile.

Must not: use the client library, start threads (on one processor they would be what is measured). Upstream: crossings,
cost. Downstream: a socket that speaks JSON lines.
"""

import json
import select
import socket
import time
from typing import Any, NamedTuple

WITHIN_S = 30.0


class Line(NamedTuple):
    """A line, and when it could be read."""

    at_ns: int
    said: dict[str, Any]


class Listener:
    """One connection."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._poll = select.epoll()
        self._partial = b""
        self._lines: list[Line] = []
        try:
            self._socket.connect(path)
        except OSError:
            self.close()
            raise
        self._poll.register(self._socket.fileno(), select.EPOLLIN)

    def say(self, **message: Any) -> None:
        """One line."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def next(self, kind: str, within_s: float = WITHIN_S) -> Line:
        """The next line of a type; those before it are dropped. Raises TimeoutError."""
        until = time.monotonic() + within_s
        while True:
            while self._lines:
                line = self._lines.pop(0)
                if line.said["type"] == kind:
                    return line
            self.read(until - time.monotonic(), f"a line {kind}")

    def all(self) -> list[Line]:
        """What has been read and not been taken."""
        taken, self._lines = self._lines, []
        return taken

    def drop(self) -> None:
        """Forget what has come so far."""
        while self._poll.poll(0):
            self.read(WITHIN_S, "what has come")
        self._lines.clear()

    def read(self, within_s: float, what: str) -> None:
        """Wait for the next piece. Raises TimeoutError."""
        if within_s <= 0 or not self._poll.poll(within_s):
            raise TimeoutError(f"{what} did not come in time")
        at_ns = time.monotonic_ns()
        piece = self._socket.recv(65536)
        if not piece:
            raise EOFError(f"the connection ended before {what} came")
        *whole, self._partial = (self._partial + piece).split(b"\n")
        self._lines += [Line(at_ns, json.loads(line)) for line in whole]

    def close(self) -> None:
        """Hang up."""
        self._poll.close()
        self._socket.close()
