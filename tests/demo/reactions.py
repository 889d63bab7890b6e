"""What the server does about memory pressure: nothing, the naive thing, or what edgeguardd asks for.

Must not: know requests or models. Upstream: server. Downstream: memory.events (naive), edgeguardd.client (guarded).
"""

import asyncio
import contextlib
import os
import select
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from edgeguardd.client import AsyncSubscriber, Command, Released
from tests.demo.kvcache import BYTES_PER_TOKEN, KvCache

REPORT_EVERY_S = 0.5


class Trimmable(Protocol):
    """The server, as reactions see it."""

    cache: KvCache

    def set_batch(self, ratio: float) -> None:
        """Let this share of the configured batch run."""

    def set_accepting(self, accepting: bool) -> None:
        """Take or refuse new requests."""


Say = Callable[..., None]
Reaction = Callable[[Trimmable, Say], contextlib.AbstractAsyncContextManager[Any]]


@contextlib.asynccontextmanager
async def bare(server: Trimmable, say: Say) -> AsyncIterator[None]:
    """Nothing: the kernel is left to its own means."""
    yield


@contextlib.asynccontextmanager
async def naive(server: Trimmable, say: Say) -> AsyncIterator[None]:
    """Wait on memory.events of the own cgroup; on any wake-up drop a quarter of the cache."""
    events = os.open(f"/sys/fs/cgroup{own_cgroup()}/memory.events", os.O_RDONLY)
    watch = select.epoll()

    def woken() -> None:
        os.pread(events, 4096, 0)
        started = time.monotonic()
        freed = server.cache.trim(server.cache.size // 4)
        say("dropped", bytes=freed, took_s=round(time.monotonic() - started, 3))

    os.pread(events, 4096, 0)
    watch.register(events, select.EPOLLPRI)
    asyncio.get_running_loop().add_reader(watch.fileno(), woken)
    try:
        yield
    finally:
        asyncio.get_running_loop().remove_reader(watch.fileno())
        watch.close()
        os.close(events)


@contextlib.asynccontextmanager
async def guarded(server: Trimmable, say: Say) -> AsyncIterator[None]:
    """Subscribe to edgeguardd and do what it asks for."""
    subscriber = AsyncSubscriber("demo-server")

    @subscriber.on("trim_kv_cache")
    def trim(command: Command) -> Released:
        asked = command.parameters.release_bytes
        return Released(server.cache.trim(server.cache.size if asked is None else asked))

    @subscriber.on("reduce_batch")
    def reduce_batch(command: Command) -> None:
        server.set_batch(command.parameters.max_batch_ratio or 0.0)

    @subscriber.on("reject_requests")
    def reject(_: Command) -> None:
        server.set_accepting(False)

    @subscriber.on("restore")
    def restore(command: Command) -> None:
        server.set_batch(1.0 if command.parameters.max_batch_ratio is None else command.parameters.max_batch_ratio)
        server.set_accepting(command.parameters.accept_requests is not False)

    async def report() -> None:
        at_rest = anonymous_bytes()
        while True:
            subscriber.report(static_bytes=at_rest, kv_bytes=server.cache.size, bytes_per_token=BYTES_PER_TOKEN)
            await asyncio.sleep(REPORT_EVERY_S)

    async with subscriber:
        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()


def anonymous_bytes() -> int:
    """This process's anonymous memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))


def own_cgroup() -> str:
    """The path of this process's cgroup below the root."""
    with open("/proc/self/cgroup") as file:
        return next(line.rstrip("\n").removeprefix("0::") for line in file if line.startswith("0::"))


REACTIONS: dict[str, Reaction] = {"bare": bare, "naive": naive, "guarded": guarded}
