"""How keeping goes: its figures and what is in the way, for /metrics, /status and the log.

Must not: keep anything that outlives the daemon. Upstream: keeper, records. Downstream: daemon, pages, metrics page.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_FAULTS: Final = 8


class KeeperStats(Struct):
    """For metrics and the status page. `faults`: what was said, the first ones."""

    directory: str
    continued: bool = False
    away_s: float | None = None
    recalled_targets: int = 0
    recalled_commands: int = 0
    told_again: int = 0
    failing: bool = False
    faults: list[str] = []


class Faults:
    """What is in the way, each said once."""

    def __init__(self, stats: KeeperStats, on_fault: Callable[[str], None]) -> None:
        self._stats = stats
        self._on_fault = on_fault

    def say(self, sentence: str) -> None:
        """Something is the matter."""
        if sentence not in self._stats.faults:
            if len(self._stats.faults) < MAX_FAULTS:
                self._stats.faults.append(sentence)
            self._on_fault(sentence)

    def failed(self, fault: str) -> None:
        """Nothing can be written, from now on: the first of such a row is said."""
        if not self._stats.failing:
            self._stats.failing = True
            self.say(f"{fault}; until then a restart may forget levels and commands")

    def ended(self) -> None:
        """Everything has been written."""
        self._stats.failing = False


class KeeperCollector(Collector):
    """One family; what is counted by target is among the targets' own."""

    def __init__(self, stats: KeeperStats) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats
        text = "1 while what outlives the daemon can be written down."
        yield GaugeMetricFamily("edgeguardd_state_kept", text, value=float(not stats.failing))


def state_row(stats: KeeperStats | None) -> dict[str, Any]:
    """The part of /status."""
    if stats is None:
        return {}
    return {
        "directory": stats.directory,
        "kept": not stats.failing,
        "continued": stats.continued,
        "away_s": None if stats.away_s is None else round(stats.away_s, 3),
        "recalled_targets": stats.recalled_targets,
        "recalled_commands": stats.recalled_commands,
        "told_again": stats.told_again,
        "faults": list(stats.faults),
    }
