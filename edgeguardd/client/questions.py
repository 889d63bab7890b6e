"""The application's "may I take this request?" on their way to the daemon: few at once, and none that nobody awaits.

More may be asked than the daemon reads. Then the newest go first: their askers will wait longest, while the oldest
would get their answers just too late, all of them.

Must not: know sockets or who waits. Upstream: wire. Downstream: session.
"""

from edgeguardd.core import wire

# The daemon reads 500 lines a second of one subscriber. With more questions on the wire than this, an ack would wait
# behind questions whose askers have long given up.
MAX_ASKED = 64
# A question that is not answered for so long is lost, and makes room for another.
ANSWER_S = 5.0


class Questions:
    """Holds those that wait for their turn, and when each of those on their way was sent."""

    def __init__(self) -> None:
        self._waiting: dict[str, wire.Admit] = {}
        self._sent: dict[str, float] = {}

    def ask(self, question: wire.Admit) -> None:
        """Queue a question."""
        self._waiting[question.id] = question

    def withdraw(self, request: str) -> None:
        """Nobody waits for the answer any more. One that is on its way stays so: the daemon will still read it."""
        self._waiting.pop(request, None)

    def answered(self, request: str) -> None:
        """The daemon has answered."""
        self._sent.pop(request, None)

    def clear(self) -> None:
        """The connection is gone, and with it all that was asked."""
        self._waiting.clear()
        self._sent.clear()

    def due(self) -> float | None:
        """When there is room for one that waits, should no answer come before; None when none waits."""
        if not self._waiting:
            return None
        return min(self._sent.values()) + ANSWER_S if len(self._sent) >= MAX_ASKED else 0.0

    def take(self, now: float) -> list[wire.Admit]:
        """The questions to send now."""
        self._sent = {request: at for request, at in self._sent.items() if now < at + ANSWER_S}
        taken = []
        while self._waiting and len(self._sent) < MAX_ASKED:
            request, question = self._waiting.popitem()
            self._sent[request] = now
            taken.append(question)
        return taken
