"""How long to wait before the next attempt to connect.

Must not: sleep, choose its own randomness. Upstream: nothing. Downstream: guard.
"""

from collections.abc import Callable

FIRST_S = 0.1
LONGEST_S = 5.0


class Backoff:
    """Doubles from FIRST_S to LONGEST_S. Half of each wait is by chance, so that a thousand clients do not come as one.

    `chance` gives numbers in 0…1.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._next_s = FIRST_S

    def wait_s(self) -> float:
        """How long to wait now; the next wait will be longer. Always within FIRST_S…LONGEST_S."""
        whole_s = self._next_s
        self._next_s = min(LONGEST_S, whole_s * 2)
        return max(FIRST_S, whole_s / 2 * (1 + self._chance()))

    def reset(self) -> None:
        """The daemon let us in: begin again with short waits."""
        self._next_s = FIRST_S
