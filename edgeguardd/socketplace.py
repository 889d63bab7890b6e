"""Looks now and then whether the subscriber socket's file is still there: without it nobody new can come, and the
daemon would guard less and less without a word.

A socket of its own is made again; one of systemd's is systemd's to make. Must not: touch what somebody else has put
there (unixbind refuses). Upstream: daemon. Downstream: serve.subscribers.
"""

import asyncio
from collections.abc import Callable

from edgeguardd.errors import ServeError
from edgeguardd.kernel import beats
from edgeguardd.logs import get_logger
from edgeguardd.serve.subscribers import SubscriberServer

log = get_logger()

LOOK_S = 5.0


class SocketPlace:
    """Of one daemon. Each loss is said once."""

    def __init__(
        self, subscribers: SubscriberServer, loop: asyncio.AbstractEventLoop, on_fault: Callable[[str], None]
    ) -> None:
        self._subscribers = subscribers
        self._loop = loop
        self._on_fault = on_fault
        self._said: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._trying: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, on a beat that others have as well."""
        self._timer = self._loop.call_at(beats.due(self._loop.time(), LOOK_S), self._look)

    async def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.wait([self._trying])

    def _look(self) -> None:
        self._timer = self._loop.call_at(beats.due(self._loop.time(), LOOK_S), self._look)
        if self._subscribers.stands():
            self._said = None
        elif not self._subscribers.is_own:
            path = self._subscribers.place
            self._say(
                f"the socket {path} is gone, so that nobody new can subscribe; systemctl restart edgeguardd.socket"
            )
        elif self._trying is None or self._trying.done():
            self._trying = self._loop.create_task(self._make_again())

    async def _make_again(self) -> None:
        path = self._subscribers.place
        try:
            await self._subscribers.listen_again()
        except ServeError as fault:
            self._say(f"{fault}; its file was removed, and is made again when it can be")
            return
        self._say(f"the socket {path} was removed by somebody: made again; see who cleans up there")
        log.info("listens_at_last", place=path)

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._on_fault(sentence)
