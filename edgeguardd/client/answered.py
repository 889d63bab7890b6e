"""Which commands of this epoch have been answered, so that one that is told again is answered again and not done again.

Must not: send. Upstream: core.wire. Downstream: session.

A daemon that was restarted tells those again whose answer it does not know of; their numbers are as they were. An ack
that found no connection is handed in after the next welcome of the same epoch.
"""

from edgeguardd.core import wire

# The daemon awaits one answer an action; the rest is for what crosses on its way.
REMEMBERED = 64


class Answered:
    """The final acks of one epoch and target, by number. `epoch_number` counts epochs."""

    def __init__(self) -> None:
        self.epoch_number = 0
        self._of: tuple[str, str | None] | None = None
        self._acks: dict[int, wire.Ack] = {}
        self._running: set[int] = set()
        self._unsaid: set[int] = set()
        self._handed_in: set[int] = set()

    def welcomed(self, epoch: str, target: str | None) -> list[wire.Ack]:
        """A connection begins. Returns the acks to hand in; in a new epoch all numbers are forgotten."""
        self._handed_in = set()
        if (epoch, target) != self._of:
            self.epoch_number += 1
            self._of = epoch, target
            self._acks, self._running, self._unsaid = {}, set(), set()
            return []
        self._handed_in, self._unsaid = {seq for seq in self._unsaid if seq in self._acks}, set()
        return [self._acks[seq] for seq in sorted(self._handed_in)]

    def told_again(self, seq: int) -> tuple[bool, wire.Ack | None]:
        """Whether this number has been told before, and the ack to give again; None: it is given already, or will be.

        What is given is the answer to the number, whatever comes with it: within an epoch a number is one command.
        """
        ack = self._acks.get(seq)
        if ack is None:
            return seq in self._running, None
        if seq in self._handed_in:
            self._handed_in.discard(seq)
            return True, None
        return True, ack

    def begun(self, seq: int, epoch_number: int) -> None:
        """A handler has started on it."""
        if epoch_number == self.epoch_number:
            self._running.add(seq)

    def ended(self, ack: wire.Ack, epoch_number: int, *, said: bool) -> None:
        """It has its final ack, which has been said on a connection or waits for one."""
        if epoch_number != self.epoch_number:
            return
        self._running.discard(ack.seq)
        self._acks[ack.seq] = ack
        if not said:
            self._unsaid.add(ack.seq)
        while len(self._acks) > REMEMBERED:
            oldest = next(iter(self._acks))
            del self._acks[oldest]
            self._unsaid.discard(oldest)
