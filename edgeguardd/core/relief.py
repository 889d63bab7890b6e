"""Lifting memory.high for the length of a trim, so that the kernel does not put the trimmer to sleep.

Must not: write limits (the shell does, and writes the old value down first). Upstream: config, effects. Downstream:
engine. A process 2-3 MiB over a 20 MiB memory.high needed 13.5 s to free half of its memory, 0.06 s with the limit
lifted (Linux 6.1).
"""

import enum

from msgspec import Struct, structs

from edgeguardd.core.config import Policy
from edgeguardd.core.effects import Effect, PutBackLimit, RaiseLimit
from edgeguardd.core.limits import needed
from edgeguardd.core.model import Usage

# The limit counts as about to be crossed from this share of it on: the kernel throttles in steps of whole batches of
# pages, and a trim that allocates a little to free a lot would run into it.
ABOUT_RATIO = 0.95

# Less than this is not worth a write.
LEAST_BYTES = 1 << 20


class Phase(enum.StrEnum):
    """Where the limit stands."""

    RESTING = "resting"
    ASKED = "asked"
    LIFTED = "lifted"
    RETURNING = "returning"
    UNAVAILABLE = "unavailable"


# phase, what happened -> phase. docs/explanation/policy.md draws it.
MOVES: dict[tuple[Phase, str], Phase] = {
    (Phase.RESTING, "trim asked, limit crossed or about to be"): Phase.ASKED,
    (Phase.ASKED, "limit raised"): Phase.LIFTED,
    (Phase.ASKED, "cannot be raised"): Phase.UNAVAILABLE,
    (Phase.LIFTED, "no trim on its way"): Phase.RETURNING,
    (Phase.RETURNING, "put back, or changed by somebody else"): Phase.RESTING,
    (Phase.UNAVAILABLE, "a minute later, or new configuration"): Phase.RESTING,
}


class Relief(Struct):
    """The relief of one target."""

    phase: Phase = Phase.RESTING
    high_bytes: int | None = None
    raised_bytes: int | None = None

    def judged(self, usage: Usage) -> Usage:
        """The usage as policy has to see it: against the limit that was there before ours."""
        ours = self.raised_bytes is not None and usage.high_bytes == self.raised_bytes
        return structs.replace(usage, high_bytes=self.high_bytes) if ours else usage

    def follow(self, target: str, policy: Policy, own: Usage | None, trimming: bool, out: list[Effect]) -> None:
        """After each step of the ledger: lift while a trim is on its way, put back when none is."""
        if self.phase is Phase.LIFTED and not trimming:
            self._move("no trim on its way")
            out.append(PutBackLimit(target))
        elif self.phase is Phase.RESTING and trimming and policy.relief and own is not None:
            to_bytes = lifted_to(policy, own)
            if to_bytes is not None and own.high_bytes is not None:
                self._move("trim asked, limit crossed or about to be")
                # Before the commands that went out in this same step: who reads them should not sleep first.
                out.insert(0, RaiseLimit(target, own.high_bytes, to_bytes))

    def raised(self, high_bytes: int, raised_bytes: int) -> None:
        """The shell has lifted the limit."""
        self._move("limit raised")
        self.high_bytes, self.raised_bytes = high_bytes, raised_bytes

    def put_back(self) -> None:
        """The limit is not ours any more."""
        self._move("put back, or changed by somebody else")
        self.high_bytes = self.raised_bytes = None

    def failed(self) -> None:
        """The shell cannot lift this limit: no further try until the target or the configuration is new."""
        self._move("cannot be raised")

    def renew(self) -> None:
        """Time or a new configuration may have made it possible."""
        self._move("a minute later, or new configuration")

    def _move(self, what: str) -> None:
        """The next phase; what does not belong to this one (an answer that came late) changes nothing."""
        self.phase = MOVES.get((self.phase, what), self.phase)


def lifted_to(policy: Policy, own: Usage) -> int | None:
    """Where memory.high may be lifted to; None: not needed, not bounded by a finite memory.max, or not worth it."""
    if own.high_bytes is None or own.max_bytes is None:
        return None
    if max(needed(own), own.current_bytes) < ABOUT_RATIO * own.high_bytes:
        return None
    below_max = own.max_bytes - int(policy.relief_reserve_ratio * own.max_bytes)
    to_bytes = min(below_max, own.high_bytes + int(policy.relief_allowance_ratio * own.high_bytes))
    return to_bytes if to_bytes >= own.high_bytes + LEAST_BYTES else None
