"""What the subscriber server counts and shows: plain values for metrics and /status.

Must not: know sockets. Upstream: model. Downstream: connection, subscribers, metrics, daemon.
"""

from msgspec import Struct

from edgeguardd.core.model import Action, Role

# Reasons that are counted apart. The daemon passes few; a bound keeps a metric's labels bounded whatever comes.
MAX_REASONS = 32


class SubscriberStats(Struct):
    """Counters since the start; `current`, `waiting` and `stalled` are numbers of connections now.

    waiting   connected, not yet welcomed
    stalled   not taking what is sent, so that lines wait in their outbox
    replaced  unsent commands that a newer one of the same action replaced
    dropped   unsent answers (pong, admission, error) that were dropped for newer ones
    """

    accepted: int = 0
    refused: int = 0
    current: int = 0
    waiting: int = 0
    stalled: int = 0
    lines_in: int = 0
    bytes_in: int = 0
    lines_out: int = 0
    bytes_out: int = 0
    replaced: int = 0
    dropped: int = 0
    throttled: int = 0
    errors: dict[str, int] = {}
    disconnects: dict[str, int] = {}

    def count_error(self, code: str) -> None:
        """One more error line of this code was called for."""
        _count(self.errors, code)

    def count_disconnect(self, reason: str) -> None:
        """One more subscriber left for this reason."""
        _count(self.disconnects, reason)


class SubscriberStatus(Struct, frozen=True):
    """One subscriber as /status shows it. silent_s: since its last byte; outbox_lines: waiting to be taken."""

    subscriber: int
    name: str
    role: Role
    target: str | None
    supports: tuple[Action, ...]
    pid: int
    uid: int
    connected_s: float
    silent_s: float
    outbox_lines: int


def _count(counts: dict[str, int], key: str) -> None:
    if key not in counts and len(counts) >= MAX_REASONS:
        key = "other"
    counts[key] = counts.get(key, 0) + 1
