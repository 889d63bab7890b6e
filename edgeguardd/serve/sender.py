"""The way out of one connection: straight to the socket while it takes all, else through the outbox.

Must not: decide when a peer has had long enough; keep time. Upstream: outbox, asyncio's transport.
Downstream: connection, subscribers.
"""

import asyncio

from edgeguardd.serve.outbox import Outbox
from edgeguardd.serve.subscriberstats import SubscriberStats


class Sender:
    """Sends encoded lines. `stalled`: the socket is full and lines wait."""

    def __init__(self, transport: asyncio.Transport, stats: SubscriberStats) -> None:
        # High water at zero: asyncio keeps the rest of one line, and the outbox, which can replace, keeps the others.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._stats = stats
        self._outbox = Outbox()
        self._finishing = False
        self.stalled = False

    @property
    def waiting_lines(self) -> int:
        """How many lines the peer has yet to take, one partly sent not counted."""
        return len(self._outbox)

    def order(self, key: object, line: bytes) -> None:
        """Send a welcome or a command; while it waits, a later one of the same key replaces it."""
        if not self._sent(line):
            self._stats.replaced += self._outbox.put_order(key, line)

    def level(self, target: str, line: bytes) -> None:
        """Send a target's level; while it waits, a later one replaces it."""
        if not self._sent(line):
            self._outbox.put_level(target, line)

    def answer(self, line: bytes) -> None:
        """Send an answer, an error or a bye; of those that wait, only the newest are kept."""
        if not self._sent(line):
            self._stats.dropped += self._outbox.put_answer(line)

    def full(self) -> None:
        """asyncio says that the socket takes no more."""
        self.stalled = True
        self._stats.stalled += 1

    def drained(self) -> None:
        """asyncio says that all was taken: send what waits, until the socket is full again."""
        self.forget()
        while not self.stalled and (line := self._outbox.take()) is not None:
            self._write(line)

    def finish(self) -> None:
        """Take no further lines; those that wait may still leave."""
        self._finishing = True

    def forget(self) -> None:
        """The socket is not full, or is no more."""
        self._stats.stalled -= self.stalled
        self.stalled = False

    def _sent(self, line: bytes) -> bool:
        """Whether the line needs no outbox: it was written, or is of no use to a connection that ends."""
        if self._finishing or self._transport.is_closing():
            return True
        if self.stalled:
            return False
        self._write(line)
        return True

    def _write(self, line: bytes) -> None:
        self._stats.lines_out += 1
        self._stats.bytes_out += len(line)
        self._transport.write(line)
