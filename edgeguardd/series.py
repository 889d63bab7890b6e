"""Counters with a target's name on them: from zero on while it is guarded, and gone some time after it.

Must not: know what is counted. Upstream: prometheus_client. Downstream: metrics.
A series that begins with its first count hides that count: to Prometheus, what has always been 1 has never risen. So
what an alert asks for begins at zero. Names of targets come and go with cgroups that strangers make, so that series
which nobody counted in end with the target, and the others are few and stay for a few scrapes only.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import Counter

# A scraper that comes every minute sees the last values of a dropped target a few times; at most so many are kept.
DEPARTED_VISIBLE_S = 300.0
MAX_DEPARTED = 256

Labels = tuple[str, ...]


class TargetCounters:
    """Families whose first label is `target`. on_forget hears which target's series are gone."""

    def __init__(
        self,
        registry: CollectorRegistry,
        families: Iterable[tuple[str, str, Labels]],
        on_forget: Callable[[str], None],
    ) -> None:
        """`families`: name without prefix, what it is, and the labels beside `target`."""
        self._families = {
            name: Counter(f"edgeguardd_{name}", text, ["target", *labels], registry=registry)
            for name, text, labels in families
        }
        self._on_forget = on_forget
        # target -> its series, and whether anything was counted in it
        self._series: dict[str, dict[tuple[str, Labels], bool]] = {}
        self._guarded: set[str] = set()
        self._departed: dict[str, float] = {}

    def begin(self, family: str, target: str, *labels: str) -> None:
        """Have the series, at zero if it is new."""
        self._series.setdefault(target, {}).setdefault((family, labels), False)
        self._families[family].labels(target, *labels)

    def count(
        self, family: str, target: str, *labels: str, by: float = 1, exemplar: dict[str, str] | None = None
    ) -> None:
        """Add to the series."""
        self._series.setdefault(target, {})[family, labels] = True
        self._families[family].labels(target, *labels).inc(by, exemplar)

    def departed(self, target: str, now: float) -> None:
        """A target is guarded no longer: what it has counted stays readable for a while."""
        self._guarded.discard(target)
        series = self._series.get(target, {})
        for family, labels in [one for one, counted in series.items() if not counted]:
            self._families[family].remove(target, *labels)
            del series[family, labels]
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
        if len(self._series) > len(self._guarded) + len(self._departed):
            # Counted of a target that is not guarded: a limit put back that the run before this one had lifted.
            for target in self._series.keys() - self._guarded - self._departed.keys():
                self.departed(target, now)
        for target in [name for name, until in self._departed.items() if until <= now]:
            self._forget(target)

    def _forget(self, target: str) -> None:
        del self._departed[target]
        for family, labels in self._series.pop(target, {}):
            self._families[family].remove(target, *labels)
        self._on_forget(target)
