"""The gate before llama-server, over real sockets with a small server behind it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

from tests.llama import httpclient
from tests.llama.gate import MAX_BODY_BYTES, Gate
from tests.support.wait import soon


class Upstream:
    """Answers each request once `go` is set; remembers what it got and how many hung up."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.requests: list[bytes] = []
        self.left = 0
        self.go = asyncio.Event()
        self.go.set()
        self.reply = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"ok": "yes"}'

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request."""
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        going = asyncio.create_task(self.go.wait())
        gone = asyncio.create_task(reader.read())
        await asyncio.wait({going, gone}, return_when=asyncio.FIRST_COMPLETED)
        if going.done():
            writer.write(self.reply)
        else:
            self.left += 1
        for task in (going, gone):
            task.cancel()
        writer.close()


@contextlib.asynccontextmanager
async def standing(directory: Path, places: int = 2) -> AsyncIterator[tuple[Gate, Upstream, str]]:
    """A gate, what is behind it, and the socket before it."""
    upstream = Upstream(str(directory / "up"))
    gate, front = Gate(upstream.path, places, 7), str(directory / "front")
    behind = await asyncio.start_unix_server(upstream.connection, upstream.path)
    before = await asyncio.start_unix_server(gate.connection, front)
    async with behind, before:
        yield gate, upstream, front


def played(scene: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run a scene to its end."""
    asyncio.run(scene())


def asked(front: str) -> "asyncio.Task[httpclient.Answer]":
    """A caller that has asked and waits."""
    return asyncio.create_task(httpclient.ask(front, "POST", "/completion", {"prompt": "once"}))


def test_an_open_gate_passes_request_and_answer_on(tmp_path: Path) -> None:
    """The server gets the caller's line and fields, the caller the server's answer."""

    async def scene() -> None:
        async with standing(tmp_path) as (_, upstream, front):
            answer = await asked(front)
            assert (answer.status, answer.body) == (200, {"ok": "yes"})
            assert upstream.requests[0].startswith(b"POST /completion HTTP/1.1\r\n")
            assert upstream.requests[0].lower().count(b"connection: close") == 1

    played(scene)


def test_a_shut_gate_refuses_at_once_and_says_when_to_come_again(tmp_path: Path) -> None:
    """503, a whole number of seconds, and an error that OpenAI clients read; the server hears nothing of it."""

    async def scene() -> None:
        async with standing(tmp_path) as (gate, upstream, front):
            await gate.shut("restart", "the server is giving memory back")
            began = time.monotonic()
            answer = await asked(front)
            assert time.monotonic() - began < 1.0
            assert (answer.status, answer.fields["retry-after"]) == (503, "7")
            assert answer.body["error"]["code"] == "memory_pressure"
            assert not upstream.requests

    played(scene)


def test_who_is_inside_when_the_gate_is_shut_gets_its_answer_and_drain_waits_for_it(tmp_path: Path) -> None:
    """Shutting loses nobody; a drain that takes too long says so."""

    async def scene() -> None:
        async with standing(tmp_path) as (gate, upstream, front):
            upstream.go.clear()
            caller = asked(front)
            await soon(lambda: gate.inside == 1)
            await gate.shut("restart", "…")
            assert not await gate.drain(0.01)
            upstream.go.set()
            assert await gate.drain(5.0)
            assert (await caller).status == 200

    played(scene)


def test_several_reasons_keep_it_shut_until_the_last_is_gone(tmp_path: Path) -> None:
    """A restart that is over does not let callers in whom edgeguardd wants refused."""

    async def scene() -> None:
        async with standing(tmp_path) as (gate, _, front):
            await gate.shut("restart", "…")
            await gate.shut("reject", "memory is short")
            await gate.open("restart")
            assert (await asked(front)).body["error"]["message"] == "memory is short"
            await gate.open("reject")
            assert (await asked(front)).status == 200

    played(scene)


def test_who_finds_all_places_taken_is_refused_within_a_second(tmp_path: Path) -> None:
    """The server's own queue has no end; the gate's is half a second long."""

    async def scene() -> None:
        async with standing(tmp_path, places=1) as (gate, upstream, front):
            upstream.go.clear()
            first = asked(front)
            await soon(lambda: gate.inside == 1)
            began = time.monotonic()
            second = await asked(front)
            assert time.monotonic() - began < 1.0
            assert (second.status, second.body["error"]["code"]) == (503, "busy")
            upstream.go.set()
            assert (await first).status == 200

    played(scene)


def test_who_waits_gets_the_place_that_is_added_or_freed(tmp_path: Path) -> None:
    """A higher limit counts at once, a lower one for those who come after."""

    async def scene() -> None:
        async with standing(tmp_path, places=1) as (gate, upstream, front):
            upstream.go.clear()
            callers = [asked(front), asked(front)]
            await soon(lambda: gate.inside == 1)
            await gate.limit(2)
            await soon(lambda: gate.inside == 2)
            await gate.limit(1)
            upstream.go.set()
            assert [(await caller).status for caller in callers] == [200, 200]

    played(scene)


def test_a_caller_that_hangs_up_frees_its_place_and_the_server_hears_of_it(tmp_path: Path) -> None:
    """Nobody computes for a caller that has given up."""

    async def scene() -> None:
        async with standing(tmp_path, places=1) as (gate, upstream, front):
            upstream.go.clear()
            caller = asked(front)
            await soon(lambda: gate.inside == 1)
            caller.cancel()
            await soon(lambda: gate.inside == 0 and upstream.left == 1)

    played(scene)


def test_a_server_that_is_away_or_dies_is_an_error_and_not_silence(tmp_path: Path) -> None:
    """502 for no server and for no answer."""

    async def scene() -> None:
        async with standing(tmp_path) as (_, upstream, front):
            upstream.reply = b""
            assert (await asked(front)).body["error"]["code"] == "no_answer"
        gate, front = Gate(str(tmp_path / "nobody"), 1, 1), str(tmp_path / "front2")
        async with await asyncio.start_unix_server(gate.connection, front):
            assert (await asked(front)).body["error"]["code"] == "no_server"
            assert gate.inside == 0

    played(scene)


def test_what_is_no_request_is_told_so(tmp_path: Path) -> None:
    """Bodies without a length, or with a silly one, are refused and take no place."""
    heads = (
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
        b"POST /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    )

    async def scene() -> None:
        async with standing(tmp_path) as (gate, upstream, front):
            for head in heads:
                reader, writer = await asyncio.open_unix_connection(front)
                writer.write(head)
                assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
                writer.close()
            assert gate.inside == 0
            assert not upstream.requests

    played(scene)
