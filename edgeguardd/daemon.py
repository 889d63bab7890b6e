"""The composition root: makes every part, joins them, starts, reloads and stops them in order.

    kernel.targets, serve.subscribers, timers, signals  --emit-->  dispatch  -->  engine.handle, then effect by effect

Must not: judge memory or choose commands (core does), parse bytes (core.wire, core.kernelfmt do), carry anything out
(dispatch does, where the path of one event is). Upstream: every shell. Downstream: nobody but the command line.
"""

import asyncio
import os
import signal
import socket
import uuid
from collections.abc import Callable, Sequence

from edgeguardd import __version__, decisionlog, oomscores, process, reloading
from edgeguardd.access import Access
from edgeguardd.core.config import Config
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import ConfigReloaded
from edgeguardd.core.hosts import endpoint
from edgeguardd.delays import DelayCollector, DelayCounters
from edgeguardd.dispatch import Dispatch, EventQueue, Shells
from edgeguardd.doors import Door
from edgeguardd.errors import ConfigError
from edgeguardd.gate import ROOT, Gate
from edgeguardd.keeper import Keeper
from edgeguardd.keeperstats import KeeperCollector
from edgeguardd.kernel import cgroupfs, heap
from edgeguardd.kernel.lastresort import LastResorts
from edgeguardd.kernel.machine import Machine
from edgeguardd.kernel.memlock import lock_memory
from edgeguardd.kernel.relief import Relief
from edgeguardd.kernel.targets import Targets
from edgeguardd.logs import Output, get_logger
from edgeguardd.metrics import Metrics
from edgeguardd.oomreports import OomCollector, OomReports
from edgeguardd.pages import Pages
from edgeguardd.peerevents import PeerEvents
from edgeguardd.readfirst import ReadFirst
from edgeguardd.recorder import Recorder
from edgeguardd.remembered import RememberedRecords
from edgeguardd.selfmetrics import sources
from edgeguardd.serve.agent import AgentServer
from edgeguardd.serve.http import HttpServer, HttpStats
from edgeguardd.serve.pressurewatch import Host, PressureWatchServer
from edgeguardd.serve.subscribers import SubscriberServer
from edgeguardd.serve.unixbind import listening_unix, refuse_second
from edgeguardd.socketplace import SocketPlace
from edgeguardd.state import StateDirectory
from edgeguardd.statelock import StateLock
from edgeguardd.supervision import Supervision
from edgeguardd.survival import Survival
from edgeguardd.systemd import Notifier, listen_sockets
from edgeguardd.timers import Timers

log = get_logger()


def run(config: Config, load: Callable[[], Config], config_path: str | None, log_output: Output) -> int:
    """Run until SIGTERM. `load` reads the configuration again for SIGHUP. Returns the exit status."""
    # Before there is a loop with sockets of its own, which wrong variables could name.
    passed = listen_sockets()
    process.hold_reload()
    return asyncio.run(_run(config, load, config_path, log_output, passed))


async def _run(
    config: Config,
    load: Callable[[], Config],
    config_path: str | None,
    log_output: Output,
    passed: list[socket.socket],
) -> int:
    if listening_unix(passed) is None:
        # Before anything is read or said: a second daemon has one sentence to tell, and it names the first.
        refuse_second(config.socket)
    daemon = Daemon(config, load, config_path, log_output)
    try:
        await daemon.start(passed)
        await daemon.stopped.wait()
    finally:
        await daemon.stop()
    return 0


