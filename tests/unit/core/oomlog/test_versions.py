"""One OOM as each kernel prints it: what the version has is read, what it has not is absent."""

# ruff: noqa: E501 - lines of logs as they are

from typing import Any

import pytest

from tests.support.oomlogs import answer

K = "[ 1234.500000] "

# id, lines, what the event has; the whole of its kernel figures, so that nothing else may be there
KERNELS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    (
        "2.6.32, global",
        (
            "httpd invoked oom-killer: gfp_mask=0x201da, order=0, oom_adj=0, oom_score_adj=0",
            "Pid: 4711, comm: httpd Not tainted 2.6.32-754.el6.x86_64 #1",
            "Mem-Info:",
            "[ pid ]   uid  tgid total_vm      rss cpu oom_adj oom_score_adj name",
            "[ 4711]    48  4711    10000     5000   1       0             0 httpd",
            "Out of memory: Kill process 4711 (httpd) score 120 or sacrifice child",
            "Killed process 4711, UID 48, (httpd) total-vm:40000kB, anon-rss:19000kB, file-rss:1000kB",
        ),
        {
            "victim_pid": 4711,
            "comm": "httpd",
            "scope": "global",
            "uid": 48,
            "total_vm_kb": 40000,
            "anon_rss_kb": 19000,
            "file_rss_kb": 1000,
            "chosen_pid": 4711,
            "chosen_score": 120,
        },
    ),
    (
        "3.10, memcg",
        (
            "java invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0",
            "java cpuset=/ mems_allowed=0",
            "CPU: 2 PID: 500 Comm: java Not tainted 3.10.0-1160.el7.x86_64 #1",
            "Task in /a/b killed as a result of limit of /a",
            "memory: usage 1024kB, limit 1024kB, failcnt 7",
            "memory+swap: usage 0kB, limit 9007199254740988kB, failcnt 0",
            "Memory cgroup stats for /a: cache:0KB rss:512KB",
            "Memory cgroup stats for /a/b: cache:0KB rss:512KB",
            "[ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name",
            "[  500]  1000   500     1000      128       7        3             0 java",
            "Memory cgroup out of memory: Kill process 501 (java) score 500 or sacrifice child",
            "Killed process 500 (java) total-vm:4000kB, anon-rss:400kB, file-rss:112kB",
        ),
        {
            "victim_pid": 500,
            "comm": "java",
            "scope": "memcg",
            "oom_memcg": "/a",
            "task_memcg": "/a/b",
            "total_vm_kb": 4000,
            "anon_rss_kb": 400,
            "file_rss_kb": 112,
            "chosen_pid": 501,
            "chosen_score": 500,
            "limit_kb": 1024,
            "failcnt": 7,
            "uid_from_task_table": 1000,
            "swapents_pages": 3,
            "cpuset": "/",
            "memcg_from_stats": "/a",
            "mems_allowed": "0",
            "kernel": "3.10.0-1160.el7.x86_64",
            "page_kb": 4,
        },
    ),
    (
        "4.4, global, order 2",
        (
            "X invoked oom-killer: gfp_mask=0x26040c0, order=2, oom_score_adj=-17",
            "Mem-Info:",
            "Free swap  = 0kB",
            "Total swap = 0kB",
            "[ pid ]   uid  tgid total_vm      rss nr_ptes nr_pmds swapents oom_score_adj name",
            "[  812]     0   812   100000    50000     150       4        0           300 X y",
            "Out of memory: Kill process 812 (X y) score 301 or sacrifice child",
            "Killed process 812 (X y) total-vm:400000kB, anon-rss:190000kB, file-rss:10000kB",
        ),
        {
            "victim_pid": 812,
            "comm": "X y",
            "scope": "global",
            "order": 2,
            "invoker_oom_score_adj": -17,
            "total_vm_kb": 400000,
            "anon_rss_kb": 190000,
            "file_rss_kb": 10000,
            "chosen_score": 301,
            "oom_score_adj_from_task_table": 300,
        },
    ),
    (
        "4.6, with the reaper's first wording",
        (
            "Out of memory: Kill process 12 (a) score 9 or sacrifice child",
            "Killed process 12 (a) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:0kB",
            "oom_reaper: reaped process :12 (a) anon-rss:0kB, file-rss:0kB, shmem-rss:0lkB",
        ),
        {"victim_pid": 12, "comm": "a", "scope": "global", "shmem_rss_kb": 0, "reaped": True},
    ),
    (
        "4.14, with the 4.x nodemask",
        (
            "b invoked oom-killer: gfp_mask=0x15080c0(GFP_KERNEL_ACCOUNT|__GFP_ZERO), nodemask=(null),  order=1, oom_score_adj=5",
            "Memory limit reached of cgroup /docker/x",
            "memory: usage 9kB, limit 9kB, failcnt 1",
            "Memory cgroup out of memory: Kill process 13 (b) score 0 or sacrifice child",
            "Killed process 13 (b) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:0kB",
        ),
        {"victim_pid": 13, "scope": "memcg", "oom_memcg": "/docker/x", "order": 1, "invoker_oom_score_adj": 5},
    ),
    (
        "4.19, allocating task",
        (
            "c invoked oom-killer: gfp_mask=0x6000c0(GFP_KERNEL), nodemask=(null), order=0, oom_score_adj=0",
            "Out of memory (oom_kill_allocating_task): Kill process 14 (c) score 0 or sacrifice child",
            "Killed process 14 (c) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:0kB",
        ),
        {"victim_pid": 14, "scope": "global", "chosen_score": 0},
    ),
    (
        "5.0, global",
        (
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
                "task_memcg=/system.slice/d.service,task=d,pid=15,uid=7"
            ),
            "Out of memory: Kill process 15 (d) score 700 or sacrifice child",
            "Killed process 15 (d) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:0kB",
        ),
        {
            "victim_pid": 15,
            "scope": "global",
            "constraint": "CONSTRAINT_NONE",
            "uid": 7,
            "task_memcg": "/system.slice/d.service",
            "mems_allowed": "0",
            "chosen_score": 700,
        },
    ),
    (
        "5.4, without the page tables of later ones",
        ("Out of memory: Killed process 16 (e) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:1kB",),
        {"victim_pid": 16, "comm": "e", "scope": "global", "shmem_rss_kb": 1},
    ),
    (
        "5.8 and later",
        (
            (
                "Out of memory: Killed process 17 (f) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:1kB, "
                "UID:1000 pgtables:48kB oom_score_adj:-500"
            ),
        ),
        {"victim_pid": 17, "uid": 1000, "pgtables_kb": 48, "oom_score_adj": -500},
    ),
    (
        "sharing the victim's memory",
        (
            "Out of memory: Kill process 18 (g) score 9 or sacrifice child",
            "Killed process 18 (g) total-vm:8kB, anon-rss:4kB, file-rss:4kB",
        ),
        {"victim_pid": 18, "comm": "g"},
    ),
    (
        "OpenVZ",
        ("Out of memory in UB 1017: OOM killed process 19 (mysqld) score 0 vm:2541kB, rss:1225kB, swap:0kB",),
        {"victim_pid": 19, "comm": "mysqld", "scope": "memcg", "total_vm_kb": 2541},
    ),
)
FIGURES = (
    *("constraint", "oom_memcg", "task_memcg", "total_vm_kb", "anon_rss_kb", "file_rss_kb", "shmem_rss_kb"),
    *("uid", "pgtables_kb", "oom_score_adj"),
)


