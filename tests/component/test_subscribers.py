"""The subscriber server on real sockets: who gets in, what is said, and that no peer harms another."""

import asyncio
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from edgeguardd.core import effects, wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.events import AckReceived, AdmitAsked, ReportReceived, SubscriberJoined, SubscriberLeft
from edgeguardd.core.model import AckEffect, AckStatus, Action, InForce, Level, Report, Role
from edgeguardd.errors import ProtocolError, ServeError, TargetError
from edgeguardd.serve import connection, subscribers
from edgeguardd.serve.peercred import Peer as PeerCredentials
from tests.support.subscribers import (
    HELLO,
    OBSERVER,
    Peer,
    Scripted,
    credentials_of_self,
    no_leaked_descriptors,
    peer,
    serving,
    short_dir,
)
from tests.support.wait import soon


def run(test: Any) -> None:
    """Run a coroutine; afterwards every descriptor is closed."""
    with no_leaked_descriptors():
        asyncio.run(test)


# Who gets in


def test_a_peer_that_says_hello_is_welcomed_with_what_is_in_force() -> None:
    """The welcome tells epoch, target, level and restrictions; the engine hears who joined."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.in_force = InForce(0.5, False, True)
            scripted.level = Level.HIGH
            async with peer(scripted, HELLO | {"supports": ["trim_kv_cache", "fly"]}) as client:
                assert await client.line() == {
                    "type": "welcome",
                    "v": 1,
                    "epoch": "e1",
                    "target": "llm",
                    "level": "high",
                    "max_batch_ratio": 0.5,
                    "accept_requests": False,
                    "model_loaded": True,
                    "heartbeat_s": 10.0,
                }
                supports = frozenset({Action.TRIM_KV_CACHE})
                assert scripted.events == [SubscriberJoined(1, "server", Role.INFERENCE, "llm", supports, os.getpid())]
            assert [event.reason for event in await scripted.left()] == ["closed by peer"]

    run(test())


def test_the_daemon_decides_by_the_kernels_word_who_the_peer_is() -> None:
    """admit_peer is given pid, uid, gid and start from the kernel, and the hello."""
    asked = []

    def admit_peer(who: PeerCredentials, hello: wire.Hello) -> str | None:
        asked.append((who, hello.name))
        return "llm"

    async def test() -> None:
        async with serving(admit_peer) as scripted, peer(scripted, HELLO) as client:
            await client.until("welcome")
            assert asked == [(credentials_of_self(), "server")]

    run(test())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProtocolError("not_allowed", "cannot let you in: no"), "not_allowed"),
        (ProtocolError("unknown_target", "cannot let you in: no"), "unknown_target"),
        (TargetError("cannot let you in: no"), "unknown_target"),
    ],
)
def test_a_peer_that_may_not_is_told_why_and_put_out(error: Exception, code: str) -> None:
    """A refusal is an error line and the end of this connection; nobody has joined."""

    def admit_peer(_who: PeerCredentials, _hello: wire.Hello) -> str | None:
        raise error

    async def test() -> None:
        async with serving(admit_peer) as scripted, peer(scripted, HELLO) as client:
            expected = {"type": "error", "v": 1, "code": code, "message": "cannot let you in: no"}
            assert await client.rest() == [expected]
            assert scripted.events == []
            assert scripted.server.stats.errors == {code: 1}

    run(test())


def test_subscribers_beyond_the_limit_are_told_so() -> None:
    """One too many is refused; when another leaves there is room again."""

    async def test() -> None:
        async with serving(max_subscribers=2) as scripted, peer(scripted, HELLO) as one:
            async with peer(scripted, HELLO) as two, peer(scripted, HELLO) as three:
                await one.until("welcome")
                await two.until("welcome")
                assert [line["code"] for line in await three.rest()] == ["too_many_subscribers"]
            await scripted.left()
            async with peer(scripted, HELLO) as four:
                await four.until("welcome")
            assert scripted.server.stats.refused == 1

    run(test())


def test_who_only_looks_makes_room_for_who_serves() -> None:
    """Observers may fill all places; servers get in all the same, and a further observer does not."""

    async def test() -> None:
        async with (
            serving(max_subscribers=2) as scripted,
            peer(scripted, OBSERVER) as first,
            peer(scripted, OBSERVER) as second,
        ):
            await first.until("welcome")
            await second.until("welcome")
            async with peer(scripted, OBSERVER) as third:
                assert [line["code"] for line in await third.rest()] == ["too_many_subscribers"]
            async with peer(scripted, HELLO) as one, peer(scripted, HELLO) as two:
                await one.until("welcome")
                await two.until("welcome")
                for onlooker in (first, second):
                    assert (await onlooker.until("error"))["code"] == "too_many_subscribers"
                async with peer(scripted, HELLO) as more:
                    assert [line["code"] for line in await more.rest()] == ["too_many_subscribers"]

    run(test())


def test_a_peer_that_says_nothing_is_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """hello has to come in time; pings do not prolong it."""
    monkeypatch.setattr(connection, "HELLO_S", 0.05)

    async def test() -> None:
        async with serving() as scripted, peer(scripted, {"type": "ping"}) as client:
            assert [line.get("code", line["type"]) for line in await client.rest()] == ["pong", "hello_timeout"]

    run(test())


def test_of_too_many_silent_connections_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a hello cannot keep others out: the newest push the oldest out."""
    monkeypatch.setattr(subscribers, "MAX_WAITING", 2)

    async def test() -> None:
        async with serving() as scripted, peer(scripted) as first, peer(scripted), peer(scripted):
            assert [line["code"] for line in await first.rest()] == ["too_many_subscribers"]
            async with peer(scripted, HELLO) as real:
                await real.until("welcome")

    run(test())


