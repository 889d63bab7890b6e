"""One HTTP/1.1 connection: h11 for the syntax, bounds and times for the peers that are slow, greedy or confused.

Must not: know what is served. Upstream: h11. Downstream: http.

One request at a time, GET and HEAD only, no bodies; where the host says that a path is open, any method, and a body is
thrown away together with the connection that it came on. A peer has timeout_s from its first byte (or from its last
answer) to finish its request head, and timeout_s to take an answer. Answers that end the connection are followed by a
short wait for the peer's end of file: closing at once, with bytes unread, makes the kernel reset the connection, and
the peer may never see why.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

import h11
from msgspec import Struct

from edgeguardd.core.config import HttpConfig
from edgeguardd.core.text import printable
from edgeguardd.serve import httptarget
from edgeguardd.serve.httphosts import is_meant
from edgeguardd.serve.httptarget import Target

MAX_HEAD_BYTES = 16 * 1024
MAX_TARGET_BYTES = 2048
# A keep-alive connection is closed politely after so many requests, so that clients spread over restarts and reloads.
MAX_REQUESTS = 1000
LINGER_S = 1.0
MAX_SHOWN_HOST_CHARS = 100

TEXT = "text/plain; charset=utf-8"


class Request(Struct, frozen=True):
    """What was asked for: the target's path and query, as they came; `accept` is what the peer says it can read."""

    method: str
    path: str
    query: str
    accept: str = ""


