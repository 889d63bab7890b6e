"""Kills told lately, by process: one that is printed twice is one kill, and the reaper's line finds its victim.

Must not: read lines. Upstream: report. Downstream: collector.
"""

from typing import Final

from edgeguardd.core.oomlog.report import Report, Victim

MAX_RECENT: Final = 4096
# The same process named again within this time is one kill printed twice (group kills, two consoles).
SAME_KILL_S: Final = 10.0


class RecentKills:
    """The last MAX_RECENT of them."""

    def __init__(self) -> None:
        self._by_pid: dict[int, Victim] = {}

    def of(self, pid: int) -> Victim | None:
        """The last victim of this number."""
        return self._by_pid.get(pid)

    def known(self, report: Report | None, victim: Victim) -> bool:
        """Whether this kill has been told already."""
        if (
            report is not None
            and report.group_path is not None
            and any(other.pid == victim.pid for other in report.victims)
        ):
            return True
        old = self._by_pid.get(victim.pid)
        return old is not None and _same_kill(old, victim)

    def remember(self, victim: Victim) -> None:
        """The newest kill of its number."""
        self._by_pid.pop(victim.pid, None)
        self._by_pid[victim.pid] = victim
        if len(self._by_pid) > MAX_RECENT:
            del self._by_pid[next(iter(self._by_pid))]


def _same_kill(old: Victim, new: Victim) -> bool:
    """Whether two lines about one pid are about one kill: pids come again, and figures can be the same by a limit."""
    if old.comm is not None and new.comm is not None and old.comm != new.comm:
        return False
    if old.when.seq is not None and old.when.seq == new.when.seq:
        return True
    times = (old.when.timestamp, new.when.timestamp)
    if times[0] is not None and times[0] == times[1]:
        return True
    # A board that runs into the same limit after each boot kills the same pid at about the same uptime.
    alike = old.figures == new.figures or not old.figures or not new.figures
    if isinstance(times[0], float) and isinstance(times[1], float):
        return alike and abs(times[1] - times[0]) <= SAME_KILL_S
    return alike
