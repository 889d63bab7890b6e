"""How long the targets' main processes wait for memory, as counters; asked now and then, in a thread of its own.

Must not: import pyroute2 (kernel.delays does, when it is first asked), hold up the loop. Upstream: kernel.delays.
Downstream: daemon, metrics.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeguardd.core.config import DelaysConfig
from edgeguardd.core.taskstats import Delays
from edgeguardd.errors import KernelError
from edgeguardd.kernel import delays
from edgeguardd.kernel.delays import Reading, TaskStats
from edgeguardd.logs import get_logger

if TYPE_CHECKING:  # imported when it is switched on
    from concurrent.futures import ThreadPoolExecutor

log = get_logger()


class Asker:
    """What runs in the thread: pyroute2's socket stays with the thread that made it."""

    def __init__(self) -> None:
        self._stats: TaskStats | None = None

    def read(self, cgroups: list[tuple[str, str]]) -> list[Reading]:
        """Raises KernelError."""
        if self._stats is None:
            self._stats = TaskStats()
        return delays.read(self._stats, cgroups)

    def close(self) -> None:
        """After the last reading."""
        if self._stats is not None:
            self._stats.close()


class DelayCounters:
    """Asks every interval while it runs. `totals` go on when a main process is another one, as the target's own do."""

    def __init__(
        self,
        config: DelaysConfig,
        loop: asyncio.AbstractEventLoop,
        cgroups: Callable[[], Mapping[str, str]],
        asker: Asker | None = None,
    ) -> None:
        self.totals: dict[str, Delays] = {}
        self._config = config
        self._loop = loop
        self._cgroups = cgroups
        self._asker = Asker() if asker is None else asker
        self._last: dict[str, Reading] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Nothing, unless it is switched on."""
        if not self._config.enabled:
            return
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  see above

        why = delays.switched_off()
        if why is not None:
            log.warning("delays_unread", why=why)
        self._thread = ThreadPoolExecutor(1, "edgeguardd-delays")
        self._ask()

    def close(self) -> None:
        """Waits for a reading that runs: it takes milliseconds."""
        if self._timer is not None:
            self._timer.cancel()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._asker.close)
            thread.shutdown()

    def _ask(self) -> None:
        if self._thread is None:
            return
        asked = self._loop.run_in_executor(self._thread, self._asker.read, list(self._cgroups().items()))
        asked.add_done_callback(self._answered)

    def _answered(self, asked: "asyncio.Future[list[Reading]]") -> None:
        if self._thread is None or asked.cancelled():
            return
        try:
            readings = asked.result()
        except KernelError as error:
            # What is missing now is missing until somebody restarts the daemon with it.
            log.warning("delays_unread", why=str(error))
            return
        guarded = self._cgroups().keys()
        for reading in readings:
            self._count(reading)
        for gone in self.totals.keys() - guarded:
            del self.totals[gone]
            self._last.pop(gone, None)
        self._timer = self._loop.call_later(self._config.interval_s, self._ask)

    def _count(self, reading: Reading) -> None:
        last, total = self._last.get(reading.target), self.totals.get(reading.target, Delays())
        same = last is not None and (last.pid, last.started_ticks) == (reading.pid, reading.started_ticks)
        before = last.delays if same and last is not None else Delays()
        self._last[reading.target] = reading
        now = reading.delays
        self.totals[reading.target] = Delays(
            total.reclaim_s + max(0.0, now.reclaim_s - before.reclaim_s),
            total.thrashing_s + max(0.0, now.thrashing_s - before.thrashing_s),
            total.swap_in_s + max(0.0, now.swap_in_s - before.swap_in_s),
        )


class DelayCollector(Collector):
    """The figures for /metrics, read when it is scraped."""

    def __init__(self, totals: Callable[[], Mapping[str, Delays]]) -> None:
        self._totals = totals

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "edgeguardd_delay_seconds",
            "What the target's main process, all its threads together, has waited for memory (taskstats; `[delays]`).",
            labels=["target", "delay"],
        )
        for target, total in sorted(self._totals().items()):
            for delay in ("reclaim", "thrashing", "swap_in"):
                family.add_metric([target, delay], getattr(total, f"{delay}_s"))
        yield family
