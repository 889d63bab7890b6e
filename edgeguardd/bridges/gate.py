"""A door in front of an HTTP server: lets so many requests in, and answers 503 at once to those it cannot.

Servers that queue without bound, cannot lower their batch and cannot refuse get this before them. Bodies are passed
on both ways as they come, whole or chunked; nothing is held but a piece at a time. h11 does the syntax.

Must not: know memory, models or edgeguardd. Upstream: places, upstream, heads, pace, refusals, calls, h11.
Downstream: run.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterator
from typing import cast

import h11

from edgeguardd.bridges import pace
from edgeguardd.bridges.calls import connect, why_of
from edgeguardd.bridges.endpoint import Endpoint
from edgeguardd.bridges.heads import from_path_on, kept, path_of, request_of, target_of
from edgeguardd.bridges.places import Places, Refusal
from edgeguardd.bridges.refusals import FORBIDDEN, NO_ANSWER, NO_PROXY, TOO_SLOW, GateError, overloaded, unreadable
from edgeguardd.bridges.upstream import MAX_HEAD_BYTES, PIECE_BYTES, Upstream, write

MAX_CONNECTIONS = 1024
# Behind a request a client may send the next one before the answer; more than this is read after the answer.
MAX_AHEAD_BYTES = 65536
CONNECT_S = 5.0
# Who was answered before its request was whole may go on sending it for so long: closed at once, with bytes unread, the
# kernel resets the connection, and the client may never see the answer.
LINGER_S = 2.0

_LOOKING = frozenset((b"GET", b"HEAD"))


class Gate:
    """Serves connections before one upstream.

    harmless   paths whose GETs need no place and pass when it is shut
    operators  paths that no client may ask for
    """

    def __init__(
        self,
        upstream: Endpoint,
        places: Places,
        harmless: Collection[str],
        retry_after_s: int,
        operators: Collection[str] = (),
    ) -> None:
        self.places = places
        self.retry_after_s = retry_after_s
        self.upstream = upstream
        self._clients: set[asyncio.Task[None]] = set()
        self._idle: dict[asyncio.Task[None], None] = {}
        self._harmless = frozenset(path.encode() for path in harmless)
        self._operators = frozenset(upstream.prefix + path for path in operators)

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, from its first request to its end."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._clients.add(task)
        if self.connections > MAX_CONNECTIONS and self._idle:
            longest = next(iter(self._idle))
            del self._idle[longest]
            longest.cancel()
        try:
            # What breaks HTTP in the middle of a message, on either side, can only be cut off.
            with contextlib.suppress(OSError, h11.ProtocolError, asyncio.CancelledError):
                await _Client(self, reader, writer).serve()
        finally:
            self._clients.discard(task)
            writer.close()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._clients)

    @contextlib.contextmanager
    def idling(self) -> Iterator[None]:
        """Meanwhile this client has asked for nothing yet: of such, the longest waiting makes room for a new one."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._idle[task] = None
        try:
            yield
        finally:
            self._idle.pop(task, None)

    async def close(self) -> None:
        """Cut all clients."""
        tasks = list(self._clients)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_free(self, request: h11.Request) -> bool:
        """Whether a request needs no place."""
        return request.method in _LOOKING and request.target in self._harmless

    def is_operators(self, request: h11.Request) -> bool:
        """Whether a request is for the operator only, however its path is spelt."""
        return path_of(target_of(request, self.upstream)) in self._operators


