"""The benchmarks on a real memory.high, tried small: figures mean nothing here, but each has to come out."""

import pytest

from tests.bench import reaction


def tell(_: str) -> None:
    """Nobody looks at it."""


@pytest.mark.cost(10)
def test_a_few_reactions_by_memory_high() -> None:
    """The C loop and the daemon each tell of each crossing, and every stage has its time."""
    reaction.built_loop()
    found = reaction.run(["memory", "2"], tell)
    assert [row[1] for row in found.tables[0].rows] == ["2", "2"]
    assert "-" not in [cell for row in found.tables[1].rows for cell in row], found.tables[1].rows
