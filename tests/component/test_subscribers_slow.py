"""Peers that are slow, silent, half-closed or killed: they are found, and delay nobody."""

import resource
import select
import signal
import subprocess
import sys

import pytest

from edgeguardd.core.events import ReportReceived, SubscriberLeft
from edgeguardd.core.model import Action, Level, Report
from edgeguardd.serve import connection
from tests.support.subscribers import (
    HELLO,
    OBSERVER,
    Peer,
    peer,
    run,
    serving,
)
from tests.support.wait import soon

# Slow, silent and half-closed peers


def test_a_subscriber_that_does_not_read_is_put_out_and_delays_nobody() -> None:
    """10,000 level changes: the one that reads gets all its commands, the other's memory stays bounded."""

    async def test() -> None:
        async with serving(stall_s=0.5) as scripted, peer(scripted, HELLO | {"name": "reader"}) as reads:
            await scripted.joined()
            async with peer(scripted, HELLO | {"name": "never reads"}) as sleeper:
                await scripted.joined(2)
                sleeper.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await reads.until("welcome")
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                sent = []
                for number in range(10_000):
                    level = Level(number % 4 + 1)
                    scripted.announce(level, reason="x" * 500)
                    if number % 100 == 0:
                        sent.append(scripted.command(Action.TRIM_KV_CACHE, subscriber=1, release_bytes=number))
                        scripted.command(Action.TRIM_KV_CACHE, subscriber=2, release_bytes=number)
                        assert await commands_up_to(reads, sent[-1]) == [sent[-1]]
                grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
                assert grown_kib < 8 * 1024
                left = await scripted.left()
                assert [(event.subscriber, event.reason) for event in left] == [(2, "does not read")]
                await reads.send({"type": "ping"})
                await reads.until("pong")

    run(test())


async def commands_up_to(client: Peer, last: int) -> list[int]:
    """The numbers of the commands up to one of them."""
    found: list[int] = []
    while not found or found[-1] < last:
        found.append((await client.until("command"))["seq"])
    return found


def test_a_subscriber_that_reads_late_gets_the_newest_of_each_command() -> None:
    """What waits is the latest command of each kind and the latest level, and no command of another kind is lost."""

    async def test() -> None:
        async with serving(stall_s=30) as scripted, peer(scripted, HELLO) as client:
            await scripted.joined()
            await client.until("welcome")
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stats = scripted.server.stats
            while not stats.stalled:
                scripted.announce(Level.HIGH, reason="x" * 1000)
            assert scripted.server._subscribers[1].transport.get_write_buffer_size() < 1200  # the rest of one line
            for number in range(50):
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=number)
            reject = scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
            scripted.command(Action.RESTORE, accept_requests=True)
            again = scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
            scripted.announce(Level.CRITICAL)
            assert stats.replaced == 50
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            commands = []
            while (line := await client.line()).get("level") != "critical":
                if line["type"] == "command":
                    commands.append((line["action"], line["seq"]))
            assert commands == [("trim_kv_cache", 50), ("restore", reject + 1), ("reject_requests", again)]
            assert not stats.stalled

    run(test())


def test_an_ending_connection_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who does not even read the bye is cut after a moment."""
    monkeypatch.setattr(connection, "LINGER_S", 0.05)

    async def test() -> None:
        async with serving(stall_s=60) as scripted, peer(scripted, HELLO) as client:
            await scripted.joined()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not scripted.server.stats.stalled:
                scripted.announce(Level.HIGH, reason="x" * 1000)
            scripted.server.disconnect(1, "enough")
            hung_up = select.poll()
            hung_up.register(client.writer.get_extra_info("socket"), select.POLLHUP)
            await soon(lambda: hung_up.poll(0))
            assert [event.reason for event in scripted.of(SubscriberLeft)] == ["enough"]

    run(test())


def test_a_hung_server_is_found_by_its_silence() -> None:
    """An inference server that answers no ping for three heartbeats is put out, and told so."""

    async def test() -> None:
        async with serving(heartbeat_s=0.05) as scripted, peer(scripted, HELLO) as client:
            kinds = [line["type"] for line in await client.rest()]
            assert kinds == ["welcome", "ping", "ping", "bye"]
            assert [event.reason for event in await scripted.left()] == ["no answer"]

    run(test())


def test_a_server_that_answers_pings_stays() -> None:
    """Each pong counts as a sign of life."""

    async def test() -> None:
        async with serving(heartbeat_s=0.05) as scripted, peer(scripted, HELLO) as client:
            for _ in range(6):
                await client.until("ping")
                await client.send({"type": "pong"})
            assert scripted.server.stats.current == 1

    run(test())


def test_an_observer_need_not_answer() -> None:
    """Somebody who looks with nc answers no ping, and stays."""

    async def test() -> None:
        async with serving(heartbeat_s=0.02) as scripted, peer(scripted, OBSERVER) as client:
            for _ in range(6):
                await client.until("ping")
            scripted.announce(Level.HIGH)
            await client.until("level")

    run(test())


def test_an_observer_that_closes_its_writing_side_goes_on_looking() -> None:
    """`echo hello | nc -U` sees what happens, even when the last newline is missing."""

    async def test() -> None:
        async with serving(heartbeat_s=0.05) as scripted:
            async with peer(scripted, b'{"type":"hello","name":"nc","role":"observer"}') as client:
                client.writer.write_eof()
                await client.until("welcome")
                for level in (Level.HIGH, Level.NORMAL):
                    scripted.announce(level)
                    assert (await client.until("level"))["level"] == level.word
            await scripted.left()

    run(test())


def test_a_server_that_closes_its_writing_side_has_left() -> None:
    """An inference server that cannot ack is gone; what it said last still counts."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO, b'{"type":"report","running":1}') as client:
            client.writer.write_eof()
            assert [line["type"] for line in await client.rest()] == ["welcome"]
            assert [event.reason for event in await scripted.left()] == ["closed by peer"]
            assert scripted.of(ReportReceived) == [ReportReceived(1, Report(running=1))]

    run(test())


def test_a_truncated_last_line_is_a_mistake_like_any_other() -> None:
    """A connection that ends within a line gets its error before it is closed."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, b'{"type":"hel') as client:
            client.writer.write_eof()
            assert [line["code"] for line in await client.rest()] == ["bad_json"]

    run(test())


def test_a_killed_subscriber_has_left() -> None:
    """kill -9 of a subscriber is noticed at once by its end of file."""
    program = (
        "import socket,sys,time; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"type":"hello","name":"victim","target":"llm"}\\n\'); time.sleep(60)'
    )

    async def test() -> None:
        async with serving() as scripted:
            victim = subprocess.Popen([sys.executable, "-c", program, scripted.server.config.path])  # noqa: ASYNC220
            try:
                await scripted.joined()
                assert scripted.server.subscribers()[0].pid == victim.pid
                victim.send_signal(signal.SIGKILL)
                await scripted.left()
            finally:
                victim.kill()
                victim.wait()

    run(test())
