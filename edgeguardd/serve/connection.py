"""One connection to the subscriber socket: bytes in, messages to the server; lines out, as fast as the peer takes them.

Must not: know who is admitted, which target has which level, or what a command means; must not do unbounded work for
one peer. Upstream: wire, lines, sender, bucket. Downstream: subscribers.

Reading: lines of at most wire.MAX_LINE_BYTES, LINES_PER_TURN of them before others get their turn, LINES_PER_S in the
long run; while lines wait, nothing more is read. Writing is the sender's.

Half-close: an observer that shuts down its writing side goes on looking, since it has nothing to say anyway. An
inference server that does is gone: it could not ack.

Silence: an inference server that has sent nothing for SILENT_HEARTBEATS heartbeats, although it was pinged, is hung and
is disconnected. An observer need not answer: its silence delays no decision, and one that does not read is stalled.
"""

import asyncio
import enum
import socket
from collections.abc import Callable
from typing import Protocol, assert_never, cast

from edgeguardd.core import wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.model import Role
from edgeguardd.errors import ProtocolError
from edgeguardd.serve.bucket import TokenBucket
from edgeguardd.serve.peercred import Peer, peer_of
from edgeguardd.serve.sender import Sender
from edgeguardd.serve.subscriberstats import SubscriberStats

HELLO_S = 5.0
SILENT_HEARTBEATS = 3
# How long the last lines of an ending connection may take to leave before it is cut.
LINGER_S = 1.0
# One line costs about 20 µs with its answer (measured on a small VM): a turn delays nobody by more than a millisecond.
LINES_PER_TURN = 32
LINES_PER_S = 500.0
LINES_BURST = 1000
# Sixteen errors at once, and one more a minute, so that a rare slip of a long-lived connection never ends it.
ERRORS_BURST = 16
ERRORS_PER_S = 1 / 60
# The kernel doubles this for its own overhead: what a peer that does not read can hold of the kernel's memory.
SEND_BUFFER_BYTES = 32 * 1024

CLOSED_BY_PEER = "closed by peer"
CONNECTION_LOST = "connection lost"
DOES_NOT_READ = "does not read"
NO_ANSWER = "no answer"


class Host(Protocol):
    """What a connection needs of the server. `scratch` is read into and emptied within one callback."""

    config: SocketConfig
    clock: Callable[[], float]
    stats: SubscriberStats
    scratch: memoryview

    def opened(self, connection: "Connection") -> None:
        """It is connected; nothing was said yet."""

    def greeted(self, connection: "Connection", hello: wire.Hello) -> None:
        """It said hello. Answers by `join` or `fault`."""

    def heard(self, connection: "Connection", message: wire.Ack | wire.ReportLine | wire.Admit) -> None:
        """A subscriber with the inference role said something."""

    def left(self, connection: "Connection", reason: str) -> None:
        """It is over, once for each opened; what is still sent goes nowhere."""

    def closed(self, connection: "Connection") -> None:
        """Its descriptor is closed, once for each opened."""


_NO_HELLO = wire.Hello("?")


class State(enum.Enum):
    """A connection's life, in order."""

    NEW = "new"
    JOINED = "joined"
    ENDING = "ending"


