"""The gate before a server, over real sockets with a small server behind it."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from edgeguardd.bridges import pace
from edgeguardd.bridges.calls import Http, Reply
from edgeguardd.bridges.endpoint import Endpoint, endpoint
from edgeguardd.bridges.gate import Gate
from edgeguardd.bridges.places import Places
from edgeguardd.bridges.upstream import MAX_HEAD_BYTES
from tests.support import standin
from tests.support.standin import Call, StandIn
from tests.support.wait import soon


class Upstream(StandIn):
    """Answers each request once `go` is set; keeps the last one. Paths below /stream come in pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.last: Call | None = None
        self.next = asyncio.Event()

    async def answer(self, call: Call) -> standin.Reply:
        self.last = call
        if call.path == "/stream":
            return standin.Reply("", pieces=self.pieces())
        if call.path == "/die":
            self.kill()
        await self.go.wait()
        return standin.Reply({"ok": "yes", "bytes": len(call.body)}, headers={"X-Own": "1", "Keep-Alive": "timeout=5"})

    def forget(self) -> None:
        """So that what comes next is told from what came before."""
        self.last = None

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in (b"data: one\n\n", b"data: two\n\n"):
            yield piece
            await self.next.wait()


@contextlib.asynccontextmanager
async def standing(places: int | None = 2, patience_s: float = 10.0) -> AsyncIterator[tuple[Gate, Upstream, Http]]:
    """A gate, what is behind it, and a client of it."""
    async with Upstream() as upstream:
        gate = Gate(endpoint(upstream.url), Places(places, patience_s), {"/health"}, 7)
        async with listening(gate) as front:
            yield gate, upstream, Http(front)


@contextlib.asynccontextmanager
async def listening(gate: Gate) -> AsyncIterator[Endpoint]:
    """The gate on a free port."""
    server = await asyncio.start_server(gate.connection, "127.0.0.1", 0)
    try:
        yield endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()
        await gate.close()


def played(scene: Coroutine[None, None, None]) -> None:
    """Run a scene to its end."""
    asyncio.run(scene)


def asked(front: Http) -> "asyncio.Task[Reply]":
    """A client that has asked and waits."""
    return asyncio.create_task(front.ask("POST", "/completion", {"prompt": "once"}))


def code(reply: Reply) -> Any:
    """Of an error in OpenAI's form."""
    return reply.field("error", "code")


def test_an_open_gate_passes_request_and_answer_on() -> None:
    """The server gets the client's request, the client the server's answer; what is about one connection stays."""

    async def scene() -> None:
        async with standing() as (gate, upstream, front):
            reply = await asked(front)
            assert (reply.status, reply.json()) == (200, {"ok": "yes", "bytes": 17})
            assert upstream.calls == ["POST /completion"]
            assert upstream.last is not None
            assert upstream.last.json() == {"prompt": "once"}
            assert upstream.last.headers["connection"] == "close"
            await soon(lambda: gate.places.inside == 0)

    played(scene())


