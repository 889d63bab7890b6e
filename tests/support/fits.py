"""A line through a series, and how sure it is: whether something grows or only goes up and down.

Must not: measure. Upstream: tests of what has to stay flat. Downstream: nothing.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

# 95 % of a normal distribution lie within so many standard errors; series here have tens of points and more.
STANDARD_ERRORS = 1.96
BLOCKS = 20


class Line(NamedTuple):
    """By how much the second figure rises with the first, give or take (95 %)."""

    slope: float
    within: float

    @property
    def flat(self) -> bool:
        """Whether a slope of zero cannot be ruled out."""
        return abs(self.slope) <= self.within


def line(points: Sequence[tuple[float, float]], blocks: int = BLOCKS) -> Line:
    """The line that fits best (least squares) through the means of so many stretches of the series.

    Means of stretches, because what is measured one moment is much as it was the moment before: taken one by one, such
    points look surer than they are.
    """
    means = list(_means(points, blocks))
    if len(means) < 3:
        return Line(0.0, math.inf)
    mean_x = sum(x for x, _ in means) / len(means)
    mean_y = sum(y for _, y in means) / len(means)
    squares = sum((x - mean_x) ** 2 for x, _ in means)
    if squares == 0:
        return Line(0.0, math.inf)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in means) / squares
    missed = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in means)
    return Line(slope, STANDARD_ERRORS * math.sqrt(missed / (len(means) - 2) / squares))


def _means(points: Sequence[tuple[float, float]], blocks: int) -> "list[tuple[float, float]]":
    size = max(1, len(points) // blocks)
    parts = [points[start : start + size] for start in range(0, len(points) - size + 1, size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
