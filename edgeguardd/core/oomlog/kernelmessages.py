"""What one kernel message says about an OOM: text to a frozen value, or None.

Must not: remember anything, look at times or writers. Upstream: messages. Downstream: halves, collector.
A process's name (up to 15 bytes, any but NUL) and a cgroup's (any but newline and '/') are strangers' text: figures are
read from the right end, where the kernel alone writes, and names are what is left in between.
"""

import re
from collections.abc import Callable
from typing import Final

from edgeguardd.core.oomlog.messages import (
    AlreadyExiting,
    Chosen,
    Context,
    Cpuset,
    Evidence,
    GroupKill,
    Invoked,
    Killed,
    Message,
    NoVictim,
    OomKill,
    Panic,
    Reaped,
    Stat,
    StatsOf,
    SwapLine,
    TaskIn,
    UsageLine,
)

# TASK_COMM_LEN - 1 (include/linux/sched.h).
MAX_COMM_BYTES: Final = 15

_FIGURE = re.compile(r"(total-vm|vsz|anon-rss|file-rss|shmem-rss|pgtables): ?(\d{1,19}) ?kB")
_UID = re.compile(r"\bUID:(\d{1,10})(?=[ ,p])")
_SCORE_ADJ = re.compile(r"oom_score_adj:(-?\d{1,4})\s*$")
_VENDOR_UID = re.compile(r"\), UID (\d{1,10}), ?$")
_KILLED = re.compile(r"(.{0,80}?)\bKilled process :?(\d{1,10})(?:, UID (\d{1,10}))?,? \((.*)", re.DOTALL)
_CHOSEN = re.compile(r"(.{3,80}?): [Kk]ill process (\d{1,10}) \((.*)\),? score (-?\d{1,7})(?=[, ]|$)", re.DOTALL)
_SHARING = re.compile(r"Kill process (\d{1,10}) \((.*)\) sharing same memory", re.DOTALL)
_OPENVZ = re.compile(
    r"Out of memory in UB [^:]{1,64}: OOM killed process (\d{1,10}) \((.*)\) score -?\d+ vm:(\d+)kB, rss:(\d+)kB",
    re.DOTALL,
)
_INVOKED = re.compile(r"(.{0,64}?)(?: invoked oom-killer: )(.*)", re.DOTALL)
_ORDER = re.compile(r"\border=(?:3D)?(-?\d{1,4})\b")
_HEADER_ADJ = re.compile(r"\boom_score_adj=(?:3D)?(-?\d{1,4})\s*$")
_GFP = re.compile(r"\bgfp_mask=(?:3D)?([^,; ]{1,400}?),? ")
_CONTEXT = re.compile(r"(?:CPU: \d+ (?:UID: \d+ )?PID|Pid): (\d{1,10})(?: Comm:|, comm:) (.*)", re.DOTALL)
_CONTEXT_END = re.compile(r" (?:Kdump: loaded )?(?:Not tainted|Tainted: )")
_KERNEL = re.compile(r"(\d\.\d{1,3}\S{0,120}) #")
_CPUSET = re.compile(r".{0,64} cpuset=(.*) mems_allowed=([\d,-]{1,4000})\s*$", re.DOTALL)
_TASK_IN = re.compile(r"Task in (/.*) killed as a result of limit of (/.*)")
_LIMIT_OF = re.compile(r"Memory limit reached of cgroup (/.*)")
_USAGE = re.compile(r"(memory|memory\+swap|swap|kmem): usage (\d{1,20})kB, limit (\d{1,20})kB, failcnt (\d{1,20})")
_STATS = re.compile(r"Memory cgroup stats(?: for (/.*?))?:( .*)?$")
_STAT_KB = re.compile(r"(\w{1,40}):(\d{1,19})KB")
_STAT = re.compile(r"([a-z][a-z0-9_]{1,40}) (\d{1,20})\s*$")
_GROUP = re.compile(r"Tasks in (/.*) are going to be killed due to memory\.oom\.group set")
_REAPED = re.compile(r"oom_reaper: reaped process :?(\d{1,10}) \((.*?)\)(?:,| anon-rss)? ?(.*)$", re.DOTALL)
_NOT_REAPED = re.compile(r"oom_reaper: unable to reap pid:(\d{1,10}) ?\((.*)\)", re.DOTALL)
_EXITING = re.compile(r"[^:]{3,80}: OOM victim (\d{1,10}) \(.*\) is already exiting", re.DOTALL)
_NO_VICTIM = re.compile(r"(?:Kernel panic - not syncing: )?(?:Memory cgroup o|O)ut of memory and no killable process")
_SWAP = re.compile(r"(Free|Total) swap +[=:] *(\d{1,19}) ?kB")
_SUPPRESSED = re.compile(
    r"(?:oom_kill_process|out_of_memory|dump_header|__oom_kill_process): (\d{1,10}) "
    r"(?:output lines|callbacks) suppressed"
)
_TRACE = re.compile(r"\s*(?:\? )?(?:\[<[0-9a-f]+>\] )?(?:\[[^\]]{0,40}\] )?(?:\? )?([a-z_][\w.]{2,60})\+0x")
# Functions in the call trace that tell how the kernel came here.
_TRACED: Final = {
    "memory_max_write": "lowered",
    "mem_cgroup_resize_limit": "lowered",
    "mem_cgroup_resize_max": "lowered",
    "mem_cgroup_resize_memsw_limit": "lowered",
    "moom_callback": "sysrq",
    "sysrq_handle_moom": "sysrq",
    "mem_cgroup_out_of_memory": "memcg",
    "mem_cgroup_oom_synchronize": "memcg",
    "__alloc_pages_may_oom": "global",
    "pagefault_out_of_memory": "pagefault",
}
_SPACED = re.compile(r", *\s(?=(?:nodemask|cpuset|mems_allowed|oom_memcg|task_memcg|task|pid|uid)=|global_oom)")
_GLOBAL_STARTS: Final = ("Mem-Info:", "Mem-info:")


