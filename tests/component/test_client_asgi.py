"""The ASGI middleware between a scripted application and the real subscriber server."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from edgeguardd.client import AsyncSubscriber, Command, Released
from edgeguardd.client.asgi import HEALTH_PATHS, MemoryGuard, Wanted
from edgeguardd.core import effects
from edgeguardd.core.events import AdmitAsked, ReportReceived
from edgeguardd.core.model import AckStatus, Action
from tests.support.asgi import StreamingApp, answered, http, living, websocket
from tests.support.subscribers import Scripted, no_leaked_descriptors, serving
from tests.support.wait import soon

RESTORE: dict[str, Any] = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run it; afterwards every descriptor is closed and no task is left."""

    async def watched() -> None:
        await test
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with no_leaked_descriptors():
        asyncio.run(watched())


class Stage:
    """A daemon that does as it is told, an application, and the middleware between them."""

    def __init__(self, daemon: Scripted, app: StreamingApp, guard: AsyncSubscriber, wrapped: MemoryGuard) -> None:
        self.daemon = daemon
        self.app = app
        self.guard = guard
        self.wrapped = wrapped

    async def tell(self, action: Action, status: AckStatus = AckStatus.DONE, **parameters: Any) -> None:
        """A command, carried out."""
        seq = self.daemon.command(action, **parameters)
        ack = await soon(lambda: [ack for ack in self.daemon.acks() if ack.seq == seq])
        assert ack[0].status is status, ack[0].message


@contextlib.asynccontextmanager
async def stage(
    handlers: dict[str, Any] | None = None, lost_after_s: float = 1000.0, limit: int = 4, **options: Any
) -> AsyncIterator[Stage]:
    """Everything started and let in."""
    async with serving() as daemon:
        path = daemon.server.config.path
        guard = AsyncSubscriber("app", target="llm", path=path, handlers=handlers, lost_after_s=lost_after_s)
        app = StreamingApp()
        wrapped = MemoryGuard(app, guard, limit=limit, **options)
        async with living(wrapped):
            await daemon.joined()
            yield Stage(daemon, app, guard, wrapped)


def test_rejecting_refuses_new_requests_and_lets_streams_end() -> None:
    """503 with Retry-After and the error that clients know; a stream goes through untouched; restore opens again."""

    async def test() -> None:
        async with stage(retry_after_s=7) as on:
            on.app.may_end.clear()
            stream = http(on.wrapped)
            await soon(lambda: stream.body)
            await on.tell(Action.REJECT_REQUESTS, accept_requests=False)
            refused = await answered(on.wrapped)
            assert (refused.status, refused.headers["retry-after"]) == (503, "7")
            assert refused.headers["content-type"] == "application/json"
            assert int(refused.headers["content-length"]) == len(refused.body)
            assert refused.error == {
                "message": "cannot take this request now: memory is short; try again in 7 s",
                "type": "overloaded_error",
                "param": None,
                "code": "memory_pressure",
            }
            on.app.may_end.set()
            await stream.task
            assert (stream.status, stream.body) == (200, b"first last")
            assert on.app.given == [(stream.receive, stream.send)]
            await on.tell(Action.RESTORE, **RESTORE)
            assert (await answered(on.wrapped)).status == 200

    run(test())


