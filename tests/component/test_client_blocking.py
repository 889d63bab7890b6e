"""The blocking client against the real server: the handlers are called, acked and restored whatever the daemon does."""

import asyncio
import contextlib
import errno
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edgeguardd.client import Command, Level, Logical, NoEffect, Released, Subscriber, Unsupported, blocking
from edgeguardd.core import effects, wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.events import AdmitAsked, ReportReceived, SubscriberLeft
from edgeguardd.core.model import AckEffect, AckStatus, Action, InForce, Report
from edgeguardd.errors import ProtocolError
from tests.support.subscribers import TRIM, Scripted, no_leaked_descriptors, serving, short_dir, standing_in, welcome
from tests.support.wait import eventually, soon


def run(test: Any) -> None:
    """Run a coroutine; afterwards every descriptor is closed and every thread of the client has ended."""
    with no_leaked_descriptors():
        asyncio.run(test)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("edgeguardd")])


@contextlib.contextmanager
def subscribed(guard: Subscriber) -> Iterator[Subscriber]:
    """A started guard, closed afterwards without blocking the loop that its server runs on."""
    guard.start()
    try:
        yield guard
    finally:
        guard.close()


class Server:
    """An inference server that writes down what it was told."""

    def __init__(self, path: str, **options: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.guard = Subscriber("llama", target="llm", path=path, **options)
        self.guard.on("trim_kv_cache")(self.trim)
        self.guard.on("reject_requests")(self.reject)
        self.guard.on("restore")(self.restore)
        self.trimming = threading.Event()
        self.may_trim = threading.Event()
        self.may_trim.set()

    def trim(self, command: Command) -> Released:
        self.trimming.set()
        assert self.may_trim.wait(20)
        self.calls.append(("trim", command.parameters.release_bytes))
        return Released(command.parameters.release_bytes or 0)

    def reject(self, command: Command) -> None:
        self.calls.append(("reject", command.parameters.accept_requests))

    def restore(self, command: Command) -> None:
        self.calls.append(("restore", command.parameters.accept_requests))


def test_ten_lines_subscribe_a_server() -> None:
    """A decorated function is called with the command, and what it returns is acked."""

    async def test() -> None:
        async with serving() as scripted:
            guard = Subscriber("llama", target="llm", path=scripted.server.config.path)

            @guard.on("trim_kv_cache")
            def trim(command: Command) -> Released:
                return Released(command.parameters.release_bytes or 0)

            with subscribed(guard):
                (joined,) = await scripted.joined()
                assert (joined.name, joined.supports) == ("llama", frozenset({Action.TRIM_KV_CACHE}))
                seq = scripted.command(Action.TRIM_KV_CACHE, release_bytes=4096)
                await soon(scripted.acks)
                assert [(a.seq, a.status) for a in scripted.acks(AckStatus.ACCEPTED)] == [(seq, AckStatus.ACCEPTED)]
                (ack,) = scripted.acks()
                assert (ack.status, ack.effect, ack.released_bytes) == (AckStatus.DONE, AckEffect.RELEASED, 4096)

    run(test())


def raising(error: BaseException) -> Any:
    def handler(_command: Command) -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "status", "effect", "message"),
    [
        (lambda _c: None, AckStatus.DONE, None, None),
        (lambda _c: Logical(), AckStatus.DONE, AckEffect.LOGICAL, None),
        (lambda _c: NoEffect(), AckStatus.DONE, AckEffect.NONE, None),
        (raising(MemoryError("no room")), AckStatus.FAILED, None, "MemoryError: no room"),
        (raising(UnicodeError("\udc80")), AckStatus.FAILED, None, "UnicodeError: ?"),
        (raising(SystemExit("out")), AckStatus.FAILED, None, "SystemExit: out"),
        (
            raising(asyncio.CancelledError("inside asyncio.run")),
            AckStatus.FAILED,
            None,
            "CancelledError: inside asyncio.run",
        ),
        (raising(KeyboardInterrupt()), AckStatus.FAILED, None, "KeyboardInterrupt: "),
        (raising(Unsupported("no cache")), AckStatus.UNSUPPORTED, None, "Unsupported: no cache"),
    ],
)
def test_what_a_handler_does_is_what_is_acked(
    handler: Any, status: AckStatus, effect: AckEffect | None, message: str | None
) -> None:
    """Return values and exceptions become acks, and the subscription goes on."""

    async def test() -> None:
        async with serving() as scripted:
            guard = Subscriber("s", target="llm", path=scripted.server.config.path, handlers={"trim_kv_cache": handler})
            with subscribed(guard):
                await scripted.joined()
                for count in (1, 2):
                    scripted.command(Action.TRIM_KV_CACHE)
                    await soon(lambda count=count: len(scripted.acks()) == count)  # type: ignore[misc]
                    ack = scripted.acks()[-1]
                    assert (ack.status, ack.effect, ack.message) == (status, effect, message)

    run(test())


