"""An ASGI server's side without sockets: a lifespan, requests, and what the application sends to each.

Must not: import a framework or the code under test. Upstream: component tests.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from tests.support.wait import soon

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]


class Connection:
    """One scope given to an application, and what came back."""

    def __init__(self, app: App, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.sent: list[Message] = []
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        # Kept as they are, so that a test can see whether the application got these very ones.
        self.receive, self.send = self.inbox.get, self._send
        self.task = asyncio.ensure_future(app(scope, self.receive, self.send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def types(self) -> list[str]:
        """The types of what was sent."""
        return [message["type"] for message in self.sent]

    @property
    def status(self) -> int:
        """The status of the answer."""
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        """The header fields of the answer."""
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        """The body of the answer so far."""
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        return dict(json.loads(self.body)["error"])


def http(
    app: App, path: str = "/v1/chat/completions", method: str = "POST", *, whole: bool = True, **scope: Any
) -> Connection:
    """Begin a request; its body is there unless `whole` is False."""
    connection = Connection(app, {"type": "http", "path": path, "method": method, "headers": [], **scope})
    connection.inbox.put_nowait({"type": "http.request", "body": b"piece", "more_body": not whole})
    return connection


async def answered(app: App, path: str = "/v1/chat/completions", method: str = "POST", **scope: Any) -> Connection:
    """A request and its whole answer."""
    connection = http(app, path, method, **scope)
    await connection.task
    return connection


async def websocket(app: App, **scope: Any) -> Connection:
    """A WebSocket handshake and all that came of it."""
    connection = Connection(app, {"type": "websocket", "path": "/ws", "headers": [], **scope})
    connection.inbox.put_nowait({"type": "websocket.connect"})
    await connection.task
    return connection


@contextlib.asynccontextmanager
async def living(app: App) -> AsyncIterator[Connection]:
    """The lifespan: inside, the application has started; afterwards it has ended."""
    lifespan = Connection(app, {"type": "lifespan", "state": {}})
    lifespan.inbox.put_nowait({"type": "lifespan.startup"})
    try:
        await soon(lambda: lifespan.sent or lifespan.task.done())
        yield lifespan
    finally:
        lifespan.inbox.put_nowait({"type": "lifespan.shutdown"})
        await lifespan.task


class StreamingApp:
    """Streams an answer piece by piece, as a test lets it; writes down what happens to it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.given: list[tuple[Any, Any]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.running = 0
        self.most_running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await receive()
            self.events.append("startup")
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.events.append("shutdown")
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
        else:
            await self._answer(receive, send)

    async def _answer(self, receive: Any, send: Any) -> None:
        self.given.append((receive, send))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first ", "more_body": True})
            await self.may_end.wait()
            await send({"type": "http.response.body", "body": b"last"})
        finally:
            self.running -= 1