def test_a_refused_caller_may_finish_what_it_is_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole answer is there at once; the rest of the request is taken in, so that no server resets the connection.

    That ends with the request, with the caller, or when it takes too long.
    """

    async def test() -> None:
        async with stage() as on:
            await on.tell(Action.REJECT_REQUESTS, accept_requests=False)
            sending = http(on.wrapped, whole=False)
            await soon(lambda: sending.body)
            assert (sending.status, sending.error["code"]) == (503, "memory_pressure")
            for _ in range(100):
                sending.inbox.put_nowait({"type": "http.request", "body": b"piece", "more_body": True})
            await soon(sending.inbox.empty)
            assert not sending.task.done()
            sending.inbox.put_nowait({"type": "http.request", "body": b"last"})
            await sending.task
            assert sending.sent[-1] == {"type": "http.response.body"}
            leaving = http(on.wrapped, whole=False)
            leaving.inbox.put_nowait({"type": "http.disconnect"})
            await leaving.task
            monkeypatch.setattr("edgeguardd.client.asgi.DISCARD_S", 0.01)
            silent = await answered(on.wrapped, whole=False)
            assert silent.sent[-1] == {"type": "http.response.body"}

    run(test())


def test_a_reduced_batch_is_a_share_of_the_limit() -> None:
    """Of eight at once, two run at any time; those who wait too long are refused, and nobody is lost."""

    async def test() -> None:
        async with stage(limit=4, patience_s=0.05, max_waiting=4) as on:
            await on.tell(Action.REDUCE_BATCH, max_batch_ratio=0.5)
            on.app.may_end.clear()
            requests = [http(on.wrapped) for _ in range(8)]
            await soon(lambda: sum(request.task.done() for request in requests) == 6)
            on.app.may_end.set()
            await asyncio.wait([request.task for request in requests])
            assert [request.status for request in requests] == [200, 200, *[503] * 6]
            assert {request.error["code"] for request in requests[2:]} == {"memory_pressure"}
            assert on.app.most_running == 2

    run(test())


def test_who_waits_for_a_place_gets_it() -> None:
    """Patience is rewarded when one ends in time."""

    async def test() -> None:
        async with stage(limit=4, patience_s=1000) as on:
            await on.tell(Action.REDUCE_BATCH, max_batch_ratio=0.25)
            on.app.may_end.clear()
            requests = [http(on.wrapped) for _ in range(3)]
            await soon(lambda: on.app.running == 1)
            on.app.may_end.set()
            await asyncio.wait([request.task for request in requests])
            assert [request.status for request in requests] == [200] * 3
            assert on.app.most_running == 1

    run(test())


def test_an_application_that_fails_gives_its_place_back() -> None:
    """The error is the server's to see; the next request runs."""

    async def test() -> None:
        async def broken(scope: Any, receive: Any, send: Any) -> None:
            raise RuntimeError(scope["type"])

        guard = AsyncSubscriber("app", path="/nowhere")
        wrapped = MemoryGuard(broken, guard, limit=1)
        wrapped._places.cut(0.5)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="http"):
                await answered(wrapped)
        await guard.close()

    run(test())


def test_health_checks_and_preflights_are_always_served() -> None:
    """Also below a mount point; other paths are not, whatever they begin with."""

    async def test() -> None:
        async with stage(exempt=[*HEALTH_PATHS, "/v1/models"]) as on:
            await on.tell(Action.REJECT_REQUESTS, accept_requests=False)
            served = [
                await answered(on.wrapped, "/healthz", "GET"),
                await answered(on.wrapped, "/v1/models", "GET"),
                await answered(on.wrapped, "/llm/health", "GET", root_path="/llm"),
                await answered(on.wrapped, method="OPTIONS"),
            ]
            assert [request.status for request in served] == [200] * 4
            refused = [await answered(on.wrapped, path, "GET") for path in ("/healthz/x", "/llm/health", "/")]
            assert [request.status for request in refused] == [503] * 3

    run(test())


def test_a_websocket_is_refused_while_rejecting() -> None:
    """With the same answer where the server can pass one on; else closed before it is accepted."""

    async def test() -> None:
        async with stage() as on:
            assert (await websocket(on.wrapped)).types == ["websocket.accept"]
            await on.tell(Action.REJECT_REQUESTS, accept_requests=False)
            plain = await websocket(on.wrapped)
            assert [(message["type"], message["code"]) for message in plain.sent] == [("websocket.close", 1013)]
            told = await websocket(on.wrapped, extensions={"websocket.http.response": {}})
            assert told.types == ["websocket.http.response.start", "websocket.http.response.body"]
            assert (told.status, told.headers["retry-after"]) == (503, "5")
            assert told.error["code"] == "memory_pressure"

    run(test())


