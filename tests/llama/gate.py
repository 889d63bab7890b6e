"""A door in front of an HTTP server: lets so many requests in, and answers 503 at once to those it cannot.

llama-server queues without bound, has no way to lower its batch and none to refuse, so this has to stand before it.
One request a connection; bodies need a Content-Length; answers are passed on byte by byte as they come.

Must not: know memory, models or edgeguardd. Upstream: bridge. Downstream: the server's Unix socket.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterator

# A caller that cannot be served is told so within a second: this long it may wait for a place, and no longer.
PATIENCE_S = 0.5
# Neither a head nor a body of a request takes longer to come than this, or somebody holds a connection for nothing.
REQUEST_S = 10.0
MAX_BODY_BYTES = 8 * 1024 * 1024
PIECE = 65536


class BadRequestError(Exception):
    """What came is no request that can be passed on."""


class Gate:
    """Open while nothing keeps it shut. `places` is how many requests may be inside at once."""

    def __init__(self, upstream: str, places: int, retry_after_s: int) -> None:
        self._upstream = upstream
        self._places = places
        self._retry_after_s = retry_after_s
        self._shut: dict[str, str] = {}
        self._inside = 0
        self._changed = asyncio.Condition()

    # What the bridge says

    async def shut(self, key: str, reason: str) -> None:
        """Refuse from now on, waiting ones too; several keys may keep it shut. Those inside stay."""
        self._shut[key] = reason
        await self._notify()

    async def open(self, key: str) -> None:
        """This key keeps it shut no longer."""
        self._shut.pop(key, None)
        await self._notify()

    async def limit(self, places: int) -> None:
        """So many at once from now on; those inside stay."""
        self._places = places
        await self._notify()

    async def drain(self, within_s: float) -> bool:
        """Wait until nobody is inside. False if that took too long. Shut first."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(lambda: self._inside == 0)
        except TimeoutError:
            return False
        return True

    @property
    def inside(self) -> int:
        """How many requests the server is working on."""
        return self._inside

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # What callers get

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One caller, from its request to the end of its answer."""
        with contextlib.suppress(ConnectionError):
            try:
                async with asyncio.timeout(REQUEST_S):
                    request = await read_request(reader)
            except BadRequestError as error:
                writer.write(answer("400 Bad Request", "invalid_request_error", "bad_request", str(error)))
            except TimeoutError:
                writer.write(
                    answer("408 Request Timeout", "invalid_request_error", "timeout", "the request is not whole")
                )
            else:
                await self._serve(request, reader, writer)
            await writer.drain()
        writer.close()

    async def _serve(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        refusal = await self._enter()
        if refusal is not None:
            code, reason = refusal
            writer.write(answer("503 Service Unavailable", "overloaded_error", code, reason, self._retry_after_s))
            return
        try:
            await self._pass_on(request, reader, writer)
        finally:
            self._inside -= 1
            await self._notify()

    async def _enter(self) -> tuple[str, str] | None:
        """Take a place; None once taken, else the code and the reason why not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S), self._changed:
                await self._changed.wait_for(lambda: self._shut or self._inside < self._places)
                if not self._shut:
                    self._inside += 1
                    return None
        if self._shut:
            return "memory_pressure", next(iter(self._shut.values()))
        return "busy", f"all {self._places} places are taken"

    async def _pass_on(self, request: bytes, caller: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """To the server and back. A caller that hangs up has given up: the server hears it by a closed connection."""
        try:
            server, to_server = await asyncio.open_unix_connection(self._upstream)
        except OSError as error:
            writer.write(answer("502 Bad Gateway", "server_error", "no_server", f"cannot reach the server: {error}"))
            return
        to_server.write(request)
        passing = asyncio.create_task(copy(server, writer))
        gone = asyncio.create_task(caller.read(1))
        try:
            await asyncio.wait({passing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done() and passing.result() == 0:
                writer.write(
                    answer("502 Bad Gateway", "server_error", "no_answer", "the server ended without an answer")
                )
        finally:
            for task in (passing, gone):
                task.cancel()
            await asyncio.gather(passing, gone, return_exceptions=True)
            to_server.close()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """One whole request, rewritten so that the server ends the connection after its answer.

    Raises BadRequestError, or ConnectionError when the caller hangs up in the middle.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head[:-4].split(b"\r\n")
        body = await reader.readexactly(body_bytes(lines[1:]))
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the caller hung up") from None
    except asyncio.LimitOverrunError:
        raise BadRequestError("the head of the request is too long") from None
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"expect:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", body])


def body_bytes(fields: list[bytes]) -> int:
    """The length of the body that header fields announce. Raises BadRequestError."""
    for name, value in pairs(fields):
        if name == b"transfer-encoding":
            raise BadRequestError("the body needs a Content-Length")
        if name == b"content-length":
            if not value.isdigit() or int(value) > MAX_BODY_BYTES:
                raise BadRequestError(f"the body has to be at most {MAX_BODY_BYTES} bytes")
            return int(value)
    return 0


def pairs(fields: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Names in lower case, and values."""
    for field in fields:
        name, _, value = field.partition(b":")
        yield name.strip().lower(), value.strip()


def answer(status: str, kind: str, code: str, message: str, retry_after_s: int | None = None) -> bytes:
    """A whole answer with an error in the form that OpenAI clients read."""
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
    fields = [
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if retry_after_s is not None:
        fields.append(f"Retry-After: {retry_after_s}")
    return "\r\n".join([*fields, "", ""]).encode() + body


async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> int:
    """Everything that comes, as it comes; how many bytes it was. A server that dies in the middle ends it."""
    total = 0
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(PIECE):
            total += len(piece)
            to.write(piece)
            await to.drain()
    return total
