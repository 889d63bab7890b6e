"""The keeper's figures for /metrics, read when it is scraped, and the part of /status about state.

Must not: keep anything. Upstream: keeper. Downstream: daemon, pages, metrics page.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeguardd.keeper import KeeperStats


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
