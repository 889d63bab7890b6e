"""Bounds for the process's memory, in processes of their own."""

import subprocess
import sys

import pytest

RESIDENT = """
import gc
from edgeguardd.kernel import heap

def resident_kb():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))

{prepare}
"""

SHOW_LARGE = (
    RESIDENT
    + """
largest = bytes([1]) * 1_000_000
del largest
before, kept, pages = resident_kb(), [], []
for number in range(40):
    pages.append(bytes([1]) * 400_000)
    kept.append(bytes([1]) * 600)
del pages
print(resident_kb() - before)
"""
)

SHOW_SMALL = (
    RESIDENT
    + """
before = resident_kb()
kept = [bytes(100) for _ in range(10_000)]
print(resident_kb() - before)
"""
)

SHOW_COLLECTIONS = """
import gc
gc.set_threshold(700, 10, 10)  # until 3.12 the defaults
made = [[] for _ in range(800_000)]
from edgeguardd.kernel import heap
{settle}
full = gc.get_stats()[2]["collections"]
for _ in range(30):
    more = [[] for _ in range(5_000)]
    made.append(more)
print(gc.get_stats()[2]["collections"] - full, gc.get_freeze_count() > 800_000)
"""


def said(code: str) -> list[str]:
    """What a Python of its own prints."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


def test_large_blocks_go_back_to_the_kernel_however_large_the_last_ones_were() -> None:
    """Left to itself, the C library keeps what is freed between blocks that stay, up to the largest ever freed."""
    bound, unbound = (int(said(SHOW_LARGE.format(prepare=call))[0]) for call in ("heap.bound()", ""))
    assert bound < 1024 < unbound


def test_a_busy_hour_finds_room_at_hand() -> None:
    """More than a MiB of small objects takes next to no page that was not touched before memory was locked."""
    with_room, without = (int(said(SHOW_SMALL.format(prepare=call))[0]) for call in ("heap.settle()", "gc.collect()"))
    assert with_room < 256
    assert without > 1024


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python collects in increments, and puts nothing off")
def test_what_start_up_made_puts_no_collection_off() -> None:
    """The collector weighs what is new against what the last full collection left: that is next to nothing now."""
    collections, frozen = said(SHOW_COLLECTIONS.format(settle="heap.settle()"))
    assert frozen == "True"
    assert int(collections) >= 1
    assert said(SHOW_COLLECTIONS.format(settle="gc.collect(); gc.freeze()"))[0] == "0"
