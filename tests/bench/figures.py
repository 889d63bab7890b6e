"""Figures out of series: middle, tail, spread, slope; and how they are written. Pure.

Must not: measure. Upstream: the parts. Downstream: nothing.
"""

import math
from collections.abc import Sequence

MIB = 1 << 20


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed (nearest rank, so that it is one that was measured)."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """The middle."""
    return percentile(values, 0.5)


def spread(values: Sequence[float]) -> float:
    """How far the middle half lies apart."""
    return percentile(values, 0.75) - percentile(values, 0.25)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By how much the second figure rises with the first: the line that fits best (least squares)."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    squares = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / squares if squares else 0.0


def ms(seconds: float) -> str:
    """Seconds as milliseconds, three figures or so."""
    value = seconds * 1e3
    if math.isnan(value):
        return "-"
    return f"{value:.2f} ms" if value < 10 else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def mib(size: float) -> str:
    """Bytes as MiB."""
    return f"{size / MIB:.1f} MiB"


def in_series(values: Sequence[float]) -> list[str]:
    """Number, median, 99th percentile, most and spread of a series of seconds: the cells of SERIES_HEAD."""
    return [
        str(len(values)),
        ms(median(values)),
        ms(percentile(values, 0.99)),
        ms(max(values, default=math.nan)),
        ms(spread(values)),
    ]


SERIES_HEAD = ("count", "median", "p99", "max", "middle half within")
