"""A process in a cgroup that makes the kernel count, and says between which two moments it did.

    python -I -S -B trigger.py memory CGROUP      crosses memory.high with single page writes
    python -I -S -B trigger.py huge CGROUP        asks for a huge page that its cgroup may not have

Orders on stdin, a line each: "cross" is answered with "before_ns after_ns" (CLOCK_MONOTONIC), "rest" with "ok" when
all that the crossing took is given back.

memory: 8 MiB are taken first, memory.high is set to what the cgroup then uses, and pages are written one by one, each
between two stamps, until memory.events has counted `high`: the kernel counts when it charges the batch of 64 pages that
goes over (try_charge_memcg, mm/memcontrol.c), before the write returns. The stamps are those of that one write.
huge: mmap(MAP_HUGETLB) with hugetlb.2MB.rsvd.max at 0 fails, and hugetlb.2MB.events counts `max` (6.18).

Must not: import anything that costs start-up time or memory, be anything but the only process that takes memory in its
cgroup. Upstream: crossings. Downstream: the kernel.
"""

import contextlib
import mmap
import os
import sys
import time

TAKEN_BYTES = 8 << 20
# A batch is 64 pages on all kernels since 6.1; beyond several of them something is wrong.
MOST_PAGES = 1024
HUGE_BYTES = 2 << 20
MAP_HUGETLB = 0x40000
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def write(path: str, value: str) -> None:
    """One of the kernel's files."""
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, value.encode())
    os.close(descriptor)


class Memory:
    """memory.high, crossed by a page."""

    def __init__(self, cgroup: str) -> None:
        self._high = f"{cgroup}/memory.high"
        self._current = os.open(f"{cgroup}/memory.current", os.O_RDONLY)
        self._events = os.open(f"{cgroup}/memory.events", os.O_RDONLY)
        self._held: list[mmap.mmap] = []

    def cross(self) -> tuple[int, int]:
        """The stamps around the write that was counted."""
        taken = mmap.mmap(-1, TAKEN_BYTES, flags=PRIVATE)
        self._held.append(taken)
        for at in range(0, TAKEN_BYTES, mmap.PAGESIZE):
            taken[at] = 1
        fresh = mmap.mmap(-1, MOST_PAGES * mmap.PAGESIZE, flags=PRIVATE)
        self._held.append(fresh)
        seen = os.pread(self._events, 1024, 0)
        write(self._high, os.pread(self._current, 64, 0).decode())
        for at in range(0, len(fresh), mmap.PAGESIZE):
            before = time.monotonic_ns()
            fresh[at] = 1
            after = time.monotonic_ns()
            if os.pread(self._events, 1024, 0) != seen:
                return before, after
        raise SystemExit("trigger: memory.high was not counted")

    def rest(self) -> None:
        """Limit lifted, memory given back."""
        write(self._high, "max")
        for area in self._held:
            area.close()
        self._held.clear()


class Huge:
    """A huge page refused."""

    def __init__(self, cgroup: str) -> None:
        self._cgroup = cgroup

    def cross(self) -> tuple[int, int]:
        """The stamps around the call that was counted."""
        before = time.monotonic_ns()
        with contextlib.suppress(OSError):
            mmap.mmap(-1, HUGE_BYTES, flags=PRIVATE | MAP_HUGETLB).close()
        return before, time.monotonic_ns()

    def rest(self) -> None:
        """It took nothing."""


def main() -> None:
    """Until stdin ends."""
    kind, cgroup = sys.argv[1:]
    trigger = Memory(cgroup) if kind == "memory" else Huge(cgroup)
    for line in sys.stdin:
        if line == "cross\n":
            answer = "{} {}".format(*trigger.cross())
        else:
            trigger.rest()
            answer = "ok"
        os.write(1, answer.encode() + b"\n")


if __name__ == "__main__":
    main()
