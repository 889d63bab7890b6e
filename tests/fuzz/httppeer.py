"""A peer of the HTTP server without sockets: bytes in, and what would have been written out.

Must not: wait. Upstream: serve.httpconnection. Downstream: targets.
"""

import asyncio
from typing import Any, cast

import h11

from edgeguardd.core.config import HttpConfig
from edgeguardd.serve.http import HttpServer, Request, Response

MARK = b"what is served"
MOST_TURNS = 1000

_loop = asyncio.new_event_loop()


class _Transport(asyncio.Transport):
    """Takes everything at once."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 9464)})
        self.written = bytearray()
        self.ended = False

    def write(self, data: "bytes | bytearray | memoryview[Any]") -> None:
        self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    abort = close

    def is_closing(self) -> bool:
        return self.ended

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def answered(data: bytes, piece: int) -> None:
    """Say these bytes in pieces, hang up, and check what came back."""
    _loop.run_until_complete(_said(data, piece))


async def _said(data: bytes, piece: int) -> None:
    asked: list[Request] = []

    def note(request: Request) -> Response:
        asked.append(request)
        return Response(200, "text/plain", MARK)

    server = HttpServer(HttpConfig(), {"/status": lambda _: Response(200, "text/plain", MARK)}, {"/admit": note})
    transport, connection = _Transport(), None
    from edgeguardd.serve.httpconnection import HttpConnection  # noqa: PLC0415  after the loop's own imports

    connection = HttpConnection(server)
    connection.connection_made(transport)
    for at in range(0, len(data), piece):
        connection.data_received(data[at : at + piece])
        await _settled()
    connection.eof_received()
    await _settled()
    connection.connection_lost(None)
    _check(bytes(transport.written), asked)


async def _settled() -> None:
    """Until the loop has nothing ready: pipelined requests are answered one a turn."""
    for _ in range(MOST_TURNS):
        await asyncio.sleep(0)
        if not cast("Any", _loop)._ready:
            return


def _check(written: bytes, asked: list[Request]) -> None:
    """Answers, whole and one behind the other, as a client of HTTP/1.1 reads them."""
    for request in asked:
        assert request.path == "/admit" or request.path.startswith("/admit/")
    while written:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "localhost")]))
        client.send(h11.EndOfMessage())
        client.receive_data(written)
        answer = client.next_event()
        assert isinstance(answer, h11.Response), answer
        length = int(dict(answer.headers).get(b"content-length", b"0"))
        head, _, rest = written.partition(b"\r\n\r\n")
        assert head
        # A HEAD's answer has a length and no body: the next one begins at once, or nothing follows.
        written = rest if rest.startswith(b"HTTP/1.1 ") or not rest else rest[length:]
