"""What Prometheus sees of the machine and of the daemon itself at the moment of a scrape.

Must not: keep anything. Upstream: engine, the shells' plain counters. Downstream: metrics.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeguardd import __version__
from edgeguardd.core.config import Config, SamplingConfig
from edgeguardd.core.engine import Engine
from edgeguardd.core.policy import stale_after_s
from edgeguardd.core.wire import ERROR_CODES
from edgeguardd.gate import Gate
from edgeguardd.keeper import Keeper
from edgeguardd.kernel.guarded import TargetStatus
from edgeguardd.kernel.relief import Relief
from edgeguardd.kernel.targets import Targets
from edgeguardd.kernel.wakeups import Begun
from edgeguardd.logs import Output
from edgeguardd.recorder import Recorder, boot_id
from edgeguardd.serve.gatestats import GateStats
from edgeguardd.serve.http import HttpStats
from edgeguardd.serve.pressurewatch import PressureWatchServer, WatchStats
from edgeguardd.serve.subscribers import SubscriberServer
from edgeguardd.serve.subscriberstats import SubscriberStats
from edgeguardd.state import StateDirectory

_NO_ERRORS = dict.fromkeys(ERROR_CODES, 0)


class Sources(Struct, kw_only=True):
    """Where figures are read. Callables for what changes hands: each gives the figures as of now.

    begun      what the reading that is being told began with
    watched    the targets as the kernel's side sees them
    raised_at  target -> since when its memory.high has been lifted
    sampling   how often targets are looked at
    epoch      the row of numbers, as the protocol's welcome names it; it may go on over restarts
    """

    engine: Engine
    subscribers: SubscriberStats
    log: Output
    recorder: Recorder
    gate: GateStats
    watches: WatchStats
    epoch: str
    boot_id: str | None = None
    begun: Callable[[], Begun | None] = lambda: None
    watched: Callable[[], Mapping[str, TargetStatus]] = dict
    raised_at: Callable[[], Mapping[str, float]] = dict
    sampling: Callable[[], SamplingConfig] = SamplingConfig
    state_faults: Callable[[], int] = int
    http: Callable[[], HttpStats] = HttpStats
    clock: Callable[[], float] = time.monotonic


class Shells(Protocol):
    """The daemon, as far as figures are read off it."""

    config: Config
    engine: Engine
    subscribers: SubscriberServer
    recorder: Recorder
    gate: Gate
    watches: PressureWatchServer
    targets: Targets
    relief: Relief
    keeper: Keeper
    http_stats: HttpStats


def sources(shells: Shells, log: Output, state: StateDirectory, epoch: str, clock: Callable[[], float]) -> Sources:
    """Of a daemon. Its HTTP server, which serves the figures, comes later."""
    return Sources(
        engine=shells.engine,
        subscribers=shells.subscribers.stats,
        log=log,
        recorder=shells.recorder,
        gate=shells.gate.stats,
        watches=shells.watches.stats,
        epoch=epoch,
        boot_id=boot_id(),
        begun=lambda: shells.targets.begun,
        watched=shells.targets.status,
        raised_at=shells.relief.raised_at,
        sampling=lambda: shells.config.sampling,
        state_faults=lambda: state.faults + shells.keeper.state.faults,
        http=lambda: shells.http_stats,
        clock=clock,
    )


class MachineCollector(Collector):
    """The whole machine as a domain of its own."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        gauge = self._engine.machine
        figures: list[tuple[str, str, float | None]] = [
            ("level", "Level of the whole machine, as targets'.", gauge.level)
        ]
        if gauge.sample is not None and gauge.sampled_at is not None:
            sample = gauge.sample
            figures += [
                ("total_bytes", "MemTotal.", sample.total_bytes),
                ("available_bytes", "MemAvailable.", sample.available_bytes),
                ("wanted_bytes", "Memory that would bring the machine below its first mark.", gauge.wanted_bytes),
                ("swap_total_bytes", "SwapTotal; zram shows here as well.", sample.swap_total_bytes),
                ("swap_free_bytes", "SwapFree.", sample.swap_free_bytes),
                ("stalled_ratio", "As a target's, of the whole machine.", gauge.psi_ratio),
                ("sample_age_seconds", "How old this sample is.", max(0.0, self._clock() - gauge.sampled_at)),
            ]
        for name, text, value in figures:
            if value is not None:
                yield GaugeMetricFamily(f"edgeguardd_machine_{name}", text, value=value)


