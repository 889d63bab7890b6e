"""What waits for a subscriber that does not take lines as fast as they come.

Must not: know sockets or messages; it holds encoded lines. Upstream: nothing. Downstream: connection.

Three lanes, emptied in this order: orders (welcome and commands), levels, answers (pong, admission, error, ping).
Within a lane the oldest goes first. Bounds: an order per (target, action), a level per target, ANSWERS answers.
"""

from collections import deque

# Answers that wait before the oldest is dropped: whoever does not read its answers has stopped asking in earnest.
ANSWERS = 64


class Outbox:
    """Lines waiting for one subscriber. Orders are only ever replaced by newer ones of the same key."""

    def __init__(self) -> None:
        self._orders: dict[object, bytes] = {}
        self._levels: dict[str, bytes] = {}
        self._answers: deque[bytes] = deque()

    def __len__(self) -> int:
        """How many lines wait."""
        return len(self._orders) + len(self._levels) + len(self._answers)

    def put_order(self, key: object, line: bytes) -> bool:
        """Queue a line that must not be lost. True: it replaced an unsent one of the same key.

        The newer one does not take the older one's place but goes to the end, so that of "reject, restore, reject"
        the second reject is obeyed after the restore.
        """
        replaced = self._orders.pop(key, None) is not None
        self._orders[key] = line
        return replaced

    def put_level(self, target: str, line: bytes) -> None:
        """Queue a target's level; only the latest counts."""
        self._levels.pop(target, None)
        self._levels[target] = line

    def put_answer(self, line: bytes) -> bool:
        """Queue an answer. True: there were ANSWERS already, and the oldest was dropped."""
        full = len(self._answers) >= ANSWERS
        if full:
            self._answers.popleft()
        self._answers.append(line)
        return full

    def take(self) -> bytes | None:
        """The line to send next; None when nothing waits."""
        if self._orders:
            return self._orders.pop(next(iter(self._orders)))
        if self._levels:
            return self._levels.pop(next(iter(self._levels)))
        return self._answers.popleft() if self._answers else None
