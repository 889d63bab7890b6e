"""The blocking client beside a daemon that restarts, dies, hangs or talks rubbish."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from edgeguardd.client import Command, Level, Subscriber
from edgeguardd.core import wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.events import ReportReceived
from edgeguardd.core.model import Action, Report
from edgeguardd.errors import ProtocolError
from tests.support.blockingclient import Server, run, subscribed, warned
from tests.support.subscribers import TRIM, Scripted, serving, short_dir, standing_in, welcome
from tests.support.wait import soon


def test_a_restarted_daemon_is_found_again_and_lifts_what_it_does_not_know() -> None:
    """Reconnect, hello, report again; the old daemon's restriction is restored."""

    async def test() -> None:
        with short_dir() as directory:
            config = SocketConfig(path=f"{directory}/s")
            first = Scripted(config)
            await first.server.start()
            server = Server(config.path)
            with subscribed(server.guard):
                await first.joined()
                server.guard.report(static_bytes=7)
                first.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(first.acks)
                await first.server.close()
                await soon(lambda: not server.guard.connected)
                assert server.calls == [("reject", False)]

                second = Scripted(config, epoch="e2")
                await second.server.start()
                await second.joined()
                await soon(lambda: server.calls == [("reject", False), ("restore", True)])
                await soon(lambda: second.of(ReportReceived))
                assert second.of(ReportReceived)[0].report == Report(static_bytes=7)
                assert server.guard.accept_requests
                await asyncio.to_thread(server.guard.close)
                await second.server.close()

    run(test())


def test_what_waited_for_a_daemon_that_has_gone_is_not_carried_out() -> None:
    """An order that had not begun is void when the next daemon says what is in force."""
    calls: list[str] = []
    restoring, may_restore = threading.Event(), threading.Event()

    def restore(_command: Command) -> None:
        restoring.set()
        assert may_restore.wait(20)
        calls.append("restore")

    async def test() -> None:
        with short_dir() as directory:
            config = SocketConfig(path=f"{directory}/s")
            first, second = Scripted(config), Scripted(config, epoch="e2")
            await first.server.start()
            heard: list[object] = []
            guard = Subscriber("s", target="llm", path=config.path, on_event=heard.append)
            guard.on("restore")(restore)
            guard.on("reject_requests")(lambda _command: calls.append("reject"))
            guard.on("trim_kv_cache")(lambda _command: calls.append("trim"))
            with subscribed(guard):
                await first.joined()
                first.command(Action.RESTORE, accept_requests=True)
                await soon(restoring.is_set)
                first.command(Action.REJECT_REQUESTS, accept_requests=False)
                first.command(Action.TRIM_KV_CACHE)
                await soon(first.acks)  # of the trim: the reject before it was read, and waits
                await first.server.close()
                await second.server.start()
                await soon(
                    lambda: [event.epoch for event in heard if isinstance(event, wire.WelcomeLine)] == ["e1", "e2"]
                )
                may_restore.set()
                second.command(Action.RESTORE, accept_requests=True)
                await soon(second.acks)
                assert calls == ["trim", "restore", "restore"]
                await asyncio.to_thread(guard.close)
                await second.server.close()

    run(test())


def test_a_daemon_that_died_does_not_leave_the_server_refusing() -> None:
    """When the daemon stays away, the restore handler is called by the client itself."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path, lost_after_s=0.2)
            with subscribed(server.guard):
                await scripted.joined()
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                await scripted.server.close()
                await soon(lambda: server.calls == [("reject", False), ("restore", True)])
                assert server.guard.accept_requests
                assert server.guard.level is Level.NORMAL

    run(test())


def test_a_start_without_a_daemon_waits_for_it() -> None:
    """The order in which services start does not matter."""

    async def test() -> None:
        with short_dir() as directory:
            scripted = Scripted(SocketConfig(path=f"{directory}/s"))
            server = Server(f"{directory}/s")
            with subscribed(server.guard):
                assert not server.guard.connected
                assert await asyncio.to_thread(server.guard.admit, tokens=5)
                await scripted.server.start()
                await scripted.joined()
                await soon(lambda: server.guard.connected)
                await asyncio.to_thread(server.guard.close)
                await scripted.server.close()

    run(test())


def test_rubbish_from_the_server_is_passed_over() -> None:
    """A line that makes no sense costs neither the connection nor the next command."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            with subscribed(server.guard):
                await scripted.joined()
                sender = scripted.server._subscribers[1].sender
                for rubbish in (b"\xff\xfe\n", b"{}\n", b'{"type":"weather"}\n', b"z" * 100_000 + b"\n"):
                    sender.answer(rubbish)
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await soon(scripted.acks)
                assert server.calls == [("trim", 1)]

    run(test())


