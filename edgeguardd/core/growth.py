"""How fast needed bytes grow, how long until the limit, and how long before it a trim has to be asked for.

Must not: keep more than O(1), read a clock. Upstream: nothing. Downstream: policy, ledger (lead times).
"""

import math

from msgspec import Struct

# A burst moves only the quick average, a ramp moves both: the lesser of the two counts. The slow one spans a few
# requests, the quick one a few samples near the marks.
QUICK_S = 0.5
SLOW_S = 3.0

# One step up is a burst until the next sample has risen as well.
RISES = 2

# A lead learned from one slow trim is forgotten by a tenth with every quicker one.
LEAD_DECAY = 0.9
# A trim takes as long as the last ones, or half as long again.
LEAD_MARGIN = 1.5


# What is held at rest has risen by more than this part of itself: a model has been loaded, and not just measured anew.
LOADED_PART = 20


class Growth(Struct):
    """The growth of one number above a floor. Rates are bytes a second, negative while it shrinks.

    still: the slow average of the number itself, floor or not.
    """

    quick: float = 0.0
    slow: float = 0.0
    still: float = 0.0
    rises: int = 0
    bytes: int | None = None
    floor_bytes: int = 0
    at: float = 0.0

    def learn(self, now_bytes: int, now: float, floor_bytes: int = 0) -> None:
        """Take one reading. A gap counts as the one rate that it had, however long it was.

        floor_bytes: held at rest. A model that is loaded runs up to that and stops: no growth that goes on to the
        limit. Where the floor itself has jumped, one was loaded just now, and what was learned meanwhile is void.
        """
        if floor_bytes - self.floor_bytes > floor_bytes // LOADED_PART:
            self.quick = self.slow = 0.0
            self.rises = 0
        self.floor_bytes = floor_bytes
        if self.bytes is not None and now > self.at:
            elapsed = now - self.at
            rate = (max(now_bytes, floor_bytes) - max(self.bytes, floor_bytes)) / elapsed
            self.rises = self.rises + 1 if rate > 0 else 0
            self.quick += (1 - math.exp(-elapsed / QUICK_S)) * (rate - self.quick)
            self.slow += (1 - math.exp(-elapsed / SLOW_S)) * (rate - self.slow)
            self.still += (1 - math.exp(-elapsed / SLOW_S)) * ((now_bytes - self.bytes) / elapsed - self.still)
        self.bytes = now_bytes
        self.at = now

    @property
    def bytes_per_s(self) -> float:
        """The rate to reckon with: the lesser rise once it has lasted, or the shrinking of the quick average."""
        rate = self.suspected_bytes_per_s
        return rate if rate <= 0 or self.rises >= RISES else 0.0

    @property
    def suspected_bytes_per_s(self) -> float:
        """The same from the first rise on: reason enough to look more often, not to act."""
        return min(self.quick, self.slow)

    def time_to(self, headroom_bytes: int) -> float | None:
        """Seconds until so many bytes have been taken; None: never, at this rate."""
        return _time_to(headroom_bytes, self.bytes_per_s)

    def suspected_time_to(self, headroom_bytes: int) -> float | None:
        """As time_to, at the suspected rate."""
        return _time_to(headroom_bytes, self.suspected_bytes_per_s)


def _time_to(headroom_bytes: int, rate: float) -> float | None:
    if headroom_bytes <= 0:
        return 0.0
    return headroom_bytes / rate if rate > 0 else None


class Lead(Struct):
    """How long trims of one target take, from the command to the bytes gone. Learned; None: no trim yet."""

    learned_s: float | None = None

    def learn(self, took_s: float) -> None:
        """A trim freed its bytes in this time."""
        faded = 0.0 if self.learned_s is None else self.learned_s * LEAD_DECAY
        self.learned_s = max(took_s, faded)

    def seconds(self, floor_s: float, ceiling_s: float) -> float:
        """The time before the limit at which to ask."""
        return min(ceiling_s, max(floor_s, LEAD_MARGIN * (self.learned_s or 0.0)))