def test_a_slow_trim_does_not_hold_up_rejecting() -> None:
    """While one handler works, another kind of command is carried out."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            server.may_trim.clear()
            with subscribed(server.guard):
                await scripted.joined()
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await soon(server.trimming.is_set)
                reject = scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                assert [ack.seq for ack in scripted.acks()] == [reject]
                server.may_trim.set()
                await soon(lambda: len(scripted.acks()) == 2)

    run(test())


def test_of_trims_that_wait_only_the_newest_is_carried_out() -> None:
    """What came while the handler worked is void when something newer came after it."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            server.may_trim.clear()
            with subscribed(server.guard):
                await scripted.joined()
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await soon(server.trimming.is_set)
                for size in (2, 3, 4):
                    scripted.command(Action.TRIM_KV_CACHE, release_bytes=size)
                # The reject comes after the trims on the same connection: once it is acked, they were read.
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                server.may_trim.set()
                await soon(lambda: len(scripted.acks()) == 3)
                assert server.calls == [("reject", False), ("trim", 1), ("trim", 4)]

    run(test())


def test_who_connects_under_pressure_obeys_at_once_and_only_once() -> None:
    """The welcome's state and the command that restates it are one call of the handler, and one ack."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.in_force = InForce(accept_requests=False)
            scripted.level = Level.CRITICAL
            scripted.on_join = lambda _joined: scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
            server = Server(scripted.server.config.path)
            with subscribed(server.guard):
                await soon(scripted.acks)
                assert server.guard.level is Level.CRITICAL
                assert not server.guard.accept_requests
                assert server.calls[-1] == ("reject", False)
                assert [ack.status for ack in scripted.acks()] == [AckStatus.DONE]

    run(test())


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


def test_admissions_are_asked_and_finished() -> None:
    """The daemon's answer comes back to the thread that asked; finished ids and figures are reported."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda asked: effects.AnswerAdmit(
                asked.subscriber, asked.id, asked.tokens == 1, "because", None if asked.tokens == 1 else 2.0
            )
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                granted = await asyncio.to_thread(guard.admit, tokens=1)
                refused = await asyncio.to_thread(guard.admit, size_bytes=1 << 30)
                assert (bool(granted), granted.asked, granted.reason) == (True, True, "because")
                assert (bool(refused), refused.retry_after_s) == (False, 2.0)
                assert not await asyncio.to_thread(guard.admit, size_bytes=10**20)
                sizes = [(1, None), (None, 1 << 30), (None, 2**63 - 1)]
                assert [(a.tokens, a.bytes) for a in scripted.of(AdmitAsked)] == sizes
                guard.finished(granted.id)
                await soon(lambda: scripted.of(ReportReceived))
                assert scripted.of(ReportReceived)[0].finished == (granted.id,)

    run(test())


def test_a_hundred_threads_ask_at_once_and_each_gets_its_own_answer() -> None:
    """Answers find their asker."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda a: effects.AnswerAdmit(a.subscriber, a.id, True, str(a.tokens))
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                asked = [asyncio.to_thread(guard.admit, tokens=n, timeout_s=20) for n in range(100)]
                assert [answer.reason for answer in await asyncio.gather(*asked)] == [str(n) for n in range(100)]

    run(test())


@pytest.mark.parametrize("default", [True, False])
def test_without_an_answer_the_default_counts(default: bool) -> None:
    """A daemon that does not answer stops no server, unless the server wants it so."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda _asked: None
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                answer = await asyncio.to_thread(guard.admit, timeout_s=0.05, default_when_unreachable=default)
                assert (bool(answer), answer.asked) == (default, False)

    run(test())


