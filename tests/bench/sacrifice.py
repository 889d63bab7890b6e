"""A process that takes the machine's memory past a mark, and says when it did, and when it was told to end.

    python -I -S -B sacrifice.py MARK_BYTES

Orders on stdin: "cross" takes, waits for SIGTERM, answers with both times, and ends, as guards wait for it to; "take"
answers with the one; "give" gives back. Times are nanoseconds of CLOCK_MONOTONIC.

Must not: import anything that costs memory. Upstream: machinewide. Downstream: mmap(2), /proc/meminfo.
"""

import mmap
import os
import signal
import sys
import time

PIECE = 256 << 10
# MemAvailable goes up and down by some hundred KiB by itself.
PIECES_BELOW = 6
# Back to so much above the mark, so that the next crossing is a few pieces away.
ABOVE_BYTES = 28 << 20

held: list[mmap.mmap] = []


def available_bytes(file: int) -> int:
    """MemAvailable."""
    text = os.pread(file, 4096, 0)
    return int(text[text.index(b"MemAvailable:") + 13 :].split(None, 1)[0]) * 1024


def take(file: int, mark: int) -> int:
    """Until less than the mark is available; when that was seen. Then some more, so that it stays so."""
    while available_bytes(file) >= mark:
        more()
    crossed = time.monotonic_ns()
    for _ in range(PIECES_BELOW):
        more()
    return crossed


def more() -> None:
    """One piece, all its pages touched."""
    area = mmap.mmap(-1, PIECE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.append(area)
    for at in range(0, PIECE, mmap.PAGESIZE):
        area[at] = 1


def give(file: int, mark: int) -> None:
    """The newest pieces back, until there is some room above the mark."""
    while held and available_bytes(file) < mark + ABOVE_BYTES:
        held.pop().close()


def main() -> None:
    """Until stdin ends."""
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("900")
    mark = int(sys.argv[1])
    file = os.open("/proc/meminfo", os.O_RDONLY)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for line in sys.stdin:
        match line.strip():
            case "cross":
                crossed = take(file, mark)
                signal.sigwait({signal.SIGTERM})
                told = time.monotonic_ns()
                os.write(1, f"{crossed} {told}\n".encode())
                return
            case "take":
                answer = str(take(file, mark))
            case _:
                give(file, mark)
                answer = "0"
        os.write(1, answer.encode() + b"\n")


if __name__ == "__main__":
    main()
