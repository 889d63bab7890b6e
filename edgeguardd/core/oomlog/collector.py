"""Lines to reports: what belongs together is joined, what does not is kept apart, and all of it is bounded.

Must not: read a file or a clock, wait. Upstream: sources, kernelmessages, othermessages, tasktable. Downstream:
isolate and cli (files), kernel.kmsg's users (the running kernel).

The kernel holds oom_lock while it reports (mm/oom_kill.c), so that one report at a time is open for a machine; before
4.2 two memory cgroups could report at once. Lines of drivers fall between the lines of a report, and a rate limit
(dump_header under oom_rs) leaves out all but the kill itself.
"""

from typing import Final, assert_never

from msgspec import structs

from edgeguardd.core.oomlog import kernelmessages as kernel
from edgeguardd.core.oomlog import messages, othermessages, tasktable
from edgeguardd.core.oomlog.dress import Line
from edgeguardd.core.oomlog.halves import Halves
from edgeguardd.core.oomlog.openreports import Key, OpenReports
from edgeguardd.core.oomlog.others import Others
from edgeguardd.core.oomlog.recentkills import RecentKills
from edgeguardd.core.oomlog.report import (
    LOW_MEMORY_KILLER,
    MAX_STATS,
    MAX_TASKS,
    MAX_VICTIMS,
    UNKNOWN,
    Chosen,
    Report,
    Victim,
    When,
)
from edgeguardd.core.oomlog.sources import Sources

# Closed reports that wait for the reaper's line, or for a kill that the lines of another report had held up.
LATE_REPORTS: Final = 8
# Lines that quote the kernel, kept for a log in which it does not speak itself.
MAX_QUOTED: Final = 4096
# Android's driver prints four lines at once.
WAITED_LINES: Final = 4