def _scope(prefix: str) -> str | None:
    """The scope that a message names before the colon."""
    if "emory cgroup" in prefix:
        return "memcg"
    return "global" if "ut of memory" in prefix or "ut Of memory" in prefix or "ut of Memory" in prefix else None


def _invoked(text: str) -> Invoked | None:
    found = _INVOKED.match(text)
    if found is None:
        return None
    order, adj, gfp = _ORDER.search(found[2]), _HEADER_ADJ.search(found[2]), _GFP.search(found[2])
    return Invoked(
        found[1],
        None if order is None else int(order[1]),
        None if adj is None else int(adj[1]),
        None if gfp is None else gfp[1],
    )


def _context(text: str) -> Context | None:
    found = _CONTEXT.match(text)
    if found is None:
        return None
    # The name ends at the last "Not tainted" or "Tainted: ": only the kernel writes behind it.
    ends = list(_CONTEXT_END.finditer(found[2]))
    kernel = _KERNEL.search(found[2], ends[-1].end() if ends else 0)
    return Context(int(found[1]), found[2][: ends[-1].start()] if ends else None, None if kernel is None else kernel[1])


def _cpuset(text: str) -> Cpuset | None:
    found = _CPUSET.match(text)
    return None if found is None else Cpuset(found[1], found[2])


def _task_in(text: str) -> TaskIn | None:
    if found := _TASK_IN.match(text):
        return TaskIn(found[1], found[2].rstrip())
    found = _LIMIT_OF.match(text)
    return None if found is None else TaskIn(None, found[1].rstrip())


def _usage(text: str) -> UsageLine | None:
    found = _USAGE.match(text)
    return None if found is None else UsageLine(found[1], int(found[2]), int(found[3]), int(found[4]))


def _stats(text: str) -> StatsOf | None:
    found = _STATS.match(text)
    if found is None:
        return None
    return StatsOf(found[1] or "", {key: int(kb) * 1024 for key, kb in _STAT_KB.findall(found[2] or "")})


