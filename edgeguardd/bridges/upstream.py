"""The gate's other side: one connection to the server for one request, and what of a message goes on to it or back.

Must not: decide who may in. Upstream: h11, endpoint. Downstream: gate.
"""

import asyncio
import contextlib

import h11

from edgeguardd.bridges.endpoint import Endpoint

MAX_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 65536
# A request's head or the next piece of its body has to come within this; a piece of an answer has to be taken.
STALL_S = 30.0

# RFC 9110 7.6.1: these are about one connection. Expect is answered here.
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"proxy-authorization")
)


class Upstream:
    """One connection to the server, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def send(self, event: h11.Event) -> None:
        """Send one event on. A server that has hung up has perhaps answered before: next() tells."""
        if (data := self._http.send(event)) is not None:
            with contextlib.suppress(ConnectionError):
                await write(self._writer, data)

    async def next(self) -> object:
        """The next event. Waits as long as the server computes."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE_BYTES))
        return event


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(STALL_S):
        await writer.drain()


def request_of(request: h11.Request, at: Endpoint) -> h11.Request:
    """The request as the server gets it: on a connection of its own."""
    headers = [(name, value) for name, value in kept(request.headers) if name != b"expect"]
    target = at.prefix.encode() + request.target if request.target.startswith(b"/") else request.target
    return h11.Request(method=request.method, target=target, headers=[*headers, (b"connection", b"close")])


def kept(headers: "h11._headers.Headers") -> list[tuple[bytes, bytes]]:
    """The fields that go on to the other side: none that are about one connection, nor those it names."""
    named = b",".join(value for name, value in headers if name == b"connection")
    dropped = _HOP_BY_HOP | {word.strip().lower() for word in named.split(b",")}
    return [(name, value) for name, value in headers if name not in dropped]