def test_a_hung_daemon_is_left_and_found_again() -> None:
    """A daemon that takes the connection and says nothing any more is dropped after three heartbeats."""

    async def test() -> None:
        with short_dir() as directory:
            connections: list[asyncio.StreamWriter] = []

            async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connections.append(writer)
                await reader.readline()
                writer.write(wire.encode(wire.WelcomeLine(1, "e", "llm", "normal", 1.0, True, True, 0.1)))

            hung = await asyncio.start_unix_server(hang, f"{directory}/s")
            with subscribed(Subscriber("s", path=f"{directory}/s")) as guard:
                await soon(lambda: len(connections) >= 2)
                await asyncio.to_thread(guard.close)
            hung.close()
            for writer in connections:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    run(test())


@pytest.mark.parametrize("heartbeat_s", [1e9, 1e300, -1e300])
def test_an_odd_welcome_does_not_end_the_subscription(heartbeat_s: float) -> None:
    """No figure of the daemon's can make the client deaf: the next command is carried out."""

    async def test() -> None:
        with short_dir() as directory:
            server = Server(f"{directory}/s")
            async with standing_in(f"{directory}/s", welcome(heartbeat_s)) as connections:
                with subscribed(server.guard):
                    await soon(lambda: server.guard.connected)
                    connections[0][1].write(wire.encode(TRIM))
                    await soon(lambda: server.calls == [("trim", 1)])
                    await asyncio.to_thread(server.guard.close)

    run(test())


@pytest.mark.parametrize("where", ["receive", "tick", "due"])
def test_a_defect_of_the_client_ends_one_connection_at_most(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails inside, the client connects again and obeys: else the server stayed as it is for ever."""
    failed: list[str] = []

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            whole = getattr(server.guard._session, where)

            def fail_once(*args: Any, **kwargs: Any) -> Any:
                if server.guard.connected and not failed:
                    failed.append(where)
                    raise ZeroDivisionError("a defect")
                return whole(*args, **kwargs)

            monkeypatch.setattr(server.guard._session, where, fail_once)
            with subscribed(server.guard):
                await scripted.joined()
                scripted.announce(Level.HIGH)
                await scripted.joined(2)
                scripted.command(Action.TRIM_KV_CACHE, subscriber=2, release_bytes=1)
                await soon(scripted.acks)
                assert failed == [where]

    run(test())


def test_a_refusal_is_told_once_with_the_daemons_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """The daemon was reached; however often it is asked again, one line says why it does not let us in."""
    asked = []

    def admit_peer(_peer: object, hello: wire.Hello) -> str | None:
        asked.append(hello.name)
        if len(asked) < 4:
            raise ProtocolError("not_allowed", "cannot serve llm: you are in /other")
        return hello.target

    async def test() -> None:
        async with serving(admit_peer) as scripted:
            path = scripted.server.config.path
            with subscribed(Subscriber("s", target="llm", path=path)) as guard:
                await soon(lambda: guard.connected)
                assert guard.last_error == "not_allowed: cannot serve llm: you are in /other"
            (told,) = warned(caplog)
            assert told == (
                f"no connection to edgeguardd at {path}: it refused us as s: cannot serve llm: you are in /other "
                "(not_allowed); trying again until it lets us in"
            )

    run(test())


def test_a_daemon_that_stops_and_one_that_is_not_there_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """First what it said at the end, then that nobody is there, each once."""

    async def test() -> None:
        with short_dir() as directory:
            path = f"{directory}/s"
            scripted = Scripted(SocketConfig(path=path))
            await scripted.server.start()
            with subscribed(Subscriber("s", target="llm", path=path)) as guard:
                await soon(lambda: guard.connected)
                await scripted.server.close("the daemon stops")
                await soon(lambda: len(warned(caplog)) == 2)
                again = Scripted(SocketConfig(path=path))
                await again.server.start()
                await soon(lambda: guard.connected)
                await again.server.close()
            first, second, *_ = warned(caplog)
            assert first.startswith(
                f"no connection to edgeguardd at {path}: it said bye: the daemon stops; trying again"
            )
            assert second.startswith(f"cannot reach edgeguardd at {path}: no such file or directory; trying again")

    run(test())
