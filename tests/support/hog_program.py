"""The hog itself: obeys lines "verb<TAB>argument…" on stdin, answers each with a number of bytes on stdout.

Must not: import anything that costs start-up time or memory. Upstream: hog.Hog. Downstream: the kernel.
"""

import mmap
import os
import sys

# Orders are carried out in pieces of this size, so that a hog under throttling stalls between small steps.
PIECE = 256 * 1024
FILLING = b"\xa5" * PIECE

held: list[mmap.mmap] = []
files: list[mmap.mmap] = []


def fill(area: mmap.mmap) -> None:
    """Touch every page by writing to it."""
    for start in range(0, len(area), PIECE):
        area[start : start + PIECE] = FILLING[: min(PIECE, len(area) - start)]


def grow(size: int) -> int:
    """Anonymous private memory, one mapping a piece, so that shrinking returns it at once."""
    for start in range(0, size, PIECE):
        area = mmap.mmap(-1, min(PIECE, size - start), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.append(area)
        fill(area)
    return size


def shrink(size: int) -> int:
    """Unmap the newest pieces until so much is free."""
    freed = 0
    while held and freed < size:
        area = held.pop()
        freed += len(area)
        area.close()
    return freed


def share(size: int) -> int:
    """Anonymous shared memory: shmem."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    held.append(area)
    fill(area)
    return size


def map_file(path: str) -> int:
    """Map a file read-only and read one byte of each page."""
    with open(path, "rb") as file:
        area = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    files.append(area)
    return touch_files()


def touch_files() -> int:
    """Read one byte of each page of all mapped files, as a server does with its weights for every token."""
    return sum(len(area[:: mmap.PAGESIZE]) for area in files)


def read_file(path: str) -> int:
    """Read a file from end to end through the page cache."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(PIECE):
            total += len(piece)
    return total


def write_file(path: str, size: int) -> int:
    """Write a file piece by piece and sync it, so that its pages are clean."""
    with open(path, "wb", buffering=0) as file:
        for start in range(0, size, PIECE):
            file.write(FILLING[: min(PIECE, size - start)])
        os.fsync(file.fileno())
    return size


def obey(line: str) -> int:  # noqa: PLR0911  one row an order
    """Carry out one order."""
    match line.rstrip("\n").split("\t"):
        case ["grow", size]:
            return grow(int(size))
        case ["touch"]:
            return touch_files()
        case ["shrink", size]:
            return shrink(int(size))
        case ["share", size]:
            return share(int(size))
        case ["map", path]:
            return map_file(path)
        case ["read", path]:
            return read_file(path)
        case ["write", path, size]:
            return write_file(path, int(size))
        case other:
            raise ValueError(f"cannot obey {other}")


def main() -> None:
    """Until stdin ends."""
    os.write(1, b"0\n")
    for line in sys.stdin:
        os.write(1, b"%d\n" % obey(line))


if __name__ == "__main__":
    main()
