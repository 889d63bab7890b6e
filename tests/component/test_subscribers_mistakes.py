"""Bad input to the subscriber server: mistakes are answered, floods bounded, and neither costs anybody else."""

import asyncio
import itertools
import json
import socket
from typing import Any

import pytest

from edgeguardd.serve import connection
from tests.support.subscribers import (
    HELLO,
    OBSERVER,
    Peer,
    Scripted,
    peer,
    run,
    serving,
)
from tests.support.wait import soon

# Bad input


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b'{"type":"ack","seq":1\n', "bad_json"),
        (b"\x00\x01\x02\xff\xfe\n", "bad_json"),
        (b'{"type":"ping","x":' + b"[" * 60_000 + b"\n", "bad_json"),
        (b'{"type":"ack","seq":"one","status":"done"}\n', "bad_message"),
        (b'{"type":"report","running":-5}\n', "bad_message"),
        (b'{"type":"reboot"}\n', "unknown_type"),
        (b'{"type":"hello","name":"again","target":"llm"}\n', "hello_twice"),
    ],
)
def test_a_mistake_is_answered_and_costs_no_more(sent: bytes, code: str) -> None:
    """A bad line gets an error line with its code; the connection and its subscription go on."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO, sent) as client:
            assert (await client.until("error"))["code"] == code
            await client.send({"type": "ping", "id": "still here"})
            assert (await client.until("pong"))["id"] == "still here"
            assert len(scripted.events) == 1

    run(test())


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"x" * 70_000 + b"\n", "line_too_long"),
        (b'{"type":"hello","name":"a","v":2}\n', "unsupported_version"),
    ],
)
def test_a_mistake_that_cannot_be_mended_ends_the_connection(sent: bytes, code: str) -> None:
    """The error line is the last one, and the other subscribers notice nothing."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as other, peer(scripted) as client:
            await other.until("welcome")
            client.writer.write(sent)
            assert (await client.rest())[-1]["code"] == code
            await other.send({"type": "ping"})
            await other.until("pong")

    run(test())


def test_a_line_without_end_is_cut_off_and_explained() -> None:
    """Ten megabytes without a newline are refused after 64 KiB; the sender can still read why."""

    def shout(path: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            with pytest.raises(BrokenPipeError):
                sock.sendall(b"x" * 10_000_000)
            return sock.recv(4096)

    async def test() -> None:
        async with serving() as scripted:
            heard = await asyncio.to_thread(shout, scripted.server.config.path)
            assert json.loads(heard)["code"] == "line_too_long"
            assert scripted.server.stats.bytes_in < 200_000

    run(test())


@pytest.mark.parametrize("message", [{"type": "ack", "seq": 1, "status": "done"}, {"type": "report", "running": 1}])
def test_nothing_counts_before_hello(message: dict[str, Any]) -> None:
    """What needs a welcome is refused before it; hello may follow."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, message, HELLO) as client:
            assert (await client.line())["code"] == "hello_first"
            await client.until("welcome")
            assert len(scripted.events) == 1

    run(test())


def test_an_observer_may_only_look() -> None:
    """An observer's ack, report and question reach nobody."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, OBSERVER) as client:
            await client.until("welcome")
            await client.send(
                {"type": "ack", "seq": 1, "status": "done"},
                {"type": "report", "running": 1},
                {"type": "admit", "id": "a"},
            )
            assert [(await client.line())["code"] for _ in range(3)] == ["wrong_role"] * 3
            assert len(scripted.events) == 1

    run(test())


def test_a_peer_that_makes_only_mistakes_is_put_out() -> None:
    """After a number of errors the connection ends, with a word why."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as client:
            await client.until("welcome")
            await client.send(b"nonsense\n" * 100)
            codes = [line["code"] for line in await client.rest()]
            assert codes == ["bad_json"] * connection.ERRORS_BURST + ["too_many_errors"]
            assert [event.reason for event in await scripted.left()] == ["too_many_errors"]

    run(test())


def test_a_flood_does_not_delay_others() -> None:
    """While one peer sends as fast as it can, another one's ping is answered; the flood is slowed, not obeyed."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as flooder, peer(scripted, HELLO) as other:
            await scripted.joined(2)
            await other.until("welcome")
            flood = asyncio.create_task(flooder.send(b'{"type":"pong"}\n' * 100_000))
            await soon(lambda: scripted.server.stats.throttled > 0)
            for number in range(20):
                await other.send({"type": "ping", "id": str(number)})
                assert (await other.until("pong"))["id"] == str(number)
            assert scripted.server.stats.lines_in < 20_000
            flood.cancel()
            await asyncio.wait([flood])
            flooder.writer.transport.abort()

    run(test())


def test_a_flood_of_empty_lines_is_bounded_too() -> None:
    """Empty lines are free of errors, but not of the limit."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO, b"\n" * 60_000) as client:
            await soon(lambda: scripted.server.stats.throttled > 0)
            assert scripted.server.stats.lines_in < 10_000
            await client.until("welcome")

    run(test())


def test_a_thousand_connections_that_come_and_go_leave_nothing() -> None:
    """A storm of connects and closes, half of them with a hello, ends with no connection and no descriptor."""

    async def test() -> None:
        async with serving() as scripted:
            for _ in range(10):
                await asyncio.gather(*(come_and_go(scripted, number) for number in range(100)))
            await soon(lambda: scripted.server.stats.accepted == 1000)
            await soon(lambda: scripted.server.stats.current == scripted.server.stats.waiting == 0)

    run(test())


async def come_and_go(scripted: Scripted, number: int) -> None:
    reader, writer = await asyncio.open_unix_connection(scripted.server.config.path)
    if number % 2:
        writer.write(b'{"type":"hello","name":"storm","role":"observer"}\n')
    if number % 3 == 0:
        writer.transport.abort()
    await Peer(reader, writer).close()


def test_lines_that_come_at_once_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand lines in one read do not hold the loop: others get their turn in between."""
    monkeypatch.setattr(connection, "LINES_BURST", 1_000_000)

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as client:
            await client.until("welcome")
            stats = scripted.server.stats
            before = stats.lines_in
            client.writer.write(b"\n" * 10_000)
            seen = [before]
            while seen[-1] < before + 10_000:
                await asyncio.sleep(0)
                seen.append(stats.lines_in)
            assert max(later - sooner for sooner, later in itertools.pairwise(seen)) <= 2 * connection.LINES_PER_TURN

    run(test())
