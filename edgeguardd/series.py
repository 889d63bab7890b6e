"""Counters with a target's name on them: from zero on while it is guarded, and gone some time after it.

Must not: know what is counted. Upstream: prometheus_client's values. Downstream: metrics.
A series that begins with its first count hides that count: to Prometheus, what has always been 1 has never risen. So
what an alert asks for begins at zero. Names of targets come and go with cgroups that strangers make, so that series
which nobody counted in end with the target, and the others are few and stay for a few scrapes only.

Plain numbers, and not the library's Counter: that takes a kilobyte for each of some thousand series, and a lock and
two lookups to add to one on the way of a command.
"""

import time
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

# A scraper that comes every minute sees the last values of a dropped target a few times; at most so many are kept.
DEPARTED_VISIBLE_S = 300.0
MAX_DEPARTED = 256

# Name of the family, then the values of its labels beside `target`.
Series = tuple[str, ...]


class Count(Struct):
    """What was counted so far, and what was counted last."""

    value: float = 0.0
    exemplar: Exemplar | None = None


class TargetCounters(Collector):
    """Families whose first label is `target`. on_forget hears which target's series are gone."""

    def __init__(self, families: Iterable[tuple[str, str, tuple[str, ...]]], on_forget: Callable[[str], None]) -> None:
        """`families`: name without prefix, what it is, and the labels beside `target`."""
        self._families = {name: (text, ("target", *labels)) for name, text, labels in families}
        self._on_forget = on_forget
        self._counts: dict[str, dict[Series, Count]] = {}
        self._guarded: set[str] = set()
        self._departed: dict[str, float] = {}

    def begin(self, family: str, target: str, *labels: str) -> None:
        """Have the series, at zero if it is new."""
        self._count_of(target, (family, *labels))

    def count(
        self, family: str, target: str, *labels: str, by: float = 1, exemplar: dict[str, str] | None = None
    ) -> None:
        """Add to the series."""
        count = self._count_of(target, (family, *labels))
        count.value += by
        if exemplar is not None:
            count.exemplar = Exemplar(exemplar, by, time.time())

    def departed(self, target: str, now: float) -> None:
        """A target is guarded no longer: what it has counted stays readable for a while."""
        self._guarded.discard(target)
        counted = {series: count for series, count in self._counts.get(target, {}).items() if count.value}
        self._counts[target] = counted
        self._departed.pop(target, None)
        self._departed[target] = now + DEPARTED_VISIBLE_S
        while len(self._departed) > MAX_DEPARTED:
            self._forget(next(iter(self._departed)))

    def arrived(self, target: str) -> None:
        """A target is guarded. If it has departed lately, its counters go on where they were."""
        self._guarded.add(target)
        self._departed.pop(target, None)

    def expire(self, now: float) -> None:
        """Drop what has been readable for long enough."""
        if len(self._counts) > len(self._guarded) + len(self._departed):
            # Counted of a target that is not guarded: a limit put back that the run before this one had lifted.
            for target in self._counts.keys() - self._guarded - self._departed.keys():
                self.departed(target, now)
        for target in [name for name, until in self._departed.items() if until <= now]:
            self._forget(target)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families = {
            name: CounterMetricFamily(f"edgeguardd_{name}", text, labels=names)
            for name, (text, names) in self._families.items()
        }
        for target, counts in self._counts.items():
            for (name, *values), count in counts.items():
                names = self._families[name][1]
                labels = dict(zip(names, (target, *values), strict=True))
                sample = Sample(f"edgeguardd_{name}_total", labels, count.value, None, count.exemplar)
                families[name].samples.append(sample)
        yield from families.values()

    def _count_of(self, target: str, series: Series) -> Count:
        counts = self._counts.setdefault(target, {})
        count = counts.get(series)
        if count is None:
            count = counts[series] = Count()
        return count

    def _forget(self, target: str) -> None:
        del self._departed[target]
        self._counts.pop(target, None)
        self._on_forget(target)
