"""Waiting until nobody is inside a server, whoever keeps requests out of it.

Must not: shut anything. Upstream: base, places. Downstream: works.
"""

import asyncio
import time
from collections.abc import Callable

from edgeguardd.bridges.base import Server
from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.places import Places

RUNNING_POLL_S = 0.25


class Drain:
    """`external`: another proxy keeps them out, and only the server knows how many are left."""

    def __init__(self, server: Server, places: Places, within_s: float, *, external: bool) -> None:
        self._server = server
        self._places = places
        self._within_s = within_s
        self._external = external

    async def wait(self, unless: Callable[[], bool], *, cut: bool) -> bool:
        """Until nobody is inside, or `unless` holds. Raises ServerError when that takes too long, but for `cut`."""
        if self._external:
            drained = await self._outside(unless)
        else:
            drained = await self._places.drain(self._within_s, unless)
        if not drained and not cut:
            inside = self._places.inside or "some"
            raise ServerError(f"cannot release: {inside} requests still run after {self._within_s:g} s; raise --drain")
        return drained

    async def _outside(self, unless: Callable[[], bool]) -> bool:
        until = time.monotonic() + self._within_s
        while time.monotonic() < until:
            running = await self._server.running()
            if running is None:
                return False
            if running == 0 or unless():
                return True
            await asyncio.sleep(RUNNING_POLL_S)
        return False
