"""The subscriber server without a daemon behind it, and peers that speak to it byte by byte.

Must not: use the client library in Peer; it is there to see the protocol itself. Upstream: component tests.
"""

import asyncio
import contextlib
import gc
import json
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from edgeguardd.client.orders import Lane
from edgeguardd.core import effects, scores, wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.events import AckReceived, AdmitAsked, Event, SubscriberJoined, SubscriberLeft
from edgeguardd.core.model import AckStatus, Action, Command, InForce, Level, Parameters
from edgeguardd.core.wire import Hello
from edgeguardd.serve.peercred import Peer as PeerCredentials
from edgeguardd.serve.subscribers import AdmitPeer, SubscriberServer
from tests.support.wait import DEADLINE_S, eventually, soon

E = TypeVar("E")

HELLO = {"type": "hello", "name": "server", "target": "llm"}
OBSERVER = {"type": "hello", "name": "watcher", "role": "observer"}
TRIM = wire.CommandLine(1, 7, "llm", Action.TRIM_KV_CACHE, Parameters(release_bytes=1), "high", "a test", 5.0)


@contextlib.contextmanager
def short_dir() -> Iterator[str]:
    """A directory whose path leaves room for a socket's name (108 bytes in all); gone afterwards."""
    path = tempfile.mkdtemp(prefix="eg", dir="/tmp")
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def no_leaked_descriptors() -> Iterator[None]:
    """Fails when there are more open descriptors afterwards than before, and stay so; tells which threads there are.

    A blocking subscriber of an earlier test may still be ending: close() waits for its threads no longer than JOIN_S,
    and on a busy machine they open or close a descriptor after that. So the beginning waits for them.
    """
    eventually(lambda: not _clients(), what="the subscribers of earlier tests have ended")
    before = _open_descriptors()
    yield
    gc.collect()

    def leaked() -> dict[str, str]:
        return {fd: name for fd, name in _open_descriptors().items() if before.get(fd) != name}

    try:
        eventually(lambda: not leaked())
    except AssertionError:
        threads = [thread.name for thread in threading.enumerate()]
        raise AssertionError(f"leaked: {leaked()}; threads: {threads}") from None


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; afterwards every descriptor is closed."""
    with no_leaked_descriptors():
        asyncio.run(test)


def _clients() -> list[str]:
    """The threads of blocking subscribers."""
    names = {"edgeguardd-client", *(f"edgeguardd-{lane.value}" for lane in Lane)}
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def _open_descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the directory's own descriptor is gone again
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: name for fd, name in found.items() if "/proc/" not in name}


class Scripted:
    """A SubscriberServer whose engine is this: it writes down the events, welcomes, grants and does as it is told."""

    def __init__(self, config: SocketConfig, admit_peer: AdmitPeer | None = None, epoch: str = "e1") -> None:
        self.events: list[Event] = []
        self.in_force = InForce()
        self.level = Level.NORMAL
        self.on_join: Callable[[SubscriberJoined], object] = lambda _joined: None
        self.grant: Callable[[AdmitAsked], effects.AnswerAdmit | None] = lambda asked: effects.AnswerAdmit(
            asked.subscriber, asked.id, True, "it fits"
        )
        self._last_seq = 0
        self.server = SubscriberServer(
            config, epoch=epoch, emit=self._emit, admit_peer=admit_peer or (lambda _peer, hello: hello.target)
        )

    def _emit(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, SubscriberJoined):
            self.server.welcome(effects.Welcome(event.subscriber, event.target, self.level, self.in_force))
            self.on_join(event)
        elif isinstance(event, AdmitAsked):
            answer = self.grant(event)
            if answer is not None:
                self.server.answer(answer)

    def command(self, action: Action, subscriber: int = 1, target: str = "llm", **parameters: Any) -> int:
        """Deliver a command; its seq."""
        self._last_seq += 1
        command = Command(self._last_seq, target, action, Parameters(**parameters), Level.HIGH, "a test", 5.0)
        self.server.deliver(effects.Deliver(subscriber, command))
        return self._last_seq

    def announce(self, level: Level, target: str = "llm", was: Level = Level.NORMAL, reason: str = "a test") -> None:
        """Announce a level."""
        self.server.announce(effects.AnnounceLevel(target, level, was, reason))

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def acks(self, status: AckStatus | None = None) -> list[AckReceived]:
        """The acks of a status, in order; without one, all the final ones."""
        found = self.of(AckReceived)
        return [a for a in found if (a.status is not AckStatus.ACCEPTED if status is None else a.status is status)]

    async def joined(self, count: int = 1) -> list[SubscriberJoined]:
        """Wait until so many have joined."""
        await soon(lambda: len(self.of(SubscriberJoined)) >= count, what=f"{count} joined")
        return self.of(SubscriberJoined)

    async def left(self, count: int = 1) -> list[SubscriberLeft]:
        """Wait until so many have left."""
        await soon(lambda: len(self.of(SubscriberLeft)) >= count, what=f"{count} left")
        return self.of(SubscriberLeft)


@contextlib.asynccontextmanager
async def serving(admit_peer: AdmitPeer | None = None, path: str = "", **config: Any) -> AsyncIterator[Scripted]:
    """A listening server in a directory of its own, closed afterwards. Every joined has left exactly once then."""
    with short_dir() as directory:
        scripted = Scripted(SocketConfig(path=path or f"{directory}/s", **config), admit_peer)
        await scripted.server.start()
        try:
            yield scripted
        finally:
            await scripted.server.close()
        joined = [event.subscriber for event in scripted.of(SubscriberJoined)]
        left = [event.subscriber for event in scripted.of(SubscriberLeft)]
        assert sorted(left) == joined


@contextlib.asynccontextmanager
async def standing_in(
    path: str, *lines: wire.ServerMessage
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """A daemon that says these lines to each hello, and reads nothing more by itself."""
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"".join(wire.encode(line) for line in lines))
        connections.append((reader, writer))

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield connections
    finally:
        server.close()
        for _, writer in connections:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def welcome(heartbeat_s: float = 10.0) -> wire.WelcomeLine:
    """A welcome under no pressure."""
    return wire.WelcomeLine(1, "e", "llm", "normal", 1.0, True, True, heartbeat_s)


class Peer:
    """A raw connection: sends objects or bytes, reads lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *messages: dict[str, Any] | bytes) -> None:
        """Send JSON objects as lines, and bytes as they are."""
        for message in messages:
            self.writer.write(message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")
        await self.writer.drain()

    async def line(self) -> dict[str, Any]:
        """The next line. Fails when the connection ends first."""
        async with asyncio.timeout(DEADLINE_S):
            line = await self.reader.readline()
        assert line.endswith(b"\n"), f"the connection ended after {line!r}"
        found: dict[str, Any] = json.loads(line)
        return found

    async def until(self, kind: str) -> dict[str, Any]:
        """The next line of a type; others are passed over."""
        while True:
            line = await self.line()
            if line["type"] == kind:
                return line

    async def rest(self) -> list[dict[str, Any]]:
        """All lines until the connection ends."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                read = await self.reader.read()
            except ConnectionResetError:  # ended with bytes of ours unread
                read = b""
        return [json.loads(line) for line in read.splitlines()]

    async def close(self) -> None:
        """Close our end."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def peer(scripted: Scripted, *messages: dict[str, Any] | bytes) -> AsyncIterator[Peer]:
    """A connection to the server, with its first messages sent; closed afterwards."""
    reader, writer = await asyncio.open_unix_connection(scripted.server.config.path)
    connection = Peer(reader, writer)
    try:
        await connection.send(*messages)
        yield connection
    finally:
        await connection.close()


def credentials_of_self() -> PeerCredentials:
    """What the kernel says of this process."""
    with open("/proc/self/stat", "rb") as file:
        started = scores.stat(file.read()).started_ticks
    return PeerCredentials(os.getpid(), os.getuid(), os.getgid(), started)


def admits(targets: dict[str, str]) -> AdmitPeer:
    """An admit_peer that knows these targets only."""

    def admit_peer(_peer: PeerCredentials, hello: Hello) -> str | None:
        return None if hello.target is None else targets[hello.target]

    return admit_peer


def plain(value: Any) -> Any:
    """A Struct as JSON would show it, for comparing."""
    return msgspec.to_builtins(value)
