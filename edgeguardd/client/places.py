"""Who of an asyncio server's requests may run, who waits for a place, and who is refused.

Must not: know HTTP or the daemon; hold anybody back while nothing is restricted. Upstream: nothing.
Downstream: asgi, and servers that speak something else.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

# float products such as 100 * 0.29 = 28.999999999999996 are meant as whole numbers.
_ROUNDING = 1e-9


class Places:
    """The places of one server. Not safe for threads: everything happens on the loop.

    limit        how many requests the server is made for; a ratio cuts this number, never the present one
    max_waiting  how many may wait for a place at once
    on_change    called whenever `running` or `waiting` has changed; it must be quick
    """

    def __init__(self, limit: int, *, max_waiting: int, on_change: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.running = 0
        self._max_waiting = max_waiting
        self._on_change = on_change
        self._ratio = 1.0
        self._shut: dict[str, str] = {}
        # A future's result: None is a place, a text the reason why there is none.
        self._waiting: deque[asyncio.Future[str | None]] = deque()
        self._draining: list[asyncio.Future[None]] = []

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    @property
    def allowed(self) -> int | None:
        """How many may run at once; None: as many as come, because nothing is restricted.

        At least one: it is for shut() to stop everything.
        """
        return None if self._ratio >= 1.0 else max(1, int(self.limit * self._ratio + _ROUNDING))

    @property
    def refusal(self) -> str | None:
        """Why nobody is let in now; None when it is not shut."""
        return next(iter(self._shut.values()), None)

    # What the daemon's commands come to

    def cut(self, ratio: float) -> None:
        """Let this share of the limit run; those who run already stay."""
        self._ratio = ratio
        self._let_in()

    def shut(self, key: str, reason: str) -> None:
        """Refuse from now on, those who wait as well; those who run stay. Several keys may keep it shut."""
        self._shut[key] = reason
        waiting, self._waiting = self._waiting, deque()
        for place in waiting:
            if not place.done():
                place.set_result(reason)
        self._on_change()

    def open(self, key: str) -> None:
        """This key keeps it shut no longer."""
        self._shut.pop(key, None)

    async def drained(self, within_s: float) -> bool:
        """Wait until nobody runs; False if that takes longer. Shut first."""
        until = time.monotonic() + within_s
        while self.running:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._draining.append(idle)
            try:
                await asyncio.wait([idle], timeout=max(0.0, until - time.monotonic()))
            finally:
                self._draining.remove(idle)
            if not idle.done():
                return False
        return True

    # What requests do

    async def enter(self, patience_s: float) -> str | None:
        """Take a place, waiting so long for one: None, and then leave() is due. Otherwise why there is none."""
        if self._shut:
            return self.refusal
        if self._has_room() and not self._waiting:
            self._take()
            return None
        if len(self._waiting) >= self._max_waiting:
            return f"{self._busy()}, and {len(self._waiting)} others wait already"
        return await self._wait(patience_s)

    def leave(self) -> None:
        """Give the place back."""
        self.running -= 1
        self._let_in()
        if not self.running:
            for idle in self._draining:
                if not idle.done():
                    idle.set_result(None)
        self._on_change()

    async def _wait(self, patience_s: float) -> str | None:
        place: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._on_change()
        try:
            await asyncio.wait([place], timeout=patience_s)
        except asyncio.CancelledError:
            if place.done() and place.result() is None:
                self.leave()
            raise
        finally:
            if not place.done():
                self._waiting.remove(place)
                self._on_change()
        return place.result() if place.done() else f"{self._busy()}, and none has ended within {patience_s:g} s"

    def _let_in(self) -> None:
        """Give free places to those who have waited longest."""
        while self._waiting and self._has_room():
            self._take()
            self._waiting.popleft().set_result(None)

    def _has_room(self) -> bool:
        return self.allowed is None or self.running < self.allowed

    def _take(self) -> None:
        self.running += 1
        self._on_change()

    def _busy(self) -> str:
        return f"as many requests run as memory allows now ({self.allowed} instead of {self.limit})"
