"""The socket that the program under test connects to, and the one place where a case waits for something.

Must not: know what is expected. Upstream: peer, program. Downstream: stage.
Blocking; every wait has a limit, and ends early when the program ends or the user has had enough.
"""

import contextlib
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from edgeguardd.conformance.peer import Fault, Peer, Said, shown
from edgeguardd.conformance.program import Program
from edgeguardd.conformance.script import How, TurnAway
from edgeguardd.errors import EdgeguardError

# The longest pause between two attempts to connect that the protocol allows.
LONGEST_PAUSE_S = 10.0
# The shortest; a client that comes back sooner is a busy loop. Clients wait 0.1 s; timers are not that exact.
SHORTEST_PAUSE_S = 0.05
# How much the last two pauses must exceed the first two; with doubling and half of each by chance it is at least four.
GROWTH = 1.5
# How long a program may take to end once it has closed its connection, for the better sentence of the two.
LAST_WORDS_S = 2.0
# How long one wait lasts before an interrupt is looked at.
SLICE_S = 0.2
MAX_HEARD_LINES = 200
MAX_HEARD_CHARS = 240


class PlayInterruptedError(EdgeguardError):
    """The user has had enough."""


class Link:
    """The program under test and its connection, at most one at a time.

    inbox  what the client has said and nobody has looked at yet
    heard  everything that was said, as a transcript, for whoever looks for the fault
    """

    def __init__(self, argv: Sequence[str], lost_after_s: float, timeout_s: float, stop: threading.Event) -> None:
        """Listen and start the program. Raises EdgeguardError."""
        self.inbox: list[Said] = []
        self.heard: list[str] = []
        self._peer: Peer | None = None
        self._last: Peer | None = None
        self._timeout_s = timeout_s
        self._stop = stop
        # A socket's path has 107 bytes at most (unix(7)), which $TMPDIR alone may use up.
        self._directory = tempfile.TemporaryDirectory(prefix="eg", dir="/tmp")
        self._path = f"{self._directory.name}/s"
        self._listener: socket.socket | None = None
        self.listen()
        try:
            self.program = Program(argv, self._path, lost_after_s)
        except EdgeguardError:
            self._leave()
            raise

    def close(self) -> None:
        """End the program, and leave nothing behind."""
        self.program.end()
        self._leave()

    # The socket

    def listen(self) -> None:
        """Take connections."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen()

    def unlisten(self) -> None:
        """Be away: no connection, and no socket to connect to."""
        self.hang_up()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            with contextlib.suppress(FileNotFoundError):  # the program may have removed it
                os.unlink(self._path)

    def accept(self) -> None:
        """Have a connection: the present one, or the next."""
        if self._peer is None:
            self._peer = self._next()

    def hang_up(self) -> None:
        """End the connection; what was said and not looked at is forgotten."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        self.inbox.clear()

    @property
    def is_linked(self) -> bool:
        """Whether there is a connection that the client has not ended."""
        return self._peer is not None and not self._peer.ended

    def give(self, text: str, how: How) -> None:
        """Say a line. Raises Fault when the client does not take it."""
        assert self._peer is not None  # noqa: S101 - every case says hello first
        self._peer.give(text, how)

    def closed_by_client(self) -> str:
        """Why the connection has ended: the program has, or else the client closed it."""
        until = time.monotonic() + LAST_WORDS_S
        while (how := self.program.ended()) is None and (left_s := until - time.monotonic()) > 0:
            select.select(self.program.descriptors()[:1], [], [], left_s)
        return how or "the client closed the connection"

    def turn_away(self, step: TurnAway) -> None:
        """Refuse so many connections and have the next. Raises Fault when the pauses between them do not grow."""
        pauses_s: list[float] = []
        for _ in range(step.times):
            self.accept()
            with contextlib.suppress(Fault):  # it need not wait for our word
                self.give(step.text, How.ALONE)
            self.hang_up()
            ended_at = time.monotonic()
            self.accept()
            pauses_s.append(time.monotonic() - ended_at)
        told = ", ".join(f"{pause_s:.2f}" for pause_s in pauses_s)
        if min(pauses_s) < SHORTEST_PAUSE_S:
            raise Fault(f"the client came back after {min(pauses_s):.3f} s, a busy loop; its pauses were {told} s")
        if sum(pauses_s[-2:]) < GROWTH * sum(pauses_s[:2]):
            raise Fault(f"the client's pauses do not grow: {told} s")

    def _next(self) -> Peer:
        listener = self._listener
        assert listener is not None  # noqa: S101 - no case waits for a client while the daemon is away
        within_s = self._timeout_s + LONGEST_PAUSE_S
        if not self.wait(lambda: select.select([listener], [], [], 0)[0], within_s):
            raise Fault(f"the client did not connect within {within_s:g} s")
        self._last = Peer(listener.accept()[0], self._last)
        return self._last

    def _leave(self) -> None:
        self.unlisten()
        self._directory.cleanup()

    # Waiting

    def wait(self, condition: Callable[[], object], within_s: float) -> bool:
        """Take in what comes until the condition holds. False: it did not in time, or the client hung up.

        Raises Fault when the client says what may never be said, or the program ends.
        """
        until = time.monotonic() + within_s
        while True:
            self._read()
            if condition():
                return True
            if self._stop.is_set():
                raise PlayInterruptedError("cannot go on: interrupted")
            if how := self.program.ended():
                raise Fault(how)
            left_s = until - time.monotonic()
            if left_s <= 0 or (self._peer is not None and self._peer.ended):
                return False
            # One more millisecond: a time that is rounded down is not reached yet when the wait is over.
            self._poller().poll(min(left_s, SLICE_S) * 1000 + 1)

    def _poller(self) -> select.poll:
        poller = select.poll()
        link: Any = self._listener if self._peer is None else self._peer
        for fd in (*self.program.descriptors(), *([] if link is None else [link])):
            poller.register(fd, select.POLLIN)
        return poller

    def _read(self) -> None:
        """The socket first: a state is printed before the ack, so that who has read the ack finds the state."""
        while self._peer is not None and not self._peer.ended and select.select([self._peer], [], [], 0)[0]:
            for said in self._peer.read():
                self.note(f"> {shown(said)}")
                self.inbox.append(said)
        self.program.look()

    def note(self, line: str) -> None:
        """Write down what was said."""
        if len(self.heard) < MAX_HEARD_LINES:
            self.heard.append(line if len(line) <= MAX_HEARD_CHARS else f"{line[:MAX_HEARD_CHARS]}…")
