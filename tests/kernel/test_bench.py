"""The benchmarks on a real memory.high, tried small: figures mean nothing here, but each has to come out."""

import asyncio

import pytest

from tests.bench import reaction, survival
from tests.demo import contest


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
