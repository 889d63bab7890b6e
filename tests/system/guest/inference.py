"""An inference server for tests: holds memory, subscribes byte by byte, and remembers what it was told and when.

    inference.py CONTROL TARGET SUBSCRIBERS HOLD_MIB

CONTROL is a Unix socket that takes one JSON object a line and answers each with one:
    {"do": "grow", "mib": 5}    {"do": "drop"}    {"do": "told"}
    {"do": "answer", "how": "obey"}     or "idle" (says done, gives nothing) or "silent" (no word for now)

It runs as a service in the guest, and starts in little time: Must not import anything but asyncio of what is large,
or the daemon's client, which hides how often it connects. Upstream: server. Downstream: the subscriber socket.
"""

import asyncio
import contextlib
import json
import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

PATH = "/run/edgeguardd/edgeguardd.sock"
PIECE = 256 * 1024
FILLING = b"\xa5" * PIECE
SUPPORTS = ["trim_kv_cache", "reduce_batch", "reject_requests"]
AGAIN_S = 0.05


class Server:
    """All of it. `told` has (monotonic seconds, number of the subscriber, what, its fields)."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.held: list[mmap.mmap] = []
        self.resting = 0
        self.answers = "obey"
        self.owed: list[tuple[Callable[..., None], dict[str, Any]]] = []
        self.told: list[tuple[float, int, str, dict[str, Any]]] = []
        self._growing = asyncio.Lock()
        self._wanted = True

    def note(self, number: int, what: str, fields: dict[str, Any]) -> None:
        """Remember."""
        self.told.append((time.monotonic(), number, what, fields))

    async def grow(self, mib: int) -> None:
        """Hold so much more; in a thread, because above memory.high the kernel puts whoever does it to sleep."""
        async with self._growing:
            self._wanted = True
            await asyncio.to_thread(self._grow, mib)

    def _grow(self, mib: int) -> None:
        for _ in range(mib << 2):
            if not self._wanted:
                return
            piece = mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            piece[:] = FILLING
            self.held.append(piece)

    def drop(self, wanted_bytes: int) -> int:
        """Give back so much, but not what it holds at rest; how much it was."""
        freed = 0
        while len(self.held) > self.resting and freed < wanted_bytes:
            freed += len(self.held[-1])
            self.held.pop().close()
        return freed

    async def subscribe(self, number: int) -> None:
        """Subscriber for ever: whenever the connection is lost, again."""
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_unix_connection(PATH)
                self.note(number, "connected", {})
                try:
                    await self._serve(number, reader, writer)
                finally:
                    writer.close()
                    self.note(number, "lost", {})
            await asyncio.sleep(AGAIN_S)

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(**message: Any) -> None:
            writer.write(json.dumps(message).encode() + b"\n")

        say(type="hello", name=f"s{number}", target=self.target, supports=SUPPORTS)
        while line := await reader.readline():
            message = json.loads(line)
            kind = message.pop("type")
            self.note(number, kind, message)
            if kind == "ping":
                say(type="pong", id=message.get("id"))
            elif kind == "command":
                self.owed.append((say, message))
                self.answer()
                await writer.drain()

    def answer(self) -> None:
        """What is owed, unless it is silent."""
        if self.answers == "silent":
            return
        for say, command in self.owed:
            freed = 0
            if self.answers == "obey" and command["action"] == "trim_kv_cache":
                freed = self.drop(command["parameters"]["release_bytes"])
            # Where the connection is gone meanwhile, nobody hears it.
            say(type="ack", seq=command["seq"], status="done", released_bytes=freed)
        self.owed.clear()

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One who tests."""
        while line := await reader.readline():
            order = json.loads(line)
            match order["do"]:
                case "grow":
                    await self.grow(order["mib"])
                case "drop":
                    # What is still growing ends first, and may have a piece under way.
                    self._wanted = False
                    async with self._growing:
                        self.drop(len(self.held) * PIECE)
                case "answer":
                    self.answers = order["how"]
                    self.answer()
            writer.write(json.dumps({"held": len(self.held) * PIECE, "told": self.told}).encode() + b"\n")
            await writer.drain()
        writer.close()


async def main(control: str, target: str, subscribers: str, hold_mib: str) -> None:
    """Until it is ended."""
    server = Server(target)
    await server.grow(int(hold_mib))
    server.resting = len(server.held)
    await asyncio.start_unix_server(server.control, control, limit=1 << 20)
    await asyncio.gather(*(server.subscribe(number) for number in range(int(subscribers))))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
