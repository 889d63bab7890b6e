"""Reports as the JSON of `edgeguardctl oom --json`: one event a killed process, a key only where the log has it.

Must not: decide what is one kill (the collector did). Upstream: report, others. Downstream: cli, the daemon.
Names are strangers' bytes: one that is no UTF-8 is given as comm_bytes_hex, and in `comm_shown` with replacements.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import to_builtins

from edgeguardd.core.oomlog.others import Others
from edgeguardd.core.oomlog.report import Report, Victim, When

# The kernel's name for a figure -> ours.
FIGURES: Final = {
    "total-vm": "total_vm_kb",
    "anon-rss": "anon_rss_kb",
    "file-rss": "file_rss_kb",
    "shmem-rss": "shmem_rss_kb",
    "pgtables": "pgtables_kb",
}


def events(report: Report) -> Iterator[dict[str, Any]]:
    """One object for each process that this report says was killed."""
    for number, victim in enumerate(report.victims):
        yield _present(_event(report, victim, first=number == 0))


def incomplete(report: Report) -> dict[str, Any]:
    """An OOM whose victim the log does not name."""
    return _present(
        {
            **_invoker(report),
            **_limit(report),
            "oom_memcg": report.oom_memcg,
            **_when(report.when),
            "already_exiting_pid": report.exiting_pid,
        }
    )


def no_victim(report: Report) -> dict[str, Any]:
    """An OOM that found nobody to kill."""
    return _present(
        {**_when(report.no_victim or report.when), **_limit(report), "oom_memcg": report.oom_memcg, **_invoker(report)}
    )


def group(report: Report) -> dict[str, Any]:
    """A group kill: the cgroup that dies as one."""
    when = report.group_when or report.when
    return _present({"path": text(report.group_path or ""), "line_ts": when.timestamp, "syslog_time": when.outer})


def others(found: Others) -> dict[str, Any]:
    """What else the log says, under keys that are there only when there is something."""
    return _filled(
        {
            "oomd": [_oomd(kill) for kill in found.oomd],
            "systemd": [
                _present({"unit": text(row.unit), "manager_pid": row.manager_pid, "result": row.result})
                for row in found.units
            ],
            "userspace_kills": [
                _present(
                    {
                        **_texts(to_builtins(kill.said)),
                        "repeated": kill.times if kill.times > 1 else None,
                        "processes": list(kill.processes) or None,
                        **_when(kill.when),
                    }
                )
                for kill in found.userspace
            ],
            "kubelet": [_present({"comm": text(saw.comm), "victim_pid": saw.pid}) for saw in found.kubelet],
            "reaped_without_victim_line": list(found.reaped),
            "panic": found.panic is not None,
            "reports_suppressed": found.suppressed,
        }
    )


def text(value: str) -> str:
    """A text from the log as JSON can have it: bytes that are no UTF-8 become U+FFFD."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _event(report: Report, victim: Victim, *, first: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"victim_pid": victim.pid, **_comm(victim.comm), "scope": victim.scope}
    member = victim.role == "member"
    kill = None if member or victim.shares_memory else report.oom_kill
    named = kill is not None and (kill.pid in (None, victim.pid) or kill.task == victim.comm)
    made["constraint"] = kill.constraint if kill is not None else None
    made["oom_memcg"] = report.oom_memcg or (report.group_path if member else None)
    made["task_memcg"] = report.task_memcg(victim)
    made |= {ours: victim.figures.get(name) for name, ours in FIGURES.items()}
    made["uid"] = victim.uid if victim.uid is not None else kill.uid if named and kill is not None else None
    task = report.task_of(victim)
    table_adj = None if task is None else task.oom_score_adj
    # A line cut at a console's edge can end in a wrong figure; where the table contradicts, it is not known.
    made["oom_score_adj"] = victim.score_adj if table_adj in (None, victim.score_adj) else None
    made |= _when(victim.when)
    if task is not None:
        made |= {
            "oom_score_adj_from_task_table": table_adj,
            "uid_from_task_table": task.uid,
            "swapents_pages": task.swapents,
        }
    made |= _marks(report, victim)
    if first:
        made |= _limit(report) | _invoker(report) | _header(report)
    if victim.low_memory is not None:
        made |= _low_memory(victim)
    made["page_kb"] = report.page_kb() if task is not None else None
    return _texts(made)


