"""A process's memory, descriptors, wake-ups and processor time, as /proc has them.

Must not: know what the process is. Upstream: /proc. Downstream: the parts.
"""

import os
from typing import NamedTuple


class Use(NamedTuple):
    """What a process had used up at one moment."""

    cpu_s: float
    switches: int


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status."""
    with open(f"/proc/{pid}/status") as file:
        pairs = (line.split(":", 1) for line in file)
        return {key: value.strip() for key, value in pairs}


def resident_bytes(pid: int) -> int:
    """VmRSS."""
    return int(status(pid)["VmRSS"].split()[0]) * 1024


def descriptors(pid: int) -> int:
    """How many descriptors it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def use(pid: int) -> Use:
    """Processor time, and how often it went to sleep by itself: that is how often something woke it."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            cpu_s = int(file.read().split()[0]) / 1e9
    except FileNotFoundError:  # CONFIG_SCHED_INFO is off, as in user-mode Linux
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Use(cpu_s, int(status(pid)["voluntary_ctxt_switches"]))
