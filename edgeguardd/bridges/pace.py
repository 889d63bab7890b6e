"""How slow a client of the gate may be: who sends a byte now and then must not keep a place from others for ever.

Must not: read or wait itself. Upstream: nothing. Downstream: gate.
"""

# A connection without a request is kept so long.
IDLE_S = 75.0
# A request's head comes within this, from its first byte on.
HEAD_S = 10.0
# The next piece of a body comes within this.
PIECE_S = 30.0
# The body as a whole comes within this, and as much longer as its bytes take at the slowest line worth waiting for: an
# image of 4 MiB over a mobile uplink of 64 kbit/s takes 9 minutes.
BODY_S = 30.0
SLOWEST_BYTES_PER_S = 4096
BODY_MOST_S = 600.0


class BodyPace:
    """Until when the next piece of one body has to be there. Times are monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._taken_bytes = 0

    def took(self, size_bytes: int) -> None:
        """A piece has come."""
        self._taken_bytes += size_bytes

    def until(self, now: float) -> float:
        """The time at which waiting for the next piece ends."""
        whole_s = min(BODY_MOST_S, BODY_S + self._taken_bytes / SLOWEST_BYTES_PER_S)
        return min(now + PIECE_S, self._began + whole_s)