class SelfCollector(Collector):
    """The daemon: which it is, its sockets, its recorder, its log, its state directory."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._names()
        for name, text, gauge in self._gauges():
            yield GaugeMetricFamily(f"edgeguardd_{name}", text, value=gauge)
        for name, text, count in self._counters():
            yield CounterMetricFamily(f"edgeguardd_{name}", text, value=count)
        yield _by(
            "protocol_errors",
            "Error lines sent.",
            ("code",),
            _keyed({**_NO_ERRORS, **self._sources.subscribers.errors}),
        )
        yield _by("gate_answers", "Answers to proxies.", ("mode", "answer"), self._sources.gate.answers)
        yield _by("http_responses", "Answers over HTTP.", ("status",), _keyed(self._sources.http().statuses))

    def _names(self) -> Iterator[Metric]:
        version = {"version": __version__, "python": sys.version.split()[0]}
        yield InfoMetricFamily("edgeguardd_build", "What runs.", value=version)
        text = "Whose numbers commands have, as the protocol's welcome says, and of which boot: one series at a time."
        run = {"epoch": self._sources.epoch, "boot_id": self._sources.boot_id or ""}
        yield InfoMetricFamily("edgeguardd_run", text, value=run)

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        of = self._sources
        recorder = of.recorder.stats
        yield "subscribers", "Connections to the subscriber socket.", of.subscribers.current
        yield "subscribers_stalled", "Connections that do not take what is sent.", of.subscribers.stalled
        yield "pressure_watchers", "Programs connected to the pressure-watch sockets.", of.watches.current
        yield "http_connections", "Connections to the HTTP port.", of.http().current
        text = (
            "The age of a sample beyond which nothing is seen any more, as for /healthz: five times `[sampling] slow`."
        )
        yield "sample_stale_after_seconds", text, stale_after_s(of.sampling())
        yield "recorder_bytes", "What the flight recorder's files take.", recorder.bytes
        yield "recorder_failing", "1 while the flight recorder cannot write.", recorder.fault is not None
        # Room was made for what a busy hour needs (kernel.heap): growth shows here before resident memory does.
        yield "allocated_blocks", "Blocks of memory that Python has in use.", sys.getallocatedblocks()

    def _counters(self) -> Iterator[tuple[str, str, int]]:
        of = self._sources
        stats, recorder, http = of.subscribers, of.recorder.stats, of.http()
        yield "connections", "Connections accepted on the subscriber socket.", stats.accepted
        yield "connections_refused", "Connections ended before a welcome: too many, refused, no hello.", stats.refused
        yield "lines_received", "Protocol lines received.", stats.lines_in
        yield "lines_sent", "Protocol lines sent.", stats.lines_out
        yield "lines_throttled", "Times a flooding peer was made to wait.", stats.throttled
        yield "commands_replaced", "Unsent commands replaced by a newer one of the same action.", stats.replaced
        yield "answers_dropped", "Unsent answers dropped for newer ones.", stats.dropped
        yield "pressure_signals", "Memory pressure told to programs that watch.", of.watches.signals
        yield "pressure_signals_unread", "Signals not sent, as those before them were still unread.", of.watches.unread
        yield "recorder_events", "Events written to the flight recorder.", recorder.written
        yield "recorder_events_dropped", "Events that the flight recorder could not write.", recorder.dropped
        yield "log_lines_dropped", "Log lines that nobody took.", of.log.dropped_lines
        yield "log_lines_suppressed", "Log lines beyond the rate of their event.", of.log.suppressed_lines
        yield "state_faults", "Records that could not be written, removed, read or used.", of.state_faults()
        yield "http_connections_refused", "Connections to the HTTP port sent away: too many.", http.refused
        yield "http_timeouts", "Connections to the HTTP port cut, as they were too slow.", http.timed_out


def _keyed(counts: Mapping[str, int] | Mapping[int, int]) -> dict[tuple[str], int]:
    return {(str(key),): count for key, count in counts.items()}


def _by(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> Metric:
    family = CounterMetricFamily(f"edgeguardd_{name}", text, labels=labels)
    for key, count in sorted(counts.items()):
        family.add_metric(key, count)
    return family