class Connection(asyncio.BufferedProtocol):
    """One peer. `subscriber` (from 1), `hello` and `target` are set by `join`."""

    transport: asyncio.Transport
    sender: Sender
    peer: Peer

    def __init__(self, host: Host) -> None:
        now = host.clock()
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._state = State.NEW
        self._lines = LineBuffer()
        self._line_tokens = TokenBucket(LINES_PER_S, LINES_BURST, now)
        self._error_tokens = TokenBucket(ERRORS_PER_S, ERRORS_BURST, now)
        self._eof = False
        self._timers: dict[str, asyncio.Handle] = {}
        self.opened_at = now
        self.heard_at = now
        self.subscriber = 0
        self.hello = _NO_HELLO
        self.target: str | None = None

    # Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the peer's credentials, bound what it may hold, and wait for its hello."""
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self.peer = peer_of(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.sender = Sender(self.transport, self._host.stats)
        self._after("hello", HELLO_S, self._no_hello)
        self._host.opened(self)

    def join(self, subscriber: int, hello: wire.Hello, target: str | None) -> None:
        """It is let in."""
        self.subscriber, self.hello, self.target = subscriber, hello, target
        self._state = State.JOINED
        self._cancel("hello")
        self._after("heartbeat", self._host.config.heartbeat_s, self._heartbeat)

    def fault(self, code: str, message: str) -> None:
        """Answer a mistake of the peer's with an error line; end the connection if the code says so, or at too many."""
        self._host.stats.count_error(code)
        line = wire.encode(wire.ErrorLine(wire.VERSION, code, message))
        if wire.closes(code):
            self.end(code, line)
        elif self._error_tokens.take(self._host.clock()):
            self.sender.answer(line)
        else:
            self.fault("too_many_errors", f"cannot go on after {ERRORS_BURST} errors: read the error lines, reconnect")

    def bye(self, reason: str) -> None:
        """Say bye, and end the connection."""
        self.end(reason, wire.encode(wire.Bye(wire.VERSION, reason)))

    def end(self, reason: str, last_line: bytes | None = None) -> None:
        """End the connection; what waits and the last line have LINGER_S to leave. Ending twice is fine."""
        if self._state is State.ENDING:
            return
        if last_line is not None:
            self.sender.answer(last_line)
        self._state = State.ENDING
        self.sender.finish()
        self._cancel_all()
        self._after("linger", LINGER_S, self.transport.abort)
        if self.sender.stalled:
            self.transport.pause_reading()
        else:
            self.transport.close()
        self._host.left(self, reason)

    def abort(self) -> None:
        """Cut the connection now; `left` and `closed` follow from the event loop."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The descriptor is closed, by whomever."""
        self._cancel_all()
        self.sender.forget()
        if self._state is not State.ENDING:
            self._state = State.ENDING
            self._host.left(self, CONNECTION_LOST if exc else CLOSED_BY_PEER)
        self._host.closed(self)

    # Reading

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the size of a turn is ours to choose
        """Where to read to: one buffer for all, because what is read is copied out in the same callback."""
        return self._host.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self.heard_at = self._host.clock()
        self._host.stats.bytes_in += nbytes
        self._lines.feed(self._host.scratch[:nbytes])
        self._read_lines()

    def eof_received(self) -> bool:
        """The peer will say no more. What it said last may lack its newline."""
        self._eof = True
        self._lines.end()
        self._read_lines()
        return True

    def _read_lines(self) -> None:
        """Take a turn's worth of lines; come back later for more."""
        for _ in range(LINES_PER_TURN):
            if self._state is State.ENDING:
                return
            try:
                line = self._lines.next_line()
            except ProtocolError as error:
                self.fault(error.code, str(error))
                return
            if line is None:
                self._all_read()
                return
            self._line(line)
            if not self._line_tokens.take(self._host.clock()):
                self._host.stats.throttled += 1
                self._read_later(self._line_tokens.wait_s(LINES_PER_TURN))
                return
        self._read_later(0.0)

    def _read_later(self, delay_s: float) -> None:
        if self._state is not State.ENDING:
            self.transport.pause_reading()
            self._after("read", delay_s, self._read_lines)

    def _all_read(self) -> None:
        if not self._eof:
            self.transport.resume_reading()
        elif self._state is State.NEW or self.hello.role is Role.INFERENCE:
            self.end(CLOSED_BY_PEER)

    def _line(self, line: bytes) -> None:
        self._host.stats.lines_in += 1
        if not line.strip():
            return
        try:
            message = wire.decode_client(line)
        except ProtocolError as error:
            self.fault(error.code, str(error))
            return
        match message:
            case wire.Ping():
                self.sender.answer(wire.encode(wire.Pong(id=message.id)))
            case wire.Pong():
                pass
            case wire.Hello() if self._state is State.JOINED:
                self.fault("hello_twice", "cannot say hello again: open another connection")
            case wire.Hello():
                self._host.greeted(self, message)
            case wire.Ack() | wire.ReportLine() | wire.Admit():
                self._said(message)
            case _:
                assert_never(message)

    def _said(self, message: wire.Ack | wire.ReportLine | wire.Admit) -> None:
        if self._state is State.NEW:
            self.fault("hello_first", "cannot take this before hello: say who you are first")
        elif self.hello.role is Role.OBSERVER:
            self.fault("wrong_role", 'cannot take this from an observer: say hello with the role "inference"')
        else:
            self._host.heard(self, message)

    # Writing

    def pause_writing(self) -> None:
        """The socket is full. The peer has stall_s to make room."""
        self.sender.full()
        if self._state is not State.ENDING:
            self._after("stall", self._host.config.stall_s, self._does_not_read)

    def resume_writing(self) -> None:
        """All was taken: send what waits, until the socket is full again."""
        self._cancel("stall")
        self.sender.drained()
        if self._state is State.ENDING and not self.sender.stalled:
            self.transport.close()

    # Time

    def _no_hello(self) -> None:
        self.fault("hello_timeout", f"cannot wait for hello for over {HELLO_S:g} s: send it first")

    def _does_not_read(self) -> None:
        self.end(DOES_NOT_READ)
        self.transport.abort()

    def _heartbeat(self) -> None:
        """Ping a silent peer; end one that has been silent for too long."""
        heartbeat_s = self._host.config.heartbeat_s
        silent_s = self._host.clock() - self.heard_at
        # The loop's timers fire up to its clock's resolution early.
        early_s = 0.001
        if self.hello.role is Role.INFERENCE and silent_s > SILENT_HEARTBEATS * heartbeat_s - early_s:
            self.bye(NO_ANSWER)
        elif silent_s > heartbeat_s - early_s:
            self.sender.answer(wire.encode(wire.Ping()))
            self._after("heartbeat", heartbeat_s, self._heartbeat)
        else:
            self._after("heartbeat", heartbeat_s - silent_s, self._heartbeat)

    def _after(self, what: str, delay_s: float, callback: Callable[[], None]) -> None:
        self._cancel(what)
        self._timers[what] = self._loop.call_later(delay_s, callback)

    def _cancel(self, what: str) -> None:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()

    def _cancel_all(self) -> None:
        for what in tuple(self._timers):
            self._cancel(what)
