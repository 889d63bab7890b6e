"""A report in plain words: whose limit was met, why this process died, what to change.

Must not: claim what the report does not show; where it shows too little, say what is missing. Upstream: report.
Downstream: cli, the daemon's log.

Badness, by which the kernel chooses (mm/oom_kill.c, oom_badness): resident, swapped and page table pages, and
oom_score_adj thousandths of all memory that the OOM is about: the cgroup's limit, or RAM and swap.
"""

from typing import Final

from msgspec import Struct

from edgeguardd.core.oomlog.asjson import text
from edgeguardd.core.oomlog.messages import UNLIMITED_KB
from edgeguardd.core.oomlog.report import GLOBAL, LOW_MEMORY_KILLER, MEMCG, Report, Victim
from edgeguardd.core.oomlog.tasktable import Task

# Above this share of usage, shared memory is the story.
SHMEM_SHARE: Final = 0.3
# A victim that held less than this, but mapped more than a GiB, held something that RSS does not show.
SMALL_RSS_KB: Final = 32 * 1024
LARGE_VM_KB: Final = 1024 * 1024
OOM_SCORE_ADJ_MIN: Final = -1000


class Verdict(Struct, frozen=True):
    """Three answers; `change` has one sentence a step."""

    limit: str
    victim: str
    change: tuple[str, ...]


def of(report: Report) -> Verdict:
    """The verdict on one report."""
    return Verdict(_limit(report), _victim(report), tuple(_change(report)))


def size(kb: float) -> str:
    """A size for people, in binary units."""
    for unit in ("KiB", "MiB", "GiB"):
        if abs(kb) < 1024:
            return f"{kb:.0f} {unit}" if unit == "KiB" or kb >= 100 else f"{kb:.1f} {unit}"
        kb /= 1024
    return f"{kb:.1f} TiB"


def unit_of(path: str | None) -> str | None:
    """The systemd unit that a cgroup's path ends in or goes through, the innermost."""
    for part in reversed((path or "").split("/")):
        if part.endswith((".service", ".scope", ".slice")):
            return text(part)
    return None


def held_kb(victim: Victim) -> int | None:
    """What the victim had in memory."""
    parts = [victim.figures[key] for key in ("anon-rss", "file-rss", "shmem-rss") if key in victim.figures]
    return sum(parts) if parts else None


# Whose limit


def _limit(report: Report) -> str:  # noqa: PLR0911  one answer a case
    if _low_memory(report):
        return "No limit of a cgroup: Android's low memory killer frees memory before the kernel runs out."
    if report.scope == MEMCG:
        return _limit_of_cgroup(report)
    if "sysrq" in report.seen or (report.invoked is not None and report.invoked.order == -1):
        return "Nobody's: somebody asked for it with SysRq f."
    if report.scope != GLOBAL:
        return "The log does not say: the lines that name the limit are missing."
    constraint = None if report.oom_kill is None else report.oom_kill.constraint
    if constraint == "CONSTRAINT_CPUSET":
        nodes = report.oom_kill.mems_allowed if report.oom_kill is not None else None
        return (
            f"The memory of the nodes that a cpuset allows (nodes {nodes or 'not printed'}); others may have had room."
        )
    if constraint == "CONSTRAINT_MEMORY_POLICY":
        nodes = report.oom_kill.nodemask if report.oom_kill is not None else None
        return f"The memory of the nodes that a memory policy allows (nodes {nodes or 'not printed'})."
    return "No cgroup's: the whole machine, or one of its zones, ran out of memory."