# What is said


def test_acks_reports_and_questions_become_events() -> None:
    """Each message of a subscriber arrives at the engine as one event, in order."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as client:
            await client.send(
                {"type": "ack", "seq": 3, "status": "done", "effect": "released", "released_bytes": 9, "message": "ok"},
                {"type": "report", "kv_bytes": 5, "running": 2, "finished": ["a", "b"]},
                {"type": "admit", "id": "r1", "tokens": 100},
            )
            answer = await client.until("admission")
            assert answer == {"type": "admission", "id": "r1", "granted": True, "reason": "it fits"}
            assert scripted.events[1:] == [
                AckReceived(1, 3, AckStatus.DONE, AckEffect.RELEASED, 9, "ok"),
                ReportReceived(1, Report(kv_bytes=5, running=2), ("a", "b")),
                AdmitAsked(1, "r1", None, 100),
            ]

    run(test())


def test_every_figure_of_a_report_reaches_the_engine() -> None:
    """What the protocol lets a server report is what decisions can stand on: none is dropped on the way."""

    async def test() -> None:
        figures = {field: number for number, field in enumerate(Report.__struct_fields__, start=1)}
        async with serving() as scripted, peer(scripted, HELLO, {"type": "report", **figures}):
            await soon(lambda: len(scripted.events) == 2)
            assert scripted.events[1] == ReportReceived(1, Report(**figures), ())

    run(test())


def test_a_command_arrives_with_all_that_it_asks() -> None:
    """A delivered command is one line; parameters that are not set are left out."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as client:
            await scripted.joined()
            scripted.command(Action.TRIM_KV_CACHE, release_bytes=7)
            assert await client.until("command") == {
                "type": "command",
                "v": 1,
                "seq": 1,
                "target": "llm",
                "action": "trim_kv_cache",
                "parameters": {"release_bytes": 7},
                "level": "high",
                "reason": "a test",
                "deadline_s": 5.0,
            }

    run(test())


def test_levels_go_to_the_targets_subscribers_and_to_who_observes_all() -> None:
    """A subscriber of another target hears nothing of it."""

    async def test() -> None:
        async with (
            serving() as scripted,
            peer(scripted, HELLO) as llm,
            peer(scripted, HELLO | {"target": "vision"}) as vision,
            peer(scripted, OBSERVER) as everything,
            peer(scripted, OBSERVER | {"target": "vision"}) as vision_only,
        ):
            await scripted.joined(4)
            scripted.announce(Level.HIGH, "llm")
            scripted.announce(Level.CRITICAL, "vision")
            heard = {
                name: [(await client.until("level"))["target"] for _ in range(count)]
                for name, client, count in (("llm", llm, 1), ("vision", vision, 1), ("all", everything, 2))
            }
            assert heard == {"llm": ["llm"], "vision": ["vision"], "all": ["llm", "vision"]}
            assert (await vision_only.until("level"))["target"] == "vision"

    run(test())


def test_effects_for_who_has_left_go_nowhere() -> None:
    """The engine may still speak to a subscriber whose leaving it has yet to hear of."""

    async def test() -> None:
        async with serving() as scripted:
            async with peer(scripted, HELLO) as client:
                await client.until("welcome")
            await scripted.left()
            scripted.command(Action.TRIM_KV_CACHE)
            scripted.announce(Level.HIGH)
            server = scripted.server
            server.welcome(effects.Welcome(1, "llm", Level.NORMAL, InForce()))
            server.answer(effects.AnswerAdmit(1, "a", True, "x"))
            server.refuse(effects.Refuse(1, "unknown_seq", "x"))
            server.disconnect(1, "x")
            assert server.stats.lines_out == 1

    run(test())


