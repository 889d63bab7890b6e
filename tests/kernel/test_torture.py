"""A small slice of `make torture`: a few faults of each sort against a running daemon, each judged by the oracle."""

import pytest

from tests.torture import plan, rounds
from tests.torture.world import World

SEED = 1
KINDS = (
    "daemon killed anywhere",
    "a server: lie",
    "limits rewritten",
    "calls fail",
    "inotify overflows",
)


@pytest.mark.cost(35)
@pytest.mark.timeout(300)
def test_faults_leave_nothing_wrong() -> None:
    """Each crossing answered once, limits and levels as the kernel's figures say, nothing leaked, health honest."""
    with World(SEED) as world:
        for verdict in rounds.play(world, plan.schedule(SEED, len(KINDS), KINDS)):
            assert verdict.right, f"{verdict.round}: {verdict.wrong}"
