"""What kernel messages say about an OOM, as frozen values, one type a message.

Must not: know how a message is worded beyond its example. Upstream: nothing. Downstream: kernelmessages, report.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

# page_counter_max in kB on 64 bit with 4 KiB pages and larger ones, and what 3.x printed: "no limit".
UNLIMITED_KB: Final = 2**53 - 2**17


class Invoked(Struct, frozen=True):
    """`%s invoked oom-killer: …` begins a report."""

    comm: str
    order: int | None
    score_adj: int | None
    gfp: str | None


class Context(Struct, frozen=True):
    """`CPU: 4 PID: 530 Comm: …`: the task that asked, and the kernel."""

    pid: int
    comm: str | None
    kernel: str | None


class Cpuset(Struct, frozen=True):
    """`python3 cpuset=/ mems_allowed=0`, a line of its own before 4.20."""

    cpuset: str
    mems_allowed: str


class TaskIn(Struct, frozen=True):
    """`Task in A killed as a result of limit of B` (3.10 to 4.19); A is missing where nobody was to be killed."""

    task_memcg: str | None
    oom_memcg: str


class UsageLine(Struct, frozen=True):
    """`memory: usage 1kB, limit 1kB, failcnt 0`, of memory, memory+swap, swap or kmem."""

    what: str
    usage_kb: int
    limit_kb: int
    failcnt: int


class StatsOf(Struct, frozen=True):
    """`Memory cgroup stats for PATH:`, up to 5.x with the figures in kB behind it."""

    path: str
    stats: Mapping[str, int]


class Stat(Struct, frozen=True):
    """`anon 4247797760`: one key of memory.stat, in bytes, since 5.x."""

    key: str
    value: int


class OomKill(Struct, frozen=True):
    """`oom-kill:constraint=…` (since 4.20). Fields that the line does not have whole are None."""

    constraint: str | None
    nodemask: str | None
    cpuset: str | None
    mems_allowed: str | None
    is_global: bool
    oom_memcg: str | None
    task_memcg: str | None
    task: str | None
    pid: int | None
    uid: int | None


class Chosen(Struct, frozen=True):
    """`Memory cgroup out of memory: Kill process 7 (x) score 996 or sacrifice child` (to 4.x): an intent."""

    scope: str
    pid: int
    comm: str
    score: int


class Killed(Struct, frozen=True):
    """`Killed process 7 (x) total-vm:…`. scope: memcg, global or None; `figures` are the kB the line has whole."""

    scope: str | None
    pid: int
    comm: str | None
    figures: Mapping[str, int]
    uid: int | None = None
    score_adj: int | None = None
    whole: bool = False
    shares_memory: bool = False
    by_allocator: bool = False


class GroupKill(Struct, frozen=True):
    """`Tasks in PATH are going to be killed due to memory.oom.group set` (since 4.19)."""

    path: str


class Reaped(Struct, frozen=True):
    """`oom_reaper: reaped process 7 (x), now …`; `done` false: it could not."""

    pid: int
    comm: str | None
    figures: Mapping[str, int]
    done: bool = True


class NoVictim(Struct, frozen=True):
    """`Out of memory and no killable processes...`"""


class AlreadyExiting(Struct, frozen=True):
    """`…: OOM victim 7 (x) is already exiting. Skip killing the task` (since 5.8)."""

    pid: int


class Panic(Struct, frozen=True):
    """`Kernel panic - not syncing: …`"""

    text: str


class Evidence(Struct, frozen=True):
    """A line that tells one thing about the report around it: global, memcg, lowered, sysrq, suppressed."""

    what: str
    figure: int | None = None


class SwapLine(Struct, frozen=True):
    """`Free swap  = 0kB`, `Total swap = 0kB`."""

    total: bool
    kb: int


# What describes an OOM before the kill, and what moves it on.
Description = Context | Cpuset | TaskIn | UsageLine | StatsOf | Stat | OomKill | Chosen | Evidence | SwapLine
Step = Invoked | Killed | GroupKill | Reaped | NoVictim | AlreadyExiting | Panic
Message = Description | Step
