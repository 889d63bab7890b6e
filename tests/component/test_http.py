"""The HTTP server on real sockets: what is answered, and that no peer harms another."""

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from edgeguardd.core.config import HttpConfig
from edgeguardd.errors import ServeError
from edgeguardd.serve import httpconnection
from edgeguardd.serve.http import HttpServer, Request, Response
from tests.support.subscribers import run
from tests.support.wait import DEADLINE_S, soon

Routes = dict[str, Callable[[Request], Response]]

HELLO: Routes = {"/hello": lambda _: Response(200, "text/plain", b"hello", (("X-Extra", "yes"),))}
# What the kernel alone takes for a peer that does not read: tcp_rmem's and our SO_SNDBUF's most, with room to spare.
MOST_IN_KERNEL_BYTES = 10_000_000

GET = b"GET /hello HTTP/1.1\r\nHost: h\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(routes: Routes = HELLO, **config: Any) -> AsyncIterator[HttpServer]:
    server = HttpServer(HttpConfig(port=0, hosts=frozenset({"h"}), **config), routes)
    await server.start()
    try:
        yield server
    finally:
        await server.close()
        assert server.stats.current == 0


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1"])
def test_two_colons_are_every_address_of_both_kinds(peer: str) -> None:
    """As an operator means it; and a peer of IPv4's may name the address that it came to."""

    async def test() -> None:
        async with serving(address="::") as server:
            reader, writer = await asyncio.open_connection(peer, server.port)
            host = f"[{peer}]" if ":" in peer else peer
            writer.write(f"GET /hello HTTP/1.1\r\nHost: {host}:{server.port}\r\n\r\n".encode())
            assert (await answer(reader))[0] == 200
            writer.close()
            await writer.wait_closed()

    run(test())


def test_a_port_that_is_taken_is_named_as_it_is_written() -> None:
    """An IPv6 address in brackets: ":::9464" names nothing."""

    async def test() -> None:
        async with serving(address="::1") as server:
            other = HttpServer(HttpConfig(address="::", port=server.port), HELLO)
            with pytest.raises(ServeError, match=rf"cannot listen on \[::\]:{server.port}: Address already in use"):
                await other.start()

    run(test())


@contextlib.asynccontextmanager
async def connection(server: HttpServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader, without_body: bool = False) -> tuple[int, dict[str, str], bytes]:
    """One answer: status, headers in lower case, body."""
    async with asyncio.timeout(DEADLINE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {}
        for line in head[1:-2]:
            name, _, value = line.partition(": ")
            headers[name.lower()] = value
        length = 0 if without_body else int(headers["content-length"])
        return int(head[0].split()[1]), headers, await reader.readexactly(length)


async def asked(server: HttpServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    async with connection(server) as (reader, writer):
        writer.write(request)
        return await answer(reader)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server ends the connection."""
    async with asyncio.timeout(DEADLINE_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def test_a_route_answers_with_its_body_and_headers() -> None:
    """Status, type, length, body and the route's own headers arrive."""

    async def test() -> None:
        async with serving() as server:
            status, headers, body = await asked(server, GET)
            assert (status, body) == (200, b"hello")
            assert headers["content-type"] == "text/plain"
            assert headers["x-extra"] == "yes"

    run(test())


def test_head_is_get_without_the_body() -> None:
    """HEAD says how long the body would be and sends none; the connection goes on."""

    async def test() -> None:
        async with serving() as server, connection(server) as (reader, writer):
            writer.write(GET.replace(b"GET", b"HEAD") + GET)
            status, headers, _ = await answer(reader, without_body=True)
            assert (status, headers["content-length"]) == (200, "5")
            assert (await answer(reader))[2] == b"hello"

    run(test())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET /hello/ HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET http://h/hello HTTP/1.1\r\nHost: h\r\n\r\n", 200),
        (b"GET HTTP://H:9464/hello?x=1 HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200),
        (b"GET http://h HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET http://evil.example/hello HTTP/1.1\r\nHost: h\r\n\r\n", 421),
        (b"GET http://h@evil.example/hello HTTP/1.1\r\nHost: h\r\n\r\n", 421),
        (b"GET http:///hello HTTP/1.1\r\nHost: h\r\n\r\n", 421),
        (b"GET https://h/hello HTTP/1.1\r\nHost: h\r\n\r\n", 404),
        (b"GET http://h/hello#x HTTP/1.1\r\nHost: h\r\n\r\n", 200),
        (b"POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"DELETE /hello HTTP/1.1\r\nHost: h\r\n\r\n", 405),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 413),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\n" + b"X: x\r\n" * 2_800 + b"\r\n", 431),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"\x00" * 100 + b"\r\n\r\n", 400),
    ],
)
def test_what_cannot_be_answered_is_refused_by_the_right_status(request_bytes: bytes, status: int) -> None:
    """Each mistake has its status and a sentence; the server goes on for others."""

    async def test() -> None:
        async with serving() as server:
            found, headers, body = await asked(server, request_bytes)
            assert found == status
            assert body
            assert (headers.get("allow") == "GET, HEAD") == (status == 405)
            assert (await asked(server, GET))[0] == 200

    run(test())


