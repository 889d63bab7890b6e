"""Which rule of oom_score_adj a process falls under, from what /proc says of it.

Must not: read /proc, hold a process's number. Upstream: config. Downstream: kernel.scores.
The first rule whose conditions all hold decides; without one nothing is done to the process.
"""

import fnmatch
import functools
import re

from msgspec import Struct

from edgeguardd.core.config import OomScoreRule
from edgeguardd.errors import FormatError

# include/linux/sched.h
PF_KTHREAD = 0x00200000

_DELETED = " (deleted)"


class Facts(Struct, frozen=True):
    """What is known of a process. None: it was not asked for, or the kernel does not tell.

    Bytes that are not UTF-8 are surrogates. `exe` and `cgroup` are as the links and files of /proc/PID have them.
    """

    comm: str | None = None
    exe: str | None = None
    cgroup: str | None = None


class Wanted(Struct, frozen=True):
    """Which facts a set of rules asks for: each is one more file to open for every process that there is."""

    comm: bool = False
    exe: bool = False
    cgroup: bool = False


class Stat(Struct, frozen=True):
    """Of /proc/PID/stat: when the process began, in ticks since boot; whether it is the kernel's own, or has ended."""

    started_ticks: int
    kernel_thread: bool
    ended: bool


def wanted(rules: tuple[OomScoreRule, ...]) -> Wanted:
    """What has to be read of each process."""
    return Wanted(
        comm=any(rule.comm is not None for rule in rules),
        exe=any(rule.exe is not None for rule in rules),
        cgroup=any(rule.unit is not None or rule.cgroup is not None for rule in rules),
    )


def match(rules: tuple[OomScoreRule, ...], facts: Facts) -> OomScoreRule | None:
    """The first rule that the process falls under."""
    return next((rule for rule in rules if _holds(rule, facts)), None)


def stat(data: bytes) -> Stat:
    """/proc/PID/stat (proc(5)). A name may hold blanks and ")": what counts comes behind the last one."""
    fields = data.rpartition(b")")[2].split()
    if len(fields) < 20 or not fields[6].isdigit() or not fields[19].isdigit():
        raise FormatError("cannot use /proc/PID/stat: it has too few fields; check that /proc is mounted")
    return Stat(
        started_ticks=int(fields[19]),
        kernel_thread=bool(int(fields[6]) & PF_KTHREAD),
        ended=fields[0] in (b"Z", b"X", b"x"),
    )


def _holds(rule: OomScoreRule, facts: Facts) -> bool:
    if rule.comm is not None and facts.comm != rule.comm:
        return False
    # An update replaces the file of a program that still runs.
    if rule.exe is not None and (facts.exe is None or facts.exe.removesuffix(_DELETED) != rule.exe):
        return False
    if rule.unit is not None and not _in_unit(rule.unit, facts.cgroup):
        return False
    return rule.cgroup is None or _in_cgroup(rule.cgroup, facts.cgroup)


def _in_unit(unit: str, cgroup: str | None) -> bool:
    """systemd puts "_" before names that the kernel would take for its own files (cg_escape)."""
    return cgroup is not None and not {unit, f"_{unit}"}.isdisjoint(cgroup.split("/"))


def _in_cgroup(pattern: str, cgroup: str | None) -> bool:
    """Whether the pattern names the process's cgroup or one above it, component by component."""
    if cgroup is None:
        return False
    parts, patterns = cgroup.split("/")[1:], _patterns(pattern)
    # Shorter paths end the pairs early, so that their length is compared first.
    return len(parts) >= len(patterns) and all(one.match(part) for one, part in zip(patterns, parts, strict=False))


@functools.lru_cache(maxsize=256)
def _patterns(pattern: str) -> list[re.Pattern[str]]:
    return [re.compile(fnmatch.translate(part)) for part in pattern.split("/")[1:]]