def test_a_daemon_that_died_does_not_leave_the_application_refusing() -> None:
    """ADR 7: after lost_after_s all is as without a guard."""

    async def test() -> None:
        async with stage(lost_after_s=0.1) as on:
            await on.tell(Action.REJECT_REQUESTS, accept_requests=False)
            assert (await answered(on.wrapped)).status == 503
            await on.daemon.server.close()
            await soon(lambda: on.wrapped._places.refusal is None)
            assert (await answered(on.wrapped)).status == 200

    run(test())


def test_unloading_waits_for_those_who_run_and_restoring_for_the_model() -> None:
    """No request meets an application without its model."""
    calls: list[str] = []
    may_load = asyncio.Event()

    async def unload(_command: Command) -> Released:
        calls.append("unload")
        return Released(1)

    async def restore(command: Command) -> None:
        if command.parameters.model_loaded:
            calls.append("load")
            await may_load.wait()

    async def test() -> None:
        async with stage({"unload_model": unload, "restore": restore}) as on:
            on.app.may_end.clear()
            stream = http(on.wrapped)
            await soon(lambda: stream.body)
            seq = on.daemon.command(Action.UNLOAD_MODEL, model_loaded=False)
            await soon(lambda: on.daemon.acks(AckStatus.ACCEPTED))
            refused = await answered(on.wrapped)
            assert (refused.status, calls) == (503, [])
            assert "the model is out of memory" in refused.error["message"]
            on.app.may_end.set()
            await stream.task
            await soon(lambda: [ack.seq for ack in on.daemon.acks()] == [seq])
            assert (stream.body, calls) == (b"first last", ["unload"])
            assert on.daemon.acks()[0].released_bytes == 1
            on.daemon.command(Action.RESTORE, **RESTORE)
            await soon(lambda: "load" in calls)
            assert (await answered(on.wrapped)).status == 503
            may_load.set()
            await soon(lambda: len(on.daemon.acks()) == 2)
            assert (await answered(on.wrapped)).status == 200

    run(test())


