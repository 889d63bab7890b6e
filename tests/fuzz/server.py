"""The server's side: its parser in this process, and the socket of a whole daemon.

Must not: use the client library. Upstream: mutate, tests.support. Downstream: __main__, test_fuzz.
"""

import os
import select
import socket
import time

from edgeguardd.core import wire
from edgeguardd.core.lines import LineBuffer
from edgeguardd.errors import ProtocolError
from tests.fuzz.figures import Figures, resident_bytes
from tests.fuzz.mutate import Mutator, client_lines
from tests.support.faketree import MIB, FakeTree
from tests.support.running import Daemon
from tests.support.subscribers import short_dir

ROUND_LINES = 24
# As many connections at once as a fleet of broken clients might have.
ATTACKERS = 8
# How long a valid peer may wait for a pong, on a machine that is busy with this very test.
MOST_WAIT_S = 10.0


def parse(lines: int, seed: int) -> Figures:
    """Lines through the buffer and the decoder that the server has. Raises whatever they raise but ProtocolError."""
    mutator, buffer = Mutator(client_lines(), seed), LineBuffer()
    began, first_bytes = time.monotonic(), 0
    for number in range(lines):
        if number == lines // 4:
            first_bytes = resident_bytes(os.getpid())
        buffer.feed(mutator.line() + b"\n")
        try:
            while (line := buffer.next_line()) is not None:
                wire.decode_client(line)
        except ProtocolError:
            pass
    return Figures("parser", lines, time.monotonic() - began, 0, first_bytes, resident_bytes(os.getpid()))


def attack(lines: int, seed: int) -> Figures:
    """Lines at a real daemon, counted by the daemon itself, while a valid peer wants its pings answered."""
    with short_dir() as place:
        os.mkdir(f"{place}/tree")
        FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB).usage(900 * MIB)
        with Daemon(place, '[[target]]\nname = "llm"\npath = "/llm"\n', cgroup_root=f"{place}/tree") as daemon:
            figures = _attack(daemon, lines, seed)
            daemon.killed = lines > 100_000  # a replay of so many events takes longer than all else
    return figures


def _attack(daemon: Daemon, lines: int, seed: int) -> Figures:
    mutator = Mutator(client_lines(), seed)
    valid = _ValidPeer(daemon.socket_path)
    attackers = [_Attacker(daemon.socket_path, mutator) for _ in range(ATTACKERS)]
    began, first_bytes, rounds, counted = time.monotonic(), 0, 0, 0.0
    while counted < lines:
        for attacker in attackers:
            attacker.round()
        rounds += 1
        if rounds % 64 == 0 or rounds * ATTACKERS * ROUND_LINES < 10_000:
            valid.ping()
            counted = daemon.metric("edgeguardd_lines_received_total") or 0.0
            if not first_bytes and counted >= lines / 4:
                first_bytes = resident_bytes(daemon.pid)
    for attacker in attackers:
        attacker.close()
    valid.ping()
    took_s, connections = time.monotonic() - began, sum(attacker.connections for attacker in attackers)
    last_bytes = resident_bytes(daemon.pid)
    valid.close()
    return Figures("socket", int(counted), took_s, connections, first_bytes, last_bytes, valid.pings, valid.slowest_s)


class _Attacker:
    """One peer that says mutated lines, and comes again when it is thrown out."""

    def __init__(self, path: str, mutator: Mutator) -> None:
        self.connections = 0
        self._path = path
        self._mutator = mutator
        self._socket: socket.socket | None = None

    def round(self) -> None:
        """Say some lines, and read what there is to read."""
        sock = self._connected()
        said = b"".join(self._mutator.line() + b"\n" for _ in range(ROUND_LINES))
        try:
            sock.send(said)
            while sock.recv(65536):
                pass
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(self._path)
            self._socket.setblocking(False)
            self.connections += 1
            if self.connections % 4:
                # Most get in, so that what comes after a hello is read as well.
                self._socket.send(b'{"type":"hello","name":"attacker","target":"llm"}\n')
        return self._socket


class _ValidPeer:
    """An observer, as `edgeguardctl watch` is one."""

    def __init__(self, path: str) -> None:
        self.pings = 0
        self.slowest_s = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._socket.sendall(b'{"type":"hello","name":"valid","role":"observer"}\n')
        self._rest = b""

    def ping(self) -> None:
        """Ask, and wait for the answer; raises AssertionError when there is none."""
        self.pings += 1
        began = time.monotonic()
        self._socket.sendall(b'{"type":"ping","id":"%d"}\n' % self.pings)
        wanted = b'{"type":"pong","id":"%d"}\n' % self.pings
        while wanted not in self._rest:
            left_s = began + MOST_WAIT_S - time.monotonic()
            assert select.select([self._socket], [], [], max(0.0, left_s))[0], "a valid peer got no answer"
            got = self._socket.recv(65536)
            assert got, "a valid peer was thrown out"
            self._rest += got
        self._rest = b""
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def close(self) -> None:
        """Leave."""
        self._socket.close()
