"""May this request be taken? Promises against headroom, so that ten askers at once are not promised the same bytes.

Must not: read a clock, send anything. Upstream: policy figures given by the engine. Downstream: engine.

Subscribers say when a request is done, and their promises end then. Whoever asks the gate (/admit) says nothing
afterwards: such a promise only stands until the bytes show as needed, and ends by itself.
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


class Promises:
    """Promises that last equally long. Their sum is kept, not counted: there may be hundreds of askers a second."""

    def __init__(self) -> None:
        self._promises: dict[tuple[int, str], Promise] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """How many there are, run out or not."""
        return len(self._promises)

    def sum_bytes(self, now: float) -> int:
        """The sum of those that still stand; those that have run out are forgotten."""
        # All last equally long, so that the oldest of the dict runs out first.
        while self._promises:
            key, oldest = next(iter(self._promises.items()))
            if oldest.until > now:
                break
            self.forget(key)
        return self._bytes

    def put(self, key: tuple[int, str], promise: Promise) -> None:
        """One more, or a new one in place of that of the same key."""
        self.forget(key)
        self._promises[key] = promise
        self._bytes += promise.bytes

    def forget(self, key: tuple[int, str]) -> None:
        """It stands no longer. Unknown keys are fine."""
        promise = self._promises.pop(key, None)
        if promise is not None:
            self._bytes -= promise.bytes

    def forget_all_of(self, subscriber: int) -> None:
        """None of this subscriber's stands any longer."""
        for key in [key for key in self._promises if key[0] == subscriber]:
            self.forget(key)


class Admissions:
    """The promises of one target."""

    def __init__(self) -> None:
        self.typical_bytes: int | None = None
        self._asked = Promises()
        self._gated = Promises()
        self._last_gated = 0

    def reserved_bytes(self, now: float) -> int:
        """The sum of the promises that still stand."""
        return self._asked.sum_bytes(now) + self._gated.sum_bytes(now)

    def decide(self, key: tuple[int, str], wanted_bytes: int | None, room_bytes: int | None, now: float) -> str | None:
        """For a subscriber. None grants (and reserves); else why not. room_bytes None: nothing limits the target."""
        if wanted_bytes is None:
            return None
        if room_bytes is not None:
            refusal = self._refusal(wanted_bytes, room_bytes, self._asked, now)
            if refusal is not None:
                return refusal
            self._asked.put(key, Promise(wanted_bytes, now + RESERVATION_S))
        # What is refused is not learned from: a stranger may claim any size.
        known = wanted_bytes if self.typical_bytes is None else self.typical_bytes
        self.typical_bytes = known + (wanted_bytes - known) // TYPICAL_OF
        return None

    def let_through(self, wanted_bytes: int, room_bytes: int | None, hold_s: float, now: float) -> str | None:
        """For the gate, as decide. What is typical is not learned here: the size may be a stranger's word."""
        if room_bytes is None:
            return None
        refusal = self._refusal(wanted_bytes, room_bytes, self._gated, now)
        if refusal is None:
            self._last_gated += 1
            self._gated.put((0, str(self._last_gated)), Promise(wanted_bytes, now + hold_s))
        return refusal

    def finish(self, subscriber: int, ids: tuple[str, ...]) -> None:
        """Requests are done: their promises end. Unknown ids are fine, they may have run out."""
        for request in ids:
            self._asked.forget((subscriber, request))

    def leave(self, subscriber: int) -> None:
        """A subscriber is gone: so are its requests."""
        self._asked.forget_all_of(subscriber)

    def _refusal(self, wanted_bytes: int, room_bytes: int, among: Promises, now: float) -> str | None:
        room = room_bytes - self.reserved_bytes(now)
        if wanted_bytes > room:
            return f"{wanted_bytes} bytes do not fit into the {max(0, room)} bytes below the critical mark"
        if len(among) >= MAX_RESERVATIONS:
            return f"{MAX_RESERVATIONS} requests are promised memory already"
        return None
