"""The subscriber socket: who is connected, what they say as events, what they are told as effects.

Must not: judge memory, remember commands, decide who is admitted (`admit_peer` does). Upstream: connection, unixbind.
Downstream: daemon. Protocol: docs/reference/protocol.md.

Events are emitted from the loop's own callbacks and from close(), never while one of the effect methods runs, so the
daemon may call those from inside `emit`. Effects for subscribers that have left go nowhere.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import assert_never

from edgeguardd.core import effects, wire
from edgeguardd.core.config import SocketConfig
from edgeguardd.core.events import AckReceived, AdmitAsked, Event, ReportReceived, SubscriberJoined, SubscriberLeft
from edgeguardd.core.model import Action, Report, Role
from edgeguardd.errors import EdgeguardError, ProtocolError
from edgeguardd.serve.connection import Connection
from edgeguardd.serve.peercred import Peer
from edgeguardd.serve.subscriberstats import SubscriberStats, SubscriberStatus
from edgeguardd.serve.unixbind import Claim, claim, listening_at, listening_unix

# Connections that have not said hello yet. One more pushes the oldest out: a real client says hello at once.
MAX_WAITING = 256
# asyncio accepts as many connections in one turn as its backlog says; a storm of them is to delay nobody for long.
ACCEPTS_PER_TURN = 32
# The kernel's queue is longer, so that all subscribers of a restarted daemon find room at once.
BACKLOG = 1024
# How long the last lines may take to leave when the daemon stops.
FLUSH_S = 0.5
READ_BYTES = 64 * 1024

_ACTIONS = frozenset(Action)

AdmitPeer = Callable[[Peer, wire.Hello], str | None]


class SubscriberServer:
    """Listens, and keeps the subscribers by number and by target.

    admit_peer  the target's name for a peer and its hello (None: an observer of everything), or TargetError or
                ProtocolError when it may not
    epoch       changes when the sequence numbers begin again
    """

    def __init__(
        self,
        config: SocketConfig,
        *,
        epoch: str,
        emit: Callable[[Event], None],
        admit_peer: AdmitPeer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.clock = clock
        self.stats = SubscriberStats()
        self.scratch = memoryview(bytearray(READ_BYTES))
        self._epoch = epoch
        self._emit = emit
        self._admit_peer = admit_peer
        self._last_number = 0
        self._connections: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}
        self._subscribers: dict[int, Connection] = {}
        self._by_target: dict[str | None, dict[int, Connection]] = {}
        self.is_own = True  # bound by the daemon, not by systemd
        self._claim: Claim | None = None
        self._bound: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._closing = False
        self._all_closed = asyncio.Event()

    # Start and stop

    def bind(self, sockets: Sequence[socket.socket] = ()) -> socket.socket:
        """Take the socket that systemd passed, else config.path; nobody is let in yet. Raises ServeError.

        One that is bound there is it; else the first, as the unit may say another path than the configuration.
        """
        sock = listening_at(sockets, self.config.path) or listening_unix(sockets)
        self.is_own = sock is None
        if sock is None:
            self._claim = claim(self.config)
            sock = self._claim.sock
        self._bound = sock
        return sock

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen on what bind() has taken; without one before, take it now. Raises ServeError."""
        sock = self.bind(sockets) if self._bound is None else self._bound
        # Not create_unix_server: from Python 3.13 it removes socket files by itself, systemd's as well.
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=sock, backlog=ACCEPTS_PER_TURN)
        sock.listen(BACKLOG)

    @property
    def place(self) -> str:
        """Where it listens. systemd's may be another place than the configuration's; "" is one without a file."""
        if self.is_own or self._bound is None:
            return self.config.path
        name = self._bound.getsockname()
        return name if isinstance(name, str) else ""

    def stands(self) -> bool:
        """Whether who comes anew finds the socket's file."""
        if self.is_own:
            return self._claim is not None and self._claim.stands()
        return not self.place or os.path.lexists(self.place)

    async def listen_again(self) -> None:
        """Make the file again, and take up listening there; who is connected stays. Raises ServeError: try again."""
        if self._closing:
            return
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._claim is not None:
            self._claim.unlock()
            self._claim = None
        self._bound = None
        await self.start()

    async def close(self, reason: str = "stopping") -> None:
        """Say bye to all, give the lines FLUSH_S to leave, and leave no file behind. Every subscriber has left then."""
        self._closing = True
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._claim is not None:
            self._claim.remove_file()
        for connection in tuple(self._connections):
            connection.bye(reason)
        if self._connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), FLUSH_S)
            except TimeoutError:
                for connection in tuple(self._connections):
                    connection.abort()
                await self._all_closed.wait()
        if self._claim is not None:
            self._claim.unlock()
            self._claim = None

    def reconfigure(self, config: SocketConfig) -> None:
        """Take over limits and times. Path, mode and group stay as they are until the next start."""
        self.config = config

    def subscribers(self) -> list[SubscriberStatus]:
        """Who is connected, by number."""
        return [self._status(number, connection) for number, connection in self._subscribers.items()]

    def serving(self) -> list[tuple[int, str, Peer]]:
        """Who serves which target: number, target, and the process that connected."""
        return [
            (number, connection.target, connection.peer)
            for number, connection in self._subscribers.items()
            if connection.hello.role is Role.INFERENCE and connection.target is not None
        ]

    # Effects

    def welcome(self, effect: effects.Welcome) -> None:
        """Tell a subscriber who has just joined what is in force."""
        connection = self._subscribers.get(effect.subscriber)
        if connection is None:
            return
        line = wire.WelcomeLine(
            v=wire.VERSION,
            epoch=self._epoch,
            target=effect.target,
            level=effect.level.word,
            max_batch_ratio=effect.in_force.max_batch_ratio,
            accept_requests=effect.in_force.accept_requests,
            model_loaded=effect.in_force.model_loaded,
            heartbeat_s=self.config.heartbeat_s,
        )
        connection.sender.order("welcome", wire.encode(line))

    def deliver(self, effect: effects.Deliver) -> None:
        """Send a command. An unsent older one of the same target and action is replaced."""
        connection = self._subscribers.get(effect.subscriber)
        if connection is None:
            return
        command = effect.command
        line = wire.CommandLine(
            v=wire.VERSION,
            seq=command.seq,
            target=command.target,
            action=command.action,
            parameters=command.parameters,
            level=command.level.word,
            reason=command.reason,
            deadline_s=command.deadline_s,
        )
        connection.sender.order((command.target, command.action), wire.encode(line))

    def announce(self, effect: effects.AnnounceLevel) -> None:
        """Tell a target's subscribers, and those who observe all, its level."""
        line = wire.encode(
            wire.LevelLine(wire.VERSION, effect.target, effect.level.word, effect.was.word, effect.reason)
        )
        for connection in self._audience(effect.target):
            connection.sender.level(effect.target, line)

    def answer(self, effect: effects.AnswerAdmit) -> None:
        """Answer an admit question."""
        connection = self._subscribers.get(effect.subscriber)
        if connection is not None:
            line = wire.Admission(effect.id, effect.granted, effect.reason, retry_after_s=effect.retry_after_s)
            connection.sender.answer(wire.encode(line))

    def refuse(self, effect: effects.Refuse) -> None:
        """Send an error line; the connection stays, and its errors are not counted against it: acks may cross."""
        connection = self._subscribers.get(effect.subscriber)
        if connection is not None:
            self.stats.count_error(effect.code)
            connection.sender.answer(wire.encode(wire.ErrorLine(wire.VERSION, effect.code, effect.message)))

    def disconnect(self, subscriber: int, reason: str) -> None:
        """Say bye to one subscriber; its SubscriberLeft follows from the loop. Reasons are few, fixed words."""
        connection = self._subscribers.get(subscriber)
        if connection is not None:
            asyncio.get_running_loop().call_soon(connection.bye, reason)

    # What connections say

    def opened(self, connection: Connection) -> None:
        """Count a connection; keep those without a hello few."""
        self._connections.add(connection)
        self._all_closed.clear()
        self._waiting[connection] = None
        self.stats.accepted += 1
        self.stats.waiting = len(self._waiting)
        if self._closing:
            connection.abort()
        elif len(self._waiting) > MAX_WAITING:
            oldest = next(iter(self._waiting))
            oldest.fault("too_many_subscribers", "cannot wait longer for hello: too many connections wait")

    def greeted(self, connection: Connection, hello: wire.Hello) -> None:
        """Let a peer in, or tell it why not."""
        most = self.config.max_subscribers
        full = len(self._subscribers) >= most
        onlooker = self._onlooker() if full and hello.role is Role.INFERENCE else None
        if full and onlooker is None:
            remedy = "close others or raise [socket] max_subscribers"
            connection.fault("too_many_subscribers", f"cannot take more than {most} subscribers: {remedy}")
            return
        try:
            target = self._admit_peer(connection.peer, hello)
        except ProtocolError as error:
            connection.fault(error.code, str(error))
            connection.end(error.code)
            return
        except EdgeguardError as error:
            connection.fault("unknown_target", str(error))
            return
        if onlooker is not None:
            onlooker.fault("too_many_subscribers", "cannot let you look on: a server needs the place; try later")
        self._last_number += 1
        number = self._last_number
        self._waiting.pop(connection, None)
        self._subscribers[number] = connection
        self._by_target.setdefault(target, {})[number] = connection
        self.stats.current, self.stats.waiting = len(self._subscribers), len(self._waiting)
        connection.join(number, hello, target)
        supports = frozenset(Action(word) for word in hello.supports if word in _ACTIONS)
        self._emit(SubscriberJoined(number, hello.name, hello.role, target, supports, connection.peer.pid))

    def heard(self, connection: Connection, message: wire.Ack | wire.ReportLine | wire.Admit) -> None:
        """Pass on what a subscriber said."""
        number = connection.subscriber
        match message:
            case wire.Ack(seq=seq, status=status):
                effect, freed, text = message.effect, message.released_bytes, message.message
                self._emit(AckReceived(number, seq, status, effect, freed, text))
            case wire.ReportLine():
                self._emit(ReportReceived(number, _report_of(message), message.finished))
            case wire.Admit():
                self._emit(AdmitAsked(number, message.id, message.bytes, message.tokens))
            case _:
                assert_never(message)

    def left(self, connection: Connection, reason: str) -> None:
        """Forget a connection; tell the engine if it was a subscriber's."""
        self._waiting.pop(connection, None)
        number = connection.subscriber
        if not number:
            self.stats.refused += 1
            self.stats.waiting = len(self._waiting)
            return
        del self._subscribers[number]
        peers = self._by_target[connection.target]
        del peers[number]
        if not peers:
            del self._by_target[connection.target]
        self.stats.current = len(self._subscribers)
        self.stats.count_disconnect(reason)
        self._emit(SubscriberLeft(number, reason))

    def closed(self, connection: Connection) -> None:
        """A descriptor is free again."""
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _onlooker(self) -> Connection | None:
        """The observer that has been looking for the longest: who only looks makes room for who serves."""
        return next((c for c in self._subscribers.values() if c.hello.role is Role.OBSERVER), None)

    def _audience(self, target: str) -> Iterator[Connection]:
        yield from self._by_target.get(target, {}).values()
        yield from self._by_target.get(None, {}).values()

    def _status(self, number: int, connection: Connection) -> SubscriberStatus:
        hello = connection.hello
        now = self.clock()
        return SubscriberStatus(
            subscriber=number,
            name=hello.name,
            role=hello.role,
            target=connection.target,
            supports=tuple(Action(word) for word in hello.supports if word in _ACTIONS),
            pid=connection.peer.pid,
            uid=connection.peer.uid,
            connected_s=now - connection.opened_at,
            silent_s=now - connection.heard_at,
            outbox_lines=connection.sender.waiting_lines,
        )


def _report_of(line: wire.ReportLine) -> Report:
    return Report(
        static_bytes=line.static_bytes,
        kv_bytes=line.kv_bytes,
        running=line.running,
        waiting=line.waiting,
        batch_limit=line.batch_limit,
        bytes_per_token=line.bytes_per_token,
        bytes_per_request=line.bytes_per_request,
    )
