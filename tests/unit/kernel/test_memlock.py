"""Locking the process's own memory, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import resource, sys
from edgeguardd.kernel.memlock import lock_memory
resource.setrlimit(resource.RLIMIT_MEMLOCK, ({soft}, {soft}))
locked = lock_memory({proc!r})
held = bytearray(8 << 20)
figures = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(locked, int(figures["VmLck"].split()[0]) > 0, len(held))
"""


def outcome(soft: str, proc: str) -> list[str]:
    """What lock_memory says and whether the kernel has locked anything."""
    code = SHOW.format(soft=soft, proc=proc)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


def test_without_a_limit_all_is_locked() -> None:
    """What is said is what the kernel shows."""
    try:
        said, locked, _ = outcome("resource.RLIM_INFINITY", "/proc")
    except subprocess.CalledProcessError:
        pytest.skip("may not lift RLIMIT_MEMLOCK here")
    assert said == locked == "True"


@pytest.mark.parametrize("status", [None, "", "CapEff:\n", "CapEff:\tnonsense\n", "CapEff:\t0000000000000000\n"])
def test_a_limit_that_could_be_reached_later_means_no(status: str | None, tmp_path: Path) -> None:
    """Without the right to pass it, nothing is locked: allocations would fail in the crisis."""
    if status is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self" / "status").write_text(status)
    assert outcome("64 << 20", str(tmp_path))[:2] == ["False", "False"]
