"""Makes the machine small: memory that is held, locked, and never chosen by a killer, until so much is available.

    python -I -S -B ballast.py AVAILABLE_BYTES      holds until stdin ends; says "held" when it does

Must not: import anything that costs memory. Upstream: run. Downstream: mmap(2), mlock(2), /proc/meminfo.
"""

import ctypes
import mmap
import os
import sys

PIECE = 1 << 20


def available_bytes() -> int:
    """MemAvailable."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def main() -> None:
    """Take, lock, wait."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    wanted = int(sys.argv[1])
    held = []
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(3) < 0:  # MCL_CURRENT | MCL_FUTURE
        raise OSError(ctypes.get_errno(), "cannot lock memory")
    while available_bytes() > wanted:
        held.append(mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    os.write(1, b"held\n")
    sys.stdin.read()


if __name__ == "__main__":
    main()
