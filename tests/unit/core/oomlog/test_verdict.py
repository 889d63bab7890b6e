"""Whose limit, why this victim, what to change: one sentence each, and none that the log does not support."""

import pytest

from edgeguardd.core.oomlog import verdict
from edgeguardd.core.oomlog.verdict import Verdict, size, unit_of
from tests.support.oomlogs import reports

KILL = "total-vm:59256kB, anon-rss:48328kB, file-rss:4172kB, shmem-rss:0kB, UID:0 pgtables:156kB oom_score_adj:0"
MEMCG = f"Memory cgroup out of memory: Killed process 7 (a) {KILL}"
GLOBAL = f"Out of memory: Killed process 7 (a) {KILL}"
HEAD = "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"


def oom_kill(oom_memcg: str, task_memcg: str) -> str:
    """The line of the choice in a memory cgroup."""
    return (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={oom_memcg},"
        f"task_memcg={task_memcg},task=a,pid=7,uid=0"
    )


def machine(constraint: str, nodemask: str = "(null)", mems: str = "0") -> str:
    """The line of the choice in the whole machine."""
    return (
        f"oom-kill:constraint={constraint},nodemask={nodemask},cpuset=c,mems_allowed={mems},global_oom,task_memcg=/t,"
        "task=a,pid=7,uid=0"
    )


def of(*lines: str) -> Verdict:
    """The verdict on the one report in these lines."""
    (report,) = reports("\n".join(f"[ 1503.009765] {line}" for line in lines))
    return verdict.of(report)


def test_ones_own_limit_is_to_be_raised() -> None:
    """Or to be stayed below."""
    told = of(oom_kill("/s.slice/x.service", "/s.slice/x.service"), MEMCG)
    assert told.limit == "/s.slice/x.service: its own limit."
    assert told.change[0].startswith("Raise MemoryMax= of x.service")


def test_an_ancestors_limit_is_not_the_victims() -> None:
    """Raising the victim's own would change nothing, and the verdict says so."""
    told = of(oom_kill("/s.slice", "/s.slice/x.service"), MEMCG)
    assert "not the victim's own cgroup" in told.limit
    assert "Raise the limit of s.slice" in told.change[0]
    assert "raising the limit of x.service alone changes nothing" in told.change[0]


def test_a_pods_limit_is_kubernetes_to_raise() -> None:
    """systemd's settings would be overwritten there."""
    told = of(oom_kill("/kubepods/burstable/pod1/c", "/kubepods/burstable/pod1/c"), MEMCG)
    assert "resources.limits.memory" in told.change[0]


def test_shared_memory_outlives_its_processes() -> None:
    """Killing does not help then."""
    told = of("memory: usage 1000kB, limit 1000kB, failcnt 1", "anon 0", "shmem 900000", oom_kill("/x", "/x"), MEMCG)
    assert any("/dev/shm" in step for step in told.change)


def test_a_limit_that_was_just_lowered_is_the_writers_doing() -> None:
    """Whoever wrote memory.max is named, and how it is done without killing."""
    told = of(
        "tee invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        " memory_max_write+0x117/0x1e0",
        oom_kill("/x", "/x"),
        MEMCG,
    )
    assert "which was just set by 'tee' below what was used" in told.limit
    assert "memory.high first" in told.change[0]


def test_a_cgroup_that_the_log_does_not_name_is_not_guessed() -> None:
    """A filtered log has the kill alone."""
    assert "does not name" in of(MEMCG).limit


def test_a_kill_without_any_context_is_unknown() -> None:
    """Vendors' kernels print no scope; whole logs tell more."""
    told = of(f"Killed process 7 (a) {KILL}")
    assert "does not say" in told.limit
    assert "journalctl -k" in told.change[0]


@pytest.mark.parametrize(
    ("line", "limit", "change"),
    [
        (machine("CONSTRAINT_NONE"), "the whole machine", "MemoryMax="),
        (machine("CONSTRAINT_CPUSET", mems="4"), "cpuset allows (nodes 4)", "cpuset.mems"),
        (machine("CONSTRAINT_MEMORY_POLICY", nodemask="1"), "memory policy allows (nodes 1)", "cpuset.mems"),
    ],
    ids=["machine", "cpuset", "policy"],
)
def test_the_whole_machine_or_some_of_its_nodes(line: str, limit: str, change: str) -> None:
    """A placement can be the fault while others have room."""
    told = of(line, GLOBAL)
    assert limit in told.limit
    assert change in told.change[0]


def test_the_victim_was_the_largest() -> None:
    """The table shows it, in the size of its pages."""
    told = of(HEAD, row(7, 13125), row(8, 100), oom_kill("/x", "/x"), MEMCG)
    assert told.victim.startswith("a (7) held the most of 2 tasks: 51.3 MiB.")


def test_the_victim_was_not_the_largest_but_had_the_higher_score() -> None:
    """oom_score_adj decided, and both are named."""
    told = of(HEAD, row(7, 100, adj=500), row(8, 13125, adj=-500), oom_kill("/x", "/x"), MEMCG.replace("j:0", "j:500"))
    assert "less than n8 (8)" in told.victim
    assert "oom_score_adj is 500 against -500" in told.victim


def test_gpu_memory_is_in_nobodys_figures() -> None:
    """A victim with little resident and much mapped memory, on a board that shares RAM with its GPU."""
    lines = (
        "D invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj=0",
        *("Mem-Info:", "Total swap = 0kB", "Out of memory: Kill process 9 (D) score 1 or sacrifice child"),
    )
    told = of(*lines, "Killed process 9 (D) total-vm:1838376kB, anon-rss:2632kB, file-rss:628kB")
    assert any("GPU" in step for step in told.change)
    assert any("zram" in step for step in told.change)


def test_nobody_could_be_killed() -> None:
    """The kernel says so; there is no victim to explain."""
    assert "Nobody could be killed" in of("Out of memory and no killable processes...").victim


def row(pid: int, rss: int, adj: int = 0) -> str:
    """A row of the table."""
    return f"[{pid:>7}]     0 {pid:>5}    14814 {rss:>8}        0        0 {adj:>13} {'a' if pid == 7 else f'n{pid}'}"


def test_sizes_and_units() -> None:
    """As people read them."""
    assert [size(kb) for kb in (1, 1023, 1024, 102400, 1048576, 2.5 * 2**30)] == [
        *("1 KiB", "1023 KiB", "1.0 MiB", "100 MiB", "1.0 GiB"),
        "2.5 TiB",
    ]
    assert unit_of("/a.slice/b.service/inner") == "b.service"
    assert unit_of("/docker/x") is None
    assert unit_of(None) is None
