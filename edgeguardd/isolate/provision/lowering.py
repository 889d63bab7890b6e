"""Lowering a limit below what is in use without a kill: memory.high first, in steps, each waited for.

Must not: let memory.max be written while more is in use: the kernel answers that with its OOM killer when reclaim does
not bring enough. Upstream: model. Downstream: tree, treeio, systemd.
Each step is a change of its own, so that it is written down before it is made, shown, and taken back like any other.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate.provision.model import HIGH, MAX, Change, ProvisionError, number_of, size_text

STEPS = 8
LOOK_AGAIN_S = 0.05
_NO_LIMIT = "max"


def in_steps(changes: Sequence[Change], used: Mapping[str, int], high: Mapping[str, str], page: int) -> list[Change]:
    """The changes with each limit that is set below what is in use prepared by steps of memory.high.

    `used`: place -> bytes in use; `high`: place -> memory.high as it is. Where memory.high itself is not to change, it
    is put back after memory.max.
    """
    found: list[Change] = []
    last: dict[str, str] = {}
    for change in changes:
        place, old = change.place, high.get(change.place, _NO_LIMIT)
        target = _target(change, changes, used)
        if target is not None and place not in last:
            steps = _steps(change, old, used[place], target, page)
            last[place] = steps[-1].after or old if steps else old
            found += steps
        if change.key != HIGH or place not in last:
            found.append(change)
        if change.key == MAX and last.get(place, old) != old and not _sets_high(changes, place):
            found.append(structs.replace(change, key=HIGH, before=last[place], after=old))
    return found


class Patience:
    """How long all steps of a run together may wait for reclaim."""

    def __init__(self, wait_s: float) -> None:
        """Counts from the first wait on."""
        self._wait_s = wait_s
        self._until: float | None = None

    def wait(self, name: str, limit_bytes: int, used: Callable[[], int]) -> None:
        """Until use is below memory.high, which has just been set. Raises ProvisionError."""
        if self._until is None:
            self._until = time.monotonic() + self._wait_s
        while (now := used()) > limit_bytes:
            if time.monotonic() >= self._until:
                raise ProvisionError(
                    f"cannot bring {name} below {size_text(limit_bytes)}, by memory.high: after {self._wait_s:g} s it "
                    f"still uses {size_text(now - limit_bytes)} too much; have it use less, or allow more"
                )
            time.sleep(LOOK_AGAIN_S)


def _target(change: Change, changes: Sequence[Change], used: Mapping[str, int]) -> int | None:
    """The least limit of this place that is below what is in use; None for none, or a change of something else."""
    if change.key not in (HIGH, MAX):
        return None
    here = [one for one in changes if one.place == change.place and one.key in (HIGH, MAX) and one.after is not None]
    limits = [limit for one in here if (limit := number_of(one.key, one.after or "")) is not None]
    below = [limit for limit in limits if limit < used.get(change.place, 0) and limit != INFINITE]
    return min(below, default=None)


def _steps(change: Change, now: str, used_bytes: int, target: int, page: int) -> list[Change]:
    found: list[Change] = []
    for number in range(1, STEPS + 1):
        step = (used_bytes - (used_bytes - target) * number // STEPS) // page * page
        if step < (number_of(HIGH, now) or 0):
            found.append(structs.replace(change, key=HIGH, before=now, after=str(step)))
            now = str(step)
    return found


def _sets_high(changes: Sequence[Change], place: str) -> bool:
    return any(change.place == place and change.key == HIGH for change in changes)
