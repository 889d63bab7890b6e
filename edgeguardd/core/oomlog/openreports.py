"""The reports in work: one a host and caller; which of them a line belongs to, and when one has ended.

Must not: read lines, judge what a report tells. Upstream: report. Downstream: collector.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from edgeguardd.core.oomlog import messages
from edgeguardd.core.oomlog.dress import Line
from edgeguardd.core.oomlog.report import Report, When

# So many lines without a word of the report, and it is over; a log is only looked through while one is open.
MAX_IDLE_LINES: Final = 2000
# Reports in work at once: one a host and caller.
MAX_OPEN: Final = 64

Key = tuple[str | None, str | None]
HasIt = Callable[[Report], bool]


class OpenReports:
    """`closed`: those that wait for the reaper's line, or for a kill that the lines of another report had held up.

    last  the one that was begun last, open or not
    """

    def __init__(self) -> None:
        self.open: dict[Key, Report] = {}
        self.closed: deque[Report] = deque()
        self.last: Report | None = None

    def start(self, key: Key, line: Line) -> Report:
        """A new one; the oldest ends where there are too many."""
        if len(self.open) >= MAX_OPEN:
            self.close(next(iter(self.open)))
        report = self.open[key] = self.last = Report(When.of(line))
        return report

    def weak(self, key: Key) -> Report | None:
        """The report that a line of context belongs to, if there is one."""
        report = self.open.get(key)
        return report if report is not None and report.taking_context else None

    def strong(self, key: Key, line: Line, has_it: HasIt) -> Report:
        """The same for a line that only a report has: if the open one has it already, another has begun."""
        report = self.weak(key)
        if report is None or has_it(report):
            self.close(key)
            report = self.start(key, line)
        return report

    def of_kill(self, key: Key, line: Line, message: messages.Killed) -> Report:
        """The report that this kill ends, or belongs to as one of a group."""
        report = self.open.get(key)
        if report is None or not report.taking_context or report.expected_pid != message.pid:
            promised = self._promised(key, line, message.pid)
            if promised is not None:
                return promised
        if report is None or report.no_victim is not None:
            return self._restart(key, line)
        if report.taking_context or message.shares_memory:
            return report
        if report.group_path is not None and message.scope in ("memcg", None):
            return report
        return self._restart(key, line)

    def already_killed(self, line: Line, message: messages.OomKill) -> Report | None:
        """The report of this kill in a log that is upside down (journalctl -r): there the kill comes first."""
        for report in (*self.open.values(), *self.closed):
            if report.oom_kill is None and report.when.host == line.host:
                for victim in report.victims:
                    if victim.pid == message.pid and victim.comm in (None, message.task):
                        return report
        return None

    def close(self, key: Key) -> None:
        """Over, and not yet told."""
        report = self.open.pop(key, None)
        if report is not None:
            self.closed.append(report)

    def grow_idle(self) -> None:
        """One more line came: what has had no word for too long is over."""
        for key in [key for key, report in self.open.items() if report.idle_lines >= MAX_IDLE_LINES]:
            self.close(key)
        for report in self.open.values():
            report.idle_lines += 1

    def _promised(self, key: Key, line: Line, pid: int) -> Report | None:
        """The report that said it would kill this one: of another caller, or taken for ended too soon."""
        for other_key, other in self.open.items():
            if other.taking_context and other.expected_pid == pid and other_key[0] == key[0]:
                return other
        waiting = (one for one in self.closed if one.taking_context and one.expected_pid == pid)
        late = next((one for one in waiting if one.when.host == line.host), None)
        if late is None:
            return None
        self.closed.remove(late)
        report = self.open.get(key)
        if report is not None and not report.worth_telling:
            self.open.pop(key)
        self.close(key)
        self.open[key] = late
        return late

    def _restart(self, key: Key, line: Line) -> Report:
        self.close(key)
        return self.start(key, line)
