"""One HTTP call to an inference server: one connection, one whole answer, within a time. h11 does the syntax.

Must not: retry, follow redirects, know a server's API. Upstream: endpoint, h11. Downstream: base, the servers' files,
gate (connect).
"""

import asyncio
import os
import socket
import ssl
import urllib.parse
from collections.abc import Sequence
from typing import Any

import h11
import msgspec
from msgspec import Struct

from edgeguardd.bridges.endpoint import Endpoint
from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError

# A list of models with their metadata is some 100 KiB; more is no answer to any call made here.
MAX_ANSWER_BYTES = 8 * 1024 * 1024
MAX_SAID_CHARS = 200
PIECE_BYTES = 65536
CALL_WITHIN_S = 5.0


Fields = Sequence[tuple[str, str]]


class ServerError(EdgeguardError):
    """The server did not do what it was asked: a sentence for the log and the ack."""


class AwayError(ServerError):
    """Nothing answers there, or not in time."""


class RefusedError(ServerError):
    """It answered with an error. `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Reply(Struct, frozen=True):
    """A whole answer. `headers` have names in lower case; of several of one name, the last."""

    status: int
    body: bytes
    asked: str
    headers: dict[str, str]

    def json(self) -> Any:
        """Its body as a JSON tree. Raises ServerError."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ServerError(f"cannot read the answer to {self.asked}: it is no JSON; is that the server?") from None

    def field(self, *names: str, default: Any = None) -> Any:
        """What is under these names, one in the other; the default where any is missing."""
        found = self.json()
        for name in names:
            if not isinstance(found, dict) or name not in found:
                return default
            found = found[name]
        return found

    def text(self) -> str:
        """Its body as text, as far as it is text."""
        return self.body.decode("utf-8", "replace")


class Http:
    """Calls to one server. `key` is sent as a bearer token."""

    def __init__(self, at: Endpoint, *, within_s: float = CALL_WITHIN_S, key: str | None = None) -> None:
        self.at = at
        self.within_s = within_s
        self._key = key

    async def get(self, path: str, *, within_s: float | None = None) -> Reply:
        """A GET that has to answer 2xx. Raises AwayError, RefusedError."""
        return expect_ok(await self.ask("GET", path, within_s=within_s))

    async def post(self, path: str, content: Any = None, *, within_s: float | None = None) -> Reply:
        """A POST of JSON (None: without a body) that has to answer 2xx. Raises AwayError, RefusedError."""
        return expect_ok(await self.ask("POST", path, content, within_s=within_s))

    async def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        within_s: float | None = None,
        fields: Fields = (),
    ) -> Reply:
        """Any call, with more header fields if need be; the answer, whatever its status. Raises AwayError."""
        asked = f"{method} {path}"
        limit_s = self.within_s if within_s is None else within_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(asked, self._request(method, path, content, fields))
        except TimeoutError:
            raise AwayError(f"cannot {asked} at {self.at}: no answer within {limit_s:g} s; see the server") from None
        except OSError as error:
            raise AwayError(
                f"cannot {asked} at {self.at}: {why_of(error)}; start the server, or correct --url"
            ) from None
        except EOFError:
            raise AwayError(f"cannot {asked} at {self.at}: it ended before its answer; see the server's log") from None
        except h11.ProtocolError as error:
            raise AwayError(f"cannot {asked} at {self.at}: {error}; is that an HTTP server?") from None

    async def _exchange(self, asked: str, events: list[h11.Event]) -> Reply:
        reader, writer = await connect(self.at)
        try:
            connection = h11.Connection(h11.CLIENT)
            for event in events:
                writer.write(connection.send(event) or b"")
            return await _answer(connection, reader, asked)
        finally:
            writer.close()

    def _request(self, method: str, path: str, content: Any, more: Fields) -> list[h11.Event]:
        body = b"" if content is None else msgspec.json.encode(content)
        fields = [("Host", self.at.authority), ("Connection", "close"), ("Accept", "application/json"), *more]
        if content is not None:
            fields.append(("Content-Type", "application/json"))
        if method != "GET":
            fields.append(("Content-Length", str(len(body))))
        if self._key is not None:
            fields.append(("Authorization", f"Bearer {self._key}"))
        request = h11.Request(method=method, target=self.at.prefix + path, headers=fields)
        return [request, h11.Data(data=body), h11.EndOfMessage()]


async def connect(at: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection. Raises OSError."""
    if at.path is not None:
        return await asyncio.open_unix_connection(at.path)
    context = ssl.create_default_context() if at.tls else None
    return await asyncio.open_connection(at.host, at.port, ssl=context)


def why_of(error: OSError) -> str:
    """What the system says, within a sentence. Names that are not found and certificates have numbers of their own."""
    if isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return str(error.strerror).lower()
    return os.strerror(error.errno).lower() if error.errno else str(error) or "no answer"


def quoted(name: str) -> str:
    """A name as a part of a path or a query: models are called by strangers."""
    return urllib.parse.quote(name, safe="")


def expect_ok(reply: Reply) -> Reply:
    """The reply if its status is 2xx. Raises RefusedError with what the server said."""
    if 200 <= reply.status < 300:
        return reply
    said = printable(reply.text().strip(), MAX_SAID_CHARS)
    raise RefusedError(reply.status, f"cannot {reply.asked}: the server answered {reply.status} ({said}); see its log")


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader, asked: str) -> Reply:
    status, body = 0, bytearray()
    headers: dict[str, str] = {}
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            if reader.at_eof():
                raise EOFError from None
            raise
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(PIECE_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER_BYTES:
                raise h11.RemoteProtocolError(f"its answer has over {MAX_ANSWER_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Reply(status, bytes(body), asked, headers)
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError
