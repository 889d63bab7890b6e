"""Kills that the kernel's log names against kills that memory.events counts: the same ones, seen twice.

Must not: log, read a clock. Upstream: the daemon's events, core.oomlog's reports (as paths and numbers). Downstream:
oomreports.

Either may come first, and either may be missing: the log is rate limited, and a cgroup can be gone before its counters
are read. A count waits a while for its report, a report for its count; what stays alone is told as that.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

# The daemon tells a report half a second after its last line (kernel.oomwatch, QUIET_S), and reads a target's counters
# at least every two seconds: more than twice that, and the other half will not come any more.
WAIT_S: Final = 5.0
# One row a target; targets are bounded, names of dropped ones go with their time.
MAX_ROWS: Final = 8192


class Alone(Struct, frozen=True):
    """Kills of a target that were counted, and that no report explains."""

    target: str
    kills: int


class _Waiting(Struct):
    kills: int
    until: float


class OomJoin:
    """What is still without its other half."""

    def __init__(self) -> None:
        self._counted: dict[str, _Waiting] = {}
        self._reported: dict[str, _Waiting] = {}

    def counted(self, target: str, kills: int, now: float) -> None:
        """The target's own oom_kill has risen by so many."""
        _add(self._counted, target, kills - _take(self._reported, target, kills, now), now)

    def reported(self, targets: Iterable[str], victims: int, now: float) -> int:
        """A report names so many victims in these targets; returns how many of them have been counted by now."""
        most = 0
        for target in targets:
            found = _take(self._counted, target, victims, now)
            _add(self._reported, target, victims - found, now)
            most = max(most, found)
        return most

    def due(self, now: float) -> list[Alone]:
        """The counts that have waited long enough."""
        alone = [Alone(target, row.kills) for target, row in self._counted.items() if row.until <= now]
        for row in alone:
            del self._counted[row.target]
        for target in [target for target, row in self._reported.items() if row.until <= now]:
            del self._reported[target]
        return alone

    @property
    def next_due(self) -> float | None:
        """When to ask again."""
        return min((row.until for row in self._counted.values()), default=None)


def containing(paths: Mapping[str, str], cgroup: str) -> list[str]:
    """The targets, by name, whose cgroup is this one or above it, the nearest first."""
    found = [name for name, path in paths.items() if cgroup == path or cgroup.startswith(path.rstrip("/") + "/")]
    return sorted(found, key=lambda name: len(paths[name]), reverse=True)


def _take(rows: dict[str, _Waiting], target: str, wanted: int, now: float) -> int:
    """Take up to so many out of a target's row; what is too old is no match."""
    row = rows.get(target)
    if row is None or row.until <= now:
        return 0
    taken = min(row.kills, wanted)
    row.kills -= taken
    if row.kills == 0:
        del rows[target]
    return taken


def _add(rows: dict[str, _Waiting], target: str, kills: int, now: float) -> None:
    if kills <= 0:
        return
    row = rows.get(target)
    if row is None:
        if len(rows) < MAX_ROWS:
            rows[target] = _Waiting(kills, now + WAIT_S)
    else:
        row.kills += kills