def test_a_query_does_not_change_the_route() -> None:
    """Prometheus may add parameters."""

    async def test() -> None:
        async with serving() as server:
            assert (await asked(server, GET.replace(b"/hello", b"/hello?a=b")))[2] == b"hello"

    run(test())


def test_a_request_may_arrive_byte_by_byte() -> None:
    """Where the network cuts a request makes no difference."""

    async def test() -> None:
        async with serving() as server, connection(server) as (reader, writer):
            for byte in GET:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await answer(reader))[0] == 200

    run(test())


def test_many_requests_sent_at_once_are_all_answered_in_order() -> None:
    """Pipelined requests get their answers one after another, and the half-closed peer gets them all."""
    served: list[int] = []

    def route(_: Request) -> Response:
        served.append(len(served))
        return Response(200, "text/plain", str(served[-1]).encode())

    async def test() -> None:
        async with serving({"/hello": route}) as server, connection(server) as (reader, writer):
            writer.write(GET * 300)
            writer.write_eof()
            assert [(await answer(reader))[2] for _ in range(300)] == [str(n).encode() for n in range(300)]
            assert await ended(reader) == b""

    run(test())


def test_a_connection_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a number of requests the answer says close, and the connection ends."""
    monkeypatch.setattr(httpconnection, "MAX_REQUESTS", 2)

    async def test() -> None:
        async with serving() as server, connection(server) as (reader, writer):
            writer.write(GET * 3)
            assert "connection" not in (await answer(reader))[1]
            assert (await answer(reader))[1]["connection"] == "close"
            writer.write_eof()
            assert await ended(reader) == b""

    run(test())


@pytest.mark.parametrize(
    "request_bytes", [GET.replace(b"1.1", b"1.0"), GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
def test_a_peer_that_asks_for_close_gets_it(request_bytes: bytes) -> None:
    """HTTP/1.0 and Connection: close end after one answer."""

    async def test() -> None:
        async with serving() as server, connection(server) as (reader, writer):
            writer.write(request_bytes)
            assert (await answer(reader))[2] == b"hello"
            assert await ended(reader) == b""

    run(test())


def test_a_route_that_fails_costs_its_own_answer_only() -> None:
    """A defect is a 500 without inside knowledge, is reported to the loop, and the connection goes on."""
    reported: list[dict[str, Any]] = []

    def broken(_: Request) -> Response:
        raise KeyError("secret")

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
        routes: Routes = {"/hello": broken, "/ok": HELLO["/hello"]}
        async with serving(routes) as server, connection(server) as (reader, writer):
            writer.write(GET + GET.replace(b"/hello", b"/ok"))
            status, _, body = await answer(reader)
            assert status == 500
            assert b"secret" not in body
            assert (await answer(reader))[0] == 200
        assert [type(context["exception"]) for context in reported] == [KeyError]

    run(test())


def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    """One too many gets a 503; when another ends there is room again."""

    async def test() -> None:
        async with serving(max_connections=2) as server:
            async with connection(server) as (reader, writer), connection(server):
                await soon(lambda: server.stats.current == 2)
                status, headers, _ = await asked(server, GET)
                assert (status, headers["retry-after"]) == (503, "1")
                writer.write(GET)
                assert (await answer(reader))[0] == 200
            await soon(lambda: server.stats.current == 0)
            assert (await asked(server, GET))[0] == 200
            assert server.stats.refused == 1

    run(test())


def test_a_storm_of_connections_is_cut() -> None:
    """Far more connections than allowed neither stay nor take descriptors."""

    async def test() -> None:
        async with serving(max_connections=2) as server:
            opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
            await soon(lambda: server.stats.accepted == 50)
            await soon(lambda: server.stats.current <= 4)
            for _, writer in opened:
                writer.close()
            await soon(lambda: server.stats.current == 0)
            for _, writer in opened:
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            assert (await asked(server, GET))[0] == 200

    run(test())


def test_a_request_that_does_not_end_is_ended() -> None:
    """A peer that sends its header drop by drop gets a 408 after the time for the whole header, not for each drop."""

    async def test() -> None:
        async with serving(timeout_s=0.2) as server, connection(server) as (reader, writer):
            writer.write(b"GET /hello HTTP/1.1\r\n")
            dripping = asyncio.create_task(drip(writer))
            assert (await answer(reader))[0] == 408
            await dripping
            assert server.stats.timed_out == 1

    run(test())


async def drip(writer: asyncio.StreamWriter) -> None:
    """A header line every 10 ms until the connection is gone."""
    with contextlib.suppress(ConnectionError):
        while not writer.transport.is_closing():
            writer.write(b"X: y\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)


def test_an_idle_connection_is_ended_without_a_word() -> None:
    """A peer that asks nothing is let go."""

    async def test() -> None:
        async with serving(timeout_s=0.05) as server, connection(server) as (reader, writer):
            writer.write(GET)
            await answer(reader)
            assert await ended(reader) == b""

    run(test())


def test_a_peer_that_does_not_read_is_cut() -> None:
    """An answer that is not taken in time ends the connection; others are served meanwhile."""
    large: Routes = {"/hello": lambda _: Response(200, "text/plain", b"x" * 20_000_000), "/ok": HELLO["/hello"]}

    async def test() -> None:
        async with serving(large, timeout_s=0.3) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as sleeper:
                sleeper.sendall(GET)
                await soon(lambda: server.stats.requests == 1)
                assert (await asked(server, GET.replace(b"/hello", b"/ok")))[0] == 200
                await soon(lambda: server.stats.timed_out == 1)
                await soon(lambda: server.stats.current == 0)

    run(test())


def test_a_large_answer_arrives_whole() -> None:
    """An answer larger than any buffer is sent as the peer takes it, and the next request is answered."""
    large: Routes = {"/hello": lambda _: Response(200, "text/plain", b"x" * 5_000_000)}

    async def test() -> None:
        async with serving(large) as server, connection(server) as (reader, writer):
            writer.write(GET * 2)
            for _ in range(2):
                assert len((await answer(reader))[2]) == 5_000_000

    run(test())


def test_a_flood_of_requests_that_nobody_reads_is_bounded() -> None:
    """While an answer waits, nothing more is read from the peer."""
    large: Routes = {"/hello": lambda _: Response(200, "text/plain", b"x" * 1_000_000)}

    async def test() -> None:
        async with serving(large, timeout_s=0.3) as server:
            with socket.create_connection(("127.0.0.1", server.port)) as flooder:
                flooder.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
                flooder.setblocking(False)
                sent = 0
                while not server.stats.timed_out:
                    with contextlib.suppress(BlockingIOError):
                        sent += flooder.send(GET * 1000)
                    await asyncio.sleep(0)
                assert server.stats.requests < 100
                assert sent < MOST_IN_KERNEL_BYTES

    run(test())


def test_a_refusal_reaches_a_peer_that_still_sends() -> None:
    """A body that nobody reads does not reset the connection before the peer has seen why it was refused."""
    body = b"x" * 5_000_000

    def post(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return sock.recv(100)

    async def test() -> None:
        async with serving() as server:
            assert (await asyncio.to_thread(post, server.port)).startswith(b"HTTP/1.1 405 ")

    run(test())


def test_an_address_in_use_is_said_with_the_remedy() -> None:
    """The error names the address and what to do."""

    async def test() -> None:
        async with serving() as first:
            second = HttpServer(HttpConfig(port=first.port), HELLO)
            with pytest.raises(ServeError, match=rf"cannot listen on 127\.0\.0\.1:{first.port}: .*; .*\[http\] port"):
                await second.start()
            await second.close()

    run(test())


@pytest.mark.parametrize(("address", "port"), [("192.0.2.1", 0), ("not an address", 0), ("127.0.0.1", 70_000)])
def test_an_address_that_cannot_be_had_is_said(address: str, port: int) -> None:
    """A wrong address or port is one sentence with a remedy, not a traceback."""

    async def test() -> None:
        server = HttpServer(HttpConfig(address=address, port=port), HELLO)
        with pytest.raises(ServeError, match=r"cannot listen on .*; .*\[http\] address"):
            await server.start()

    run(test())


@pytest.mark.parametrize(("number", "remedy"), [(errno.EMFILE, r"LimitNOFILE="), (errno.ENOMEM, r"\[http\] address")])
def test_a_queue_that_cannot_be_made_longer_is_said(number: int, remedy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener is there already, and one descriptor more is not to be had: one sentence, and nothing listens."""

    def failing(fd: int) -> int:
        raise OSError(number, os.strerror(number))

    async def test() -> None:
        server = HttpServer(HttpConfig(port=0), HELLO)
        monkeypatch.setattr(os, "dup", failing)
        with pytest.raises(ServeError, match=rf"cannot listen on 127\.0\.0\.1:0: .*; .*{remedy}"):
            await server.start()
        await server.close()

    run(test())


