"""A line through a series says how sure it is."""

import math
import random

import pytest

from tests.support.fits import line


def series(slope: float, count: int = 400) -> list[tuple[float, float]]:
    """What rises so fast, with noise of one either way."""
    chance = random.Random(1)  # noqa: S311 - the same each time
    return [(float(x), slope * x + chance.uniform(-1, 1)) for x in range(count)]


def test_what_only_goes_up_and_down_is_flat() -> None:
    """Zero lies within what the fit allows for."""
    assert line(series(0.0)).flat


@pytest.mark.parametrize("slope", [0.01, -0.01])
def test_what_grows_little_beside_much_noise_is_not_flat(slope: float) -> None:
    """The slope is found, and zero is ruled out."""
    found = line(series(slope))
    assert not found.flat
    assert abs(found.slope - slope) <= 2 * found.within


def test_too_few_points_say_nothing() -> None:
    """Any slope is possible."""
    assert line([]).within == math.inf
    assert line([(1.0, 5.0), (2.0, 9.0)]).flat
    assert line([(1.0, 5.0)] * 9).within == math.inf