def test_who_waits_for_an_answer_is_let_go_when_the_daemon_stops() -> None:
    """The end of the connection ends the wait, not the timeout."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda _asked: None
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                asking = asyncio.create_task(asyncio.to_thread(guard.admit, timeout_s=30))
                await soon(lambda: scripted.of(AdmitAsked))
                await scripted.server.close()
                assert not (await asyncio.wait_for(asking, 15)).asked

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


def test_an_ack_does_not_wait_behind_questions() -> None:
    """Of two thousand questions that nobody answers or awaits any more, few are on the wire before the ack."""

    async def test() -> None:
        with short_dir() as directory:
            server = Server(f"{directory}/s")
            async with standing_in(f"{directory}/s", welcome()) as connections:
                with subscribed(server.guard):
                    await soon(lambda: server.guard.connected)

                    def ask() -> None:
                        for _ in range(100):
                            server.guard.admit(tokens=1, timeout_s=0.001)

                    await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(20)))
                    reader, writer = connections[0]
                    writer.write(wire.encode(TRIM))
                    before = 0
                    while b'"status":"done"' not in await asyncio.wait_for(reader.readline(), 20):
                        before += 1
                    assert before < 500
                    await asyncio.to_thread(server.guard.close)

    run(test())


def test_commands_are_carried_out_when_no_thread_can_be_made_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server at its limit of tasks is the one that needs to be trimmed: the threads are there from the start."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            with subscribed(server.guard):
                await scripted.joined()
                monkeypatch.setattr(threading.Thread, "start", refuse)
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(lambda: len(scripted.acks()) == 2)
                assert {ack.status for ack in scripted.acks()} == {AckStatus.DONE}
            monkeypatch.undo()

    run(test())


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_start_without_threads_is_refused_and_leaves_nothing(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application hears of it at once; no descriptor and none of the threads that could be made is left."""
    start = threading.Thread.start
    left = [True] * threads

    def refuse(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    async def test() -> None:
        guard = Server("/nowhere").guard
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            guard.start()
        monkeypatch.undo()
        guard.close()

    run(test())


def test_a_server_that_has_run_out_of_descriptors_connects_when_it_has_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one of the reasons why there is no connection, told once, and tried again as the others are."""
    make = socket.socket
    refused: list[int] = []

    def refuse_twice(*args: Any, **kwargs: Any) -> socket.socket:
        if threading.current_thread().name == "edgeguardd-client" and len(refused) < 2:
            refused.append(errno.EMFILE)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return make(*args, **kwargs)

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            monkeypatch.setattr(socket, "socket", refuse_twice)
            with subscribed(server.guard):
                await scripted.joined()
                monkeypatch.undo()
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await soon(scripted.acks)

    run(test())
    (warning,) = [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    assert "too many open files" in warning.getMessage().lower()
    assert warning.exc_info is None


def test_a_server_that_only_trims_has_no_thread_for_the_rest() -> None:
    """Threads are made for what has a handler."""

    async def test() -> None:
        guard = Subscriber("s", path="/nowhere", handlers={"trim_kv_cache": print})
        with subscribed(guard):
            names = {thread.name for thread in threading.enumerate() if thread.name.startswith("edgeguardd")}
            assert names == {"edgeguardd-client", "edgeguardd-trim"}
            await asyncio.to_thread(guard.close)

    run(test())


def test_a_handler_that_hangs_holds_up_neither_heartbeats_nor_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon still hears from the server, other commands are obeyed, and close() gives up waiting."""
    monkeypatch.setattr(blocking, "JOIN_S", 0.05)

    async def test() -> None:
        async with serving(heartbeat_s=0.5) as scripted:
            server = Server(scripted.server.config.path)
            server.may_trim.clear()
            with subscribed(server.guard):
                await scripted.joined()
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await soon(server.trimming.is_set)
                heard = scripted.server.stats.lines_in
                await soon(lambda: scripted.server.stats.lines_in >= heard + 3)
                assert server.guard.connected
                assert scripted.of(SubscriberLeft) == []
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                await asyncio.wait_for(asyncio.to_thread(server.guard.close), 20)
                await scripted.left()
                server.may_trim.set()

    run(test())


def test_on_event_may_ask_and_even_exit() -> None:
    """Asking there gets the default instead of a wait for itself; what it raises ends nothing."""
    answers: list[bool] = []

    async def test() -> None:
        async with serving() as scripted:
            path = scripted.server.config.path

            def look(event: object) -> None:
                if isinstance(event, wire.LevelLine):
                    answers.append(guard.admit(timeout_s=1000).asked)
                    raise SystemExit

            guard = Subscriber("s", target="llm", path=path, on_event=look)
            with subscribed(guard):
                await scripted.joined()
                for count in (1, 2):
                    scripted.announce(Level.HIGH if count == 1 else Level.NORMAL)
                    await soon(lambda count=count: len(answers) == count)  # type: ignore[misc]
                assert answers == [False, False]

    run(test())


def test_endless_times_are_taken() -> None:
    """lost_after_s and timeout_s may be infinite."""

    async def test() -> None:
        async with serving() as scripted:
            guard = Subscriber("s", target="llm", path=scripted.server.config.path, lost_after_s=math.inf)
            with subscribed(guard):
                await scripted.joined()
                await soon(lambda: guard.connected)
                assert (await asyncio.to_thread(guard.admit, timeout_s=math.inf)).asked

    run(test())


def test_leaving_is_no_reason_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """It is for a daemon that is away."""

    async def test() -> None:
        async with serving() as scripted:
            with subscribed(Subscriber("s", target="llm", path=scripted.server.config.path)) as guard:
                await soon(lambda: guard.connected)
                await asyncio.to_thread(guard.close)

    run(test())
    assert warned(caplog) == []


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings so far."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


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


def test_events_are_shown_to_who_wants_them() -> None:
    """on_event sees levels; what it raises ends nothing."""
    seen: list[str] = []

    def look(event: object) -> None:
        match event:
            case wire.LevelLine():
                seen.append(event.level)
                raise RuntimeError("a defect of the application's")

    async def test() -> None:
        async with serving() as scripted:
            with subscribed(Subscriber("s", target="llm", path=scripted.server.config.path, on_event=look)) as guard:
                await scripted.joined()
                for level in (Level.HIGH, Level.CRITICAL):
                    scripted.announce(level)
                    await soon(lambda level=level: guard.level is level)  # type: ignore[misc]
                await soon(lambda: seen == ["high", "critical"])

    run(test())


def test_run_forever_returns_when_closed_elsewhere() -> None:
    """The calling thread serves the subscription until another one closes it."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            running = asyncio.create_task(asyncio.to_thread(server.guard.run_forever))
            await scripted.joined()
            scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
            await soon(scripted.acks)
            server.guard.close()
            await asyncio.wait_for(running, 20)
            await scripted.left()

    run(test())


def test_a_handler_may_close_the_guard() -> None:
    """A server that shuts itself down from a handler does not hang."""

    async def test() -> None:
        async with serving() as scripted:
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            guard.on("trim_kv_cache")(lambda _command: guard.close())
            guard.start()
            await scripted.joined()
            scripted.command(Action.TRIM_KV_CACHE)
            await scripted.left()

    run(test())


def test_what_cannot_work_is_refused_at_the_start() -> None:
    """Mistakes of the program show when it starts, not when memory is short."""

    async def coroutine(_command: Command) -> None:
        pass

    guard = Subscriber("s", path="/nowhere")
    with pytest.raises(TypeError, match="AsyncSubscriber"):
        guard.on("trim_kv_cache")(coroutine)
    with pytest.raises(ValueError, match='"restore" has none'):
        Subscriber("s", path="/nowhere", handlers={"reject_requests": print}).start()
    with subscribed(Subscriber("s", path="/nowhere")) as started:
        with pytest.raises(RuntimeError, match="before the start"):
            started.on("trim_kv_cache")(print)
        with pytest.raises(RuntimeError, match="twice"):
            started.start()


def test_the_socket_is_found_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """EDGEGUARDD_SOCKET names the socket; else it is in /run."""
    monkeypatch.delenv("EDGEGUARDD_SOCKET", raising=False)
    assert Subscriber("s").path == "/run/edgeguardd/edgeguardd.sock"
    monkeypatch.setenv("EDGEGUARDD_SOCKET", "/tmp/other")
    assert Subscriber("s").path == "/tmp/other"


FORKING = """
import os, signal, socket, sys, threading
from edgeguardd.client import Subscriber
from edgeguardd.core import wire

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
guard = Subscriber("s", path=sys.argv[1], handlers={"trim_kv_cache": print})
fresh = Subscriber("f", path=sys.argv[1])
guard.start()
peer, _ = listener.accept()
peer.recv(4096)
peer.sendall(wire.encode(wire.WelcomeLine(1, "e", "llm", "normal", 1.0, True, True, 3600.0)))
while not guard.connected:
    peer.recv(0)
taken, may_go = threading.Event(), threading.Event()

def hold():
    with guard._lock, guard._wakeup._lock:
        taken.set()
        may_go.wait()

holder = threading.Thread(target=hold)
holder.start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    answer = guard.admit(tokens=1, timeout_s=1000)
    guard.report(running=1)
    guard.finished(answer.id)
    guard.close()
    fresh.start()
    listener.accept()[0].recv(4096)
    fresh.close()
    os._exit(0 if answer and not answer.asked else 3)
_, status = os.waitpid(child, 0)
may_go.set()
holder.join()
peer.sendall(wire.encode(wire.Bye(1, "over")))
assert guard.connected, "the parent goes on"
guard.close()
print("child", status)
"""


def test_a_forked_child_does_not_wait_for_threads_that_it_has_not() -> None:
    """A server that forks workers after the start is let through in them, and they can start one of their own."""
    with short_dir() as directory:
        argv = [sys.executable, "-c", FORKING, f"{directory}/s"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert (done.stdout, done.returncode) == ("child 0\n", 0), done.stderr


def test_a_threaded_server_does_not_import_asyncio() -> None:
    """Importing the client costs a threaded server no event loop; asyncio comes with AsyncSubscriber."""
    program = (
        "import sys, edgeguardd.client as c; assert 'asyncio' not in sys.modules;"
        "c.AsyncSubscriber; assert 'asyncio' in sys.modules; print('as said')"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert shown.stdout == "as said\n"