def _oom_kill(text: str) -> OomKill | None:
    """From the right: pid and uid; then the name, of at most 15 bytes; then the paths; then the rest from the left."""
    if not text.startswith(("oom-kill:constraint=", "oom-kill: constraint=")):
        return None
    if ",pid=" not in text:
        # Retyped or laid out by hand.
        text = _SPACED.sub(",", text)
    tail = re.search(r",pid=(\d{1,10}),uid=(\d{1,10})\s*$", text)
    rest = text[: tail.start()] if tail else text
    rest, task, cut = _before_task(rest, whole=tail is not None)
    rest, task_memcg = _path(rest, ",task_memcg=", whole=task is not None or cut)
    rest, oom_memcg = _path(rest, ",oom_memcg=", whole=task_memcg is not None)
    is_global = rest.endswith(",global_oom")
    rest = rest.removesuffix(",global_oom")
    whole = task_memcg is not None or oom_memcg is not None or is_global
    mems = re.search(r",mems_allowed=([\d,-]*)$", rest)
    cpuset = re.search(r",cpuset=(.*)$", rest[: mems.start()] if mems else "", re.DOTALL)
    nodemask = re.search(r",nodemask=([\d,-]+),cpuset=", rest)
    constraint = re.match(r"oom-kill: ?constraint=(CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY|MEMCG))(?![A-Z_])", rest)
    return OomKill(
        constraint=constraint and constraint[1],
        nodemask=nodemask and nodemask[1],
        cpuset=cpuset and cpuset[1],
        mems_allowed=mems[1] if mems and whole else None,
        is_global=is_global,
        oom_memcg=oom_memcg,
        task_memcg=task_memcg,
        task=task,
        pid=int(tail[1]) if tail else None,
        uid=int(tail[2]) if tail else None,
    )


def _before_task(text: str, *, whole: bool) -> tuple[str, str | None, bool]:
    """What stands before ",task=NAME", the name, and whether the line was cut just there."""
    if whole:
        at = text.find(",task=", max(0, text.find(",task_memcg=") + 1))
        while at >= 0:
            name = text[at + 6 :]
            if len(name.encode("utf-8", "surrogateescape")) <= MAX_COMM_BYTES:
                return text[:at], name, False
            at = text.find(",task=", at + 1)
        return text, None, False
    at = text.rfind(",")
    if text.startswith(",ta", at) and not text.startswith(",task_memcg", at):
        return text[:at], None, True
    # `,task=NAME` whole or in part: behind a path there is nothing else.
    at = text.find(",task=", max(0, text.find(",task_memcg=") + 1))
    return (text[:at], None, True) if at >= 0 else (text, None, False)


def _path(text: str, key: str, *, whole: bool) -> tuple[str, str | None]:
    """What stands before the key, and the path behind it; a path that may be cut is None."""
    at = text.find(key + "/")
    if at < 0:
        return text, None
    return text[:at], text[at + len(key) :] if whole else None


def _chosen(text: str) -> Chosen | None:
    found = _CHOSEN.match(text)
    scope = None if found is None else _scope(found[1])
    if found is None or scope is None:
        return None
    return Chosen(scope, int(found[2]), found[3], int(found[4]))


def _killed(text: str) -> Killed | None:
    if found := _SHARING.match(text):
        return Killed(None, int(found[1]), found[2], {}, whole=True, shares_memory=True)
    if found := _OPENVZ.match(text):
        return Killed("memcg", int(found[1]), found[2], {"total-vm": int(found[3])}, whole=True)
    found = _KILLED.match(text)
    if found is None or not (found[1] == "" or (found[1].endswith(": ") and _scope(found[1]))):
        return None
    comm, tail, uid = _comm_and_tail(found[4])
    adj, printed = _SCORE_ADJ.search(tail), _UID.search(tail)
    uid = uid if uid is not None else int(found[3]) if found[3] else int(printed[1]) if printed else None
    figures = {("total-vm" if key == "vsz" else key): int(kb) for key, kb in _FIGURE.findall(tail)}
    return Killed(
        scope=_scope(found[1]),
        pid=int(found[2]),
        comm=comm,
        figures=figures,
        uid=uid,
        score_adj=int(adj[1]) if adj else None,
        # Before 5.4 a line ended with a size; whether more was to come, only the next line tells.
        whole=adj is not None,
        by_allocator="oom_kill_allocating_task" in found[1],
    )