def test_an_unload_that_cannot_be_is_answered_in_time_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that never ends, or an application that fails: failed, and requests come in as before."""
    monkeypatch.setattr("edgeguardd.client.asgi.DRAIN_SHARE", 0.01)

    def unload(_command: Command) -> None:
        raise OSError("busy")

    async def test() -> None:
        async with stage({"unload_model": unload}) as on:
            await on.tell(Action.UNLOAD_MODEL, AckStatus.FAILED, model_loaded=False)
            assert (await answered(on.wrapped)).status == 200
            on.app.may_end.clear()
            stream = http(on.wrapped)
            await soon(lambda: stream.body)
            await on.tell(Action.UNLOAD_MODEL, AckStatus.FAILED, model_loaded=False)
            assert on.daemon.acks()[-1].message == "TimeoutError: 1 requests still run after 0.05 s"
            on.app.may_end.set()
            await stream.task
            assert (await answered(on.wrapped)).status == 200

    run(test())


def test_what_cannot_be_unloaded_is_not_asked_to() -> None:
    """The daemon is told what has a handler: the middleware's own three, and the application's."""

    async def test() -> None:
        async with stage({"trim_kv_cache": lambda _command: Released(5)}) as on:
            (joined,) = await on.daemon.joined()
            assert joined.supports == {"trim_kv_cache", "reduce_batch", "reject_requests", "restore"}
            await on.tell(Action.TRIM_KV_CACHE)
            assert on.daemon.acks()[0].released_bytes == 5

    run(test())


def test_the_applications_own_handlers_are_called_as_well() -> None:
    """And what they answer is what is acked."""
    calls: list[float | bool | None] = []

    def reduce(command: Command) -> Released:
        calls.append(command.parameters.max_batch_ratio)
        return Released(3)

    async def reject(command: Command) -> None:
        calls.append(command.parameters.accept_requests)

    async def test() -> None:
        async with stage({"reduce_batch": reduce, "reject_requests": reject}) as on:
            await on.tell(Action.REDUCE_BATCH, max_batch_ratio=0.5)
            await on.tell(Action.REJECT_REQUESTS, accept_requests=False)
            assert calls == [0.5, False]
            assert on.daemon.acks()[0].released_bytes == 3
            assert on.wrapped._places.allowed == 2

    run(test())


def test_the_daemon_hears_of_requests() -> None:
    """How many run and wait, and what a share is of."""

    async def test() -> None:
        async with stage(limit=1, patience_s=1000) as on:
            on.app.may_end.clear()
            await on.tell(Action.REDUCE_BATCH, max_batch_ratio=0.5)
            requests = [http(on.wrapped), http(on.wrapped)]

            def latest() -> tuple[int | None, int | None]:
                told = [event.report for event in on.daemon.of(ReportReceived)]
                running = [report.running for report in told if report.running is not None]
                waiting = [report.waiting for report in told if report.waiting is not None]
                return running[-1] if running else None, waiting[-1] if waiting else None

            await soon(lambda: latest() == (1, 1))
            on.app.may_end.set()
            await asyncio.wait([request.task for request in requests])
            await soon(lambda: latest() == (0, 0))
            reports = on.daemon.of(ReportReceived)
            assert {report.report.batch_limit for report in reports} >= {1}

    run(test())


def test_the_daemon_may_be_asked_for_each_request() -> None:
    """What it grants is told finished at the end; what it does not is refused with its reason and its pause."""

    def wanted(scope: Any) -> Wanted | None:
        size = dict(scope["headers"]).get(b"content-length")
        return None if size is None else Wanted(tokens=int(size))

    def grant(asked: AdmitAsked) -> effects.AnswerAdmit:
        return effects.AnswerAdmit(asked.subscriber, asked.id, (asked.tokens or 0) < 100, "it does not fit", 12.3)

    async def test() -> None:
        async with stage(wanted=wanted) as on:
            on.daemon.grant = grant
            assert (await answered(on.wrapped)).status == 200
            assert on.daemon.of(AdmitAsked) == []
            assert (await answered(on.wrapped, headers=[(b"content-length", b"99")])).status == 200
            refused = await answered(on.wrapped, headers=[(b"content-length", b"100")])
            assert (refused.status, refused.headers["retry-after"]) == (503, "13")
            assert "it does not fit" in refused.error["message"]
            granted, refused_one = on.daemon.of(AdmitAsked)
            # A length that no number of the protocol holds, as anybody may claim it, fits as little.
            claimed = await answered(on.wrapped, headers=[(b"content-length", b"9" * 20)])
            assert (claimed.status, on.guard.connected) == (503, True)
            sending = http(on.wrapped, whole=False, headers=[(b"content-length", b"100")])
            await soon(lambda: sending.body)
            assert (on.wrapped._places.running, sending.task.done()) == (0, False)
            sending.inbox.put_nowait({"type": "http.disconnect"})
            await sending.task
            await soon(lambda: any(e.finished for e in on.daemon.of(ReportReceived)))
            finished = [each for event in on.daemon.of(ReportReceived) for each in event.finished]
            assert finished == [granted.id] != [refused_one.id]
            assert on.wrapped._places.running == 0

    run(test())


def test_the_guard_lives_within_the_lifespan_again_and_again() -> None:
    """Started when the application is, closed before it ends; a second life is like the first."""
    guard = AsyncSubscriber("app", path="/nowhere")
    alive: list[bool] = []

    class Watching(StreamingApp):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await receive()
                alive.append(guard.running)
                await send({"type": "lifespan.startup.complete"})
                await receive()
                alive.append(guard.running)
                await send({"type": "lifespan.shutdown.complete"})
            else:
                await super().__call__(scope, receive, send)

    async def test(wrapped: MemoryGuard) -> None:
        for _ in range(2):
            async with living(wrapped):
                alive.append(guard.running)
                assert (await answered(wrapped)).status == 200
        # The server ends, but a last request may still come: it is served, and starts nothing that nobody would end.
        assert (await answered(wrapped)).status == 200
        assert not guard.running

    async def make() -> MemoryGuard:
        return MemoryGuard(Watching(), guard, limit=1)

    wrapped = asyncio.run(make())
    run(test(wrapped))
    run(test(wrapped))
    assert alive == [False, True, False] * 4


@pytest.mark.parametrize("consumes", [False, True])
@pytest.mark.parametrize("how", ["raises", "returns"])
def test_an_application_without_a_lifespan_has_a_guard_all_the_same(how: str, consumes: bool) -> None:
    """Whether it refuses the lifespan or passes over it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if consumes:
            await receive()
        if how == "raises":
            raise AssertionError("http only")

    async def test() -> None:
        guard = AsyncSubscriber("app", path="/nowhere")
        async with living(MemoryGuard(app, guard, limit=1)) as lifespan:
            assert lifespan.types == ["lifespan.startup.complete"]
            assert guard.running
        assert lifespan.types == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
        assert not guard.running

    run(test())


