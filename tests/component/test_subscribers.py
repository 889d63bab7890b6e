"""The subscriber server on real sockets: who gets in, what is said, and that no peer harms another."""

import os
import socket

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
    Scripted,
    credentials_of_self,
    peer,
    run,
    serving,
    short_dir,
)
from tests.support.wait import soon

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