def _comm(comm: str | None) -> dict[str, Any]:
    if comm is None:
        return {}
    raw = comm.encode("utf-8", "surrogateescape")
    try:
        return {"comm": raw.decode()}
    except UnicodeDecodeError:
        return {"comm_bytes_hex": raw.hex(), "comm_shown": raw.decode("utf-8", "replace")}


def _when(when: When) -> dict[str, Any]:
    made: dict[str, Any] = {"timestamp": when.timestamp}
    if when.timestamp is None:
        made["syslog_time"] = when.outer
    made["host"] = when.host
    if when.seq is not None:
        made["kmsg"] = {"level": when.level, "facility": when.facility, "seq": when.seq, "usec": when.usec}
    return made


def _marks(report: Report, victim: Victim) -> dict[str, Any]:
    """What is true of a victim or left out."""
    left = victim.left_after_reaping
    return {
        "group_kill_trigger": victim.role == "trigger" or None,
        "group_kill_member": victim.role == "member" or None,
        "shares_memory": victim.shares_memory or None,
        "killed_line_missing": not victim.line_seen or None,
        "reaped": victim.reaped or None,
        "reap_failed": victim.reap_failed or None,
        "reaped_shmem_rss_kb": left.get("shmem-rss") or None,
        "decoded_figures": {FIGURES[key]: kb for key, kb in victim.decoded.items()} or None,
        "limit_lowered": "lowered" in report.seen or None,
        "sysrq": "sysrq" in report.seen or (report.invoked is not None and report.invoked.order == -1) or None,
    }


def _limit(report: Report) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for what, prefix in (("memory", ""), ("memory+swap", "memsw_"), ("swap", "swap_"), ("kmem", "kmem_")):
        line = report.usage.get(what)
        if line is not None:
            made |= {
                f"{prefix}limit_kb": line.limit_kb,
                f"{prefix}usage_kb": line.usage_kb,
                f"{prefix}failcnt": line.failcnt,
            }
    return made


def _invoker(report: Report) -> dict[str, Any]:
    invoked = report.invoked
    if invoked is None:
        return {}
    return {
        "invoked_by": text(invoked.comm),
        "invoker_pid": report.invoker_pid,
        "invoker_oom_score_adj": invoked.score_adj,
        "order": invoked.order,
        "kernel": report.kernel,
    }


def _header(report: Report) -> dict[str, Any]:
    kill, chosen = report.oom_kill, report.chosen
    return {
        "cpuset": kill.cpuset if kill is not None and kill.cpuset is not None else report.cpuset,
        "mems_allowed": kill.mems_allowed
        if kill is not None and kill.mems_allowed is not None
        else report.mems_allowed,
        "nodemask": None if kill is None else kill.nodemask,
        "chosen_pid": None if chosen is None else chosen.pid,
        "chosen_score": None if chosen is None else chosen.score,
        "memcg_from_stats": report.stats_of,
    }


def _low_memory(victim: Victim) -> dict[str, Any]:
    known = to_builtins(victim.low_memory)
    return {
        key: known[key] for key in ("to_free_kb", "on_behalf_of", "on_behalf_of_pid", "rss_kb", "swap_kb", "reason")
    }


def _oomd(kill: Any) -> dict[str, Any]:
    said = kill.said
    return _present(
        {
            "killed_cgroup": text(said.cgroup),
            "monitored_cgroup": None if said.monitored is None else text(said.monitored),
            "pressure_pct": said.pressure_pct,
            "limit_pct": said.limit_pct,
            "duration_s": said.duration_s,
            "processes": kill.processes,
            "reason": said.reason if said.reason != "pressure" else None,
            **_when(kill.when),
        }
    )


def _texts(made: Mapping[str, Any]) -> dict[str, Any]:
    return {key: text(value) if isinstance(value, str) else value for key, value in made.items()}


def _present(made: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in made.items() if value is not None}


def _filled(made: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in made.items() if value}
