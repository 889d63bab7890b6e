"""The storm's processes: one in each cgroup, each refused a huge page every so often, from a line on stdin to its end.

    python -I -S -B storm_program.py EVERY_MS CGROUP…

Must not: import anything that costs memory a hundred times. Upstream: storm. Downstream: fork(2), mmap(2).
"""

import contextlib
import mmap
import os
import sys
import time

FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB
HUGE_BYTES = 2 << 20


def blow(cgroup: str, every_s: float, begin: int) -> None:
    """In a child: join, wait for the start, count until the pipe's other end is closed and the parent gone."""
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")
    os.read(begin, 1)
    parent = os.getppid()
    due = time.monotonic()
    while os.getppid() == parent:
        with contextlib.suppress(OSError):
            mmap.mmap(-1, HUGE_BYTES, flags=FLAGS).close()
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))
    os._exit(0)


def main() -> None:
    """Fork, say ready, start all at once."""
    every_s = float(sys.argv[1]) / 1e3
    begin, starter = os.pipe()
    for cgroup in sys.argv[2:]:
        if os.fork() == 0:
            os.close(starter)
            blow(cgroup, every_s, begin)
    os.close(begin)
    os.write(1, b"ready\n")
    sys.stdin.readline()
    os.close(starter)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
