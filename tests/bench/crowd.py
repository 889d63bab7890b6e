"""Many subscribers of one target, and a change of its level: how soon the first and the last can read it.

Must not: read from the sockets while it waits (the reader would be what is measured). Upstream: parts. Downstream:
reaction.ring, a daemon.
"""

import json
import select
import socket
import time
from typing import NamedTuple

from tests.bench.crossings import ToldByDaemon
from tests.bench.figures import median, mib, ms
from tests.bench.probes import Found, Tell, kernel
from tests.bench.processes import resident_bytes
from tests.bench.reaction import Ring, daemon, ring
from tests.bench.report import Table
from tests.support.wait import eventually

SIZES = {"full": (1, 10, 100, 1000), "quick": (1, 5)}
WITHIN_S = 30.0
CHANGES = 5
# So many answers that nobody reads fill a socket's buffer (connection.SEND_BUFFER_BYTES, doubled by the kernel).
PINGS = 900


class Told(NamedTuple):
    """A crowd of so many: the middle of some changes, and the worst."""

    subscribers: int
    stalled: bool
    first_s: list[float]
    last_s: list[float]
    resident_bytes: int


class Crowd:
    """Observers, and one server of the target that obeys, so that the level falls again."""

    def __init__(self, path: str, size: int, *, stalled: bool) -> None:
        self._all = [self._join(path, {"role": "observer", "name": f"o{number}"}) for number in range(size)]
        self._stalled = self._join(path, {"role": "observer", "name": "stalled"}) if stalled else None
        if self._stalled is not None:
            self.fill()

    def _join(self, path: str, hello: dict[str, str]) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(path)
        connected.sendall(json.dumps({"type": "hello", "target": "llm", **hello}).encode() + b"\n")
        connected.recv(65536)
        return connected

    def fill(self) -> None:
        """Questions of the stalled, whose answers it never reads."""
        assert self._stalled is not None
        self._stalled.sendall((json.dumps({"type": "ping", "id": "x" * 128}) + "\n").encode() * PINGS)

    def wait(self) -> tuple[int, int]:
        """When the first and when the last had something to read. Raises TimeoutError."""
        left = len(self._all)
        first_ns = 0
        with select.epoll() as poll:
            for each in self._all:
                poll.register(each.fileno(), select.EPOLLIN | select.EPOLLET)
            until = time.monotonic() + WITHIN_S
            while left:
                found = poll.poll(max(0.0, until - time.monotonic()), left)
                at_ns = time.monotonic_ns()
                if not found:
                    raise TimeoutError(f"{left} of {len(self._all)} were not told")
                first_ns = first_ns or at_ns
                left -= len({number for number, _ in found})
        return first_ns, at_ns

    def drop(self) -> None:
        """Read and forget all that has come; of the stalled nothing is read."""
        for each in self._all:
            each.setblocking(False)
            try:
                while each.recv(65536):
                    pass
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Hang up."""
        for each in self._all:
            each.close()
        if self._stalled is not None:
            self._stalled.close()


def told(here: Ring, size: int, *, stalled: bool = False) -> Told:
    """CHANGES of level, and back."""
    ground = here.grounds[0]
    with daemon(here, ground) as running:
        server = ToldByDaemon(running.socket_path, "llm", ground)
        crowd = Crowd(running.socket_path, size, stalled=stalled)
        if stalled:
            eventually(lambda: running.metric("edgeguardd_subscribers_stalled") == 1.0, what="one is stalled")
        first_s, last_s = [], []
        for _ in range(CHANGES):
            crowd.drop()
            server.start()
            first_ns, last_ns = crowd.wait()
            before_ns = server.finish().stamps.before_ns
            first_s.append((first_ns - before_ns) / 1e9)
            last_s.append((last_ns - before_ns) / 1e9)
        resident = resident_bytes(running.pid)
        crowd.close()
        server.close()
    return Told(size, stalled, first_s, last_s, resident)


def run(options: list[str], tell: Tell) -> Found:
    """`memory` or `huge`, and `full` or `quick`."""
    kind, size = options
    rows, measured = [], {}
    with ring(kind == "memory") as here:
        crowds = [(each, False) for each in SIZES[size]] + [(SIZES[size][-1], True)]
        for subscribers, stalled in crowds:
            tell(f"crowd: {subscribers} subscribers{', one more that does not read' if stalled else ''}")
            each = told(here, subscribers, stalled=stalled)
            who = f"{subscribers} and a stalled one" if stalled else str(subscribers)
            times = [ms(median(each.first_s)), ms(median(each.last_s)), ms(max(each.last_s))]
            rows.append([who, *times, mib(each.resident_bytes)])
            if subscribers == 1000:
                measured["subscribers_stalled" if stalled else "subscribers_all"] = max(each.last_s) * 1e3
    head = ["subscribers", "first told, median", "last told, median", "last told, most", "daemon's memory"]
    note = f"{CHANGES} changes of level each, from before the kernel's count to the line readable; {kernel()}."
    return Found([Table("One change of level, as subscribers grow", head, rows, [note])], measured)
