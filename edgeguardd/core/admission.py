"""May this request be taken? Promises against headroom, so that ten askers at once are not promised the same bytes.

Must not: read a clock, send anything. Upstream: policy figures given by the engine. Downstream: engine.
"""

from msgspec import Struct

# A promise not reported finished within this time is taken as used or given up: by then its bytes show as needed.
RESERVATION_S = 30.0

MAX_RESERVATIONS = 4096

# The typical request is an average over about so many.
TYPICAL_OF = 8


class Promise(Struct, frozen=True):
    """Bytes granted to one request, until it is reported finished or the time is over."""

    bytes: int
    until: float


class Admissions:
    """The promises of one target. Their sum is kept, not counted: an asker may ask hundreds of times a second."""

    def __init__(self) -> None:
        self.typical_bytes: int | None = None
        self._promises: dict[tuple[int, str], Promise] = {}
        self._reserved_bytes = 0

    def reserved_bytes(self, now: float) -> int:
        """The sum of the promises that still stand."""
        # All promises last equally long, so that the oldest of the dict runs out first.
        while self._promises:
            key, oldest = next(iter(self._promises.items()))
            if oldest.until > now:
                break
            self._forget(key)
        return self._reserved_bytes

    def decide(self, key: tuple[int, str], wanted_bytes: int | None, room_bytes: int | None, now: float) -> str | None:
        """None grants (and reserves); else why not. room_bytes None: nothing limits the target."""
        if wanted_bytes is not None:
            known = wanted_bytes if self.typical_bytes is None else self.typical_bytes
            self.typical_bytes = known + (wanted_bytes - known) // TYPICAL_OF
        if room_bytes is None or wanted_bytes is None:
            return None
        room = room_bytes - self.reserved_bytes(now)
        if wanted_bytes > room:
            return f"{wanted_bytes} bytes do not fit into the {max(0, room)} bytes below the critical mark"
        if len(self._promises) >= MAX_RESERVATIONS:
            return f"{MAX_RESERVATIONS} requests are promised memory already"
        self._forget(key)
        self._promises[key] = Promise(wanted_bytes, now + RESERVATION_S)
        self._reserved_bytes += wanted_bytes
        return None

    def finish(self, subscriber: int, ids: tuple[str, ...]) -> None:
        """Requests are done: their promises end. Unknown ids are fine, they may have run out."""
        for request in ids:
            self._forget((subscriber, request))

    def leave(self, subscriber: int) -> None:
        """A subscriber is gone: so are its requests."""
        for key in [key for key in self._promises if key[0] == subscriber]:
            self._forget(key)

    def _forget(self, key: tuple[int, str]) -> None:
        promise = self._promises.pop(key, None)
        if promise is not None:
            self._reserved_bytes -= promise.bytes
