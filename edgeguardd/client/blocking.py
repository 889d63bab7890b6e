"""The client for threaded servers: one thread for the socket, and one for each lane of handlers that is in use.

Must not: import asyncio; call an application's function while holding the lock. Upstream: guard, session, lanethread,
wakeup. Downstream: applications.

All access to the session is under one lock. Other threads put their lines into the session and wake the socket's thread
through an eventfd. Start after a fork, not before it: threads do not survive one, and in the child a subscriber that
was started is one whose daemon is away for good.
"""

import contextlib
import inspect
import math
import socket
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from edgeguardd.client.answers import Admission, Answer, answer_of, answer_of_failure
from edgeguardd.client.checks import checked_size
from edgeguardd.client.forks import call_in_children
from edgeguardd.client.guard import CONNECT_S, READ_BYTES, Guard, admission_of, log, unasked, why_of
from edgeguardd.client.handlers import Handler
from edgeguardd.client.lanethread import LaneThread
from edgeguardd.client.orders import Lane, Order, lane_of
from edgeguardd.client.session import ClientEvent
from edgeguardd.client.wakeup import Wakeup
from edgeguardd.core import wire
from edgeguardd.core.model import AckStatus, Command

# How long close() waits for each thread; a handler that takes longer goes on in its daemon thread.
JOIN_S = 2.0
# How long lines that are ready may take to leave at the end.
FLUSH_S = 0.5


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
        self._io_thread = 0
        self._wakeup = Wakeup()
        self._stopping = False
        call_in_children(self, Subscriber._abandon)

    # Life

    def start(self) -> None:
        """Connect and stay connected, in the background.

        Raises ValueError for handlers that cannot work together, RuntimeError when no thread can be had.
        """
        self._begin()
        thread = threading.Thread(target=self._run, name="edgeguardd-client", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._end()
            raise
        self._thread = thread

    def run_forever(self) -> None:
        """Connect and stay connected until close() is called elsewhere. Raises as start() does."""
        self._begin()
        self._run()

    def close(self) -> None:
        """Leave. What the daemon has restricted stays as it is: whoever closes decides."""
        self._stopping = True
        self._wakeup.wake()
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
        bytes_per_request: int | None = None,
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
                    "bytes_per_request": bytes_per_request,
                }
            )
            self._wakeup.wake()

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
        stop the server. So it does in on_event, whose thread is the one that would bring the answer. Raises ValueError
        for a negative size.
        """
        tokens, size_bytes = checked_size("tokens", tokens), checked_size("size_bytes", size_bytes)
        waiter = _Waiter()
        with self._lock:
            request = self._next_request()
            if not self._session.welcomed:
                return unasked(request, default_when_unreachable, "edgeguardd is not connected")
            if threading.get_ident() == self._io_thread:
                return unasked(request, default_when_unreachable, "on_event cannot wait for an answer")
            self._waiters[request] = waiter
            self._session.ask(request, size_bytes, tokens)
            self._wakeup.wake()
        try:
            waiter.answered.wait(min(timeout_s, threading.TIMEOUT_MAX))
        finally:
            with self._lock:
                self._waiters.pop(request, None)
                self._session.withdraw(request)
        if waiter.line is None:
            return unasked(request, default_when_unreachable, f"edgeguardd did not answer in {timeout_s:g} s")
        return admission_of(waiter.line)

    def finished(self, request: str) -> None:
        """An admitted request is done: the memory promised to it is free for others."""
        with self._lock:
            self._session.finish(request)
            self._wakeup.wake()

    # The socket's thread

    def _check_handler(self, handler: Handler) -> None:
        if inspect.iscoroutinefunction(handler):
            raise TypeError(f"cannot call the coroutine function {handler!r} from a thread: use AsyncSubscriber")

    def _abandon(self) -> None:
        """In a forked child: there are no threads, and the connection is the parent's."""
        self._lock = threading.RLock()
        self._wakeup.forget()
        self._waiters = {}
        self._thread = None
        if self._sealed:
            self._stopping = True
            self._session.disconnected(time.monotonic())

    def _begin(self) -> None:
        if self._sealed:
            raise RuntimeError("cannot start twice: make another Subscriber")
        self._seal()
        self._wakeup.open()
        try:
            for lane in {lane_of(action) for action in self._handlers.supported()}:
                self._lanes[lane].start()
        except RuntimeError:
            self._end()
            raise

    def _run(self) -> None:
        self._io_thread = threading.get_ident()
        try:
            while not self._stopping:
                try:
                    self._live_and_rest()
                except Exception:  # nothing may end this thread: the server would stay restricted for ever (ADR 7)
                    with contextlib.suppress(Exception):  # the application's logging may be what fails
                        log.exception("the client has a defect; it goes on")
                    time.sleep(self._backoff.wait_s())
        finally:
            self._end()

    def _end(self) -> None:
        self._stopping = True
        for lane in self._lanes.values():
            lane.stop(JOIN_S)
        self._wakeup.close()

    def _live_and_rest(self) -> None:
        try:
            why = self._live_once()
        except Exception as defect:  # the rest is to come all the same: it lifts what an absent daemon restricted
            log.exception("the connection has ended by a defect of the client")
            why = repr(defect)
        if not self._stopping:
            self._tell_away(why)
            self._rest(self._backoff.wait_s())

    def _live_once(self) -> str:
        """One connection, from connect to its end. Returns why it ended."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(CONNECT_S)
                sock.connect(self.path)
                sock.setblocking(False)
                return self._converse(sock)
        except OSError as error:
            return why_of(error)
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
            if silent:
                return "it does not answer"
            if self._stopping:
                with self._lock:
                    unsent += self._session.take_output(now)
                sock.settimeout(FLUSH_S)
                sock.sendall(unsent)
                return "we left"
            if not unsent:
                with self._lock:
                    unsent = self._session.take_output(now)
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

    def _wait(self, sock: socket.socket | None, *, writing: bool = False, until: float = math.inf) -> bool:
        """Wait for the socket, another thread, or the session's next time. Whether there is something to read."""
        with self._lock:
            due = self._session.due(blocked=writing)
        next_s = until if due is None else min(due, until)
        return self._wakeup.wait(next_s - time.monotonic(), sock, writing=writing)

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
            begun = self._session.begin(order)
            self._wakeup.wake()
        if not begun:
            return
        answer = self._call(order.command)
        with self._lock:
            further = self._session.complete(order, answer)
            self._wakeup.wake()
        self._queue(further)

    def _call(self, command: Command) -> Answer:
        handler = self._handlers.get(command.action)
        if handler is None:
            return Answer(AckStatus.UNSUPPORTED)
        try:
            result = handler(command)
        except BaseException as error:  # whatever it raises is its answer: nobody above in this thread wants it
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