def _comm_and_tail(text: str) -> tuple[str | None, str, int | None]:
    """The name, what stands behind it, and a uid that vendors put in between."""
    # The last one is the kernel's: a name may hold another.
    at = max(text.rfind("total-vm:"), text.rfind("vsz:"))
    if at >= 0:
        before = text[:at]
        if found := _VENDOR_UID.search(before):
            return before[: found.start()], text[at:], int(found[1])
        close = before.rstrip(", ").rfind(")")
        return (before[:close] if close >= 0 else None), text[at:], None
    close = text.rfind(")")
    return (text[:close] if close >= 0 else None), text[close + 1 :] if close >= 0 else "", None


def _group(text: str) -> GroupKill | None:
    found = _GROUP.match(text)
    return None if found is None else GroupKill(found[1])


def _reaper(text: str) -> Reaped | None:
    if found := _NOT_REAPED.match(text):
        return Reaped(int(found[1]), found[2], {}, done=False)
    found = _REAPED.match(text)
    if found is None:
        return None
    figures = {key: int(kb) for key, kb in _FIGURE.findall(text[found.end(2) :])}
    return Reaped(int(found[1]), found[2], figures)


def _no_victim(text: str) -> NoVictim | None:
    return NoVictim() if _NO_VICTIM.match(text) else None


def _exiting(text: str) -> AlreadyExiting | None:
    found = _EXITING.match(text)
    return None if found is None else AlreadyExiting(int(found[1]))


def _panic(text: str) -> Panic | None:
    start = "Kernel panic - not syncing: "
    return Panic(text.removeprefix(start).strip()) if text.startswith(start) else None


def _evidence(text: str) -> Evidence | None:
    if text.startswith(_GLOBAL_STARTS):
        return Evidence("global")
    if text[:5].lower() == "sysrq" and ("Manual OOM" in text or "OOM execution" in text):
        return Evidence("sysrq")
    if found := _SUPPRESSED.match(text):
        return Evidence("suppressed", int(found[1]))
    return None


def _swap(text: str) -> SwapLine | None:
    found = _SWAP.match(text)
    return None if found is None else SwapLine(found[1] == "Total", int(found[2]))


def _trace(text: str) -> Evidence | None:
    found = _TRACE.match(text)
    what = None if found is None else _TRACED.get(found[1])
    return None if what is None else Evidence(what)


def _stat(text: str) -> Stat | StatsOf | None:
    found = _STAT.fullmatch(text)
    if found is None and "\n" in text:
        # One record for all keys in 5.x and early 6.x (memcontrol.c, pr_info("%s", buf)).
        lines = [_STAT.fullmatch(line) for line in text.rstrip("\n").split("\n")]
        return StatsOf("", {line[1]: int(line[2]) for line in lines if line}) if lines[0] else None
    return None if found is None else Stat(found[1], int(found[2]))


# A word that a message of each kind holds, and who reads it; tried in this order.
_READERS: tuple[tuple[str, Callable[[str], Message | None]], ...] = (
    ("illed process", _killed),
    ("sharing same memory", _killed),
    ("ill process", _chosen),
    ("oom-kill:", _oom_kill),
    (" invoked oom-killer: ", _invoked),
    ("no killable process", _no_victim),
    ("oom_reaper: ", _reaper),
    ("memory.oom.group", _group),
    ("already exiting", _exiting),
    ("Kernel panic", _panic),
    (": usage ", _usage),
    ("cgroup stats", _stats),
    ("a result of limit of", _task_in),
    ("limit reached of cgroup", _task_in),
    (" cpuset=", _cpuset),
    (", comm: ", _context),
    (" Comm: ", _context),
    ("em-", _evidence),
    ("ys", _evidence),
    (" suppressed", _evidence),
    (" swap ", _swap),
    ("+0x", _trace),
    (" ", _stat),
)


def read(text: str) -> Message | None:
    """What the message says, if it is one of an OOM report; the first reader that understands it answers."""
    for word, reader in _READERS:
        if word in text:
            message = reader(text)
            if message is not None:
                return message
    return None
