"""Deadlines by name, on the loop: the engine's orders to be woken, and the facts that come of them.

Must not: know what a name means. Upstream: dispatch. Downstream: the loop, then emit.
"""

import asyncio
from collections.abc import Callable

from edgeguardd.core.events import TimerFired


class Timers:
    """One timer a key."""

    def __init__(self, loop: asyncio.AbstractEventLoop, emit: Callable[[TimerFired], None]) -> None:
        self._loop = loop
        self._emit = emit
        self._set: dict[str, asyncio.TimerHandle] = {}

    def set(self, key: str, at: float) -> None:
        """Fire at this time of the loop's; what was set under this key before does not fire any more."""
        self.cancel(key)
        self._set[key] = self._loop.call_at(at, self._fired, key)

    def cancel(self, key: str) -> None:
        """Nothing comes of it."""
        timer = self._set.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Nothing comes of any of them."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()

    def _fired(self, key: str) -> None:
        self._set.pop(key, None)
        self._emit(TimerFired(key))
