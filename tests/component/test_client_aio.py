"""The asyncio client against the real server."""

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest

from edgeguardd.client import AsyncSubscriber, Command, Level, Released, Unsupported, aio
from edgeguardd.core import effects, wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.events import AdmitAsked, ReportReceived
from edgeguardd.core.model import AckEffect, AckStatus, Action, InForce, Report
from edgeguardd.errors import ProtocolError
from tests.support.subscribers import TRIM, Scripted, no_leaked_descriptors, serving, short_dir, standing_in, welcome
from tests.support.wait import soon


def run(test: Any) -> None:
    """Run a coroutine; afterwards every descriptor is closed and no task is left."""

    async def watched() -> None:
        await test
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []

    with no_leaked_descriptors():
        asyncio.run(watched())


class Server:
    """An inference server that writes down what it was told."""

    def __init__(self, path: str, **options: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        handlers = {"trim_kv_cache": self.trim, "reject_requests": self.reject, "restore": self.restore}
        self.guard = AsyncSubscriber("llama", target="llm", path=path, handlers=handlers, **options)
        self.trimming = asyncio.Event()
        self.may_trim = asyncio.Event()
        self.may_trim.set()

    async def trim(self, command: Command) -> Released:
        self.trimming.set()
        await self.may_trim.wait()
        self.calls.append(("trim", command.parameters.release_bytes))
        return Released(command.parameters.release_bytes or 0)

    async def reject(self, command: Command) -> None:
        self.calls.append(("reject", command.parameters.accept_requests))

    def restore(self, command: Command) -> None:
        self.calls.append(("restore", command.parameters.accept_requests))


def test_a_coroutine_carries_out_commands() -> None:
    """A handler is awaited, and what it returns is acked."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            async with server.guard:
                await scripted.joined()
                seq = scripted.command(Action.TRIM_KV_CACHE, release_bytes=4096)
                await soon(scripted.acks)
                assert [a.seq for a in scripted.acks(AckStatus.ACCEPTED)] == [seq]
                (ack,) = scripted.acks()
                assert (ack.status, ack.effect, ack.released_bytes) == (AckStatus.DONE, AckEffect.RELEASED, 4096)

    run(test())


async def _raise(error: BaseException) -> None:
    raise error


async def _cancel_something_inside() -> None:
    inner = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    inner.cancel()
    await inner


@pytest.mark.parametrize(
    ("handler", "status"),
    [
        (lambda _c: None, AckStatus.DONE),
        (lambda _c: _raise(MemoryError("no room")), AckStatus.FAILED),
        (lambda _c: _raise(Unsupported("no cache")), AckStatus.UNSUPPORTED),
        (lambda _c: _cancel_something_inside(), AckStatus.FAILED),
    ],
)
def test_what_a_handler_does_is_what_is_acked(handler: Any, status: AckStatus) -> None:
    """Plain functions, exceptions and even a cancellation inside become acks, and the subscription goes on."""

    async def test() -> None:
        async with serving() as scripted:
            path = scripted.server.config.path
            async with AsyncSubscriber("s", target="llm", path=path, handlers={"trim_kv_cache": handler}):
                await scripted.joined()
                for count in (1, 2):
                    scripted.command(Action.TRIM_KV_CACHE)
                    await soon(lambda count=count: len(scripted.acks()) == count)  # type: ignore[misc]
                    assert scripted.acks()[-1].status is status

    run(test())


def test_a_slow_trim_does_not_hold_up_rejecting_and_old_trims_are_void() -> None:
    """Lanes run side by side; of what waits in one, the newest counts."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            server.may_trim.clear()
            async with server.guard:
                await scripted.joined()
                scripted.command(Action.TRIM_KV_CACHE, release_bytes=1)
                await server.trimming.wait()
                for size in (2, 3, 4):
                    scripted.command(Action.TRIM_KV_CACHE, release_bytes=size)
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                assert server.calls == [("reject", False)]
                server.may_trim.set()
                await soon(lambda: len(scripted.acks()) == 3)
                assert server.calls == [("reject", False), ("trim", 1), ("trim", 4)]

    run(test())


def test_who_connects_under_pressure_obeys_at_once() -> None:
    """The welcome's state is carried out; properties show it."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.in_force = InForce(max_batch_ratio=0.5, accept_requests=False)
            scripted.level = Level.CRITICAL
            server = Server(scripted.server.config.path)
            async with server.guard as guard:
                await soon(lambda: server.calls == [("reject", False)])
                assert (guard.connected, guard.level) == (True, Level.CRITICAL)
                assert (guard.max_batch_ratio, guard.accept_requests) == (0.5, False)

    run(test())


def test_a_restarted_daemon_is_found_again_and_lifts_what_it_does_not_know() -> None:
    """Reconnect, hello, report again; the old daemon's restriction is restored."""

    async def test() -> None:
        with short_dir() as directory:
            config = SocketConfig(path=f"{directory}/s")
            first = Scripted(config)
            await first.server.start()
            server = Server(config.path)
            async with server.guard as guard:
                await first.joined()
                guard.report(static_bytes=7)
                first.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(first.acks)
                await first.server.close()
                second = Scripted(config, epoch="e2")
                await second.server.start()
                await second.joined()
                await soon(lambda: server.calls == [("reject", False), ("restore", True)])
                await soon(lambda: second.of(ReportReceived))
                assert second.of(ReportReceived)[0].report == Report(static_bytes=7)
            await second.server.close()

    run(test())


def test_a_closed_subscriber_may_be_started_again() -> None:
    """It knows what it has applied, and is told what counts now; as long as it runs, it cannot be started twice."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            guard = server.guard
            running = [guard.running]
            async with guard:
                await scripted.joined()
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                with pytest.raises(RuntimeError, match="twice"):
                    await guard.start()
                running.append(guard.running)
            running.append(guard.running)
            assert server.calls == [("reject", False)]
            async with guard:
                running.append(guard.running)
                await scripted.joined(2)
                await soon(lambda: server.calls == [("reject", False), ("restore", True)])
                scripted.command(Action.TRIM_KV_CACHE, subscriber=2, release_bytes=1)
                await soon(lambda: server.calls[-1] == ("trim", 1))
            assert running == [False, True, False, True]

    run(test())


def test_a_subscriber_that_nobody_closed_ends_with_its_loop_and_may_be_started_on_another() -> None:
    """As happens in test suites, where each test has a loop of its own."""
    guard = AsyncSubscriber("s", path="/nowhere")
    running = []

    async def start() -> None:
        await guard.start()
        running.append(guard.running)

    async def test() -> None:
        await start()
        await guard.close()

    asyncio.run(start())
    running.append(guard.running)
    guard.report(running=1)
    run(test())
    assert running == [True, False, True]


def test_what_waited_for_a_daemon_that_has_gone_is_not_carried_out() -> None:
    """An order that had not begun is void when the next daemon says what is in force."""

    async def test() -> None:
        with short_dir() as directory:
            config = SocketConfig(path=f"{directory}/s")
            first, second = Scripted(config), Scripted(config, epoch="e2")
            await first.server.start()
            calls: list[str] = []
            restoring, may_restore = asyncio.Event(), asyncio.Event()
            heard: list[object] = []
            guard = AsyncSubscriber("s", target="llm", path=config.path, on_event=heard.append)

            @guard.on("restore")
            async def restore(_command: Command) -> None:
                restoring.set()
                await may_restore.wait()
                calls.append("restore")

            guard.on("reject_requests")(lambda _command: calls.append("reject"))
            guard.on("trim_kv_cache")(lambda _command: calls.append("trim"))
            async with guard:
                await first.joined()
                first.command(Action.RESTORE, accept_requests=True)
                await restoring.wait()
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
            await second.server.close()

    run(test())


def test_a_daemon_that_died_does_not_leave_the_server_refusing() -> None:
    """When the daemon stays away, the restore handler is called by the client itself."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path, lost_after_s=0.2)
            async with server.guard as guard:
                await scripted.joined()
                scripted.command(Action.REJECT_REQUESTS, accept_requests=False)
                await soon(scripted.acks)
                await scripted.server.close()
                await soon(lambda: server.calls == [("reject", False), ("restore", True)])
                assert guard.accept_requests

    run(test())


def test_admissions_are_asked_and_finished() -> None:
    """Many may ask at once; each gets its own answer. Without one, the default counts."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda a: effects.AnswerAdmit(a.subscriber, a.id, a.tokens != 3, str(a.tokens))
            guard = AsyncSubscriber("s", target="llm", path=scripted.server.config.path)
            assert not (await guard.admit(tokens=1)).asked
            with pytest.raises(ValueError, match="cannot ask for tokens -1: no size"):
                await guard.admit(tokens=-1)
            async with guard:
                await soon(lambda: guard.connected)
                answers = await asyncio.gather(*(guard.admit(tokens=n, timeout_s=20) for n in range(100)))
                assert [answer.reason for answer in answers] == [str(n) for n in range(100)]
                assert [n for n in range(100) if not answers[n]] == [3]
                guard.finished(answers[0].id)
                await soon(lambda: scripted.of(ReportReceived))
                assert scripted.of(ReportReceived)[0].finished == (answers[0].id,)
                scripted.grant = lambda _asked: None
                assert not await guard.admit(timeout_s=0.05, default_when_unreachable=False)

    run(test())


def test_who_waits_for_an_answer_is_let_go_when_the_daemon_stops() -> None:
    """The end of the connection ends the wait, not the timeout."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda _asked: None
            async with AsyncSubscriber("s", target="llm", path=scripted.server.config.path) as guard:
                await soon(lambda: guard.connected)
                asking = asyncio.create_task(guard.admit(timeout_s=1000))
                await soon(lambda: scripted.of(AdmitAsked))
                await scripted.server.close()
                assert not (await asyncio.wait_for(asking, 20)).asked

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
            async with AsyncSubscriber("s", path=f"{directory}/s"):
                await soon(lambda: len(connections) >= 2)
            hung.close()
            for writer in connections:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

    run(test())


def test_an_ack_does_not_wait_behind_questions() -> None:
    """Of two thousand questions that nobody answers or awaits any more, few are on the wire before the ack."""

    async def test() -> None:
        with short_dir() as directory:
            server = Server(f"{directory}/s")
            async with standing_in(f"{directory}/s", welcome()) as connections, server.guard:
                await soon(lambda: server.guard.connected)
                await asyncio.gather(*(server.guard.admit(tokens=1, timeout_s=0.01) for _ in range(2000)))
                reader, writer = connections[0]
                writer.write(wire.encode(TRIM))
                before = 0
                while b'"status":"done"' not in await asyncio.wait_for(reader.readline(), 20):
                    before += 1
                assert before < 500

    run(test())


def test_figures_for_a_daemon_that_does_not_read_are_merged() -> None:
    """While the socket is full nothing is piled up: when there is room again, the latest figure is the one sent."""

    async def test() -> None:
        with short_dir() as directory:
            guard = AsyncSubscriber("s", target="llm", path=f"{directory}/s")
            async with standing_in(f"{directory}/s", welcome()) as connections, guard:
                await soon(lambda: guard.connected)
                for number in range(20_000):
                    guard.finished(f"{number}-".ljust(128, "x"))
                reporter = guard._session._reporter
                for running in (1, 2, 3):
                    await soon(lambda: (due := reporter.due()) is None or due <= time.monotonic())
                    guard.report(running=running)
                    await soon(lambda: (due := reporter.due()) is None or due <= time.monotonic())
                    guard.pump()
                told: list[int] = []
                while told[-1:] != [3]:
                    line = json.loads(await asyncio.wait_for(connections[0][0].readline(), 20))
                    told += [line["running"]] if "running" in line else []
                assert len(told) <= 2

    run(test())


@pytest.mark.parametrize("where", ["receive", "take_output"])
def test_a_defect_of_the_client_ends_one_connection_at_most(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails inside, the client connects again and obeys: else the server stayed as it is for ever."""
    failed: list[str] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            whole = getattr(server.guard._session, where)

            def fail_once(*args: Any, **kwargs: Any) -> Any:
                if server.guard.connected and not failed:
                    failed.append(where)
                    raise ZeroDivisionError("a defect")
                return whole(*args, **kwargs)

            monkeypatch.setattr(server.guard._session, where, fail_once)
            async with server.guard:
                await scripted.joined()
                scripted.announce(Level.HIGH)
                await scripted.joined(2)
                scripted.command(Action.TRIM_KV_CACHE, subscriber=2, release_bytes=1)
                await soon(scripted.acks)
                assert failed == [where]

    run(test())


def test_a_refusal_is_told_once_and_leaving_not_at_all(caplog: pytest.LogCaptureFixture) -> None:
    """One line with the daemon's sentence however often it is asked again; a clean close is no warning."""
    asked = []

    def admit_peer(_peer: object, hello: wire.Hello) -> str | None:
        asked.append(hello.name)
        if len(asked) < 4:
            raise ProtocolError("unknown_target", "cannot serve llm: no such target")
        return hello.target

    async def test() -> None:
        async with serving(admit_peer) as scripted:
            async with AsyncSubscriber("s", target="llm", path=scripted.server.config.path) as guard:
                await soon(lambda: guard.connected)
            await scripted.left()

    run(test())
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "it refused us as s: cannot serve llm: no such target (unknown_target); trying again" in told


def test_closing_ends_the_handler_that_runs() -> None:
    """Leaving does not wait for a trim that takes for ever."""

    async def test() -> None:
        async with serving() as scripted:
            server = Server(scripted.server.config.path)
            server.may_trim.clear()
            async with server.guard:
                await scripted.joined()
                scripted.command(Action.TRIM_KV_CACHE)
                await server.trimming.wait()
            await scripted.left()
            assert server.calls == []

    run(test())


@pytest.mark.timeout(30)
def test_a_handler_that_will_not_be_cancelled_does_not_hold_up_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server can end although one of its handlers swallows what should end it."""
    monkeypatch.setattr(aio, "LEAVE_S", 0.05)
    release = asyncio.Event()
    trimming = asyncio.Event()

    async def stubborn(_command: Command) -> None:
        trimming.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    async def test() -> None:
        async with serving() as scripted:
            path = scripted.server.config.path
            async with AsyncSubscriber("s", target="llm", path=path, handlers={"trim_kv_cache": stubborn}):
                await scripted.joined()
                scripted.command(Action.TRIM_KV_CACHE)
                await trimming.wait()
            await scripted.left()
            release.set()
            await soon(lambda: len(asyncio.all_tasks()) == 1)

    run(test())


def test_a_handler_may_close_the_guard() -> None:
    """A server that shuts itself down from a handler does not hang."""

    async def test() -> None:
        async with serving() as scripted:
            guard = AsyncSubscriber("s", target="llm", path=scripted.server.config.path)

            @guard.on("trim_kv_cache")
            async def trim(_command: Command) -> None:
                await guard.close()

            await guard.start()
            await scripted.joined()
            scripted.command(Action.TRIM_KV_CACHE)
            await scripted.left()
            await soon(lambda: len(asyncio.all_tasks()) == 1)

    run(test())


def test_run_forever_ends_with_its_task() -> None:
    """Cancelling the task leaves cleanly."""

    async def test() -> None:
        async with serving() as scripted:
            guard = AsyncSubscriber("s", target="llm", path=scripted.server.config.path)
            running = asyncio.create_task(guard.run_forever())
            await scripted.joined()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await scripted.left()
            guard.report(running=1)  # harmless after the end

    run(test())
