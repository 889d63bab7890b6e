"""The gate's other side: one connection to the server for one request.

Must not: decide who may in. Upstream: h11. Downstream: gate.
"""

import asyncio
import contextlib

import h11

MAX_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 65536
# A piece of a message has to be taken within this.
STALL_S = 30.0


class Upstream:
    """One connection to the server, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def send(self, event: h11.Event) -> None:
        """Send one event on. A server that has hung up has perhaps answered before: next() tells."""
        if (data := self._http.send(event)) is not None:
            with contextlib.suppress(ConnectionError):
                await write(self._writer, data)

    async def next(self) -> object:
        """The next event. Waits as long as the server computes."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE_BYTES))
        return event


async def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(STALL_S):
        await writer.drain()
