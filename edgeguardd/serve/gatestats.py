"""What the gate counts: plain values for metrics.

Must not: know HTTP or targets. Upstream: nothing. Downstream: edgeguardd.gate, metrics.
"""

from msgspec import Struct


class GateStats(Struct):
    """Answers since the start, by mode and what was answered: granted, refused, bad."""

    answers: dict[tuple[str, str], int] = {}

    def count(self, mode: str, answer: str) -> None:
        """One more. Both words come from small fixed sets."""
        self.answers[mode, answer] = self.answers.get((mode, answer), 0) + 1
