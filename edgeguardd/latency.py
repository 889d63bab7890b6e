"""How long the way of a command takes, in three parts: to its delivery, to the answer, to the bytes being gone.

Must not: judge answers (core.commands does). Upstream: kernel.wakeups (what a reading began with), effects, acks.
Downstream: metrics.

    wake-up ──▶ files read ──▶ command handed to the socket ──▶ ack read ──▶ needed bytes have fallen
    └──── wakeup_to_deliver ────┘└───────── deliver_to_ack ────┘└──── ack_to_freed ────┘

The kernel does not say when it counted, so that the first part begins with the daemon's own wake-up: what the kernel
took to wake it (kernfs merges what follows within some 10 ms) and what the loop did before is in none of them.
"""

from collections.abc import Callable

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import Histogram

from edgeguardd.core.commands import FREEING
from edgeguardd.core.effects import CommandEnded, Deliver
from edgeguardd.core.events import AckReceived
from edgeguardd.core.model import AckStatus, Action, Outcome
from edgeguardd.kernel.wakeups import Begun, Cause

# The budgets are 1 ms for half of the commands and 5 ms for nearly all, 50 and 100 ms for crowds; half a second is what
# memory has to show a `done` by, and 10 s is a long deadline.
BUCKETS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# name, what it is, labels
PARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "wakeup_to_deliver",
        "From the daemon's wake-up by the kernel, or by its own timer, to the command handed over: not from an answer.",
        ("cause",),
    ),
    ("deliver_to_ack", "From a command handed to the subscriber's connection to its ack.", ("action", "status")),
    (
        "ack_to_freed",
        "From the ack that says done to the needed bytes having fallen by what counts as help.",
        ("action",),
    ),
)

# OpenMetrics 1.0: the names and values of an exemplar's labels together.
MAX_EXEMPLAR_CHARS = 128


class _Sent(Struct):
    subscriber: int
    action: Action
    at: float
    accepted: bool = False
    answered_at: float | None = None


class Latency:
    """The three histograms. What is on its way is remembered until it ends, which each command does once."""

    def __init__(
        self,
        registry: CollectorRegistry,
        begun: Callable[[], Begun | None],
        clock: Callable[[], float],
        epoch: str,
    ) -> None:
        """`begun`: what the reading that is being told began with; `clock`: the one its time is of."""
        self._begun = begun
        self._clock = clock
        self._epoch = epoch
        self._sent: dict[tuple[str, int], _Sent] = {}
        made = [
            Histogram(f"edgeguardd_{name}_seconds", text, labels, buckets=BUCKETS_S, registry=registry)
            for name, text, labels in PARTS
        ]
        self._to_deliver, self._to_ack, self._to_freed = made
        # From zero on, so that the first of each counts in a rate.
        for cause in Cause:
            self._to_deliver.labels(cause.value)
        for action in Action:
            self._to_ack.labels(action.value, AckStatus.DONE.value)
        for action in sorted(FREEING):
            self._to_freed.labels(action.value)

    def delivered(self, order: Deliver) -> dict[str, str]:
        """A command was handed to the connection. Returns its exemplar."""
        now, command = self._clock(), order.command
        exemplar = self.exemplar(command.target, command.seq)
        self._sent[command.target, command.seq] = _Sent(order.subscriber, command.action, now)
        begun = self._begun()
        if begun is not None:
            self._to_deliver.labels(begun.cause.value).observe(now - begun.at, exemplar)
        return exemplar

    def acked(self, target: str, ack: AckReceived) -> None:
        """An answer was read: before it is judged. The first of its kind counts."""
        sent = self._sent.get((target, ack.seq))
        if sent is None or sent.subscriber != ack.subscriber or sent.answered_at is not None:
            return
        now = self._clock()
        if ack.status is not AckStatus.ACCEPTED:
            sent.answered_at = now
        elif sent.accepted:
            return
        sent.accepted = True
        self._to_ack.labels(sent.action.value, ack.status.value).observe(now - sent.at, self.exemplar(target, ack.seq))

    def ended(self, end: CommandEnded) -> dict[str, str]:
        """A command has its outcome. Returns its exemplar."""
        exemplar = self.exemplar(end.target, end.seq)
        sent = self._sent.pop((end.target, end.seq), None)
        freed = end.outcome is Outcome.DONE and end.freed_bytes is not None and end.freed_bytes > 0
        if freed and sent is not None and sent.answered_at is not None:
            self._to_freed.labels(end.action.value).observe(self._clock() - sent.answered_at, exemplar)
        return exemplar

    def exemplar(self, target: str, seq: int) -> dict[str, str]:
        """Which command it was, and of which run: what the log and the recordings call it. A long name is left out."""
        named = {"epoch": self._epoch, "seq": str(seq), "target": target}
        if sum(len(name) + len(value) for name, value in named.items()) > MAX_EXEMPLAR_CHARS:
            del named["target"]
        return named