def _limit_of_cgroup(report: Report) -> str:
    path, usage = report.oom_memcg, report.usage.get("memory")
    figures = ""
    if usage is not None:
        of = "without a limit" if usage.limit_kb >= UNLIMITED_KB else f"of {size(usage.limit_kb)}"
        figures = f" ({size(usage.usage_kb)} used {of})"
    if "lowered" in report.seen:
        by = "" if report.invoked is None else f" by {text(report.invoked.comm)!r}"
        return f"The limit of {text(path or 'a memory cgroup')}, which was just set{by} below what was used{figures}."
    if path is None:
        hint = f"; statistics were printed for {text(report.stats_of)}" if report.stats_of else ""
        return f"A memory cgroup's{figures}, which the log does not name{hint}."
    own = report.task_memcg(report.victims[0]) if report.victims else None
    if own is None or own == path:
        whose = "its own" if own == path else "that of the cgroup"
        return f"{text(path)}: {whose} limit{figures}."
    return f"{text(path)}{figures}: not the victim's own cgroup, but one above it that {text(own)} shares with others."


# Why this victim


def _victim(report: Report) -> str:  # noqa: PLR0911  one answer a case
    if report.no_victim is not None:
        return "Nobody could be killed: every task is exempt (oom_score_adj -1000), a kernel thread, or dead already."
    if not report.victims:
        if report.exiting_pid is not None:
            return f"Process {report.exiting_pid} was chosen, but was ending by itself: nothing was killed."
        return "The log ends before it names a victim."
    first = report.victims[0]
    if first.low_memory is not None:
        return _low_memory_victim(first)
    name = f"{_name(first)}"
    if report.group_path is not None:
        count = len(report.victims)
        others = f", all {count} of them" if count > 1 else ""
        path = text(report.group_path)
        return f"{_most(report, first)} memory.oom.group is set in {path}, so its tasks die together{others}."
    if report.by_allocator:
        return f"{name} asked for memory, and vm.oom_kill_allocating_task makes whoever asks the victim."
    if report.chosen is not None and report.chosen.pid != first.pid:
        return (
            f"Chosen was {text(report.chosen.comm)} ({report.chosen.pid}, score {report.chosen.score}); kernels before "
            f"5.1 kill a child of it first, and print the leader for a thread: {name}."
        )
    return _most(report, first)


def _most(report: Report, victim: Victim) -> str:
    """What the task table says about the choice."""
    rows = [task for task in report.tasks.values() if task.oom_score_adj != OOM_SCORE_ADJ_MIN]
    row = report.task_of(victim)
    if row is None or len(rows) < 2:
        held = held_kb(victim)
        amount = "" if held is None else f" It held {size(held)}."
        if len(rows) == 1 and row is not None:
            return f"{_name(victim)} was the only task there.{amount}"
        return f"{_name(victim)} had the highest badness; the log has no table to compare.{amount}"
    page_kb = report.page_kb() or 4
    largest = max(rows, key=_pages)
    if largest.pid == victim.pid:
        most = size(_pages(row) * page_kb)
        return f"{_name(victim)} held the most of {len(rows)} tasks: {most}.{_adjusted(report, row)}"
    return (
        f"{_name(victim)} held {size(_pages(row) * page_kb)}, less than {text(largest.name or '?')} ({largest.pid}) "
        f"with {size(_pages(largest) * page_kb)}, but oom_score_adj is {row.oom_score_adj} against "
        f"{largest.oom_score_adj}."
    )


def _adjusted(report: Report, row: Task) -> str:
    if not row.oom_score_adj:
        return ""
    usage = report.usage.get("memory")
    if usage is None or usage.limit_kb >= UNLIMITED_KB:
        return f" oom_score_adj {row.oom_score_adj} weighed in too."
    return f" oom_score_adj {row.oom_score_adj} counted as {size(usage.limit_kb * row.oom_score_adj / 1000)} more."


def _pages(task: Task) -> int:
    return (task.rss or 0) + (task.swapents or 0) + (task.pgtables_bytes or 0) // 4096 + (task.nr_ptes or 0)


def _name(victim: Victim) -> str:
    return f"{text(victim.comm) if victim.comm else 'A process'} ({victim.pid})"


