"""One OOM as the log tells it: the report with its victims, filled by the collector and read when it is closed.

Must not: read text. Upstream: messages, tasktable (the parts). Downstream: collector, asjson, verdict.
"""

from typing import Final, assert_never

from msgspec import Struct, field

from edgeguardd.core.oomlog.dress import Line
from edgeguardd.core.oomlog.messages import (
    Context,
    Cpuset,
    Invoked,
    OomKill,
    Stat,
    SwapLine,
    TaskIn,
    UsageLine,
)
from edgeguardd.core.oomlog.othermessages import LowMemoryKilled
from edgeguardd.core.oomlog.tasktable import Task

MEMCG: Final = "memcg"
GLOBAL: Final = "global"
UNKNOWN: Final = "unknown"
LOW_MEMORY_KILLER: Final = "lowmemorykiller"

# A dump of more tasks than this is counted, not kept.
MAX_TASKS: Final = 8192
# memory.stat has about 70 keys.
MAX_STATS: Final = 128
MAX_VICTIMS: Final = 4096


class When(Struct, frozen=True):
    """Where and when a line was written, as far as it says."""

    timestamp: float | str | None = None
    outer: str | None = None
    seq: int | None = None
    usec: int | None = None
    level: int | None = None
    facility: int | None = None
    host: str | None = None

    @classmethod
    def of(cls, line: Line) -> "When":
        """Of one line."""
        return cls(line.timestamp, line.outer, line.seq, line.usec, line.level, line.facility, line.host)


class Victim(Struct):
    """A process that was killed. Figures are kB under the kernel's names; what the log does not have is not there.

    `role`: trigger or member of a group kill. `line_seen` false: the log has the choice, not the kill.
    """

    pid: int
    comm: str | None
    scope: str
    when: When
    figures: dict[str, int] = field(default_factory=dict)
    uid: int | None = None
    score_adj: int | None = None
    role: str | None = None
    line_seen: bool = True
    shares_memory: bool = False
    reaped: bool = False
    reap_failed: bool = False
    left_after_reaping: dict[str, int] = field(default_factory=dict)
    decoded: dict[str, int] = field(default_factory=dict)
    low_memory: LowMemoryKilled | None = None


class Chosen(Struct, frozen=True):
    """Whom the kernel meant to kill (to 4.x), or to sacrifice a child of."""

    scope: str
    pid: int
    comm: str
    score: int
    when: When


class Report(Struct):
    """One decision of the OOM killer, from its header to its last victim; any part can be missing."""

    when: When
    invoked: Invoked | None = None
    invoker_pid: int | None = None
    kernel: str | None = None
    cpuset: str | None = None
    mems_allowed: str | None = None
    task_in: TaskIn | None = None
    usage: dict[str, UsageLine] = field(default_factory=dict)
    stats_of: str | None = None
    stats: dict[str, int] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    tasks: dict[int, Task] = field(default_factory=dict)
    tasks_dropped: int = 0
    oom_kill: OomKill | None = None
    oom_kill_when: When | None = None
    chosen: Chosen | None = None
    victims: list[Victim] = field(default_factory=list)
    group_path: str | None = None
    group_when: When | None = None
    seen: set[str] = field(default_factory=set)
    swap_total_kb: int | None = None
    swap_free_kb: int | None = None
    no_victim: When | None = None
    exiting_pid: int | None = None
    panic: bool = False
    by_allocator: bool = False
    suppressed: int = 0
    idle_lines: int = 0

    def describe(self, message: Context | Cpuset | Stat | SwapLine) -> None:
        """Take in a line of context."""
        match message:
            case Context():
                if self.invoked is not None and self.invoker_pid is None:
                    self.invoker_pid, self.kernel = message.pid, message.kernel
            case Cpuset():
                self.cpuset, self.mems_allowed = message.cpuset, message.mems_allowed
            case Stat():
                if len(self.stats) < MAX_STATS:
                    self.stats.setdefault(message.key, message.value)
            case SwapLine():
                if message.total:
                    self.swap_total_kb = message.kb
                else:
                    self.swap_free_kb = message.kb
            case _:
                assert_never(message)

    @property
    def taking_context(self) -> bool:
        """Whether what precedes a kill may still belong here."""
        return not self.victims and self.no_victim is None and self.exiting_pid is None

    @property
    def expected_pid(self) -> int | None:
        """Whom the report has named before the kill."""
        if self.oom_kill is not None and self.oom_kill.pid is not None:
            return self.oom_kill.pid
        return None if self.chosen is None else self.chosen.pid

    @property
    def scope(self) -> str:
        """memcg, global or unknown. CONSTRAINT_NONE says nothing: 5.0 printed it for memory cgroups too."""
        kill = self.oom_kill
        if kill is not None and (kill.oom_memcg is not None or kill.is_global):
            return GLOBAL if kill.is_global else MEMCG
        if self.victims and self.victims[0].scope in (MEMCG, GLOBAL):
            return self.victims[0].scope
        if self.chosen is not None:
            return self.chosen.scope
        by_kill = kill is not None and kill.constraint == "CONSTRAINT_MEMCG"
        if by_kill or self.task_in or self.usage or self.stats_of is not None or "memcg" in self.seen:
            return MEMCG
        return GLOBAL if self.seen & {"global", "sysrq"} else UNKNOWN

    @property
    def oom_memcg(self) -> str | None:
        """The cgroup whose limit was met, where the log names it."""
        if self.oom_kill is not None and self.oom_kill.oom_memcg is not None:
            return self.oom_kill.oom_memcg
        return None if self.task_in is None else self.task_in.oom_memcg

    @property
    def worth_telling(self) -> bool:
        """Whether there is more than a stray line of context."""
        memory = "memory" in self.usage
        found = (self.victims, self.invoked, self.task_in, self.no_victim, self.oom_kill, self.chosen, memory)
        return any(found)

    def task_memcg(self, victim: Victim) -> str | None:
        """The victim's own cgroup. What the report says is about the task it names, not about a child or a group."""
        if victim.role == "member" or victim.shares_memory:
            return None
        if self.oom_kill is not None and self.oom_kill.task_memcg is not None:
            named = self.oom_kill.pid in (None, victim.pid) or self.oom_kill.task == victim.comm
            return self.oom_kill.task_memcg if named else None
        return None if self.task_in is None else self.task_in.task_memcg

    def task_of(self, victim: Victim) -> Task | None:
        """The victim's row in the task dump."""
        return self.tasks.get(victim.pid)

    def page_kb(self) -> int | None:
        """The size of a page, which only a victim's row tells: the same size in pages and in kB."""
        for victim in self.victims:
            task, size_kb = self.tasks.get(victim.pid), victim.figures.get("total-vm")
            if task is not None and task.total_vm and size_kb and size_kb % task.total_vm == 0:
                page_kb = size_kb // task.total_vm
                if page_kb in (4, 8, 16, 32, 64):
                    return page_kb
        return None