def test_a_server_that_has_got_no_socket_says_so() -> None:
    """asyncio goes on without any when descriptors run out; the daemon must not, its operators would look in vain."""

    async def test() -> None:
        server = HttpServer(HttpConfig(port=0), HELLO)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
            with contextlib.suppress(OSError):
                while True:
                    taken.append(socket.socket())
            with pytest.raises(ServeError, match=r"cannot listen on 127\.0\.0\.1:0: .*LimitNOFILE="):
                await server.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for sock in taken:
                sock.close()
        await server.close()

    run(test())


HALF_OPEN = {
    "says nothing": b"",
    "one letter": b"G",
    "half a head": b"GET /hello HTTP/1.1\r\nHost: h\r\nX: ",
    "empty lines": b"\r\n",
    "answered and idle": GET,
    "answered and half a head": GET + b"GET /hel",
    "wants an upgrade": GET.replace(b"\r\n\r\n", b"\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n") + b"x",
    "refused, and sends on": b"POST /hello HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nxxx",
}


def test_half_open_connections_of_every_kind_make_room_again() -> None:
    """Slow or dead peers take all the places there are; each is let go after its time, and then others get in."""

    async def test() -> None:
        async with serving(timeout_s=0.2, max_connections=len(HALF_OPEN)) as server:
            stalled = []
            for sent in HALF_OPEN.values():
                stalled.append(await asyncio.open_connection("127.0.0.1", server.port))
                stalled[-1][1].write(sent)
            await soon(lambda: server.stats.accepted == len(HALF_OPEN))
            dripping = [asyncio.create_task(drip(writer)) for _, writer in stalled[::2]]
            await soon(lambda: server.stats.current == 0)
            assert (await asked(server, GET))[0] == 200
            for task in dripping:
                task.cancel()
            await asyncio.wait(dripping)
            for _, writer in stalled:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    run(test())


