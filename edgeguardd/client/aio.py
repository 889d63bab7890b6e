"""The client for asyncio servers: everything runs on the loop that enters it.

Must not: block. Upstream: guard, session. Downstream: applications.

Handlers may be coroutine functions; each lane runs one at a time, so that a slow trim does not hold up rejecting. A
plain function runs on the loop and must be quick; hand slow work to asyncio.to_thread. No method is safe to call from
another thread.
"""

import asyncio
import inspect
import time
from collections.abc import Iterable
from types import TracebackType
from typing import cast

from edgeguardd.client import orders
from edgeguardd.client.answers import Admission, Answer, answer_of, answer_of_failure
from edgeguardd.client.checks import checked_size
from edgeguardd.client.guard import CONNECT_S, Guard, admission_of, log, unasked, why_of
from edgeguardd.client.orders import Order, OrderQueue
from edgeguardd.client.session import ClientEvent
from edgeguardd.core import wire
from edgeguardd.core.model import AckStatus, Action, Command

# How long close() waits for a handler that it has cancelled; one that swallows that goes on by itself.
LEAVE_S = 2.0


class AsyncSubscriber(Guard):
    """Subscribes an asyncio server: `async with AsyncSubscriber("name", handlers={...}) as guard:`."""

    def _prepare(self) -> None:
        self._lanes: dict[str, _LaneTask] = {}
        self._waiters: dict[str, asyncio.Future[wire.Admission | None]] = {}
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # Life

    @property
    def running(self) -> bool:
        """Whether it has been started and not closed since, on a loop that is there."""
        task = self._task
        return task is not None and not task.done() and not task.get_loop().is_closed()

    async def start(self) -> None:
        """Connect and stay connected, in a task. After close() it may be started again, also on another loop.

        Raises ValueError for handlers that cannot work together, RuntimeError when it runs already.
        """
        if self.running:
            raise RuntimeError("cannot start twice: it runs; close it first, or make another AsyncSubscriber")
        if not self._sealed:
            self._seal()
        self._prepare()  # nothing of an earlier life, whose loop may be gone
        self._said = self._parting = None
        self._session.begin_life(time.monotonic())
        self._task = asyncio.create_task(self._run(), name="edgeguardd-client")

    async def run_forever(self) -> None:
        """Connect and stay connected until cancelled."""
        await self.start()
        try:
            await asyncio.shield(cast("asyncio.Task[None]", self._task))
        finally:
            await self.close()

    async def close(self) -> None:
        """Leave; handlers that run are cancelled. What the daemon has restricted stays as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def __aenter__(self) -> "AsyncSubscriber":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

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
        self.pump()

    async def admit(
        self,
        *,
        tokens: int | None = None,
        size_bytes: int | None = None,
        timeout_s: float = 0.5,
        default_when_unreachable: bool = True,
    ) -> Admission:
        """Ask whether a request of this size may be taken. Hand the answer's id to finished() when it is done.

        Without an answer within timeout_s, or without a daemon, the default counts: a guard that is away must not
        stop the server. Raises ValueError for a negative size.
        """
        tokens, size_bytes = checked_size("tokens", tokens), checked_size("size_bytes", size_bytes)
        request = self._next_request()
        if not self._session.welcomed:
            return unasked(request, default_when_unreachable, "edgeguardd is not connected")
        waiter: asyncio.Future[wire.Admission | None] = asyncio.get_running_loop().create_future()
        self._waiters[request] = waiter
        self._session.ask(request, size_bytes, tokens)
        self.pump()
        try:
            async with asyncio.timeout(timeout_s):
                line = await waiter
        except TimeoutError:
            line = None
        finally:
            self._waiters.pop(request, None)
            self._session.withdraw(request)
        if line is None:
            return unasked(request, default_when_unreachable, f"edgeguardd did not answer in {timeout_s:g} s")
        return admission_of(line)

    def finished(self, request: str) -> None:
        """An admitted request is done: the memory promised to it is free for others."""
        self._session.finish(request)
        self.pump()

    # The link

    async def _run(self) -> None:
        try:
            while True:
                try:
                    why = await self._live_once()
                except Exception as defect:  # it must not leave the server restricted for ever (ADR 7)
                    log.exception("the connection has ended by a defect of the client")
                    why = repr(defect)
                self._tell_away(why)
                await asyncio.sleep(self._backoff.wait_s())
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await asyncio.gather(*(lane.cancel() for lane in self._lanes.values()))

    async def _live_once(self) -> str:
        """One connection, from connect to its end. Returns why it ended."""
        loop = asyncio.get_running_loop()
        link = _Link(self)
        self.pump()  # lifts what is to be lifted while the daemon is away
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, _ = await loop.create_unix_connection(lambda: link, self.path)
        except OSError as error:
            return why_of(error)
        try:
            return await link.lost
        finally:
            transport.close()
            self._transport = None
            self._session.disconnected(time.monotonic())
            for waiter in self._waiters.values():
                if not waiter.done():
                    waiter.set_result(None)
            self.pump()

    def linked(self, transport: asyncio.Transport) -> None:
        """The link is there."""
        # High water at zero: what waits is kept in the session, where figures are merged and questions withdrawn.
        transport.set_write_buffer_limits(high=0)
        self._transport = transport
        self._session.connected(time.monotonic())
        self.pump()

    def received(self, data: bytes) -> None:
        """Bytes came from the daemon."""
        self._take_in(self._session.receive(data, time.monotonic()))
        self.pump()

    def pump(self) -> None:
        """Do what is due, send what is ready, and come back when the session says so. Nothing before and after."""
        if not self.running:
            return
        now = time.monotonic()
        self._take_in(self._session.tick(now))
        blocked = False
        if self._transport is not None:
            if self._session.is_silent(now):
                self._transport.abort()
                return
            if not self._is_blocked() and (output := self._session.take_output(now)):
                self._transport.write(output)
            blocked = self._is_blocked()
        if self._timer is not None:
            self._timer.cancel()
        due = self._session.due(blocked=blocked)
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - now), self.pump)

    def _is_blocked(self) -> bool:
        """Whether what was written last has yet to leave, or never will."""
        transport = self._transport
        return transport is not None and (transport.is_closing() or transport.get_write_buffer_size() > 0)

    # Events and orders

    def _lane_of(self, action: Action) -> str:
        """Orders of one lane are carried out one after another. A subclass may let more of them run side by side."""
        return orders.lane_of(action).value

    def _lane(self, action: Action) -> "_LaneTask":
        name = self._lane_of(action)
        if name not in self._lanes:
            self._lanes[name] = _LaneTask(self, name)
        return self._lanes[name]

    def _take_in(self, events: Iterable[ClientEvent]) -> None:
        for event in events:
            match event:
                case Order():
                    self._lane(event.command.action).put(event)
                case wire.WelcomeLine():
                    # What waited was asked for by a daemon that has gone; this welcome says what counts now.
                    for lane in self._lanes.values():
                        lane.clear()
                case wire.Admission():
                    waiter = self._waiters.get(event.id)
                    if waiter is not None and not waiter.done():
                        waiter.set_result(event)
                case _:
                    pass
            self._tell(event)

    async def carry_out(self, order: Order) -> None:
        """In a lane's task: accept, call the handler, ack."""
        begun = self._session.begin(order)
        self.pump()
        if not begun:
            return
        answer = await self._call(order.command)
        self._take_in(self._session.complete(order, answer))
        self.pump()

    async def _call(self, command: Command) -> Answer:
        handler = self._handlers.get(command.action)
        if handler is None:
            return Answer(AckStatus.UNSUPPORTED)
        try:
            result = handler(command)
            if inspect.isawaitable(result):
                result = await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return answer_of_failure(error)  # something inside the handler was cancelled, not the handler
        except Exception as error:  # whatever an application raises is its answer to this command
            log.warning("the handler of %s failed", command.action, exc_info=True)
            return answer_of_failure(error)
        return answer_of(result)


class _LaneTask:
    """One lane's orders, carried out one after another; its task lives while there are some."""

    def __init__(self, guard: AsyncSubscriber, lane: str) -> None:
        self._guard = guard
        self._name = f"edgeguardd-{lane}"
        self._queue = OrderQueue()
        self._task: asyncio.Task[None] | None = None

    def put(self, order: Order) -> None:
        """Queue an order. The task takes it at its next turn, so that one that came with it can replace it."""
        self._queue.put(order)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=self._name)

    def clear(self) -> None:
        """Forget the orders that have not begun."""
        self._queue.clear()

    async def cancel(self) -> None:
        """End the order that runs, within LEAVE_S, and begin no further one."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=LEAVE_S)

    async def _work(self) -> None:
        try:
            while (order := self._queue.take()) is not None:
                await self._guard.carry_out(order)
        finally:
            self._task = None


class _Link(asyncio.Protocol):
    """One connection; `lost` says why it ended."""

    def __init__(self, guard: AsyncSubscriber) -> None:
        self._guard = guard
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._guard.linked(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._guard.received(data)

    def resume_writing(self) -> None:
        self._guard.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(why_of(exc) if isinstance(exc, OSError) else "it ended the connection")
