"""Facts from subscribers on their way to the engine, and who serves which target.

Must not: judge an ack (core.ledger does); it only sees to it that this is done by memory as it is now. Upstream:
serve.subscribers. Downstream: emit, kernel.targets.
"""

from collections.abc import Callable

from edgeguardd import decisionlog
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import AckReceived, Event, SubscriberJoined, SubscriberLeft
from edgeguardd.core.model import AckStatus, Role
from edgeguardd.kernel.targets import Targets


class PeerEvents:
    """Of one daemon.

    on_ack    told of each ack, with the target that its subscriber serves; "" if none
    stopping  who leaves from here on has not left: the next run expects it back
    """

    def __init__(self, engine: Engine, targets: Targets, emit: Callable[[Event], None]) -> None:
        self.on_ack: Callable[[str, AckReceived], None] | None = None
        self.stopping = False
        self._engine = engine
        self._targets = targets
        self._emit = emit
        self._homes: dict[int, str] = {}

    def take(self, event: Event) -> None:
        """One fact from a subscriber."""
        match event:
            case SubscriberJoined() if event.role is Role.INFERENCE and event.target is not None:
                self._homes[event.subscriber] = event.target
                self._emit(event)
            case AckReceived():
                self._look_before(event)
                self._emit(event)
            case SubscriberLeft():
                self._left(event)
            case _:
                self._emit(event)

    def _look_before(self, ack: AckReceived) -> None:
        """A final ack is judged by memory as it is now, not as it was at the last sample."""
        home = self._homes.get(ack.subscriber, "")
        if self.on_ack is not None:
            self.on_ack(home, ack)
        target = self._engine.targets.get(home)
        final = ack.status is not AckStatus.ACCEPTED
        if final and target is not None and ack.seq in target.ledger.outstanding:
            self._targets.sample_now(home)

    def _left(self, event: SubscriberLeft) -> None:
        if self.stopping:
            decisionlog.subscriber_left(event)
            return
        self._emit(event)
        home = self._homes.pop(event.subscriber, None)
        if home is not None:
            self._targets.release_peer(home)
