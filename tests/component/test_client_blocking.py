"""The blocking client against the real server: the handlers are called, acked and restored whatever the daemon does."""

import asyncio
import math
from typing import Any

import pytest

from edgeguardd.client import Command, Level, Logical, NoEffect, Released, Subscriber, Unsupported, blocking
from edgeguardd.core import wire
from edgeguardd.core.events import SubscriberLeft
from edgeguardd.core.model import AckEffect, AckStatus, Action, InForce
from tests.support.blockingclient import Server, run, subscribed, warned
from tests.support.subscribers import serving
from tests.support.wait import soon


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
