"""Between edgeguardd and one llama-server: carries out commands by what a server of one model can do.

    python -m tests.llama.bridge --program FILE --model FILE --cgroup PATH --upstream SOCKET --listen SOCKET --log FILE

llama-server has no call that gives its prompt cache back; ending the process does. So a trim is: shut the gate, drain,
restart, verify, open the gate. Callers are refused at once meanwhile instead of waiting. The bridge lives outside the
server's cgroup, or the limits that it works against would slow it down as well.

Must not: judge memory pressure (edgeguardd does). Upstream: edgeguardd, callers. Downstream: gate, server.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from edgeguardd.client import AsyncSubscriber, Command, NoEffect, Released
from tests.llama.gate import Gate
from tests.llama.server import PLACES, NotReadyError, Place, Server

TARGET = "llama"
# Two prompts of 2,450 tokens side by side took 26 s on one busy processor; who takes longer than this loses its answer.
DRAIN_WITHIN_S = 60.0
# A load with nothing to read again takes 1 to 5 s; whoever comes back after this finds the gate open.
RETRY_AFTER_S = 2
# A restart has to give back this share of what had grown, or it was in vain.
VERIFY_SHARE = 0.5
# Less than one cached prompt of this model: not worth a restart.
WORTH_BYTES = 32 * 1024 * 1024
REPORT_EVERY_S = 1.0
RESTART_AFTER_S = 0.5

Say = Callable[..., None]


class NotReleasedError(Exception):
    """The server was restarted and its memory did not come back."""


class Bridge:
    """The gate, the server behind it, and what commands do to both."""

    def __init__(self, gate: Gate, server: Server, say: Say) -> None:
        self._gate = gate
        self._server = server
        self._say = say
        # One at a time works on the process.
        self._working = asyncio.Lock()
        self._wanted = True
        self._rest_bytes = 0

    async def bring_up(self) -> None:
        """The first start: what the server holds at rest is what it holds now."""
        await self._start()
        self._say("ready", rest_bytes=self._rest_bytes)

    # Commands

    async def trim(self, _: Command) -> Released | NoEffect:
        """Give the prompt cache back, all of it: there is no smaller step."""
        before = self._server.needed_bytes()
        if not self._wanted or before < self._rest_bytes + WORTH_BYTES:
            return NoEffect()
        began = time.monotonic()
        await self._gate.shut("restart", "the server is giving memory back")
        try:
            async with self._working:
                drained = await self._gate.drain(DRAIN_WITHIN_S)
                drain_s = time.monotonic() - began
                await self._server.stop()
                left = self._server.needed_bytes()
                worth = before - self._rest_bytes
                load_s = await self._start()
        finally:
            await self._gate.open("restart")
        if before - left < VERIFY_SHARE * worth:
            raise NotReleasedError(f"{left} bytes were still needed after llama-server had ended")
        freed = max(0, before - self._server.needed_bytes())
        shut_s = time.monotonic() - began
        self._say("restarted", freed_bytes=freed, drained=drained, drain_s=drain_s, load_s=load_s, shut_s=shut_s)
        return Released(freed)

    async def reduce_batch(self, command: Command) -> None:
        """Let fewer requests in at once."""
        await self._gate.limit(places_for(command.parameters.max_batch_ratio))

    async def reject(self, _: Command) -> None:
        """Refuse new requests."""
        await self._gate.shut("reject", "memory is short")

    async def unload(self, _: Command) -> Released:
        """Take the model out of memory until restored."""
        before = self._server.needed_bytes()
        await self._gate.shut("unloaded", "the model is out of memory")
        self._wanted = False
        async with self._working:
            await self._gate.drain(DRAIN_WITHIN_S)
            await self._server.stop()
        self._say("unloaded")
        return Released(max(0, before - self._server.needed_bytes()))

    async def restore(self, command: Command) -> None:
        """Allow again what the parameters say: the model first, the gate last."""
        wanted = command.parameters
        if wanted.model_loaded and not self._wanted:
            self._wanted = True
            async with self._working:
                await self._start()
            await self._gate.open("unloaded")
        if wanted.max_batch_ratio is not None:
            await self._gate.limit(places_for(wanted.max_batch_ratio))
        if wanted.accept_requests:
            await self._gate.open("reject")

    # The server

    async def keep_alive(self) -> None:
        """Start the server again when it ends by itself."""
        while True:
            status = await self._server.ended()
            async with self._working:
                if self._wanted and not self._server.running:
                    await self._revive(status)
            if not self._server.running:
                await asyncio.sleep(RESTART_AFTER_S)

    async def _revive(self, status: int) -> None:
        self._say("died", status=status)
        await self._gate.shut("died", "the server has ended and is started again")
        try:
            await self._start()
        except NotReadyError as error:
            self._say("not_ready", reason=str(error))
            await self._server.stop()
        else:
            await self._gate.open("died")

    async def _start(self) -> float:
        took_s = await self._server.start()
        self._rest_bytes = self._server.needed_bytes()
        return took_s

    async def report(self, subscriber: AsyncSubscriber) -> None:
        """Tell the daemon what it cannot see: what is at rest, and how many requests run."""
        while True:
            kv_bytes = max(0, self._server.needed_bytes() - self._rest_bytes)
            subscriber.report(
                static_bytes=self._rest_bytes, kv_bytes=kv_bytes, running=self._gate.inside, batch_limit=PLACES
            )
            await asyncio.sleep(REPORT_EVERY_S)


def places_for(ratio: float | None) -> int:
    """How many requests a share of the batch is; at least one."""
    return max(1, int(PLACES * (1.0 if ratio is None else ratio)))


def say(event: str, **fields: Any) -> None:
    """Tell the run that started this bridge; one JSON line on standard output."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def serve(options: argparse.Namespace) -> None:
    """Until SIGTERM."""
    place = Place(options.program, options.model, options.cgroup, options.upstream, options.log, options.threads)
    server = Server(place)
    gate = Gate(options.upstream, PLACES, RETRY_AFTER_S)
    bridge = Bridge(gate, server, say)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    handlers = {
        "trim_kv_cache": bridge.trim,
        "reduce_batch": bridge.reduce_batch,
        "reject_requests": bridge.reject,
        "unload_model": bridge.unload,
        "restore": bridge.restore,
    }
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        await bridge.bring_up()
        await stack.enter_async_context(await asyncio.start_unix_server(gate.connection, options.listen, backlog=512))
        subscriber = AsyncSubscriber("llama-bridge", target=TARGET, handlers=handlers)
        await stack.enter_async_context(subscriber)
        for work in (bridge.keep_alive(), bridge.report(subscriber)):
            stack.callback(asyncio.create_task(work).cancel)
        say("open")
        await over.wait()


def main() -> None:
    """Parse and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.llama.bridge", description=__doc__)
    for name in ("--program", "--model", "--cgroup", "--upstream", "--listen", "--log"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", type=int, default=1)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