@pytest.mark.parametrize(("lines", "expected"), [row[1:] for row in KERNELS], ids=[row[0] for row in KERNELS])
def test_a_kernels_own_wording_is_read(lines: tuple[str, ...], expected: dict[str, Any]) -> None:
    """With times, without, and nothing invented."""
    for prefix in (K, ""):
        (event,) = answer("\n".join(prefix + line for line in lines))["events"]
        assert expected.items() <= event.items()
        if prefix:
            assert event["timestamp"] == 1234.5


@pytest.mark.parametrize(("lines", "expected"), [row[1:] for row in KERNELS], ids=[row[0] for row in KERNELS])
def test_what_a_kernel_does_not_print_is_absent(lines: tuple[str, ...], expected: dict[str, Any]) -> None:
    """A figure is there exactly when its word is in the log."""
    text = "\n".join(lines)
    words = {
        "constraint": "constraint=",
        "total_vm_kb": "m:",
        "anon_rss_kb": "anon-rss",
        "file_rss_kb": "file-rss",
        "shmem_rss_kb": "shmem-rss:",
        "pgtables_kb": "pgtables:",
        "oom_score_adj": "oom_score_adj:",
    }
    (event,) = answer(text)["events"]
    for key, word in words.items():
        assert (key in event) == (word in text.replace("reaped process :12 (a) anon-rss:0kB", "")), key