def _low_memory_victim(victim: Victim) -> str:
    said = victim.low_memory
    because = "" if said is None or not said.reason else f" Reason given: {text(said.reason)}."
    return f"{_name(victim)} had the highest oom_score_adj ({victim.score_adj}) among those worth killing.{because}"


# What to change


def _change(report: Report) -> list[str]:
    if _low_memory(report):
        return ["Keep what must live at a low oom_score_adj, or tune lmkd's levels (ro.lmk.*)."]
    if report.scope == MEMCG:
        return [*_change_cgroup(report), *_change_shared(report)]
    if report.scope == GLOBAL:
        return _change_machine(report)
    return ["Get the whole report: journalctl -k, or dmesg without a filter; the lines before the kill name the limit."]


def _change_cgroup(report: Report) -> list[str]:
    path, victim = report.oom_memcg, report.victims[0] if report.victims else None
    if "lowered" in report.seen:
        return ["Lower memory.high first, wait until usage is below the new limit, then lower memory.max."]
    unit = unit_of(path)
    where = unit or (text(path) if path else "that cgroup")
    if path is not None and ("/kubepods" in path or path.startswith("/kubepods")):
        return [f"Raise resources.limits.memory of that pod or container, or make it need less ({text(path)})."]
    own = None if victim is None else report.task_memcg(victim)
    if path is not None and own not in (None, path):
        step = (
            f"Raise the limit of {where}, or give those below it limits of their own that fit into it together; "
            f"raising the limit of {unit_of(own) or text(own or '')} alone changes nothing."
        )
    else:
        step = (
            f"Raise {'MemoryMax=' if unit else 'memory.max'} of {where}, or make it need less before it gets there: "
            "with memory.high below memory.max, a server that is subscribed to edgeguardd is asked to trim in time."
        )
    return [step]


def _change_shared(report: Report) -> list[str]:
    usage = report.usage.get("memory")
    shmem_kb = report.stats.get("shmem", 0) / 1024
    steps = []
    if usage is not None and usage.usage_kb and shmem_kb / usage.usage_kb > SHMEM_SHARE:
        steps.append(
            f"{size(shmem_kb)} of it is shared memory or tmpfs, which outlives processes: remove files from /dev/shm "
            "and other tmpfs, or killing will not help."
        )
    return steps


def _change_machine(report: Report) -> list[str]:
    constraint = None if report.oom_kill is None else report.oom_kill.constraint
    if constraint in ("CONSTRAINT_CPUSET", "CONSTRAINT_MEMORY_POLICY"):
        return ["Allow more memory nodes (cpuset.mems, AllowedMemoryNodes=, numactl), or move the work to others."]
    if report.invoked is not None and report.invoked.order == -1:
        return []
    steps = []
    if report.invoked is not None and report.invoked.order is not None and report.invoked.order > 0:
        pages = 2**report.invoked.order
        steps.append(
            f"The request was for {pages} pages in a row: memory may have been fragmented rather than used up."
        )
    largest = max(report.tasks.values(), key=_pages, default=None)
    who = "the largest service" if largest is None else f"{text(largest.name or '?')} ({largest.pid})"
    steps.append(
        f"Give {who} a MemoryMax= of its own, so that it meets its own limit before the machine's; protect what must "
        "live with MemoryMin= and OOMScoreAdjust=."
    )
    if report.swap_total_kb == 0:
        steps.append("There was no swap: zram gives the kernel somewhere to go before it kills.")
    victim = report.victims[0] if report.victims else None
    held = None if victim is None else held_kb(victim)
    if (
        victim is not None
        and held is not None
        and held < SMALL_RSS_KB
        and victim.figures.get("total-vm", 0) > LARGE_VM_KB
    ):
        steps.append(
            "The victim's resident memory is small: on boards where the GPU shares RAM, what it holds there is in no "
            "process's figures (see the driver's own, such as nvmap)."
        )
    return steps


def _low_memory(report: Report) -> bool:
    return bool(report.victims) and report.victims[0].scope == LOW_MEMORY_KILLER
