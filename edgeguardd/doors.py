"""TCP ports that may not be there yet: an address that DHCP is about to bring, a port that somebody else still has.

Memory is guarded all the same: that the page, metrics or the gate cannot be served is said once, and tried again until
they are. Must not: know what is served. Upstream: daemon. Downstream: serve.http, serve.agent.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from edgeguardd.errors import ServeError
from edgeguardd.logs import get_logger

log = get_logger()

# A lease takes seconds, a machine that has been set up wrong stays so.
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0


class Server(Protocol):
    """What listens on a port."""

    async def start(self) -> None:
        """Listen. Raises ServeError, and holds nothing then."""

    async def close(self) -> None:
        """Listen no more."""


class Door:
    """One port, from the start on. `place`: where it listens, once it does; None before."""

    def __init__(self, server: Server, place: Callable[[], str], on_fault: Callable[[str], None]) -> None:
        self.place: str | None = None
        self._server = server
        self._place_of = place
        self._on_fault = on_fault
        self._trying: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen, or say why not and go on trying."""
        fault = await self._start()
        if fault is not None:
            self._on_fault(f"{fault}; it is tried again until it can be")
            self._trying = asyncio.create_task(self._try_again())

    async def close(self) -> None:
        """Listen no more, and try no more."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])
        await self._server.close()

    async def _start(self) -> ServeError | None:
        try:
            await self._server.start()
        except ServeError as fault:
            return fault
        self.place = self._place_of()
        return None

    async def _try_again(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            await asyncio.sleep(wait_s)
            if await self._start() is None:
                log.info("listens_at_last", place=self.place)
                return
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
