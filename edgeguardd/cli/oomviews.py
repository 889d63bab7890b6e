"""What edgeguardctl oom prints: reports one after the other, for people or as JSON, as soon as each is over.

Must not: hold a whole log; judge a report (core.oomlog.verdict does). Upstream: isolate.oomlog, core.oomlog.
Downstream: cli.oom. All names come from strangers and are printed escaped.
"""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from edgeguardd.cli import common
from edgeguardd.core.oomlog import asjson, verdict
from edgeguardd.core.oomlog.collector import Collector
from edgeguardd.core.oomlog.messages import UNLIMITED_KB
from edgeguardd.core.oomlog.report import Report, Victim
from edgeguardd.core.oomlog.tasktable import Task
from edgeguardd.core.text import printable
from edgeguardd.isolate import oomlog
from edgeguardd.kernel.kmsg import Kmsg

SHOWN_TASKS: Final = 8
SHOWN_VICTIMS: Final = 12
MAX_NAME_CHARS: Final = 400
MAX_LISTED: Final = 10_000
# So many kills of one name are a loop: it is started again into the same limit.
LOOP_KILLS: Final = 3
INDENT: Final = "  "


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    collector = Collector()
    if args.file is not None:
        _print(oomlog.reports(args.file, collector), collector, as_json=args.json)
        return common.OK
    with contextlib.closing(Kmsg.open()) as log:
        if args.follow:
            log.to_end()
            _follow(collector, log, as_json=args.json)
        else:
            _print(oomlog.follow(collector, log, wait_s=0.0), collector, as_json=args.json)
    return common.OK


def _print(reports: Iterable[Report], collector: Collector, *, as_json: bool) -> None:
    if as_json:
        for piece in json_text(reports, collector):
            sys.stdout.write(piece)
    else:
        for line in text_lines(reports, collector):
            print(line)


def _follow(collector: Collector, log: Kmsg, *, as_json: bool) -> None:
    for number, report in enumerate(oomlog.follow(collector, log), 1):
        if as_json:
            print(json.dumps(_one(report)), flush=True)
        else:
            print("\n".join([*story(number, report), ""]), flush=True)


def _one(report: Report) -> dict[str, Any]:
    """One report by itself."""
    made: dict[str, Any] = {"events": _events(report)}
    if report.group_path is not None:
        made["group"] = asjson.group(report)
    if report.no_victim is not None:
        made["no_victim"] = [asjson.no_victim(report)]
    elif not report.victims:
        made["incomplete"] = [asjson.incomplete(report)]
    return made


def _events(report: Report) -> list[dict[str, Any]]:
    found = list(asjson.events(report))
    if found:
        told = verdict.of(report)
        found[0]["verdict"] = {"limit": told.limit, "victim": told.victim, "change": list(told.change)}
    return found


def json_text(reports: Iterable[Report], collector: Collector) -> Iterator[str]:
    """The whole answer in pieces: events as they come, then the rest. ASCII, so that no name acts on a terminal."""
    lists: dict[str, list[Any]] = {"incomplete": [], "no_victim": [], "groups": []}
    panic = False
    yield '{"events": ['
    first = True
    for report in reports:
        for event in _events(report):
            yield ("\n " if first else ",\n ") + json.dumps(event)
            first = False
        panic = panic or report.panic
        for key, made in _beside(report):
            if len(lists[key]) < MAX_LISTED:
                lists[key].append(made)
    yield "]" if first else "\n]"
    rest: dict[str, Any] = {key: found for key, found in lists.items() if found}
    if lists["groups"]:
        rest["group"] = lists["groups"][0]
    rest |= asjson.others(collector.others)
    if panic:
        rest["panic"] = True
    for key, value in rest.items():
        yield f',\n"{key}": {json.dumps(value)}'
    yield "}\n"


