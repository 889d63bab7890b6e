"""The benchmarks on a real memory.high, tried small: figures mean nothing here, but each has to come out."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import oomd, reaction, survival
from tests.demo import contest
from tests.support.cgroup import Cgroup


def tell(_: str) -> None:
    """Nobody looks at it."""


@pytest.mark.cost(10)
def test_a_few_reactions_by_memory_high() -> None:
    """The C loop and the daemon each tell of each crossing, and every stage has its time."""
    reaction.built_loop()
    found = reaction.run(["memory", "2"], tell)
    assert [row[1] for row in found.tables[0].rows] == ["2"] * 3
    assert "-" not in [cell for row in found.tables[1].rows for cell in row], found.tables[1].rows


@pytest.mark.cost(10)
def test_a_short_contest() -> None:
    """Each who takes part in a cgroup gets all requests of the seed, and of each it is known what became of it."""
    told: list[str] = []
    results = asyncio.run(survival.compete(1, 1.0, [contest.LIMITED[0], contest.LIMITED[-1]], told.append))
    assert [each.name for each in results] == ["none", "edgeguardd"]
    assert len({each.tally.sent for each in results}) == len(told) - 1 == 1
    for tally in (each.tally for each in results):
        assert tally.sent == tally.served + tally.rejected + tally.timed_out + tally.lost > 0


def test_a_throttled_process_says_when_it_was(tmp_path: Path) -> None:
    """It goes over memory.high, says so once, and the kernel has counted by then; then it goes on."""
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    with Cgroup.fresh() as cgroup:
        cgroup.set(high=16 << 20)
        argv = [sys.executable, "-I", "-S", "-B", oomd.THROTTLED, cgroup.path, str(file)]
        process = cgroup.spawn(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as said:
            assert int(said.readline()) > 0
            assert cgroup.counters()["high"] > 0
            assert process.poll() is None
            cgroup.write("memory.high", "max")
            process.kill()
            process.wait()
