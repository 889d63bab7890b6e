"""A log's bytes to the JSON of `edgeguardctl oom --json`, and one OOM report as each kernel prints it.

Must not: know how a line is read. Upstream: cases, unit and property tests.
"""

import json
from typing import Any

from edgeguardd.cli import oomviews
from edgeguardd.core.oomlog.collector import Collector
from edgeguardd.core.oomlog.report import Report

# A whole report of Linux 6.18 without its call trace; the victim's name has a bracket and a blank in it.
MODERN = (
    "a b(7 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=777",
    "CPU: 1 UID: 0 PID: 7055 Comm: a b(7 Not tainted 6.18.44 #1 PREEMPT(none) ",
    "memory: usage 40960kB, limit 40960kB, failcnt 3",
    "Memory cgroup stats for /egtest:",
    "anon 41857024",
    "Tasks state (memory values in pages):",
    "[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
    "[   7001]     0  7001    14814      100       50       50         0   163840        0          -998 pause",
    "[   7055]     5  7055    14814    13141    12081     1060         0   163840        0           777 a b(7",
    (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,4,oom_memcg=/egtest,"
        "task_memcg=/egtest/x,task=a b(7,pid=7055,uid=5"
    ),
    (
        "Memory cgroup out of memory: Killed process 7055 (a b(7) total-vm:59256kB, anon-rss:48328kB, file-rss:4172kB, "
        "shmem-rss:0kB, UID:5 pgtables:156kB oom_score_adj:777"
    ),
    "oom_reaper: reaped process 7055 (a b(7), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
)
# What the log of MODERN says, times aside.
MODERN_EVENT = {
    "victim_pid": 7055,
    "comm": "a b(7",
    "scope": "memcg",
    "constraint": "CONSTRAINT_MEMCG",
    "oom_memcg": "/egtest",
    "task_memcg": "/egtest/x",
    "total_vm_kb": 59256,
    "anon_rss_kb": 48328,
    "file_rss_kb": 4172,
    "shmem_rss_kb": 0,
    "uid": 5,
    "pgtables_kb": 156,
    "oom_score_adj": 777,
    "limit_kb": 40960,
    "usage_kb": 40960,
    "failcnt": 3,
    "invoked_by": "a b(7",
    "invoker_pid": 7055,
    "invoker_oom_score_adj": 777,
    "kernel": "6.18.44",
    "reaped": True,
    "oom_score_adj_from_task_table": 777,
    "uid_from_task_table": 5,
    "mems_allowed": "0-1,4",
    "cpuset": "/",
    "memcg_from_stats": "/egtest",
    "page_kb": 4,
}


def answer(log: bytes | str) -> dict[str, Any]:
    """What `oom --json` prints for this log."""
    collector = Collector()
    found: dict[str, Any] = json.loads("".join(oomviews.json_text(_fed(collector, log), collector)))
    return found


def reports(log: bytes | str) -> list[Report]:
    """The reports of a log."""
    return _fed(Collector(), log)


def text(log: bytes | str) -> str:
    """What `oom` prints for people."""
    collector = Collector()
    return "\n".join(oomviews.text_lines(_fed(collector, log), collector))


def _fed(collector: Collector, log: bytes | str) -> list[Report]:
    raw = log.encode("utf-8", "surrogateescape") if isinstance(log, str) else log
    found = []
    for line in raw.split(b"\n"):
        collector.feed(line)
        found += collector.take()
    return found + collector.end()


def victims(log: bytes | str) -> list[tuple[int, str | None]]:
    """Pid and name of each process that was killed, in order."""
    return [(event["victim_pid"], event.get("comm")) for event in answer(log)["events"]]
