"""Locking the process's own memory, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import resource, sys
from edgeguardd.kernel.memlock import lock_memory
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
locked = lock_memory({proc!r})
held = bytearray(8 << 20)
figures = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(locked, int(figures["VmLck"].split()[0]) > 0, len(held))
"""


def outcome(proc: str) -> list[str]:
    """What lock_memory says and whether the kernel has locked anything."""
    code = SHOW.format(proc=proc)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


@pytest.mark.parametrize("status", [None, "", "CapEff:\n", "CapEff:\tnonsense\n", "CapEff:\t0000000000000000\n"])
def test_a_limit_that_could_be_reached_later_means_no(status: str | None, tmp_path: Path) -> None:
    """Without the right to pass it, nothing is locked: allocations would fail in the crisis."""
    if status is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "status").write_text(status)
    assert outcome(str(tmp_path))[:2] == ["False", "False"]