class Response(Struct, frozen=True):
    """One answer: what a route returns."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class HttpStats(Struct):
    """Counters since the start; `current` is the number of connections now."""

    accepted: int = 0
    refused: int = 0
    timed_out: int = 0
    current: int = 0
    requests: int = 0
    bytes_out: int = 0
    statuses: dict[int, int] = {}


class HttpHost(Protocol):
    """What a connection needs of the server."""

    config: HttpConfig
    stats: HttpStats

    def opened(self, connection: "HttpConnection") -> bool:
        """It is connected. False: there are too many, send it away."""

    def is_open(self, path: str) -> bool:
        """Whether any request for this path is answered, however it is made."""

    def answer(self, request: Request) -> Response:
        """The answer to a request."""

    def used(self, connection: "HttpConnection") -> None:
        """It has sent an answer, and goes on."""

    def closed(self, connection: "HttpConnection") -> None:
        """Its descriptor is closed."""


class HttpConnection(asyncio.Protocol):
    """One peer, from accept to close."""

    def __init__(self, host: HttpHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._requests = 0
        self._without_body = False
        self._stalled = False
        self._eof = False
        self._ending = False

    @property
    def idle(self) -> bool:
        """Whether it has had an answer, has taken it, and asks for nothing."""
        waits = self._requests > 0 and not self._stalled and not self._ending
        return waits and self._http.their_state is h11.IDLE and not self._http.trailing_data[0]

    # Life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request, or send the peer away."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        if self._host.opened(self):
            self._wait(self._host.config.timeout_s, self._too_slow)
        elif not self._transport.is_closing():
            self._send(error(503, "too many connections; try again", ("Retry-After", "1")), last=True)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why it ended is the peer's affair
        """The descriptor is closed, by whomever."""
        self._ending = True
        self._stop_waiting()
        self._host.closed(self)

    def abort(self) -> None:
        """Cut the connection now."""
        self._transport.abort()

    # Reading

    def data_received(self, data: bytes) -> None:
        """Bytes came. After the last answer they are thrown away."""
        if not self._ending:
            self._http.receive_data(data)
            self._next_request()

    def eof_received(self) -> bool:
        """The peer will send no more: close, but not before it has got its answers."""
        self._eof = True
        if self._ending:
            return False
        self._http.receive_data(b"")
        self._next_request()
        return True

    def _next_request(self) -> None:
        """Answer the next whole request; nothing more is read until that answer is on its way."""
        if self._ending or self._stalled:
            return
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as fault:
            self._without_body = False
            self._send(error(fault.error_status_hint, f"cannot read the request: {fault}"), last=True)
            return
        if isinstance(event, h11.Request):
            self._request(event)
        elif isinstance(event, h11.ConnectionClosed):
            self._end()
        elif not self._eof:
            self._transport.resume_reading()

    def _request(self, request: h11.Request) -> None:
        self._requests += 1
        self._host.stats.requests += 1
        self._without_body = request.method == b"HEAD"
        target = httptarget.parse(request.target.decode("ascii"))
        refusal = _too_large(request) or self._misdirected(request, target)
        if refusal is None and not self._host.is_open(target.path):
            refusal = _refusal(request)
        if refusal is not None:
            self._send(refusal, last=True)
            return
        method = request.method.decode("ascii")
        answer = self._host.answer(Request(method, target.path, target.query, _accept(request)))
        # Where there is a body, its end does not come next, and whatever comes is thrown away.
        whole = not _has_body(request) and isinstance(self._http.next_event(), h11.EndOfMessage)
        self._send(answer, last=not whole or self._requests >= MAX_REQUESTS)

    def _misdirected(self, request: h11.Request, target: Target) -> Response | None:
        field = dict(request.headers).get(b"host") if target.host is None else target.host
        if is_meant(field, self._transport.get_extra_info("sockname")[0], self._host.config.hosts):
            return None
        name = printable((field or b"").decode("latin-1"), MAX_SHOWN_HOST_CHARS)
        return error(
            421,
            f"cannot answer for the host '{name}': ask for localhost or the address of the guard, "
            "or add the name to hosts of [http]",
        )

    # Writing

    def pause_writing(self) -> None:
        """The peer does not take its answer as fast as it is made; it has until the timer runs out."""
        self._stalled = True

    def resume_writing(self) -> None:
        """The answer is gone."""
        self._stalled = False
        if not self._ending:
            self._wait(self._host.config.timeout_s, self._too_slow)
            self._next_request()

    def _send(self, answer: Response, last: bool) -> None:
        """Write one answer; end the connection after the last one, else go on to the next request."""
        statuses = self._host.stats.statuses
        statuses[answer.status] = statuses.get(answer.status, 0) + 1
        phrase = HTTPStatus(answer.status).phrase
        events: list[h11.Event] = [
            h11.Response(status_code=answer.status, reason=phrase, headers=_headers(answer, last)),
        ]
        if answer.body and not self._without_body:
            events.append(h11.Data(data=answer.body))
        events.append(h11.EndOfMessage())
        written = b"".join(self._http.send(event) or b"" for event in events)
        self._host.stats.bytes_out += len(written)
        self._wait(self._host.config.timeout_s, self._too_slow)
        self._transport.write(written)
        if last or self._http.our_state is h11.MUST_CLOSE:
            self._end()
            return
        self._http.start_next_cycle()
        self._host.used(self)
        # Pipelined requests come one a turn, so that a peer that sends thousands at once delays nobody.
        self._transport.pause_reading()
        self._loop.call_soon(self._next_request)

    def _end(self) -> None:
        """Let what was written leave and the peer see the end; then close."""
        self._ending = True
        if self._eof:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._transport.resume_reading()
        self._wait(self._host.config.timeout_s if self._stalled else LINGER_S, self.abort)

    # Time

    def _too_slow(self) -> None:
        """Neither a whole request nor room for the answer came in time. An idle connection just ends."""
        if self._stalled:
            self._host.stats.timed_out += 1
            self.abort()
        elif self._http.trailing_data[0]:
            self._host.stats.timed_out += 1
            self._without_body = False
            self._send(error(408, "the request took too long"), last=True)
        else:
            self._end()

    def _wait(self, delay_s: float, then: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = self._loop.call_later(delay_s, then)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def error(status: int, sentence: str, *headers: tuple[str, str]) -> Response:
    """An answer that says what is wrong, for people."""
    return Response(status, TEXT, f"{sentence}\n".encode(), headers)


def _too_large(request: h11.Request) -> Response | None:
    """Why a request cannot be answered, whatever its path; None when it can."""
    # h11 bounds what is incomplete; a whole head in one read may be longer.
    if len(request.target) > MAX_HEAD_BYTES:
        return error(414, f"cannot read a target of over {MAX_HEAD_BYTES} bytes")
    if _head_bytes(request) > MAX_HEAD_BYTES:
        return error(431, f"cannot read headers of over {MAX_HEAD_BYTES} bytes")
    if request.method == b"CONNECT":
        return error(405, "cannot do that here: nothing is tunnelled", ("Allow", "GET, HEAD"))
    return None


def _head_bytes(request: h11.Request) -> int:
    """How long the head was, with the spaces and line ends of a plain one."""
    first = len(request.method) + len(request.target) + len("  HTTP/1.1\r\n\r\n")
    return first + sum(len(name) + len(value) + len(": \r\n") for name, value in request.headers)


def _accept(request: h11.Request) -> str:
    return ",".join(value.decode("latin-1") for name, value in request.headers if name == b"accept")


def _has_body(request: h11.Request) -> bool:
    headers = dict(request.headers)
    return b"transfer-encoding" in headers or bool(headers.get(b"content-length", b"0").strip(b"0"))


def _refusal(request: h11.Request) -> Response | None:
    """Why a request cannot be answered where only pages are; None when it can."""
    if len(request.target) > MAX_TARGET_BYTES:
        return error(414, f"cannot read a target of over {MAX_TARGET_BYTES} bytes")
    if request.method not in (b"GET", b"HEAD"):
        return error(405, "cannot do that here: only GET and HEAD are served", ("Allow", "GET, HEAD"))
    headers = dict(request.headers)
    if b"transfer-encoding" in headers:
        return error(411, "cannot take a request body")
    if headers.get(b"content-length", b"0").strip(b"0"):
        return error(413, "cannot take a request body")
    return None


def _headers(answer: Response, last: bool) -> list[tuple[str, str]]:
    # An answer without content has no length either (RFC 9110, section 8.6).
    content = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
    headers = [
        *(() if answer.status == HTTPStatus.NO_CONTENT else content),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        *answer.headers,
    ]
    return [*headers, ("Connection", "close")] if last else headers