def test_an_application_that_cannot_start_is_not_covered_up() -> None:
    """Its failure is what the server hears, and no guard runs."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no model"})
        raise FileNotFoundError("no model")

    async def test() -> None:
        guard = AsyncSubscriber("app", path="/nowhere")
        with pytest.raises(FileNotFoundError):
            async with living(MemoryGuard(app, guard, limit=1)) as lifespan:
                assert lifespan.types == ["lifespan.startup.failed"]
        assert not guard.running

    run(test())


def test_two_servers_of_one_application_share_its_guard() -> None:
    """As HTTP and HTTPS on one loop: it lives from the first one's start to the last one's end."""

    async def test() -> None:
        guard = AsyncSubscriber("app", path="/nowhere")
        wrapped = MemoryGuard(StreamingApp(), guard, limit=1)
        async with living(wrapped) as first:
            async with living(wrapped) as second:
                assert (first.types, second.types) == (["lifespan.startup.complete"], ["lifespan.startup.complete"])
            assert guard.running
        assert not guard.running

    run(test())


@pytest.mark.parametrize("started", ["before", "by another"])
def test_a_guard_that_cannot_start_is_a_startup_that_failed(started: str) -> None:
    """Servers serve on after an exception alone, and nobody would guard the application."""

    async def test() -> None:
        guard = AsyncSubscriber("app", path="/nowhere")
        if started == "before":
            await guard.start()
        else:
            async with living(MemoryGuard(StreamingApp(), guard, limit=1)):
                pass
        with pytest.raises(RuntimeError, match="cannot handle 'reduce_batch' now"):
            async with living(MemoryGuard(StreamingApp(), guard, limit=1)) as lifespan:
                assert lifespan.types == ["lifespan.startup.failed"]
        assert "cannot handle 'reduce_batch' now" in lifespan.sent[0]["message"]
        assert guard.running == (started == "before")
        await guard.close()

    run(test())


def test_a_server_without_a_lifespan_starts_the_guard_with_its_first_request() -> None:
    """It ends with the loop."""

    async def test() -> None:
        async with serving() as daemon:
            guard = AsyncSubscriber("app", target="llm", path=daemon.server.config.path)
            wrapped = MemoryGuard(StreamingApp(), guard, limit=1)
            assert (await answered(wrapped)).status == 200
            assert (await answered(wrapped)).status == 200
            await daemon.joined()
            await guard.close()

    run(test())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"limit": 0}, "limit 0"),
        ({"limit": "8"}, "limit '8'"),
        ({"limit": 8, "retry_after_s": 0.5}, "retry_after_s 0.5"),
        ({"limit": 8, "patience_s": float("nan")}, "patience_s nan"),
        ({"limit": 8, "max_waiting": -1}, "max_waiting -1"),
        ({"limit": 8, "exempt": "health"}, "cannot exempt 'health'"),
        ({"limit": 8, "exempt": ["health"]}, "cannot exempt"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(options: dict[str, Any], why: str) -> None:
    """With what was given and what to give."""
    with pytest.raises(ValueError, match=why):
        MemoryGuard(StreamingApp(), AsyncSubscriber("app"), **options)


def test_nothing_is_imported_that_a_server_may_not_have() -> None:
    """Neither a framework nor a server; msgspec is all."""
    program = (
        "import sys, edgeguardd.client.asgi; "
        "sys.exit(bool({'starlette', 'fastapi', 'uvicorn', 'anyio', 'structlog'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
