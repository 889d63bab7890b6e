"""How long a process has waited, out of the structure that the kernel sends."""

import struct

import pytest

from edgeguardd.core.taskstats import Delays, delays
from edgeguardd.errors import FormatError

WAITED = Delays(reclaim_s=1.0, thrashing_s=2.0, swap_in_s=3.0)


def stats(version: int, length: int = 600) -> bytes:
    """The structure as a C compiler lays it out: include/uapi/linux/taskstats.h, field by field up to thrashing."""
    extra = 2 if version == 15 else 0  # delay_max and delay_min after each total

    def delay(total_s: int) -> bytes:
        return struct.pack(f"=QQ{extra}Q", 1, total_s * 10**9, *[7] * extra)

    head = struct.pack("=HxxIBB6x", version, 0, 0, 0)  # version, exit code, flag, nice; then aligned to 8
    first = delay(9) + delay(9) + delay(3)  # cpu, blkio, swapin
    middle = struct.pack("=QQ32sB7xIIIIIxxxx", 9, 9, b"x" * 32, 0, 1, 1, 1, 1, 1)  # run times, comm … begin time
    middle += struct.pack("=21Q", *[9] * 21)  # elapsed … scaled run time
    last = delay(1) + delay(2)  # freepages, thrashing
    return (head + first + middle + last).ljust(length, b"\xff")


@pytest.mark.parametrize("version", [9, 10, 13, 14, 15, 16, 17, 99])
def test_all_versions_are_read(version: int) -> None:
    """15 has maximum and minimum in between; all others add at the end."""
    assert delays(stats(version)) == WAITED


@pytest.mark.parametrize("data", [b"", b"\x0d", stats(8), stats(13)[:343], stats(15)[:407]])
def test_what_is_cut_or_too_old_is_refused(data: bytes) -> None:
    """It is not guessed."""
    with pytest.raises(FormatError):
        delays(data)
