"""Who may in: the places before a server, what keeps it shut, and waiting until nobody is inside.

Must not: know HTTP, or who asks. Upstream: asyncio. Downstream: gate, bridge.
"""

import asyncio
from collections.abc import Callable

from msgspec import Struct

# The queue before the places. A server's own has no end; whoever comes when this one is full is told so at once.
MAX_WAITING = 256


class Refusal(Struct, frozen=True):
    """Why a request may not in. `code` is what OpenAI clients read."""

    code: str
    reason: str


class Places:
    """Open while nothing keeps it shut. `most` is how many may be inside at once; None: as many as come."""

    def __init__(self, most: int | None, patience_s: float) -> None:
        self.most = most
        self.inside = 0
        self.waiting = 0
        self.refused = 0
        self._patience_s = patience_s
        self._shut: dict[str, str] = {}
        self._waiters: dict[asyncio.Future[None], None] = {}

    @property
    def shut_by(self) -> tuple[str, ...]:
        """The keys that keep it shut; () while it is open."""
        return tuple(self._shut)

    # What the bridge says. Only drain() waits: a refusal counts from the moment it is asked for.

    def shut(self, key: str, reason: str) -> None:
        """Refuse from now on, those who wait too; several keys may keep it shut. Those inside stay."""
        self._shut[key] = reason
        self.notify()

    def open(self, key: str) -> None:
        """This key keeps it shut no longer."""
        self._shut.pop(key, None)
        self.notify()

    def limit(self, most: int | None) -> None:
        """So many at once from now on; those inside stay."""
        self.most = most
        self.notify()

    async def drain(self, within_s: float, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until nobody is inside, or `unless` holds. False: not within the time. Shut it first."""
        return await self._until(lambda: self.inside == 0 or unless(), within_s)

    def notify(self) -> None:
        """Something has changed: whoever waits looks again, the first come first."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # What requests do

    async def enter(self) -> Refusal | None:
        """Take a place, or wait for one. None once taken, else why not."""
        if not self._shut and not self._may_enter() and self.waiting < MAX_WAITING:
            self.waiting += 1
            try:
                await self._until(lambda: bool(self._shut) or self._may_enter(), self._patience_s)
            finally:
                self.waiting -= 1
        if not self._shut and self._may_enter():
            self.inside += 1
            return None
        self.refused += 1
        if self._shut:
            return Refusal("memory_pressure", next(iter(self._shut.values())))
        return Refusal("busy", f"all {self.most} places are taken")

    def leave(self) -> None:
        """Give the place back."""
        self.inside -= 1
        self.notify()

    def _may_enter(self) -> bool:
        return self.most is None or self.inside < self.most

    async def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiters[waiter] = None
                    try:
                        await waiter
                    finally:
                        del self._waiters[waiter]
        except TimeoutError:
            return condition()
        return True