def test_processes_that_share_the_victims_memory_are_kills_of_their_own() -> None:
    """3.x and 4.x name them one by one."""
    lines = (
        "Out of memory: Kill process 18 (g) score 9 or sacrifice child",
        "Killed process 18 (g) total-vm:8kB, anon-rss:4kB, file-rss:4kB",
        "Kill process 20 (h i) sharing same memory",
    )
    events = answer("\n".join(K + line for line in lines))["events"]
    assert [(e["victim_pid"], e["comm"], e["scope"]) for e in events] == [(18, "g", "global"), (20, "h i", "global")]
    assert events[1]["shares_memory"] is True


def test_a_chosen_process_that_is_ending_by_itself_is_no_kill() -> None:
    """5.8 and later say so and kill nobody."""
    lines = (
        "a invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/x,task_memcg=/x,"
            "task=a,pid=9,uid=0"
        ),
        "Memory cgroup out of memory: OOM victim 9 (a) is already exiting. Skip killing the task",
    )
    found = answer("\n".join(K + line for line in lines))
    assert found["events"] == []
    assert found["incomplete"][0]["already_exiting_pid"] == 9


def test_a_report_laid_out_by_hand_is_read() -> None:
    """Broken at commas and indented, as people put it into a document."""
    lines = (
        "[  581.507012] oom-kill:constraint=CONSTRAINT_MEMCG, oom_memcg=/process/bash,",
        "               task_memcg=/process/bash, task=python, pid=2269, uid=0",
        "[  581.513643] Memory cgroup out of memory: Killed process 2269 (python)",
        "               total-vm:31786400kB, anon-rss:13945980kB, file-rss:11996kB,",
        "               shmem-rss:0kB, pgtables:28172kB",
    )
    (event,) = answer("\n".join(lines))["events"]
    assert (event["comm"], event["total_vm_kb"], event["pgtables_kb"], event["uid"]) == ("python", 31786400, 28172, 0)
    assert (event["oom_memcg"], event["constraint"]) == ("/process/bash", "CONSTRAINT_MEMCG")


def test_sysrq_f_is_told_apart() -> None:
    """order=-1 marks what somebody asked for."""
    lines = (
        "sysrq: Manual OOM execution",
        "kworker/0:1 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=-1, oom_score_adj=0",
        "Mem-Info:",
        (
            "Out of memory: Killed process 5 (a) total-vm:8kB, anon-rss:4kB, file-rss:4kB, shmem-rss:0kB, UID:0 "
            "pgtables:4kB oom_score_adj:0"
        ),
    )
    (event,) = answer("\n".join(K + line for line in lines))["events"]
    assert event["sysrq"] is True
    assert "SysRq" in event["verdict"]["limit"]
