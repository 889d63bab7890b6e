"""The clients' side: each example program against a daemon that says mutated lines.

Must not: import the client library; the programs do. Upstream: mutate, conformance.program. Downstream: __main__,
test_fuzz.
"""

import select
import socket
import time
from collections.abc import Sequence

from edgeguardd.conformance.program import Program
from tests.fuzz.figures import Figures, resident_bytes
from tests.fuzz.mutate import Mutator, server_lines
from tests.support.subscribers import short_dir

ROUND_LINES = 200
# For one answer, or for a client that had to connect again.
MOST_WAIT_S = 30.0
_WELCOME = (
    b'{"type":"welcome","v":1,"epoch":"e","target":"llm","level":"normal","max_batch_ratio":1.0,"accept_requests":true,'
    b'"model_loaded":true,"heartbeat_s":10.0}\n'
)
_TRIM = (
    b'{"type":"command","v":1,"seq":77000077,"target":"llm","action":"trim_kv_cache","parameters":{"release_bytes":1},'
    b'"level":"high","reason":"the last one","deadline_s":5.0}\n'
)


def confuse(part: str, argv: Sequence[str], lines: int, seed: int) -> Figures:
    """Say lines to a client; after each round it answers a ping, and at the end it carries out a trim."""
    mutator = Mutator(server_lines(), seed)
    with short_dir() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/s")
        listener.listen()
        with Program(argv, f"{place}/s", 30.0) as program:
            talk = _Talk(listener, program)
            began, first_bytes = time.monotonic(), 0
            for said in range(0, lines, ROUND_LINES):
                if not first_bytes and said >= lines // 4:
                    first_bytes = resident_bytes(program.pid)
                talk.say(b"".join(mutator.line() + b"\n" for _ in range(min(ROUND_LINES, lines - said))))
                talk.ping()
            talk.say(_TRIM)
            talk.hear(b'"seq":77000077,"status":"done"')
            took_s, last_bytes = time.monotonic() - began, resident_bytes(program.pid)
            talk.close()
    return Figures(part, lines, took_s, talk.connections, first_bytes, last_bytes, talk.pings, talk.slowest_s)


class _Talk:
    """The daemon's end."""

    def __init__(self, listener: socket.socket, program: Program) -> None:
        self.connections = 0
        self.pings = 0
        self.slowest_s = 0.0
        self._listener = listener
        self._program = program
        self._socket: socket.socket | None = None
        self._heard = b""

    def say(self, said: bytes) -> None:
        """Say it all, while taking in what the client says: neither may wait for the other."""
        sock, until = self._connected(), time.monotonic() + MOST_WAIT_S
        while said and self._socket is sock:
            assert time.monotonic() < until, "the client does not read"
            ready, writable, _ = select.select([sock], [sock], [], 1.0)
            if ready:
                self._read()
            if writable and self._socket is sock:
                try:
                    said = said[sock.send(said) :]
                except BlockingIOError:
                    pass
                except OSError:
                    self.close()

    def ping(self) -> None:
        """A ping has to be answered; a client that ended the connection gets it again when it is back."""
        self.pings += 1
        began = time.monotonic()
        wanted = b'"id":"%d of ours"' % self.pings
        asked_on = -1
        while wanted not in self._heard:
            if asked_on != self.connections or self._socket is None:
                self._connected()
                asked_on = self.connections
                self.say(b'\n{"type":"ping","id":"%d of ours"}\n' % self.pings)
            self._wait(began)
        self._heard = b""
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def hear(self, wanted: bytes) -> None:
        """Wait until the client has said it."""
        began = time.monotonic()
        while wanted not in self._heard.replace(b'": ', b'":').replace(b', "', b',"'):
            self._wait(began)

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._wait_for(self._listener, time.monotonic())
            self._socket = self._listener.accept()[0]
            self._socket.setblocking(False)
            self.connections += 1
            self._socket.send(_WELCOME)
        return self._socket

    def _wait(self, began: float) -> None:
        if self._socket is not None:
            self._wait_for(self._socket, began)
            self._read()

    def _wait_for(self, sock: socket.socket, began: float) -> None:
        while not select.select([sock], [], [], 0.2)[0]:
            how = self._program.ended()
            assert how is None, how
            assert time.monotonic() < began + MOST_WAIT_S, "the client does not answer"

    def _read(self) -> None:
        assert self._socket is not None
        self._program.look()
        try:
            got = self._socket.recv(262_144)
        except ConnectionResetError:
            got = b""
        if got:
            self._heard = self._heard[-65536:] + got
        else:
            self.close()
