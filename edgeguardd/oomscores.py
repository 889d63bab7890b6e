"""oom_score_adj by rule, in the daemon: what is said of it in the log, and figures for metrics and the status page.

Must not: look at processes (kernel.scores does). Upstream: kernel.scores, config. Downstream: daemon, metrics, pages.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeguardd.core.config import Config
from edgeguardd.kernel.scores import START_CHECKS, OomScores, Report, ScoreStats
from edgeguardd.logs import get_logger

log = get_logger()


def keeper(loop: asyncio.AbstractEventLoop) -> OomScores:
    """What keeps scores in force and says so; it rests until it is given rules."""
    return OomScores(loop, Report(corrected=_corrected, failed=_failed, slow=_slow))


def start(scores: OomScores, config: Config) -> None:
    """At the start, before the daemon says that it is ready: what runs already has its score then."""
    if not config.oom_scores:
        return
    scores.apply(config.oom_scores, config.oom_score_recheck_s, at_once=START_CHECKS)
    stats = scores.stats()
    log.info(
        "oom_scores_in_force",
        rules=len(stats.rules),
        processes=sum(rule.in_force for rule in stats.rules),
        writes=sum(rule.writes for rule in stats.rules),
    )


def status(stats: ScoreStats) -> dict[str, Any]:
    """The JSON of /status."""
    return {
        "told": stats.told,
        "why": stats.why,
        "overruns": stats.overruns,
        "rules": [
            {
                "name": rule.name,
                "value": rule.value,
                "in_force": rule.in_force,
                "writes": rule.writes,
                "corrections": rule.corrections,
                "failures": rule.failures,
                "why": rule.why,
            }
            for rule in stats.rules
        ],
    }


class OomScoreCollector(Collector):
    """The figures for /metrics, read when it is scraped."""

    def __init__(self, stats: Callable[[], ScoreStats]) -> None:
        self._stats = stats

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        text = "1 while the kernel tells of new processes at once; 0 while they wait for the next look at all."
        yield GaugeMetricFamily("edgeguardd_oom_score_told", text, value=float(stats.told))
        text = "Times that more processes came than could be noted, so that all were looked at."
        yield CounterMetricFamily("edgeguardd_oom_score_overruns", text, value=stats.overruns)
        text = "Processes that have their score by this rule."
        in_force = GaugeMetricFamily("edgeguardd_oom_score_in_force", text, labels=["rule"])
        counters = {
            "writes": "Scores written by this rule.",
            "corrections": "Scores written again, as something else had changed them.",
            "failures": "Processes that could not be looked at or given their score.",
        }
        families = [
            CounterMetricFamily(f"edgeguardd_oom_score_{name}", text, labels=["rule"])
            for name, text in counters.items()
        ]
        for rule in stats.rules:
            in_force.add_metric([rule.name], rule.in_force)
            for name, family in zip(counters, families, strict=True):
                family.add_metric([rule.name], getattr(rule, name))
        yield in_force
        yield from families


def _corrected(rule: str, pid: int, was: int, value: int) -> None:
    log.warning("oom_score_corrected", rule=rule, pid=pid, was=was, value=value)


def _failed(rule: str | None, why: str) -> None:
    log.error("oom_score_failed", rule=rule, why=why)


def _slow(why: str) -> None:
    log.warning("oom_scores_wait", why=why)