def test_closing_cuts_what_is_open() -> None:
    """A stop does not wait for idle or slow peers."""

    async def test() -> None:
        async with serving() as server, connection(server) as (reader, _), connection(server) as (_, writer):
            writer.write(b"GET /hel")
            await soon(lambda: server.stats.current == 2)
            await server.close()
            assert await ended(reader) == b""

    run(test())


def test_a_kept_connection_that_is_idle_makes_room_for_one_more() -> None:
    """Proxies keep what they may never use again: the one used longest ago goes, one with half a request does not."""

    async def test() -> None:
        async with serving(max_connections=3) as server, contextlib.AsyncExitStack() as stack:
            kept = [await stack.enter_async_context(connection(server)) for _ in range(3)]
            for reader, writer in kept[:2]:
                writer.write(GET)
                assert (await answer(reader))[0] == 200
            kept[2][1].write(GET[:10])
            kept[0][1].write(GET)
            assert (await answer(kept[0][0]))[0] == 200
            assert (await asked(server, GET))[0] == 200
            assert await ended(kept[1][0]) == b""
            kept[2][1].write(GET[10:])
            assert (await answer(kept[2][0]))[0] == 200
            kept[0][1].write(GET)
            assert (await answer(kept[0][0]))[0] == 200

    run(test())


def test_an_open_route_takes_any_method_and_throws_a_body_away() -> None:
    """What is below its path comes to it as well; after a body that was not read the connection ends politely."""
    asked_for: list[Request] = []

    def note(request: Request) -> Response:
        asked_for.append(request)
        return Response(204, "text/plain", b"")

    async def test() -> None:
        server = HttpServer(HttpConfig(port=0, hosts=frozenset({"h"})), HELLO, {"/open": note})
        await server.start()
        try:
            long = b"x" * 5000
            async with connection(server) as (reader, writer):
                for head in (b"DELETE /open?a=1", b"FOO /open/" + long + b"?b=%20", b"OPTIONS /open"):
                    writer.write(head + b" HTTP/1.1\r\nHost: h\r\n\r\n")
                    said = await reader.readuntil(b"\r\n\r\n")
                    assert said.startswith(b"HTTP/1.1 204 No Content\r\n")
                    assert b"content-length" not in said.lower()
                writer.write(b"POST /open HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
                assert b"Connection: close" in await reader.readuntil(b"\r\n\r\n")
                assert await ended(reader) == b""
            assert (await asked(server, b"POST /opened HTTP/1.1\r\nHost: h\r\n\r\n"))[0] == 405
            assert (await asked(server, b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n"))[0] == 405
        finally:
            await server.close()

    run(test())
    assert asked_for[0] == Request("DELETE", "/open", "a=1")
    assert (asked_for[1].method, asked_for[1].query) == ("FOO", "b=%20")
    assert [request.method for request in asked_for] == ["DELETE", "FOO", "OPTIONS", "POST"]