class Daemon:
    """One running edgeguardd: the shells, the engine, and the way from one to the other and back."""

    def __init__(self, config: Config, load: Callable[[], Config], config_path: str | None, log_output: Output) -> None:
        self.config = self._started_with = config
        self.stopped = asyncio.Event()
        self._load = load
        self._config_path = config_path
        self._loop = loop = asyncio.get_running_loop()
        self._started_at = loop.time()
        queue = EventQueue(loop.time)
        emit = self.emit = queue.emit
        self.engine = Engine(config.sampling, config.machine)
        self.notifier = Notifier()
        self.supervision = Supervision(self.notifier, self.engine, loop, _partly_blind)
        self.timers = Timers(loop, emit)
        # The kernel's side
        root = cgroupfs.find_root(config.cgroup_root)
        StateDirectory(config.state_directory, _partly_blind).make()
        self.lock = StateLock(config.state_directory)
        state = RememberedRecords(config.state_directory, _partly_blind, self.lock.require)
        self.relief = Relief(root, state, emit, loop.time)
        self.last_resorts = LastResorts(root, loop, emit, loop.time, state)
        self.targets = Targets(root, loop, emit, max_targets=config.max_targets, on_fault=_partly_blind)
        targets_first = ReadFirst(self.engine, self.targets, emit, loop.time)
        self.machine = Machine(config.machine, loop, targets_first.emit, on_fault=_partly_blind)
        self.oom = OomReports(loop, state, self._paths, _partly_blind, enabled=config.kernel_log.enabled)
        self.scores = oomscores.keeper(loop)
        self.delays = DelayCounters(config.delays, loop, lambda: _directories(root, self._paths()))
        # What outlives this run
        self.keeper = Keeper(self.lock, root, self.engine, self.targets, loop, _partly_blind)
        self.recorder = Recorder(config, self.engine, loop, run=uuid.uuid4().hex, on_fault=_partly_blind)
        self.keeper.on_made_again += [state.save_again, self.recorder.begin_anew]
        # The peers' side
        self.access = Access(config, self.targets)
        self.peer_events = PeerEvents(self.engine, self.targets, emit)
        self.subscribers = SubscriberServer(
            config.socket, epoch=self.keeper.epoch, emit=self.peer_events.take, admit_peer=self.access.admit
        )
        self.place = SocketPlace(self.subscribers, loop, _partly_blind)
        self.gate = Gate(self.engine, emit, config.gate)
        self.agent: Door | None = None
        if config.gate.agent_port is not None:
            agent = AgentServer(config.gate, self.gate.agent)
            self.agent = Door(agent, lambda: endpoint(config.gate.agent_address, agent.port), _partly_blind)
        self.watches = PressureWatchServer(config.pressure_watches, self._watch_host())
        # What is seen of it
        self.http: Door | None = None
        self.http_stats = HttpStats()
        self.metrics = self._made_metrics(log_output, state)
        self.pages = self._made_pages()
        if config.http.enabled:
            http = HttpServer(config.http, self.pages.routes(), {ROOT: self.gate.admit})
            self.http_stats = http.stats
            self.http = Door(http, lambda: endpoint(config.http.address, http.port), _partly_blind)
        self.dispatch = Dispatch(self.engine, self._shells(), config, loop.call_soon)
        queue.handle = self.dispatch.handle

    def _watch_host(self) -> Host:
        return Host(
            home_of=self.access.watched_target,
            release=self.targets.release_peer,
            keep=self.supervision.keep,
            changed=decisionlog.watcher_changed,
        )

    def _made_metrics(self, log_output: Output, state: StateDirectory) -> Metrics:
        metrics = Metrics(sources(self, log_output, state, self.keeper.epoch, self._loop.time))
        metrics.registry.register(OomCollector(self.oom.stats))
        metrics.on_forget = self.oom.forget
        metrics.registry.register(KeeperCollector(self.keeper.stats))
        metrics.registry.register(oomscores.OomScoreCollector(self.scores.stats))
        metrics.registry.register(DelayCollector(lambda: self.delays.totals))
        self.peer_events.on_ack = metrics.acked
        return metrics

    def _made_pages(self) -> Pages:
        pages = Pages(
            self.keeper.epoch,
            self._config_path,
            self.engine,
            self.targets,
            self.subscribers,
            self.metrics,
            self.machine,
        )
        pages.oom = self.oom.stats
        pages.state = self.keeper.stats
        pages.scores = self.scores.stats
        pages.sampling = self.config.sampling
        pages.watchers = self.watches.counts
        return pages

    def _shells(self) -> Shells:
        return Shells(
            subscribers=self.subscribers,
            targets=self.targets,
            timers=self.timers,
            relief=self.relief,
            last_resorts=self.last_resorts,
            gate=self.gate,
            watches=self.watches,
            access=self.access,
            supervision=self.supervision,
            keeper=self.keeper,
            recorder=self.recorder,
            metrics=self.metrics,
            pages=self.pages,
            oom=self.oom,
        )

    async def start(self, passed: Sequence[socket.socket] = ()) -> None:
        """Bind the sockets, unless systemd has `passed` them, watch every target that exists, then say READY."""
        self._loop.set_exception_handler(Survival(_partly_blind, self._defect))
        process.allow_descriptors(_partly_blind)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop_requested, number)
        watched = {spec.path for spec in self.config.pressure_watches}
        # Before anything is touched: where another daemon has the socket, this one has no business.
        self.subscribers.bind([sock for sock in passed if sock.getsockname() not in watched])
        self._guard()
        await self.subscribers.start()
        self.place.start()
        self.watches.start(passed)
        if self.http is not None:
            await self.http.open()
        if self.agent is not None:
            await self.agent.open()
        process.take_reload(self._loop, self.reload)
        heap.settle()
        locked = lock_memory()
        self.pages.ready = True
        self.supervision.tell_status()
        self.notifier.ready()
        self.supervision.feed_watchdog(self.pages.blind_s)
        log.info(
            "started",
            version=__version__,
            pid=os.getpid(),
            targets=len(self.config.targets),
            socket=self.config.socket.path,
            http=None if self.http is None else self.http.place,
            agent=None if self.agent is None else self.agent.place,
            configuration=self._config_path,
            memory_locked=locked,
        )

    def _guard(self) -> None:
        """Go on from where the last run was, and look at everything that is to be guarded, before anybody is let in."""
        # What a daemon before this one left lifted or frozen comes first: it distorts every reading. What one that
        # still runs has lifted is not left.
        if self.lock.held:
            self.relief.recover()
            self.last_resorts.recover()
        self.keeper.recall(self.emit)
        self.machine.start()
        self.targets.apply(self.config.targets, self.config.sampling, self.config.defaults)
        self.keeper.guard_again(self.config.defaults)
        self.oom.start()
        oomscores.start(self.scores, self.config)
        self.delays.start()
        self.keeper.start()

    async def stop(self) -> None:
        """Say bye to everybody and leave nothing behind: socket, timers, descriptors."""
        # A reload would open again what is being closed, and a second SIGTERM would find no handler after the loop.
        process.ignore_signals(self._loop)
        self.pages.ready = False
        self.notifier.stopping()
        # Who is subscribed now is expected back by the next run: that we leave is not that they have left.
        self.peer_events.stopping = True
        self.keeper.close()
        await self.place.close()
        await self.subscribers.close("the daemon stops")
        self.watches.close()
        if self.http is not None:
            await self.http.close()
        if self.agent is not None:
            await self.agent.close()
        self.relief.put_back_all()
        self.relief.close()
        await self.last_resorts.close()
        self.oom.close()
        self.scores.close()
        self.delays.close()
        self.machine.close()
        self.targets.close()
        self.recorder.close()
        # Not before everything has been put back: the next one would do it as well.
        self.lock.release()
        self.timers.close()
        self.notifier.close()
        log.info("stopped", uptime_s=round(self._loop.time() - self._started_at, 1))

    def _stop_requested(self, number: int) -> None:
        log.info("stopping", signal=signal.Signals(number).name)
        self.stopped.set()

    def reload(self) -> None:
        """SIGHUP: the new configuration as a whole, or the old one as a whole."""
        self.notifier.reloading()
        try:
            config = self._load()
        except ConfigError as error:
            self.metrics.reloaded(applied=False)
            # The problems are the whole story: a traceback into the parser would only hide them.
            log.error(  # noqa: TRY400
                "configuration_rejected", problems=error.problems, kept="the one before"
            )
        else:
            reloading.tell(self._started_with, self.config, config, self._config_path)
            self.config = self.access.config = self.dispatch.config = config
            self.pages.sampling = config.sampling
            self.gate.config = config.gate
            self.subscribers.reconfigure(config.socket)
            self.metrics.reloaded(applied=True)
            self.emit(ConfigReloaded(config))
            self.targets.apply(config.targets, config.sampling, config.defaults)
            self.access.put_out_strangers(self.subscribers)
            self.machine.apply(config.machine)
            self.scores.apply(config.oom_scores, config.oom_score_recheck_s)
            self.watches.place_again()
        self.notifier.ready()

    def _paths(self) -> dict[str, str]:
        """Where the targets are, for finding those that an OOM report is about."""
        return {name: target.path for name, target in self.engine.targets.items()}

    def _defect(self, what: str | None, error: BaseException | None) -> None:
        """A defect in a callback: said with its traceback, counted, and survived."""
        self.metrics.defects.inc()
        log.error("defect", what=what, exc_info=error)


def _partly_blind(sentence: str) -> None:
    """Something works only in part: no inotify instance, no descriptor left. Said once each."""
    log.warning("works_in_part", why=sentence)


def _directories(root: cgroupfs.CgroupRoot, paths: dict[str, str]) -> dict[str, str]:
    """The targets' directories in the cgroup tree."""
    return {name: root.full(path) for name, path in paths.items()}
