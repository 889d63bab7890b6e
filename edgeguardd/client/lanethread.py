"""One lane's orders, carried out one after another in a thread of its own.

Must not: know the session. Upstream: orders. Downstream: blocking.
"""

import logging
import threading
from collections.abc import Callable, Iterable

from edgeguardd.client.orders import Lane, Order, OrderQueue

log = logging.getLogger("edgeguardd.client")


class LaneThread:
    """Takes orders from `start` on. A lane without handlers need not be started, which saves its thread.

    The thread is there before the first order: when memory or the number of tasks is at its limit, none can be made.
    """

    def __init__(self, lane: Lane, carry_out: Callable[[Order], None]) -> None:
        self._name = f"edgeguardd-{lane.value}"
        self._carry_out = carry_out
        self._changed = threading.Condition()
        self._queue = OrderQueue()
        self.thread: threading.Thread | None = None
        self._stopping = False

    def start(self) -> None:
        """Make the thread. Raises RuntimeError when none can be had."""
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()
        self.thread = thread

    def put(self, orders: Iterable[Order]) -> None:
        """Queue orders, all before the next one is taken, so that later ones can replace earlier ones."""
        with self._changed:
            for order in orders:
                self._queue.put(order)
            self._changed.notify()

    def clear(self) -> None:
        """Forget the orders that have not begun."""
        with self._changed:
            self._queue.clear()

    def stop(self, join_s: float) -> None:
        """Begin no further order, and wait so long for the present one. May be called by a handler itself."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
            thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(join_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or len(self._queue) > 0)
                order = self._queue.take()
                if self._stopping or order is None:
                    return
            try:
                self._carry_out(order)
            except Exception:  # a defect of ours: the orders after this one are to be carried out all the same
                log.exception("cannot carry out %s", order.command.action)