class _Client:
    """One connection of a client's."""

    def __init__(self, gate: Gate, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._gate = gate
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._eof = False

    async def serve(self) -> None:
        """All its requests, and what it still sends after the last answer."""
        await self._requests()
        if not self._eof and self._http.their_state is h11.SEND_BODY:
            self._writer.write_eof()
            async with asyncio.timeout(LINGER_S):
                while await self._reader.read(PIECE_BYTES):
                    pass

    async def _requests(self) -> None:
        """One request after the other. Raises ConnectionError, TimeoutError where the client is at fault."""
        while True:
            try:
                request = await self._head()
            except h11.RemoteProtocolError as fault:
                return await self._refuse(unreadable(fault))
            if not isinstance(request, h11.Request):
                return None
            if (plain := from_path_on(request)) is None:
                return await self._refuse(NO_PROXY)
            await self._request(plain)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return None
            self._http.start_next_cycle()

    async def _request(self, request: h11.Request) -> None:
        places = self._gate.places
        if self._gate.connections > MAX_CONNECTIONS:
            return await self._refuse(overloaded(Refusal("busy", "too many connections")))
        if self._gate.is_operators(request):
            return await self._refuse(FORBIDDEN)
        if self._gate.is_free(request):
            return await self._pass_on(request)
        refusal = await places.enter()
        if refusal is not None:
            return await self._refuse(overloaded(refusal))
        try:
            await self._pass_on(request)
        finally:
            places.leave()
        return None

    async def _pass_on(self, request: h11.Request) -> None:
        """To the server and back. A client that hangs up has given up: the server hears it by a closed connection."""
        at = self._gate.upstream
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await connect(at)
        except OSError as error:
            # Nobody has taken the request, so it is safe to send it again.
            return await self._refuse(overloaded(Refusal("no_server", f"cannot reach the server: {why_of(error)}")))
        upstream = Upstream(reader, writer)
        sending = asyncio.create_task(self._send_on(request, upstream))
        answering = asyncio.create_task(self._answer(upstream))
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and sending.exception() is None:
                # The request is through; from now on the client's end of file means that it has left.
                leaving = asyncio.create_task(self._until_gone())
                await asyncio.wait({leaving, answering}, return_when=asyncio.FIRST_COMPLETED)
                await _cancel(leaving)
            if answering.done():
                answering.result()
            elif sending.done():
                sending.result()
        finally:
            await _cancel(sending, answering)
            writer.close()
        return None

    async def _head(self) -> object:
        """The next request. Raises TimeoutError where none comes, or half of one."""
        with self._gate.idling():
            if not self._http.trailing_data[0] and not self._eof:
                async with asyncio.timeout(pace.IDLE_S):
                    self._take(await self._reader.read(PIECE_BYTES))
            async with asyncio.timeout(pace.HEAD_S):
                return await self._next()

    async def _send_on(self, request: h11.Request, upstream: "Upstream") -> None:
        """The request and its body, a piece at a time."""
        loop = asyncio.get_running_loop()
        body = pace.BodyPace(loop.time())
        await upstream.send(request_of(request, self._gate.upstream))
        while True:
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
            try:
                async with asyncio.timeout_at(body.until(loop.time())):
                    event = await self._next()
            except TimeoutError:
                await self._refuse(TOO_SLOW)
                raise
            match event:
                case h11.Data():
                    body.took(len(event.data))
                    await upstream.send(h11.Data(data=event.data))
                case h11.EndOfMessage():
                    return await upstream.send(h11.EndOfMessage())
                case _:
                    raise ConnectionResetError("the client hung up")

    async def _answer(self, upstream: "Upstream") -> None:
        """The server's answer, a piece at a time. One that dies in the middle ends the client's connection too."""
        try:
            while True:
                event = await upstream.next()
                match event:
                    case h11.InformationalResponse():
                        continue
                    case h11.Response():
                        event = h11.Response(
                            status_code=event.status_code, reason=event.reason, headers=kept(event.headers)
                        )
                    case h11.Data():
                        event = h11.Data(data=event.data)
                    case h11.EndOfMessage():
                        return await self._send(h11.EndOfMessage())
                    case _:
                        raise ConnectionResetError("the server ended in the middle")
                await self._send(event)
        except (h11.RemoteProtocolError, ConnectionError):
            if self._http.our_state is not h11.SEND_RESPONSE:
                raise
            await self._refuse(NO_ANSWER)

    async def _refuse(self, error: GateError) -> None:
        """An answer of the gate's own. The connection ends where a body is still to come: nobody wants to read it."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = error.body()
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if error.status == 503:
            fields.append(("Retry-After", str(self._gate.retry_after_s)))
        if self._http.their_state is not h11.DONE and not self._is_whole():
            fields.append(("Connection", "close"))
        response = h11.Response(status_code=error.status, reason=error.phrase.encode(), headers=fields)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            await self._send(event)

    def _is_whole(self) -> bool:
        """Whether the rest of the request is here already; it is thrown away."""
        try:
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.EndOfMessage):
                    return True
                if not isinstance(event, h11.Data):
                    return False
        except h11.RemoteProtocolError:
            pass
        return False

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._take(await self._reader.read(PIECE_BYTES))
        return event

    async def _until_gone(self) -> None:
        """Read ahead until the client hangs up, or has sent so much that it must have another request."""
        while not self._eof and len(self._http.trailing_data[0]) < MAX_AHEAD_BYTES:
            self._take(await self._reader.read(PIECE_BYTES))
        if not self._eof:
            await asyncio.Event().wait()

    def _take(self, data: bytes) -> None:
        self._eof = not data
        self._http.receive_data(data)

    async def _send(self, event: h11.Event) -> None:
        if (data := self._http.send(event)) is not None:
            await write(self._writer, data)


async def _cancel(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
