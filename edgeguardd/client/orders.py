"""Commands that wait for their turn in the application.

Must not: run anything. Upstream: model. Downstream: session, blocking, aio.
"""

import enum

from msgspec import Struct

from edgeguardd.core.model import Action, Command


class Order(Struct, frozen=True):
    """One command to carry out, which came on the connection of this number, in this epoch (Answered.epoch_number).

    acked=False: not a command of the daemon's but what its state calls for after a reconnect; nobody awaits an ack.
    """

    command: Command
    connection: int
    acked: bool = True
    epoch_number: int = 0


class Lane(enum.Enum):
    """Orders of one lane run one after another, in order; those of different lanes side by side.

    A trim may take seconds and must not hold up rejecting. The lasting ones (reduce, reject, unload, restore) undo each
    other, so their order counts.
    """

    TRIM = "trim"
    LASTING = "lasting"


def lane_of(action: Action) -> Lane:
    """Where an action waits."""
    return Lane.TRIM if action is Action.TRIM_KV_CACHE else Lane.LASTING


class OrderQueue:
    """One lane's waiting orders. A newer one of the same action takes the older one's place at the end.

    The older one is not acked: its parameters are void, and the daemon ended it when it sent the newer one.
    """

    def __init__(self) -> None:
        self._waiting: dict[Action, Order] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def put(self, order: Order) -> None:
        """Queue an order."""
        self._waiting.pop(order.command.action, None)
        self._waiting[order.command.action] = order

    def take(self) -> Order | None:
        """The next one; None when nothing waits."""
        return self._waiting.pop(next(iter(self._waiting))) if self._waiting else None

    def clear(self) -> None:
        """Forget what waits: the connection is gone, and the next welcome says what counts."""
        self._waiting.clear()
