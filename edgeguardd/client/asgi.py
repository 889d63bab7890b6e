"""Subscribe an ASGI application (FastAPI, Starlette, …) to edgeguardd, without a line in its endpoints.

    guard = AsyncSubscriber("my-server")

    @guard.on("trim_kv_cache")
    async def trim(command): …

    app.add_middleware(MemoryGuard, guard=guard, limit=8)

Must not: import a framework or a server; touch what an admitted request receives and sends, so that streams stay
streams. Upstream: aio, lifespan, places. Downstream: applications, on any ASGI server that runs asyncio.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Collection
from contextlib import suppress

from msgspec import Struct

from edgeguardd.client.aio import AsyncSubscriber
from edgeguardd.client.answers import Admission
from edgeguardd.client.guard import log
from edgeguardd.client.handlers import Handler
from edgeguardd.client.lifespan import App, Lifespan, Receive, Scope, Send
from edgeguardd.client.places import Places
from edgeguardd.core.model import Action, Command

__all__ = ["HEALTH_PATHS", "App", "MemoryGuard", "Receive", "Scope", "Send", "Wanted"]

# Asked by load balancers, orchestrators and Prometheus: an answer of 503 there gets a server restarted, not relieved.
HEALTH_PATHS = ("/health", "/healthz", "/livez", "/live", "/readyz", "/ready", "/ping", "/metrics")
# Of an unload's deadline, the share for running requests to end; the rest is for the unload itself.
DRAIN_SHARE = 0.8
# RFC 6455's registry at IANA: "Try Again Later".
TRY_AGAIN_LATER = 1013
# How long a refused caller may go on sending.
DISCARD_S = 5.0

_REJECTING = "memory is short"
_UNLOADED = "the model is out of memory"


class Wanted(Struct, frozen=True):
    """What a request will take, as far as it can be told before it runs; see AsyncSubscriber.admit."""

    tokens: int | None = None
    size_bytes: int | None = None


class MemoryGuard:
    """ASGI middleware that obeys the daemon: it cuts concurrency, refuses while memory is short, and starts the guard.

    app            the application
    guard          the AsyncSubscriber, with the handlers that only the application can have (trim_kv_cache,
                   unload_model); those for reduce_batch, reject_requests and restore are added here, around any that
                   are there. It is started and closed with the application's lifespan, or started by the first
                   request where the server has no lifespan
    limit          the most requests that run at once, which max_batch_ratio is a share of. Held to only while the
                   daemon has the batch reduced: unrestricted, how many run is the application's own business
    patience_s     how long a request may wait for a place while the batch is reduced; then it is refused
    max_waiting    how many may wait at once; default: as many as `limit`
    retry_after_s  whole seconds, what Retry-After says
    exempt         paths that are always served, below the place where the application is mounted
    wanted         asked for each request what it will take; with an answer, the daemon is asked whether that fits, and
                   the request is refused if not. None: nobody is asked
    """

    def __init__(
        self,
        app: App,
        guard: AsyncSubscriber,
        *,
        limit: int,
        patience_s: float = 0.5,
        max_waiting: int | None = None,
        retry_after_s: int = 5,
        exempt: Collection[str] = HEALTH_PATHS,
        wanted: Callable[[Scope], Wanted | None] | None = None,
    ) -> None:
        self._app = app
        self._guard = guard
        self._patience_s = _seconds("patience_s", patience_s)
        self._retry_after_s = _whole("retry_after_s", retry_after_s, 1)
        self._exempt = _paths(exempt)
        self._wanted = wanted
        limit = _whole("limit", limit, 1)
        self._places = Places(
            limit,
            max_waiting=limit if max_waiting is None else _whole("max_waiting", max_waiting, 0),
            on_change=self._report_requests,
        )
        self._wrapped = False
        self._has_lifespan = False
        self._lives = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        guard.report(batch_limit=limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as the ASGI specification has it."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        if not (self._has_lifespan or self._guard.running):
            await self._start()
        if kind == "http" and not self._is_exempt(scope):
            await self._request(scope, receive, send)
        elif kind == "websocket" and (reason := self._places.refusal) is not None and not self._is_exempt(scope):
            await _refuse_websocket(scope, receive, send, self._error(reason, self._retry_after_s))
        else:
            await self._app(scope, receive, send)

    # Requests

    def _is_exempt(self, scope: Scope) -> bool:
        """Health checks, and a browser's question whether it may ask (CORS), which costs nothing."""
        path: str = scope["path"]
        mounted: str = scope.get("root_path") or ""
        return scope.get("method") == "OPTIONS" or path in self._exempt or path.removeprefix(mounted) in self._exempt

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = await self._places.enter(self._patience_s)
        if reason is not None:
            await _refuse(receive, send, self._error(reason, self._retry_after_s))
            return
        admission = None
        try:
            admission = await self._ask(scope)
            if admission is None or admission.granted:
                await self._app(scope, receive, send)
                return
        finally:
            if admission is not None and admission.granted and admission.asked:
                self._guard.finished(admission.id)
            self._places.leave()
        pause_s = max(1, math.ceil(admission.retry_after_s or self._retry_after_s))
        await _refuse(receive, send, self._error(admission.reason, pause_s))

    async def _ask(self, scope: Scope) -> Admission | None:
        wanted = None if self._wanted is None else self._wanted(scope)
        if wanted is None:
            return None
        return await self._guard.admit(tokens=wanted.tokens, size_bytes=wanted.size_bytes)

    def _error(self, reason: str, retry_after_s: int) -> "_Refusal":
        return _Refusal(f"cannot take this request now: {reason}; try again in {retry_after_s} s", retry_after_s)

    def _report_requests(self) -> None:
        self._guard.report(running=self._places.running, waiting=self._places.waiting)

    # Commands

    async def _start(self) -> None:
        """Handlers are wrapped as late as can be, so that an application may register its own in any order."""
        if not self._wrapped:
            self._guard.wrap(Action.REDUCE_BATCH, self._obeying)
            self._guard.wrap(Action.REJECT_REQUESTS, self._obeying)
            self._guard.wrap(Action.RESTORE, self._restoring)
            if self._guard.handles(Action.UNLOAD_MODEL):
                self._guard.wrap(Action.UNLOAD_MODEL, self._unloading)
            self._wrapped = True
        await self._guard.start()

    def _obey(self, command: Command) -> None:
        """What the parameters say of the batch and of new requests."""
        parameters = command.parameters
        if parameters.max_batch_ratio is not None:
            self._places.cut(parameters.max_batch_ratio)
        if parameters.accept_requests is False:
            if self._places.refusal is None:
                log.warning("refusing requests: %s", command.reason)
            self._places.shut("reject", _REJECTING)
        elif parameters.accept_requests:
            self._places.open("reject")

    def _obeying(self, theirs: Handler | None) -> Handler:
        """What is done here, then the application's own handler."""

        async def obey(command: Command) -> object:
            self._obey(command)
            return await _call(theirs, command)

        return obey

    def _restoring(self, theirs: Handler | None) -> Handler:
        """The same, and then requests for a model that was out, since the application has loaded it by now."""

        async def restore(command: Command) -> object:
            self._obey(command)
            answer = await _call(theirs, command)
            if command.parameters.model_loaded:
                self._places.open("unload")
            return answer

        return restore

    def _unloading(self, theirs: Handler | None) -> Handler:
        """No new requests; when those that run have ended, the application's handler. If it fails, all is as before."""

        async def unload(command: Command) -> object:
            self._places.shut("unload", _UNLOADED)
            try:
                await self._drain(command.deadline_s * DRAIN_SHARE)
                return await _call(theirs, command)
            except BaseException:  # cancelled, too, nothing was unloaded, and requests are to be served again
                self._places.open("unload")
                raise

        return unload

    async def _drain(self, within_s: float) -> None:
        if not await self._places.drained(within_s):
            raise TimeoutError(f"{self._places.running} requests still run after {within_s:g} s")

    # Lifespan

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The guard runs from the end of the application's startup to the beginning of its shutdown."""
        self._has_lifespan = True
        lifespan = Lifespan(self._begin_life, self._end_life, receive, send)
        try:
            try:
                await self._app(scope, lifespan.receive, lifespan.send)
            except Exception as error:  # whatever an application raises for a scope that it does not know
                if lifespan.answered:
                    raise
                log.info("the application takes no part in the lifespan (%r); its guard does", error)
            if not lifespan.answered:
                await lifespan.go_alone()
        except Exception as error:  # the server is to hear of it; it is raised again for everybody else
            await lifespan.fail(error)
            raise
        finally:
            await lifespan.close()

    async def _begin_life(self) -> None:
        """Of several servers of one application, as of HTTP and HTTPS on one loop, the first one starts the guard."""
        loop = asyncio.get_running_loop()
        if not (self._lives and self._guard.running and self._loop is loop):
            await self._start()
            self._lives, self._loop = 0, loop
        self._lives += 1

    async def _end_life(self) -> None:
        """The last one closes it."""
        self._lives -= 1
        if self._lives <= 0:
            await self._guard.close()


