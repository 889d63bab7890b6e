"""A small real HTTP server that a stand-in for an inference server is written on: one method that answers.

    class FakeOllama(StandIn):
        async def answer(self, call: Call) -> Reply: …

`calls` holds what was asked, in order ("POST /api/generate"), whatever became of it. Behave as the real server does,
down to status codes and what blocks; a stand-in that is kinder than the server hides faults.
"""

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import h11

from edgeguardd.bridges.calls import Http
from edgeguardd.bridges.endpoint import endpoint


@dataclass(frozen=True)
class Call:
    """One request. `path` is without the query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON; {} where there is none."""
        return json.loads(self.body or b"{}")

    def __str__(self) -> str:
        """As `calls` and tests spell it: method, path and query."""
        query = urllib.parse.urlencode(self.query)
        return f"{self.method} {self.path}" + (f"?{query}" if query else "")


@dataclass
class Reply:
    """One answer: an object is sent as JSON, bytes and text as they are. `pieces` are sent one by one, chunked."""

    content: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pieces: AsyncIterator[bytes] | None = None


class StandIn:
    """Serves on a free port of 127.0.0.1 while entered. `left` counts clients that hung up before their answer."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.left = 0
        self._server: asyncio.Server | None = None
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.port = 0

    async def answer(self, call: Call) -> Reply:
        """What the server answers. Cancelled when the client hangs up."""
        raise NotImplementedError(call)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def http(self, within_s: float = 5.0) -> Http:
        """A client of it."""
        return Http(endpoint(self.url), within_s=within_s)

    async def __aenter__(self) -> Any:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, on the port of before if there was one. Harmless where it does already."""
        if self._server is not None:
            return
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """As by the kernel: nothing listens, and every connection is cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._tasks.values():
            writer.transport.abort()

    async def down(self) -> None:
        """kill(), and wait until nothing is left of it."""
        self.kill()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = writer
        try:
            with contextlib.suppress(ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            del self._tasks[task]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        call = await _read(http, reader)
        if call is None:
            return
        self.calls.append(str(call))
        answering = asyncio.ensure_future(self.answer(call))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left += 1
                return
            await _write(http, writer, answering.result())
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)


async def _read(http: h11.Connection, reader: asyncio.StreamReader) -> Call | None:
    request: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            parts = urllib.parse.urlsplit(request.target.decode())
            query = dict(urllib.parse.parse_qsl(parts.query))
            headers = {name.decode(): value.decode() for name, value in request.headers}
            return Call(request.method.decode(), urllib.parse.unquote(parts.path), query, headers, bytes(body))
        else:
            return None


async def _write(http: h11.Connection, writer: asyncio.StreamWriter, reply: Reply) -> None:
    content = reply.content
    body = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else None
    kind = "text/plain" if body is not None else "application/json"
    if body is None:
        body = json.dumps(content).encode()
    framing = ("Transfer-Encoding", "chunked") if reply.pieces is not None else ("Content-Length", str(len(body)))
    fields = [("Content-Type", kind), framing, ("Connection", "close"), *reply.headers.items()]
    writer.write(http.send(h11.Response(status_code=reply.status, headers=fields)) or b"")
    if reply.pieces is None:
        writer.write(http.send(h11.Data(data=body)) or b"")
    else:
        async for piece in reply.pieces:
            writer.write(http.send(h11.Data(data=piece)) or b"")
            await writer.drain()
    writer.write(http.send(h11.EndOfMessage()) or b"")
    await writer.drain()