def test_a_shut_gate_refuses_at_once_and_says_when_to_come_again() -> None:
    """503, a whole number of seconds, and an error that OpenAI clients read; the server hears nothing of it."""

    async def scene() -> None:
        async with standing() as (gate, upstream, front):
            gate.places.shut("release", "the server is giving memory back")
            began = time.monotonic()
            raw = await said(front.at, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
            assert time.monotonic() - began < 5.0  # half of the patience that it would have waited
            head, _, body = raw.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 7" in head.lower()
            error = {"type": "overloaded_error", "param": None, "code": "memory_pressure"}
            assert json.loads(body)["error"] == error | {"message": "the server is giving memory back"}
            assert upstream.calls == []

    played(scene())


def test_the_operators_calls_are_no_clients_however_they_are_spelt() -> None:
    """A server that offers them offers them to everybody; behind the gate it does not."""
    spellings = ("/sleep", "/sleep?level=2", "/%73leep", "/sleep/", "http://elsewhere/sleep")

    async def scene() -> None:
        async with Upstream() as upstream:
            gate = Gate(endpoint(upstream.url), Places(None, 1.0), {"/health"}, 7, {"/sleep"})
            async with listening(gate) as front:
                for target in spellings:
                    raw = f"POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
                    assert (await said(front, raw.encode())).startswith(b"HTTP/1.1 403 "), target
                assert (await Http(front).ask("POST", "/sleepers", {})).status == 200
            assert upstream.calls == ["POST /sleepers"]

    played(scene())


def test_the_operators_calls_are_none_below_a_prefix_either() -> None:
    """However the client gets around the prefix; what is below it and not the operator's passes."""

    async def scene() -> None:
        async with Upstream() as upstream:
            gate = Gate(endpoint(f"{upstream.url}/v"), Places(2, 1.0), {"/health"}, 7, {"/sleep"})
            async with listening(gate) as front:
                for target in ("/sleep", "/../v/sleep", "/x/../sleep", "//sleep", "/./sleep", "http://[::1/sleep"):
                    raw = f"POST {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                    assert (await said(front, raw.encode())).startswith(b"HTTP/1.1 403 "), target
                assert upstream.calls == []
                # A target for a proxy is below the prefix as any other.
                await said(front, b"GET http://b:1/v/sleep HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                assert upstream.calls == ["GET /v/v/sleep"]
                assert upstream.last is not None
                assert upstream.last.headers["host"] == "b:1"

    played(scene())


@pytest.mark.parametrize("target", ["CONNECT inside:22", "GET inside", "GET ftp://a/", "PRI *"])
def test_the_gate_is_no_proxy_for_other_servers(target: str) -> None:
    """400; the server hears nothing of it, and no place is taken."""

    async def scene() -> None:
        async with standing() as (_, upstream, front):
            assert (await said(front.at, f"{target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())).startswith(b"HTTP/1.1 400 ")
            assert upstream.calls == []

    played(scene())


def test_a_message_goes_on_with_one_length_and_one_host() -> None:
    """With both lengths a server may find a second request in a body; a client cannot disown its length or host."""

    async def scene() -> None:
        async with standing() as (_, upstream, front):
            chunks = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            for fields in (
                b"Host: a\r\nContent-Length: 5\r\nConnection: close\r\n" + chunks,
                b"Host: a\r\nConnection: close, transfer-encoding\r\n" + chunks,
                b"Host: a\r\nConnection: close, content-length, host\r\nContent-Length: 3\r\n\r\nabc",
            ):
                upstream.forget()
                answer = await said(front.at, b"POST /completion HTTP/1.1\r\n" + fields)
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert upstream.last is not None
                assert (upstream.last.body, upstream.last.headers["host"]) == (b"abc", "a")
                assert len({"content-length", "transfer-encoding"} & set(upstream.last.headers)) == 1

    played(scene())


def test_a_client_of_http_1_0_needs_no_host() -> None:
    """HAProxy's health checks have none unless told; the server hears its own name."""

    async def scene() -> None:
        async with standing() as (_, upstream, front):
            assert (await said(front.at, b"GET /health HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert upstream.last is not None
            assert upstream.last.headers["host"] == f"127.0.0.1:{upstream.port}"

    played(scene())


def test_looking_at_health_needs_no_place_and_passes_a_shut_gate() -> None:
    """A load balancer that asks would else take the server out for the wrong reason."""

    async def scene() -> None:
        async with standing(places=1) as (gate, upstream, front):
            gate.places.shut("reject", "memory is short")
            assert (await front.get("/health")).json()["ok"] == "yes"
            assert (await front.ask("GET", "/health?model=x")).status == 503
            assert (await front.ask("POST", "/health", {})).status == 503
            assert upstream.calls == ["GET /health"]

    played(scene())


def test_who_is_inside_when_the_gate_is_shut_gets_its_answer_and_drain_waits_for_it() -> None:
    """Shutting loses nobody; a drain that takes too long says so."""

    async def scene() -> None:
        async with standing() as (gate, upstream, front):
            upstream.go.clear()
            client = asked(front)
            await soon(lambda: gate.places.inside == 1)
            gate.places.shut("release", "…")
            assert not await gate.places.drain(0.01)
            upstream.go.set()
            assert await gate.places.drain(5.0)
            assert (await client).status == 200

    played(scene())


def test_an_answer_comes_through_piece_by_piece() -> None:
    """A stream of tokens is not held until it is whole."""

    async def scene() -> None:
        async with standing() as (_, upstream, front):
            reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
            writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"chunked" in await reader.readuntil(b"\r\n\r\n")
            assert b"data: one" in await reader.readuntil(b"one\n\n\r\n")
            assert not upstream.next.is_set()
            upstream.next.set()
            assert b"data: two" in await reader.readuntil(b"0\r\n\r\n")
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")  # the connection goes on
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    played(scene())


def test_a_body_in_chunks_reaches_the_server_whole_and_who_waits_for_a_word_gets_it() -> None:
    """Transfer-Encoding and Expect, as curl sends them for a long prompt."""

    async def scene() -> None:
        async with standing() as (_, upstream, front):
            reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
            head = b"POST /completion HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
            writer.write(head)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(b"3\r\nabc\r\n")
            writer.write(b"3\r\ndef\r\n0\r\n\r\n")
            assert b"200" in await reader.readline()
            assert upstream.last is not None
            assert upstream.last.body == b"abcdef"
            assert "expect" not in upstream.last.headers
            writer.close()

    played(scene())


def test_who_finds_all_places_taken_waits_as_long_as_it_may() -> None:
    """The server's own queue has no end; the gate's has."""

    async def scene() -> None:
        async with standing(places=1, patience_s=0.05) as (gate, upstream, front):
            upstream.go.clear()
            first = asked(front)
            await soon(lambda: gate.places.inside == 1)
            second = await asked(front)
            assert (second.status, code(second)) == (503, "busy")
            upstream.go.set()
            assert (await first).status == 200

    played(scene())


def test_a_client_that_hangs_up_frees_its_place_and_the_server_hears_of_it() -> None:
    """Nobody computes for a client that has given up."""

    async def scene() -> None:
        async with standing(places=1) as (gate, upstream, front):
            upstream.go.clear()
            client = asked(front)
            await soon(lambda: gate.places.inside == 1)
            client.cancel()
            await soon(lambda: gate.places.inside == 0 and upstream.left == 1)

    played(scene())


def test_a_server_that_is_away_or_dies_is_an_error_and_not_silence() -> None:
    """503 to come again where nobody took the request, 502 where it may have been worked on."""

    async def scene() -> None:
        async with standing() as (gate, upstream, front):
            died = await front.ask("POST", "/die", {})
            assert (died.status, code(died)) == (502, "no_answer")
            away = await asked(front)
            assert (away.status, code(away)) == (503, "no_server")
            assert gate.places.inside == 0
            await upstream.up()
            assert (await asked(front)).status == 200

    played(scene())


def test_an_answer_that_breaks_off_breaks_off_for_the_client_too() -> None:
    """Half an answer must not look like a whole one."""

    async def scene() -> None:
        async with standing() as (gate, upstream, front):
            reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
            writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"one\n\n\r\n")
            await upstream.down()
            assert not (await reader.read()).endswith(b"0\r\n\r\n")
            await soon(lambda: gate.places.inside == 0 and gate.connections == 0)
            writer.close()

    played(scene())


def test_a_body_that_breaks_off_or_breaks_the_rules_costs_its_own_connection(
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The place is free again, and the next client is served."""
    bodies = (
        b"Transfer-Encoding: chunked\r\n\r\nNO LENGTH\r\n",
        b"Content-Length: 10\r\n\r\nabc",
    )

    async def scene() -> None:
        async with standing(places=1) as (gate, _, front):
            for body in bodies:
                reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
                writer.write(b"POST / HTTP/1.1\r\nHost: a\r\n" + body)
                writer.write_eof()
                assert await reader.read() == b""
                writer.close()
                await soon(lambda: gate.places.inside == 0)
            assert (await asked(front)).status == 200

    played(scene())
    assert not recwarn.list


async def drip(writer: asyncio.StreamWriter) -> None:
    """A byte of a body at a time, for as long as somebody takes it."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("framing", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"])
def test_a_body_that_comes_a_byte_at_a_time_loses_its_place(monkeypatch: pytest.MonkeyPatch, framing: bytes) -> None:
    """It never stands still for long, and is ended all the same: told so with 408, and the next client is served."""
    monkeypatch.setattr(pace, "BODY_S", 0.2)

    async def scene() -> None:
        async with standing(places=1) as (gate, _, front):
            reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
            chunk = b"fffff\r\n" if b"chunked" in framing else b""
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\n" + framing + b"\r\n\r\n" + chunk)
            await soon(lambda: gate.places.inside == 1)
            dripping = asyncio.create_task(drip(writer))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 408 ")
            await soon(lambda: gate.places.inside == 0)
            assert (await asked(front)).status == 200
            dripping.cancel()
            writer.close()

    played(scene())


def test_half_a_head_does_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first byte on a request's head has its time, however steadily it trickles."""
    monkeypatch.setattr(pace, "HEAD_S", 0.2)

    async def scene() -> None:
        async with standing() as (gate, _, front):
            reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
            writer.write(b"POST / HTTP/1.1\r\nX-")
            dripping = asyncio.create_task(drip(writer))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await soon(lambda: gate.connections == 0)
            dripping.cancel()
            writer.close()

    played(scene())


def test_of_too_many_silent_connections_the_longest_silent_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd that says nothing keeps nobody out: whoever comes with a request is served."""
    monkeypatch.setattr("edgeguardd.bridges.gate.MAX_CONNECTIONS", 4)

    async def scene() -> None:
        async with standing() as (gate, _, front):
            silent = [await asyncio.open_connection(front.at.host, front.at.port) for _ in range(10)]
            for _ in range(3):
                assert (await asked(front)).status == 200
            assert await silent[0][0].read() == b""
            await soon(lambda: gate.connections <= 4)
            for _, writer in silent:
                writer.close()

    played(scene())


def test_a_large_body_may_take_its_time() -> None:
    """The time for the whole grows with what has come; that for the next piece does not, and there is a last moment."""
    body = pace.BodyPace(now=100.0)
    assert body.until(100.0) == 130.0
    body.took(40 * pace.SLOWEST_BYTES_PER_S)
    assert body.until(120.0) == 150.0
    assert body.until(165.0) == 170.0
    body.took(1 << 30)
    assert body.until(690.0) == 700.0


def test_many_clients_at_once_are_each_answered_or_refused() -> None:
    """Nothing is mixed up between them, and nobody is left inside."""

    async def scene() -> None:
        async with standing(places=4, patience_s=0.02) as (gate, upstream, front):
            upstream.go.clear()
            clients = [asked(front) for _ in range(60)]
            await soon(lambda: gate.places.refused == 56)
            upstream.go.set()
            statuses = sorted([(await client).status for client in clients])
            assert statuses == [200] * 4 + [503] * 56
            await soon(lambda: gate.places.inside == 0 and gate.connections == 0)

    played(scene())


def test_what_is_no_request_is_told_so_and_takes_no_place() -> None:
    """Bad syntax, a head without end, two lengths: 400, whatever the parser calls it."""
    heads = (
        b"NONSENSE\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /" + b"x" * (MAX_HEAD_BYTES + 70_000),
    )

    async def scene() -> None:
        async with standing() as (gate, upstream, front):
            for head in heads:
                assert (await said(front.at, head)).startswith(b"HTTP/1.1 400 "), head[:40]
            assert gate.places.inside == 0
            assert upstream.calls == []

    played(scene())


def test_whatever_bytes_come_from_either_side_cost_their_own_connection_only() -> None:
    """Requests and answers with bytes changed, cut, doubled: no exception, nobody left inside, the next is served."""
    chosen = random.Random(7)  # noqa: S311 - the same each time
    request = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: x\r\n\r\n2\r\n{}\r\n0\r\n\r\n"

    def mangled(raw: bytes) -> bytes:
        out = bytearray(raw)
        for _ in range(chosen.randint(0, 4)):
            at = chosen.randrange(len(out))
            match chosen.randrange(3):
                case 0:
                    out[at] = chosen.randrange(256)
                case 1:
                    del out[at : at + chosen.randint(1, 9)]
                case _:
                    out[at:at] = out[at : at + chosen.randint(1, 30)]
            out = out or bytearray(b"\0")
        return bytes(out)

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(65536)
            writer.write(mangled(answer))
            await writer.drain()
        writer.close()

    async def scene() -> None:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        behind = await asyncio.start_server(upstream, "127.0.0.1", 0)
        gate = Gate(
            endpoint(f"http://127.0.0.1:{behind.sockets[0].getsockname()[1]}"), Places(4, 5.0), {"/x"}, 2, {"/sleep"}
        )
        async with behind, listening(gate) as front:
            for number in range(600):
                reader, writer = await asyncio.open_connection(front.host, front.port)
                with contextlib.suppress(ConnectionError):
                    if number % 2:
                        writer.write(request)  # what comes back is mangled
                    else:
                        writer.write(mangled(request))
                        writer.write_eof()
                    await asyncio.wait_for(reader.read(), 10)
                writer.close()
            await soon(lambda: gate.places.inside == 0 and gate.connections == 0)
        assert faults == []

    played(scene())


def test_refusing_a_request_whose_body_is_still_to_come_ends_the_connection() -> None:
    """The refusal is whole; a second request on the same connection would begin in the middle of the body."""

    async def scene() -> None:
        async with standing() as (gate, _, front):
            gate.places.shut("reject", "memory is short")
            reader, writer = await asyncio.open_connection(front.at.host, front.at.port)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc")
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"connection: close" in head.lower()
            # The rest is taken, however much has been sent by now: a reset would have cost the answer.
            writer.write(b"x" * 900_000)
            await writer.drain()
            assert b"memory_pressure" in await reader.read()
            writer.close()
            await soon(lambda: gate.connections == 0)
            whole = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
            twice = await said(front.at, whole + whole, until=2)
            assert twice.count(b"HTTP/1.1 503 ") == 2

    played(scene())


async def said(at: Endpoint, raw: bytes, until: int = 1) -> bytes:
    """What the gate says to these bytes: `until` answers, or all there is."""
    reader, writer = await asyncio.open_connection(at.host, at.port)
    writer.write(raw)
    answer = b""
    try:
        async with asyncio.timeout(10):
            while answer.count(b'"code":') < until:
                piece = await reader.read(65536)
                if not piece:
                    break
                answer += piece
    finally:
        writer.close()
    return answer