class _Refusal(Struct, frozen=True):
    message: str
    retry_after_s: int

    def body(self) -> bytes:
        """An error as OpenAI's clients, and those made like them, understand it."""
        error = {"message": self.message, "type": "overloaded_error", "param": None, "code": "memory_pressure"}
        return json.dumps({"error": error}).encode()

    def headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"retry-after", b"%d" % self.retry_after_s),
        ]


async def _refuse(receive: Receive, send: Send, refusal: _Refusal) -> None:
    """Answer at once, then take in the rest of the request: callers that are still sending it, with a server that
    leaves what nobody reads to itself, would see a broken connection and no answer.
    """
    body = refusal.body()
    await send({"type": "http.response.start", "status": 503, "headers": refusal.headers(body)})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body"})


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
    """With the same answer where the server can give one to a handshake, else closed, which servers make a 403."""
    await receive()
    if "websocket.http.response" in (scope.get("extensions") or {}):
        body = refusal.body()
        headers = refusal.headers(body)
        await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": "memory_pressure"})


async def _call(handler: Handler | None, command: Command) -> object:
    result = None if handler is None else handler(command)
    return await result if inspect.isawaitable(result) else result


def _whole(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"cannot guard an application with {name} {value!r}: give a whole number from {least} on")
    return value


def _seconds(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"cannot guard an application with {name} {value!r}: give seconds, 0 or more")
    return value


def _paths(exempt: Collection[str]) -> frozenset[str]:
    # A single text is a collection of texts too, of its characters.
    paths = [exempt] if isinstance(exempt, str) else list(exempt)
    for path in paths:
        if not path.startswith("/"):
            raise ValueError(f"cannot exempt {path!r}: no path; write it from / on")
    return frozenset(paths)
