"""A process that goes over memory.high, says when it was counted, and goes on asking for memory and reading a file.

    python -I -S -B throttled.py CGROUP FILE

It says nanoseconds of CLOCK_MONOTONIC on standard output, once, and then goes on until it is killed.

Must not: import anything that costs memory. Upstream: oomd. Downstream: mmap(2), read(2).
"""

import mmap
import os
import sys
import time

PIECE = 64 << 10
READ_BYTES = 1 << 20
# Beyond it every page is one that has to be given back at once.
MOST_PIECES = 1024


def counted(events: int) -> bool:
    """Whether memory.high was exceeded."""
    return b"\nhigh 0\n" not in b"\n" + os.pread(events, 1024, 0)


def main() -> None:
    """For ever."""
    cgroup, path = sys.argv[1:]
    events, file = os.open(f"{cgroup}/memory.events", os.O_RDONLY), os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    # Else its pages are whoever's wrote it, and there is nothing to reclaim here.
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    held: list[mmap.mmap] = []
    at, said = 0, False
    while True:
        if len(held) < MOST_PIECES:
            held.append(mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            held[-1].write(b"x" * PIECE)
        os.pread(file, READ_BYTES, at)
        at = (at + READ_BYTES) % size
        if not said and counted(events):
            os.write(1, f"{time.monotonic_ns()}\n".encode())
            said = True


if __name__ == "__main__":
    main()