def test_a_refusal_of_the_engines_leaves_the_connection() -> None:
    """Many late acks are many error lines, and no more."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as client:
            await scripted.joined()
            for _ in range(50):
                scripted.server.refuse(effects.Refuse(1, "unknown_seq", "cannot take it"))
            for _ in range(50):
                assert (await client.until("error"))["code"] == "unknown_seq"
            await client.send({"type": "ping"})
            await client.until("pong")

    run(test())


def test_a_disconnected_subscriber_is_told_why_and_has_left_once() -> None:
    """disconnect says bye; the engine hears of the leaving from the loop, not from inside its own call."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO) as client:
            await scripted.joined()
            scripted.server.disconnect(1, "target gone")
            scripted.server.disconnect(1, "target gone")
            assert len(scripted.events) == 1
            assert (await client.rest())[-1] == {"type": "bye", "v": 1, "reason": "target gone"}
            assert [event.reason for event in await scripted.left()] == ["target gone"]

    run(test())


def test_status_shows_who_is_there() -> None:
    """/status has name, role, target, what it supports, and the process."""

    async def test() -> None:
        async with serving() as scripted, peer(scripted, HELLO), peer(scripted, OBSERVER):
            await scripted.joined(2)
            rows = scripted.server.subscribers()
            assert [(r.subscriber, r.name, r.role.value, r.target, r.pid) for r in rows] == [
                (1, "server", "inference", "llm", os.getpid()),
                (2, "watcher", "observer", None, os.getpid()),
            ]
            assert (scripted.server.stats.current, scripted.server.stats.accepted) == (2, 2)

    run(test())


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


# Start and stop


def test_stopping_says_bye_to_all_and_leaves_nothing() -> None:
    """Everybody hears the reason, has left, and the directory is empty."""

    async def test() -> None:
        with short_dir() as directory:
            scripted = Scripted(SocketConfig(path=f"{directory}/s"))
            await scripted.server.start()
            async with peer(scripted, HELLO) as one, peer(scripted, OBSERVER) as two, peer(scripted) as silent:
                await scripted.joined(2)
                await scripted.server.close("stopping")
                assert os.listdir(directory) == []
                assert len(scripted.events) == 4
                for client in (one, two, silent):
                    assert (await client.rest())[-1] == {"type": "bye", "v": 1, "reason": "stopping"}

    run(test())


def test_stopping_does_not_wait_for_who_does_not_read() -> None:
    """A stalled subscriber is cut when the others have had their time."""

    async def test() -> None:
        async with serving(stall_s=60) as scripted, peer(scripted, HELLO) as client:
            await scripted.joined()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            while not scripted.server.stats.stalled:
                scripted.announce(Level.HIGH, reason="x" * 1000)
            await scripted.server.close()
            assert [event.reason for event in scripted.of(SubscriberLeft)] == ["stopping"]

    run(test())


def test_a_second_daemon_is_refused_and_the_first_goes_on() -> None:
    """The socket of a running daemon is not taken from it."""

    async def test() -> None:
        async with serving() as scripted:
            second = Scripted(scripted.server.config)
            with pytest.raises(ServeError, match="another process listens there"):
                await second.server.start()
            async with peer(scripted, HELLO) as client:
                await client.until("welcome")

    run(test())


def test_a_socket_passed_by_systemd_is_served_and_left() -> None:
    """An activated socket is neither made nor removed by us, and no lock is made."""

    async def test() -> None:
        with short_dir() as directory:
            path = f"{directory}/s"
            passed = socket.socket(socket.AF_UNIX)
            passed.bind(path)
            passed.listen()
            scripted = Scripted(SocketConfig(path=path))
            await scripted.server.start([passed])
            async with peer(scripted, HELLO) as client:
                await client.until("welcome")
                assert os.listdir(directory) == ["s"]
            await scripted.server.close()
            assert os.listdir(directory) == ["s"]

    run(test())


def test_new_limits_count_from_now_on() -> None:
    """After a reload the new limit holds for who comes next."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.server.reconfigure(SocketConfig(path=scripted.server.config.path, max_subscribers=0))
            async with peer(scripted, HELLO) as client:
                assert [line["code"] for line in await client.rest()] == ["too_many_subscribers"]

    run(test())