def _beside(report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    if report.group_path is not None:
        yield "groups", asjson.group(report)
    if report.no_victim is not None:
        yield "no_victim", asjson.no_victim(report)
    elif not report.victims:
        yield "incomplete", asjson.incomplete(report)


def text_lines(reports: Iterable[Report], collector: Collector) -> Iterator[str]:
    """The whole answer for people."""
    kills: Counter[str] = Counter()
    number = 0
    for number, report in enumerate(reports, 1):
        yield from story(number, report)
        yield ""
        # A group that dies together is one kill of its name.
        for victim in report.victims[:1]:
            if len(kills) < MAX_LISTED or (victim.comm or "") in kills:
                kills[victim.comm or "?"] += 1
    if number == 0:
        yield "No OOM report in this log."
    for name, count in kills.most_common(3):
        if count >= LOOP_KILLS:
            yield f"{_shown(name)} was killed {count} times: it comes back into the same limit each time."
    yield from _other_lines(collector)


def story(number: int, report: Report) -> list[str]:
    """One report for people."""
    told = verdict.of(report)
    lines = [f"OOM {number}{_when(report)}"]
    shown = report.victims[:SHOWN_VICTIMS]
    lines += [f"{INDENT}killed   {_victim(report, victim)}" for victim in shown]
    if len(report.victims) > len(shown):
        lines.append(f"{INDENT}         and {len(report.victims) - len(shown)} more")
    if not report.victims:
        lines.append(f"{INDENT}killed   nobody" if report.no_victim is not None else f"{INDENT}killed   not in the log")
    lines += [f"{INDENT}{label:<8} {value}" for label, value in _figures(report)]
    lines += _tasks(report)
    lines.append(f"{INDENT}Whose limit:     {_shown(told.limit)}")
    lines.append(f"{INDENT}Why this victim: {_shown(told.victim)}")
    for first, step in enumerate(told.change):
        lines.append(f"{INDENT}{'' if first else 'What to change:':<16} {_shown(step)}")
    return lines


def _when(report: Report) -> str:
    when = report.victims[0].when if report.victims else report.no_victim or report.when
    parts = []
    if isinstance(when.timestamp, float):
        parts.append(f"at {when.timestamp:.6f} s")
    elif when.timestamp is not None:
        parts.append(f"at {_shown(when.timestamp)}")
    elif when.outer is not None:
        parts.append(f"at {_shown(when.outer)}")
    if when.host is not None:
        parts.append(f"on {_shown(when.host)}")
    return "".join(f" {part}" for part in parts)


def _victim(report: Report, victim: Victim) -> str:
    name = "(name not in the log)" if victim.comm is None else _shown(victim.comm) or '""'
    parts = [f"{name} ({victim.pid})"]
    uid = victim.uid if victim.uid is not None else report.oom_kill.uid if report.oom_kill is not None else None
    if uid is not None and victim.role != "member":
        parts.append(f"uid {uid}")
    figures = victim.figures
    parts += [
        f"{verdict.size(figures[key])} {label}"
        for key, label in (("anon-rss", "anonymous"), ("file-rss", "file"), ("shmem-rss", "shared"))
        if figures.get(key)
    ]
    if "total-vm" in figures:
        parts.append(f"{verdict.size(figures['total-vm'])} mapped")
    if victim.score_adj is not None:
        parts.append(f"oom_score_adj {victim.score_adj}")
    if not victim.line_seen:
        parts.append("chosen; the kill itself is not in the log")
    if victim.reap_failed:
        parts.append("its memory could not be reaped")
    path = report.task_memcg(victim)
    if path is not None:
        parts.append(f"in {_shown(path)}")
    return ", ".join(parts)


def _figures(report: Report) -> Iterator[tuple[str, str]]:
    """What else the report says, one row each."""
    for what, label in (("memory", "limit"), ("swap", "swap"), ("memory+swap", "with swap")):
        usage = report.usage.get(what)
        if usage is not None:
            limit = "no limit" if usage.limit_kb >= UNLIMITED_KB else verdict.size(usage.limit_kb)
            yield label, f"{limit}, {verdict.size(usage.usage_kb)} used, met {usage.failcnt} times"
    if report.oom_memcg is not None:
        yield "cgroup", _shown(report.oom_memcg)
    if report.invoked is not None:
        pid = "" if report.invoker_pid is None else f" ({report.invoker_pid})"
        order = "" if not report.invoked.order else f", order {report.invoked.order}"
        yield "asked", f"{_shown(report.invoked.comm) or '(no name)'}{pid}{order}"
    if report.kernel is not None:
        yield "kernel", _shown(report.kernel)
    if report.panic:
        yield "panic", "the kernel stopped after it"


def _tasks(report: Report) -> list[str]:
    """Who used what: the largest tasks of the dump, and the victims."""
    if not report.tasks:
        return []
    page_kb = report.page_kb()
    victims = {victim.pid for victim in report.victims}
    largest = sorted(report.tasks.values(), key=_weight, reverse=True)
    shown = largest[:SHOWN_TASKS] + [task for task in largest[SHOWN_TASKS:] if task.pid in victims][:SHOWN_TASKS]
    unit = "" if page_kb is not None else " (pages)"
    rows = [f"{INDENT}{'':1}{'PID':>8} {'RESIDENT' + unit:>10} {'SWAPPED' + unit:>10} {'ADJ':>5}  NAME"]
    for task in shown:
        mark = "*" if task.pid in victims else " "
        adj = "-" if task.oom_score_adj is None else str(task.oom_score_adj)
        rows.append(
            f"{INDENT}{mark}{task.pid:>8} {_amount(task.rss, page_kb):>10} {_amount(task.swapents, page_kb):>10} "
            f"{adj:>5}  {_shown(task.name or '')}"
        )
    left = len(report.tasks) + report.tasks_dropped - len(shown)
    if left:
        rows.append(f"{INDENT} and {left} more tasks")
    return rows


def _weight(task: Task) -> int:
    return (task.rss or 0) + (task.swapents or 0)


def _amount(pages: int | None, page_kb: int | None) -> str:
    if pages is None:
        return "-"
    return str(pages) if page_kb is None else verdict.size(pages * page_kb)


def _other_lines(collector: Collector) -> Iterator[str]:
    """What the log says beside kernel OOMs."""
    found = collector.others
    for kill in found.oomd:
        why = f"pressure in {_shown(kill.said.monitored)}" if kill.said.monitored else kill.said.reason
        yield f"systemd-oomd killed {_shown(kill.said.cgroup)}: {why}."
    for row in found.userspace:
        who = _shown(row.said.cgroup or row.said.comm or "?")
        pid = "" if row.said.pid is None else f" ({row.said.pid})"
        yield f"{row.said.killer} killed {who}{pid}: a killer in user space, not the kernel."
    for unit in found.units:
        yield f"systemd: a process of {_shown(unit.unit)} was killed{' and the unit failed' if unit.result else ''}."
    if found.reaped:
        pids = ", ".join(str(pid) for pid in list(found.reaped)[:SHOWN_VICTIMS])
        yield f"Reaped, but their kills are not in the log: {pids}."
    if found.suppressed:
        yield f"The kernel left out {found.suppressed} lines of reports (rate limit)."
    if found.panic is not None:
        yield f"Kernel panic: {_shown(found.panic)}"


def _shown(value: str) -> str:
    return printable(value, MAX_NAME_CHARS)
