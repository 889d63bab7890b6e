"""An ASGI application's lifespan with a guard's inside it.

Must not: import a framework or a server. Upstream: nothing. Downstream: asgi.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

# As the ASGI specification has them, and as Starlette spells them.
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Lifespan:
    """Runs a guard from the end of the application's startup to the beginning of its shutdown.

    answered  whether the application has said anything; if not, it has no lifespan, and go_alone() is due
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        receive: Receive,
        send: Send,
    ) -> None:
        self.answered = False
        self._start = start
        self._close = close
        self._receive = receive
        self._send = send
        self._begun = False
        self._started = False
        self._settled = False

    async def receive(self) -> Message:
        """What the server says; the guard is closed before the application hears of the shutdown."""
        message = await self._receive()
        self._begun = True
        if message["type"] == "lifespan.shutdown":
            await self.close()
        return message

    async def send(self, message: Message) -> None:
        """What the application says; the guard is started before the server hears that all is ready."""
        self.answered = True
        if message["type"] == "lifespan.startup.complete":
            await self._start()
            self._started = True
        self._settled = True
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """Say that the startup has failed, unless its end was told: servers may take an exception for no lifespan."""
        if not self._settled:
            self._settled = True
            await self._send({"type": "lifespan.startup.failed", "message": str(error)})

    async def close(self) -> None:
        """Close the guard, if this lifespan has started it and not closed it since."""
        if self._started:
            self._started = False
            await self._close()

    async def go_alone(self) -> None:
        """Do what the application should have done: servers would take its silence for "no lifespan wanted"."""
        if not self._begun:
            await self.receive()
        await self.send({"type": "lifespan.startup.complete"})
        await self.receive()
        await self.send({"type": "lifespan.shutdown.complete"})
