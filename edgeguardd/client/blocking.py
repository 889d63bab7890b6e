"""The client for threaded servers: one thread for the socket, and one for each lane of handlers that is in use.

Must not: import asyncio; call an application's function while holding the lock. Upstream: guard, session, lanethread.
Downstream: applications.

All access to the session is under one lock. Other threads put their lines into the session and wake the socket's thread
through an eventfd. Start after a fork, not before it: threads do not survive one.
"""

import inspect
import os
import select
import socket
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from edgeguardd.client.answers import Admission, Answer, answer_of, answer_of_failure
from edgeguardd.client.guard import CONNECT_S, READ_BYTES, Guard, admission_of, log, unasked
from edgeguardd.client.handlers import Handler
from edgeguardd.client.lanethread import LaneThread
from edgeguardd.client.orders import Lane, Order, lane_of
from edgeguardd.client.session import ClientEvent
from edgeguardd.core import wire
from edgeguardd.core.model import AckStatus, Command

# How long close() waits for each thread; a handler that takes longer goes on in its daemon thread.
JOIN_S = 2.0
# How long lines that are ready may take to leave at the end.
FLUSH_S = 0.5
_NO_FD = -1


class Subscriber(Guard):
    """Subscribes a threaded server: `start()` in daemon threads, or `run_forever()` in the calling one.

    Every method may be called from any thread, handlers included.
    """

    def _prepare(self) -> None:
        # Reentrant, because close() may be called by a signal handler in the middle of anything.
        self._lock = threading.RLock()
        self._lanes = {lane: LaneThread(lane, self._carry_out) for lane in Lane}
        self._waiters: dict[str, _Waiter] = {}
        self._thread: threading.Thread | None = None
        self._wake_fd = _NO_FD
        self._stopping = False

    # Life

    def start(self) -> None:
        """Connect and stay connected, in the background. Raises ValueError for handlers that cannot work together."""
        self._begin()
        self._thread = threading.Thread(target=self._run, name="edgeguardd-client", daemon=True)
        self._thread.start()

    def run_forever(self) -> None:
        """Connect and stay connected until close() is called elsewhere. Raises as start() does."""
        self._begin()
        self._run()

    def close(self) -> None:
        """Leave. What the daemon has restricted stays as it is: whoever closes decides."""
        self._stopping = True
        self._wake()
        ours = [lane.thread for lane in self._lanes.values()]
        if self._thread is not None and threading.current_thread() not in (self._thread, *ours):
            self._thread.join(JOIN_S)

    def __enter__(self) -> "Subscriber":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # What the application says

    def report(
        self,
        *,
        static_bytes: int | None = None,
        kv_bytes: int | None = None,
        running: int | None = None,
        waiting: int | None = None,
        batch_limit: int | None = None,
        bytes_per_token: int | None = None,
    ) -> None:
        """Tell figures that have changed. Cheap: at most ten lines a second are sent, with the latest of each.

        Raises ValueError for a negative figure.
        """
        with self._lock:
            self._session.report(
                {
                    "static_bytes": static_bytes,
                    "kv_bytes": kv_bytes,
                    "running": running,
                    "waiting": waiting,
                    "batch_limit": batch_limit,
                    "bytes_per_token": bytes_per_token,
                }
            )
            self._wake()

    def admit(
        self,
        *,
        tokens: int | None = None,
        size_bytes: int | None = None,
        timeout_s: float = 0.5,
        default_when_unreachable: bool = True,
    ) -> Admission:
        """Ask whether a request of this size may be taken. Hand the answer's id to finished() when it is done.

        Without an answer within timeout_s, or without a daemon, the default counts: a guard that is away must not
        stop the server.
        """
        waiter = _Waiter()
        with self._lock:
            request = self._next_request()
            if not self._session.welcomed:
                return unasked(request, default_when_unreachable, "edgeguardd is not connected")
            self._waiters[request] = waiter
            self._session.ask(request, size_bytes, tokens)
            self._wake()
        waiter.answered.wait(timeout_s)
        with self._lock:
            self._waiters.pop(request, None)
        if waiter.line is None:
            return unasked(request, default_when_unreachable, f"edgeguardd did not answer in {timeout_s:g} s")
        return admission_of(waiter.line)

    def finished(self, request: str) -> None:
        """An admitted request is done: the memory promised to it is free for others."""
        with self._lock:
            self._session.finish(request)
            self._wake()

    # The socket's thread

    def _check_handler(self, handler: Handler) -> None:
        if inspect.iscoroutinefunction(handler):
            raise TypeError(f"cannot call the coroutine function {handler!r} from a thread: use AsyncSubscriber")

    def _begin(self) -> None:
        if self._sealed:
            raise RuntimeError("cannot start twice: make another Subscriber")
        self._seal()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._tell_away(self._live_once())
                self._rest(self._backoff.wait_s())
        finally:
            self._stopping = True
            for lane in self._lanes.values():
                lane.stop(JOIN_S)
            with self._lock:
                os.close(self._wake_fd)
                self._wake_fd = _NO_FD

    def _live_once(self) -> str:
        """One connection, from connect to its end. Returns why it ended."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
            try:
                sock.settimeout(CONNECT_S)
                sock.connect(self.path)
                sock.setblocking(False)
                return self._converse(sock)
            except OSError as error:
                return str(error)
            finally:
                with self._lock:
                    self._session.disconnected(time.monotonic())
                    for waiter in self._waiters.values():
                        waiter.answered.set()

    def _converse(self, sock: socket.socket) -> str:
        with self._lock:
            self._session.connected(time.monotonic())
        unsent = b""
        while True:
            now = time.monotonic()
            with self._lock:
                events = self._session.tick(now)
                silent = self._session.is_silent(now)
            self._take_in(events)
            with self._lock:
                unsent += self._session.take_output(now)
            if silent:
                return "it does not answer"
            if self._stopping:
                sock.settimeout(FLUSH_S)
                sock.sendall(unsent)
                return "we left"
            unsent = _send_some(sock, unsent)
            if self._wait(sock, writing=bool(unsent)):
                received = sock.recv(READ_BYTES)
                if not received:
                    return "it closed the connection"
                with self._lock:
                    events = self._session.receive(received, time.monotonic())
                self._take_in(events)

    def _rest(self, wait_s: float) -> None:
        """Wait before the next attempt; lift what is to be lifted meanwhile."""
        until = time.monotonic() + wait_s
        while not self._stopping and (now := time.monotonic()) < until:
            with self._lock:
                events = self._session.tick(now)
            self._take_in(events)
            self._wait(None, until=until)

    def _wait(self, sock: socket.socket | None, *, writing: bool = False, until: float | None = None) -> bool:
        """Wait for the socket, another thread, or the session's next time. Whether there is something to read."""
        with self._lock:
            times = [time_s for time_s in (self._session.due(), until) if time_s is not None]
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        if sock is not None:
            poller.register(sock, select.POLLIN | (select.POLLOUT if writing else 0))
        timeout_ms = None if not times else max(0.0, min(times) - time.monotonic()) * 1000 + 1
        ready = dict(poller.poll(timeout_ms))
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        return sock is not None and bool(ready.get(sock.fileno(), 0) & ~select.POLLOUT)

    def _wake(self) -> None:
        with self._lock:
            if self._wake_fd != _NO_FD:
                os.eventfd_write(self._wake_fd, 1)

    # Events and orders

    def _take_in(self, events: Iterable[ClientEvent]) -> None:
        orders: list[Order] = []
        for event in events:
            match event:
                case Order():
                    orders.append(event)
                case wire.WelcomeLine():
                    # What waited was asked for by a daemon that has gone; this welcome says what counts now.
                    orders.clear()
                    for lane in self._lanes.values():
                        lane.clear()
                case wire.Admission():
                    self._answered(event)
                case _:
                    pass
            self._tell(event)
        self._queue(orders)

    def _queue(self, orders: list[Order]) -> None:
        for lane, thread in self._lanes.items():
            mine = [order for order in orders if lane_of(order.command.action) is lane]
            if mine:
                thread.put(mine)

    def _answered(self, line: wire.Admission) -> None:
        with self._lock:
            waiter = self._waiters.get(line.id)
            if waiter is not None:
                waiter.line = line
                waiter.answered.set()

    def _carry_out(self, order: Order) -> None:
        """In a lane's thread: accept, call the handler, ack."""
        with self._lock:
            self._session.begin(order)
            self._wake()
        answer = self._call(order.command)
        with self._lock:
            further = self._session.complete(order, answer)
            self._wake()
        self._queue(further)

    def _call(self, command: Command) -> Answer:
        handler = self._handlers.get(command.action)
        if handler is None:
            return Answer(AckStatus.UNSUPPORTED)
        try:
            result = handler(command)
        except (Exception, SystemExit) as error:  # whatever an application raises is its answer to this command
            log.warning("the handler of %s failed", command.action, exc_info=True)
            return answer_of_failure(error)
        if inspect.iscoroutine(result):
            result.close()
            return Answer(AckStatus.FAILED, message="the handler returned a coroutine: use AsyncSubscriber")
        return answer_of(result)


class _Waiter:
    """A thread in admit()."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.line: wire.Admission | None = None


def _send_some(sock: socket.socket, unsent: bytes) -> bytes:
    """Send what the socket takes; the rest."""
    try:
        return unsent[sock.send(unsent) :] if unsent else b""
    except BlockingIOError:
        return unsent
