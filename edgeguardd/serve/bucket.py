"""A token bucket: how much of something a peer may do in a while.

Must not: read a clock. Upstream: nothing. Downstream: connection.
"""


class TokenBucket:
    """Holds up to `burst` tokens and gains `per_s` a second. Starts full."""

    def __init__(self, per_s: float, burst: int, now: float) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = now

    def take(self, now: float) -> bool:
        """Take one token if there is one. A clock that went backwards gains nothing."""
        gained = max(0.0, now - self._at) * self._per_s
        self._tokens = min(self._burst, self._tokens + gained)
        self._at = max(self._at, now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait_s(self, tokens: int) -> float:
        """How long after the last take so many tokens will be there."""
        return max(0.0, (min(float(tokens), self._burst) - self._tokens) / self._per_s)
