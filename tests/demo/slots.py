"""Places for requests that run at the same time: first come, first served, and their number can change meanwhile.

Must not: know requests. asyncio.Condition would let newcomers overtake those who wait. Upstream: server.
"""

import asyncio
from collections import deque


class Slots:
    """`async with slots:` waits for a place and holds it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def set_limit(self, limit: int) -> None:
        """So many may run from now on; those that run already stay."""
        self._limit = limit
        self._grant()

    async def __aenter__(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._running -= 1  # the place came just before the cancellation
                self._grant()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._running -= 1
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._running < self._limit:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._running += 1
                turn.set_result(None)