class Collector:
    """Feed raw lines, take reports. `others` holds what is no kernel OOM: units, oomd, user-space killers."""

    def __init__(self) -> None:
        self.others = Others()
        self._sources = Sources()
        self._reports = OpenReports()
        self._done: list[Report] = []
        self._recent = RecentKills()
        self._halves = Halves()
        self._quoted: list[Line] = []
        self._kernel_spoke = False

    # In and out

    @property
    def busy(self) -> bool:
        """Whether something is open that a flush would end."""
        return bool(self._reports.open or self._reports.closed or self._done) or self._halves.holding

    def feed(self, raw: bytes) -> None:
        """Take in one raw line, without its newline."""
        everything = bool(self._reports.open) or self._halves.holding or self.others.waiting > 0
        self.others.waiting = max(0, self.others.waiting - 1)
        for line in self._sources.feed(raw, everything=everything):
            self._line(line)
        if self._reports.open:
            self._reports.grow_idle()

    def take(self) -> list[Report]:
        """The reports that nothing can change any more, each once, in the order in which they ended."""
        while len(self._reports.closed) > LATE_REPORTS:
            self._finish(self._reports.closed.popleft())
        done, self._done = self._done, []
        return done

    def flush(self) -> list[Report]:
        """Nothing came for a while: all reports, the open ones too."""
        self._release()
        for key in list(self._reports.open):
            self._reports.close(key)
        while self._reports.closed:
            self._finish(self._reports.closed.popleft())
        return self.take()

    def end(self) -> list[Report]:
        """The log is over: all that is left. If the kernel itself never spoke, quotes of it have to do."""
        for line in self._sources.end():
            self._line(line)
        self._release()
        if not self._kernel_spoke:
            quoted, self._quoted = self._quoted, []
            for line in quoted:
                self._line(structs.replace(line, program=None, facility=None))
        return self.flush()

    # Lines

    def _line(self, line: Line) -> None:
        for whole in self._halves.feed(line):
            if whole.from_kernel:
                self._read(whole)
            else:
                self._not_from_kernel(whole)

    def _not_from_kernel(self, line: Line) -> None:
        said = othermessages.read(line.text)
        if said is not None:
            self._other(line, said)
        elif kernel.read(line.text) is not None and len(self._quoted) < MAX_QUOTED:
            self._quoted.append(line)

    def _read(self, line: Line) -> None:
        message = kernel.read(line.text)
        if message is not None:
            self._message(line, message)
            return
        if line.text.startswith("[") and self._table(line):
            return
        said = othermessages.read(line.text)
        if said is not None:
            self._other(line, said)

    def _release(self) -> None:
        for line in self._halves.end():
            self._read(line)

    # Messages of the kernel

    def _message(self, line: Line, message: messages.Message) -> None:
        key = (line.host, line.caller)
        # Any two words can look like a line of statistics.
        self._kernel_spoke = self._kernel_spoke or not isinstance(message, messages.Stat)
        if key in self._reports.open:
            self._reports.open[key].idle_lines = 0
        match message:
            case messages.Invoked():
                self._reports.close(key)
                self._reports.start(key, line).invoked = message
            case messages.Killed():
                self._killed(key, line, message)
            case messages.GroupKill():
                self._group(key, line, message)
            case messages.Reaped():
                self._reaped(line, message)
            case messages.NoVictim():
                report = self._reports.strong(key, line, lambda _: False)
                report.no_victim = When.of(line)
                report.panic = report.panic or line.text.startswith("Kernel panic")
                self._reports.close(key)
            case messages.AlreadyExiting():
                self._reports.strong(key, line, lambda _: False).exiting_pid = message.pid
            case messages.Panic():
                self._panicked(message)
            case _:
                self._describe(key, line, message)

    def _describe(self, key: Key, line: Line, message: messages.Description) -> None:
        """What precedes a kill: some lines only a report has, others are worth something inside of one."""
        match message:
            case messages.TaskIn():
                self._reports.strong(key, line, lambda found: found.task_in is not None).task_in = message
            case messages.UsageLine():
                self._reports.strong(key, line, lambda found: message.what in found.usage).usage[message.what] = message
            case messages.OomKill():
                report = self._reports.already_killed(line, message) or self._reports.strong(
                    key, line, lambda found: found.oom_kill is not None
                )
                report.oom_kill, report.oom_kill_when = message, When.of(line)
            case messages.Chosen():
                report = self._reports.strong(key, line, lambda found: found.chosen is not None)
                report.chosen = Chosen(message.scope, message.pid, message.comm, message.score, When.of(line))
            case messages.StatsOf():
                self._stats_of(key, line, message)
            case messages.Evidence():
                self._evidence(key, line, message)
            case messages.Context() | messages.Cpuset() | messages.Stat() | messages.SwapLine():
                open_report = self._reports.weak(key)
                if open_report is not None:
                    open_report.describe(message)
            case _:
                assert_never(message)

    def _evidence(self, key: Key, line: Line, message: messages.Evidence) -> None:
        if message.what == "suppressed":
            self.others.suppressed += message.figure or 0
            return
        report = self._reports.weak(key)
        if report is None and message.what == "sysrq":
            report = self._reports.start(key, line)
        if report is not None:
            report.seen.add(message.what)

    def _stats_of(self, key: Key, line: Line, message: messages.StatsOf) -> None:
        report = self._reports.weak(key)
        if report is None and message.path:
            self._reports.close(key)
            report = self._reports.start(key, line)
        # 3.x and 4.x print one such line for each cgroup below the limit; the first is the one with the limit.
        if report is not None and (report.stats_of is None or not message.path):
            report.stats_of = report.stats_of or message.path or None
            report.stats.update(dict(list(message.stats.items())[:MAX_STATS]))

    def _table(self, line: Line) -> bool:
        """Whether it is of a task dump."""
        key = (line.host, line.caller)
        report = self._reports.weak(key)
        columns = tasktable.head(line.text)
        if columns is not None:
            report = self._reports.strong(key, line, lambda found: found.columns is not None)
            report.columns, report.idle_lines = columns, 0
            return True
        task = tasktable.row(line.text, report.columns if report is not None else None)
        if task is None:
            return False
        if report is None:
            self._reports.close(key)
            report = self._reports.start(key, line)
        report.idle_lines = 0
        if len(report.tasks) < MAX_TASKS:
            report.tasks.setdefault(task.pid, task)
        else:
            report.tasks_dropped += 1
        return True

    def _killed(self, key: Key, line: Line, message: messages.Killed) -> None:
        victim = Victim(message.pid, message.comm, UNKNOWN, When.of(line), dict(message.figures), message.uid)
        victim.score_adj, victim.shares_memory = message.score_adj, message.shares_memory
        if self._recent.known(self._reports.open.get(key), victim):
            return
        report = self._reports.of_kill(key, line, message)
        victim.scope = message.scope or report.scope
        victim.decoded = _decoded(line, message)
        if report.victims and report.group_path is not None:
            victim.role = "member"
        if victim.shares_memory and report.victims:
            victim.scope = report.victims[0].scope
        report.by_allocator = report.by_allocator or message.by_allocator
        if len(report.victims) < MAX_VICTIMS:
            report.victims.append(victim)
        self._recent.remember(victim)

    def _group(self, key: Key, line: Line, message: messages.GroupKill) -> None:
        report = self._reports.open.get(key) or self._reports.start(key, line)
        report.group_path, report.group_when = message.path, When.of(line)
        if report.victims:
            report.victims[0].role = "trigger"

    def _reaped(self, line: Line, message: messages.Reaped) -> None:
        victim = self._recent.of(message.pid)
        if victim is None:
            self.others.reaped_unknown(message.pid, message.comm, When.of(line))
            return
        victim.reaped = victim.reaped or message.done
        victim.reap_failed = not message.done
        victim.left_after_reaping = dict(message.figures)

    def _panicked(self, message: messages.Panic) -> None:
        about_memory = "emory" in message.text or "OOM" in message.text
        if self._reports.last is not None and (about_memory or "init" in message.text):
            self._reports.last.panic = True
        if self._reports.last is not None or about_memory:
            self.others.panic = message.text

    # Messages of others

    def _other(self, line: Line, said: othermessages.Other) -> None:
        if isinstance(said, othermessages.LowMemoryKilled):
            victim = Victim(
                said.pid, said.comm, LOW_MEMORY_KILLER, When.of(line), uid=said.uid, score_adj=said.score_adj
            )
            victim.low_memory = said
            if not self._recent.known(None, victim):
                self._reports.closed.append(Report(When.of(line), victims=[victim]))
                self._recent.remember(victim)
                self.others.waiting = WAITED_LINES if said.to_free_kb is None and said.reason is None else 0
        elif isinstance(said, othermessages.LowMemoryReason):
            self.others.waiting = 0
            last = (
                self._reports.closed[-1].victims[-1]
                if self._reports.closed and self._reports.closed[-1].victims
                else None
            )
            if last is not None and last.low_memory is not None and last.low_memory.to_free_kb is None:
                last.low_memory = structs.replace(last.low_memory, **structs.asdict(said))
        else:
            self.others.take(said, line)

    # Ends

    def _finish(self, report: Report) -> None:
        """Out with it, if it tells something."""
        pid = report.expected_pid
        if report.taking_context and pid is not None:
            victim = _victim_of_choice(report, pid)
            if not self._recent.known(report, victim):
                report.victims.append(victim)
                self._recent.remember(victim)
            else:
                return
        if report.worth_telling:
            report.idle_lines = 0
            self._done.append(report)


def _victim_of_choice(report: Report, pid: int) -> Victim:
    """Whom the report was about to kill when the log ends."""
    kill, chosen = report.oom_kill, report.chosen
    if chosen is not None and (kill is None or kill.pid != pid):
        return Victim(pid, chosen.comm, chosen.scope, chosen.when, line_seen=False)
    task = None if kill is None else kill.task
    return Victim(pid, task, report.scope, report.oom_kill_when or report.when, line_seen=False)


def _decoded(line: Line, message: messages.Killed) -> dict[str, int]:
    """The figures that a mail's transfer encoding hides: they are told apart from what the log has in plain text."""
    hidden = None if line.decoded is None else kernel.read(line.decoded)
    if not isinstance(hidden, messages.Killed) or hidden.pid != message.pid:
        return {}
    return {key: kb for key, kb in hidden.figures.items() if key not in message.figures}
