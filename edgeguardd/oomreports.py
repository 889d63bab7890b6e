"""The kernel's OOM reports in the daemon: one log line each, joined with what the targets' counters say; metrics.

Must not: decide anything: the engine acts on counters, which are there without a log. Upstream: kernel.oomwatch,
core.oomjoin, core.oomlog. Downstream: daemon, metrics, pages.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeguardd.core.events import CountersMoved
from edgeguardd.core.oomjoin import OomJoin, containing
from edgeguardd.kernel.oomwatch import OomWatch
from edgeguardd.logs import get_logger
from edgeguardd.state import StateDirectory

if TYPE_CHECKING:  # the readers of reports: imported when there is a report
    from edgeguardd.core.oomlog.report import Report, Victim

log = get_logger()

SHOWN_VICTIMS: Final = 8
KIB: Final = 1024
# Scopes of reports that an alert asks for: a series that begins with 1 has, to Prometheus, never risen.
COUNTED_FROM_ZERO: Final = ("global", "memcg")


class OomStats(Struct):
    """What has been told so far, for metrics and the status page."""

    reports: dict[str, int] = field(default_factory=dict)
    victims: int = 0
    unexplained: dict[str, int] = field(default_factory=dict)
    lost_records: int = 0
    readable: bool = False
    why: str | None = None
    last: dict[str, Any] | None = None


class OomReports:
    """Takes reports and counts. `enabled` false: nothing is read, and counts stay what the engine makes of them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: StateDirectory,
        paths: Callable[[], Mapping[str, str]],
        on_fault: Callable[[str], None],
        *,
        enabled: bool,
    ) -> None:
        self._stats = OomStats()
        self._loop = loop
        self._paths = paths
        self._join = OomJoin()
        self._settling: asyncio.TimerHandle | None = None
        self._watch = OomWatch(loop, state, self.report, _in_the_way, on_fault) if enabled else None

    def start(self) -> None:
        """Begin to read, where that is possible."""
        if self._watch is not None:
            self._watch.start()

    def close(self) -> None:
        """Tell what is there and stop."""
        if self._watch is not None:
            self._watch.close()
        if self._settling is not None:
            self._settling.cancel()

    def stats(self) -> OomStats:
        """The figures as of now."""
        if self._watch is not None:
            self._stats.readable, self._stats.why = self._watch.readable, self._watch.why
            self._stats.lost_records = self._watch.lost_records
        return self._stats

    def forget(self, target: str) -> None:
        """It has not been guarded for a while: its figure goes."""
        self._stats.unexplained.pop(target, None)

    def counted(self, moved: CountersMoved) -> None:
        """A target's counters have moved. Without a log to read there is nothing to join them with."""
        if self._watch is None or not self._watch.readable or not moved.local or not moved.delta.oom_kill:
            return
        self._join.counted(moved.target, moved.delta.oom_kill, self._loop.time())
        self._settle_later()

    def missed(self, target: str, kills: int) -> None:
        """Kills that no daemon has seen: their reports are in the log, or about to be read."""
        if self._watch is not None and self._watch.readable:
            self._join.counted(target, kills, self._loop.time())
            self._settle_later()

    def _settle_later(self) -> None:
        due = self._join.next_due
        if self._settling is None and due is not None:
            self._settling = self._loop.call_at(due, self._settle)

    def _settle(self) -> None:
        """Say which counted kills no report explains."""
        self._settling = None
        for alone in self._join.due(self._loop.time()):
            self._stats.unexplained[alone.target] = self._stats.unexplained.get(alone.target, 0) + alone.kills
            log.warning(
                "oom_kills_unexplained",
                target=alone.target,
                kills=alone.kills,
                why="memory.events counted them, and the kernel's log has no report: its rate limit, or a full buffer",
            )
        self._settle_later()

    def report(self, report: "Report") -> None:
        """One report of the kernel."""
        from edgeguardd.core.oomlog import verdict  # noqa: PLC0415  imported when there is a report

        targets = self._targets(report)
        counted = self._join.reported(targets, len(report.victims), self._loop.time())
        scope = report.victims[0].scope if report.victims else report.scope
        stats = self._stats
        stats.reports[scope] = stats.reports.get(scope, 0) + 1
        stats.victims += len(report.victims)
        told = verdict.of(report)
        usage = report.usage.get("memory")
        first = report.victims[0] if report.victims else None
        target = targets[0] if targets else None
        pid, comm = (None, None) if first is None else (first.pid, _shown(first.comm))
        limit_cgroup, why, remedy = _shown(report.oom_memcg), f"{told.limit} {told.victim}", " ".join(told.change)
        stats.last = {
            "target": target,
            "scope": scope,
            "pid": pid,
            "comm": comm,
            "kills": len(report.victims),
            "limit_cgroup": limit_cgroup,
            "why": why,
            "remedy": remedy,
        }
        log.warning(
            "oom_report",
            target=target,
            scope=scope,
            pid=pid,
            comm=comm,
            victims=[_named(victim) for victim in report.victims[:SHOWN_VICTIMS]],
            kills=len(report.victims),
            counted=counted,
            limit_cgroup=limit_cgroup,
            victim_cgroup=None if first is None else _shown(report.task_memcg(first)),
            limit_bytes=None if usage is None else usage.limit_kb * KIB,
            used_bytes=None if usage is None else usage.usage_kb * KIB,
            why=why,
            remedy=remedy,
        )

    def _targets(self, report: "Report") -> list[str]:
        """The targets that lost a process; where the report does not name its cgroup, those with the limit in them."""
        paths = self._paths()
        first = report.victims[0] if report.victims else None
        cgroup = None if first is None else report.task_memcg(first)
        cgroup = cgroup or report.group_path or report.oom_memcg
        return [] if cgroup is None else containing(paths, cgroup)


class OomCollector(Collector):
    """The figures for /metrics, read when it is scraped."""

    def __init__(self, stats: Callable[[], OomStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        text = "1 while the kernel's log can be read for its OOM reports."
        yield GaugeMetricFamily("edgeguardd_kernel_log_readable", text, value=float(stats.readable))
        text = "Records of the kernel's log that were overwritten before they were read."
        yield CounterMetricFamily("edgeguardd_kernel_log_lost_records", text, value=stats.lost_records)
        reports = CounterMetricFamily(
            "edgeguardd_oom_reports", "OOM reports of the kernel, by whose limit was met.", labels=["scope"]
        )
        for scope, count in sorted({**dict.fromkeys(COUNTED_FROM_ZERO, 0), **stats.reports}.items()):
            reports.add_metric([scope], count)
        yield reports
        text = "Processes that these reports name as killed."
        yield CounterMetricFamily("edgeguardd_oom_victims", text, value=stats.victims)
        unexplained = CounterMetricFamily(
            "edgeguardd_oom_kills_unexplained",
            "Kills counted in a target's memory.events without a report in the kernel's log.",
            labels=["target"],
        )
        for target, count in sorted(stats.unexplained.items()):
            unexplained.add_metric([target], count)
        yield unexplained


def _in_the_way(sentence: str) -> None:
    """The log cannot be read: no fault of the daemon's, but whoever misses a report should know why there is none."""
    log.info("kernel_log_unread", why=sentence)


def _named(victim: "Victim") -> str:
    return f"{_shown(victim.comm) or '?'} ({victim.pid})"


def _shown(value: str | None) -> str | None:
    """Bytes that are no UTF-8 as U+FFFD; what a terminal acts on, the log escapes itself."""
    return None if value is None else value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
