"""The composition root: one queue of events, one match over effects, in order.

Must not: judge memory or choose commands (core does), parse bytes (core.wire, core.kernelfmt do).
Upstream: every shell. Downstream: nobody but the command line.

    kernel.targets, serve.subscribers, timers, signals  --emit-->  engine.handle  -->  _carry_out, effect by effect
"""

import asyncio
import gc
import os
import resource
import signal
import socket
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import assert_never

from edgeguardd import __version__, access, decisionlog, oomscores
from edgeguardd.core.config import Config
from edgeguardd.core.effects import (
    AnnounceLevel,
    AnswerAdmit,
    AnswerGate,
    CancelTimer,
    CommandEnded,
    Deliver,
    Disconnect,
    Effect,
    Note,
    PutBackLimit,
    RaiseLimit,
    Refuse,
    RunLastResort,
    SampleEvery,
    SetTimer,
    SignalPressure,
    Thaw,
    Welcome,
)
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    ConfigReloaded,
    CountersMoved,
    Event,
    KillsWhileAway,
    LastResortEnded,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
    TimerFired,
)
from edgeguardd.core.model import AckStatus, Level, Role
from edgeguardd.core.wire import Hello
from edgeguardd.delays import DelayCollector, DelayCounters
from edgeguardd.errors import ConfigError, EdgeguardError
from edgeguardd.gate import ROOT, Gate
from edgeguardd.keeper import Keeper
from edgeguardd.keeperstats import KeeperCollector
from edgeguardd.kernel import cgroupfs
from edgeguardd.kernel.lastresort import LastResorts
from edgeguardd.kernel.machine import Machine
from edgeguardd.kernel.memlock import lock_memory
from edgeguardd.kernel.relief import Relief
from edgeguardd.kernel.targets import Targets
from edgeguardd.logs import Output, get_logger
from edgeguardd.metrics import Metrics
from edgeguardd.oomreports import OomCollector, OomReports
from edgeguardd.pages import Pages
from edgeguardd.recorder import Recorder
from edgeguardd.selfmetrics import sources
from edgeguardd.serve.agent import AgentServer
from edgeguardd.serve.http import HttpServer
from edgeguardd.serve.peercred import Peer
from edgeguardd.serve.pressurewatch import Host, PressureWatchServer
from edgeguardd.serve.subscribers import SubscriberServer
from edgeguardd.state import StateDirectory
from edgeguardd.statelock import StateLock
from edgeguardd.survival import Survival
from edgeguardd.systemd import Notifier, listen_sockets

NOT_KEPT = (
    "cannot keep the connections of pressure watchers for the next run: when this one ends, programs built on sd-event "
    "take a whole processor each; run it as a systemd service with FileDescriptorStoreMax=512"
)

log = get_logger()


def run(config: Config, load: Callable[[], Config], config_path: str | None, log_output: Output) -> int:
    """Run until SIGTERM. `load` reads the configuration again for SIGHUP. Returns the exit status."""
    # Before there is a loop with sockets of its own, which wrong variables could name.
    passed = listen_sockets()
    # A SIGHUP waits until start() has something to reload; by default it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    return asyncio.run(_run(config, load, config_path, log_output, passed))


async def _run(
    config: Config,
    load: Callable[[], Config],
    config_path: str | None,
    log_output: Output,
    passed: list[socket.socket],
) -> int:
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
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._queue: deque[tuple[Event, float]] = deque()
        self._draining = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._homes: dict[int, str] = {}
        self._status_line = ""
        self._said_not_kept = False
        self._stopping = False
        self.engine = Engine(config.sampling, config.machine)
        self.notifier = Notifier()
        root = cgroupfs.find_root(config.cgroup_root)
        clock = self._loop.time
        StateDirectory(config.state_directory, _partly_blind).make()
        self.lock = StateLock(config.state_directory)
        state = StateDirectory(config.state_directory, _partly_blind, require=self.lock.require)
        self.relief = Relief(root, state, self.emit, clock)
        self.last_resorts = LastResorts(root, self._loop, self.emit, clock, state)
        self.machine = Machine(config.machine, self._loop, self.emit, on_fault=_partly_blind)
        self.targets = Targets(root, self._loop, self.emit, max_targets=config.max_targets, on_fault=_partly_blind)
        self.keeper = Keeper(self.lock, root, self.engine, self.targets, self._loop, _partly_blind)
        epoch = self.keeper.epoch
        self.recorder = Recorder(config, self.engine, self._loop, run=uuid.uuid4().hex, on_fault=_partly_blind)
        self.subscribers = SubscriberServer(
            config.socket, epoch=epoch, emit=self._from_peer, admit_peer=self._admit_peer
        )
        self.gate = Gate(self.engine, self.emit, config.gate)
        self.watches = PressureWatchServer(config.pressure_watches, self._watch_host())
        self.metrics = Metrics(sources(self, log_output, state, epoch, clock))
        self.oom = OomReports(self._loop, state, self._paths, _partly_blind, enabled=config.kernel_log.enabled)
        self.metrics.registry.register(OomCollector(self.oom.stats))
        self.metrics.on_forget = self.oom.forget
        self.metrics.registry.register(KeeperCollector(self.keeper.stats))
        self.scores = oomscores.keeper(self._loop)
        self.metrics.registry.register(oomscores.OomScoreCollector(self.scores.stats))
        self.delays = DelayCounters(config.delays, self._loop, lambda: _directories(root, self._paths()))
        self.metrics.registry.register(DelayCollector(lambda: self.delays.totals))
        self.pages = Pages(epoch, config_path, self.engine, self.targets, self.subscribers, self.metrics, self.machine)
        self.pages.oom = self.oom.stats
        self.pages.state = self.keeper.stats
        self.pages.scores = self.scores.stats
        self.pages.sampling = config.sampling
        self.pages.watchers = self.watches.counts
        open_routes = {ROOT: self.gate.admit}
        self.http = HttpServer(config.http, self.pages.routes(), open_routes) if config.http.enabled else None
        self.agent = AgentServer(config.gate, self.gate.agent) if config.gate.agent_port is not None else None

    # Life

    async def start(self, passed: Sequence[socket.socket] = ()) -> None:
        """Bind the sockets, unless systemd has `passed` them, watch every target that exists, then say READY."""
        self._loop.set_exception_handler(Survival(_partly_blind, self._defect))
        _allow_descriptors()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop_requested, number)
        watched = {spec.path for spec in self.config.pressure_watches}
        # Before anything is touched: where another daemon has the socket, this one has no business.
        self.subscribers.bind([sock for sock in passed if sock.getsockname() not in watched])
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
        await self.subscribers.start()
        self.watches.start(passed)
        if self.http is not None:
            await self.http.start()
        if self.agent is not None:
            await self.agent.start()
        self._loop.add_signal_handler(signal.SIGHUP, self.reload)
        _quiet_wakeups()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        # What start-up made lives as long as the daemon: keep the collector from walking it in a crisis.
        gc.collect()
        gc.freeze()
        locked = lock_memory()
        self.pages.ready = True
        self._tell_systemd_status()
        self.notifier.ready()
        self._feed_watchdog()
        log.info(
            "started",
            version=__version__,
            pid=os.getpid(),
            targets=len(self.config.targets),
            socket=self.config.socket.path,
            http=None if self.http is None else f"{self.config.http.address}:{self.http.port}",
            agent=None if self.agent is None else f"{self.config.gate.agent_address}:{self.agent.port}",
            configuration=self._config_path,
            memory_locked=locked,
        )

    async def stop(self) -> None:
        """Say bye to everybody and leave nothing behind: socket, timers, descriptors."""
        # A reload would open again what is being closed, and a second SIGTERM would find no handler after the loop.
        _ignore_signals(self._loop)
        self.pages.ready = False
        self.notifier.stopping()
        # Who is subscribed now is expected back by the next run: that we leave is not that they have left.
        self._stopping = True
        self.keeper.close()
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
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
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
            kept = _needs_restart(self._started_with, config)
            if kept:
                log.warning("restart_needed", settings=kept)
            self.config = config
            self.pages.sampling = config.sampling
            self.gate.config = config.gate
            self.subscribers.reconfigure(config.socket)
            self.metrics.reloaded(applied=True)
            self.emit(ConfigReloaded(config))
            self.targets.apply(config.targets, config.sampling, config.defaults)
            access.put_out_strangers(self.subscribers, config, self.targets)
            self.machine.apply(config.machine)
            self.scores.apply(config.oom_scores, config.oom_score_recheck_s)
            self.watches.place_again()
        self.notifier.ready()

    # The path: facts in, orders out

    def emit(self, event: Event) -> None:
        """Take a fact from a shell. Facts that arise while orders are carried out wait their turn."""
        self._queue.append((event, self._loop.time()))
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                event, at = self._queue.popleft()
                self._handle(event, at)
        finally:
            self._draining = False

    def _handle(self, event: Event, at: float) -> None:
        self._before(event)
        # What has come and what was done is written down afterwards: that takes longer than a command on its way. What
        # a restart must not lose comes first: one write into room that is there.
        done: list[Effect] = []
        try:
            effects = self.engine.handle(event, at)
            self.keeper.note(event, effects, at)
            for effect in effects:
                self._carry_out(effect)
                done.append(effect)
        finally:
            self.recorder.record(event, at)
            decisionlog.done(done)
        if isinstance(event, TargetDropped):
            self.metrics.departed(event.target, at)
            self._loop.call_soon(self.watches.place_again, event.target)

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901, PLR0912  one row an effect
        match effect:
            case Deliver():
                self.subscribers.deliver(effect)
                if effect.again:
                    self.metrics.told_again(effect)
                else:
                    self.metrics.sent(effect)
            case AnnounceLevel():
                self.subscribers.announce(effect)
                self.recorder.flush_soon()
                self._tell_systemd_status()
            case SetTimer():
                self._set_timer(effect.key, effect.at)
            case CancelTimer():
                self._cancel_timer(effect.key)
            case SampleEvery():
                self.targets.set_interval(effect.target, effect.interval_s)
            case CommandEnded():
                self.pages.ended(effect)
                self.metrics.ended(effect)
            case RaiseLimit():
                self.relief.raise_limit(
                    effect.target, self.targets.path_of(effect.target), effect.from_bytes, effect.to_bytes
                )
            case PutBackLimit():
                self.relief.put_back(effect.target)
            case RunLastResort():
                path, unit = self.targets.path_of(effect.target), self._unit_of(effect.target)
                self.last_resorts.run(effect.target, path, effect.step, effect.step.unit or unit, effect.reclaim_bytes)
            case Thaw():
                self.last_resorts.thaw(effect.target)
            case Welcome():
                self.subscribers.welcome(effect)
            case AnswerAdmit():
                self.subscribers.answer(effect)
            case AnswerGate():
                self.gate.answered(effect)
            case SignalPressure():
                self.watches.signal(effect.target)
            case Refuse():
                self.subscribers.refuse(effect)
            case Disconnect():
                self.subscribers.disconnect(effect.subscriber, effect.reason)
            case Note():
                pass  # a line of the log, and nothing else
            case _:
                assert_never(effect)

    def _before(self, event: Event) -> None:
        """What the shell itself keeps of an event: counters, who serves which target, the log."""
        self.metrics.happened(event)
        match event:
            case CountersMoved():
                self.oom.counted(event)
            case KillsWhileAway():
                self.oom.missed(event.target, event.kills)
            case LastResortEnded():
                self.pages.resorted(event)
            case TargetAdded():
                # It may have moved: to another slice, say.
                who, what = self.subscribers, self.targets
                self._loop.call_soon(lambda: access.put_out_strangers(who, self.config, what, event.target))
            case SubscriberJoined():
                decisionlog.subscriber_joined(event)
                if event.role is Role.INFERENCE and event.target is not None:
                    self._homes[event.subscriber] = event.target
            case SubscriberLeft():
                decisionlog.subscriber_left(event)
            case _:
                pass

    def _unit_of(self, target: str) -> str | None:
        """The unit that a target was configured by, for restarting it."""
        return next((spec.unit for spec in self.config.targets if spec.name == target), None)

    def _paths(self) -> dict[str, str]:
        """Where the targets are, for finding those that an OOM report is about."""
        return {name: target.path for name, target in self.engine.targets.items()}

    # Subscribers

    def _from_peer(self, event: Event) -> None:
        """A fact from a subscriber. A final ack is judged by memory as it is now, not as it was."""
        if isinstance(event, AckReceived):
            home = self._homes.get(event.subscriber, "")
            self.metrics.acked(home, event)
            target = self.engine.targets.get(home)
            final = event.status is not AckStatus.ACCEPTED
            if final and target is not None and event.seq in target.ledger.outstanding:
                self.targets.sample_now(home)
        if self._stopping and isinstance(event, SubscriberLeft):
            decisionlog.subscriber_left(event)
            return
        self.emit(event)
        if isinstance(event, SubscriberLeft):
            left = self._homes.pop(event.subscriber, None)
            if left is not None:
                self.targets.release_peer(left)

    def _admit_peer(self, peer: Peer, hello: Hello) -> str | None:
        try:
            return access.target_for(peer, hello, self.config, self.targets)
        except EdgeguardError as error:
            decisionlog.peer_refused(peer, hello, error)
            raise

    def _watch_host(self) -> Host:
        return Host(
            home_of=lambda peer, spec: access.watched_target(peer, spec, self.config, self.targets),
            release=self.targets.release_peer,
            keep=self._keep,
            changed=decisionlog.watcher_changed,
        )

    def _keep(self, connection: socket.socket) -> None:
        if not self.notifier.keep(connection) and not self._said_not_kept:
            self._said_not_kept = True
            _partly_blind(NOT_KEPT)

    # Time

    def _set_timer(self, key: str, at: float) -> None:
        self._cancel_timer(key)
        self._timers[key] = self._loop.call_at(at, self._timer_fired, key)

    def _cancel_timer(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _timer_fired(self, key: str) -> None:
        self._timers.pop(key, None)
        self.emit(TimerFired(key))

    # Operators

    def _tell_systemd_status(self) -> None:
        worst = self.engine.worst_level()
        raised = sum(1 for target in self.engine.targets.values() if target.level > Level.NORMAL)
        line = f"{worst.word}: {len(self.engine.targets)} targets, {raised} above normal"
        if line != self._status_line:
            self._status_line = line
            self.notifier.status(line)

    def _feed_watchdog(self) -> None:
        """Feed only while targets are being looked at: a daemon that looks no more should be restarted."""
        interval_s = self.notifier.watchdog_interval_s
        if interval_s is None:
            return
        if self.pages.blind_s() is None:
            self.notifier.watchdog()
        self._loop.call_later(interval_s / 2, self._feed_watchdog)

    def _defect(self, what: str | None, error: BaseException | None) -> None:
        """A defect in a callback: said with its traceback, counted, and survived."""
        self.metrics.defects.inc()
        log.error("defect", what=what, exc_info=error)


def _allow_descriptors() -> None:
    """Raise the soft limit to the hard one: a target takes about 11 descriptors, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return  # a unit's sandbox may forbid even asking for what is there
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _partly_blind(f"cannot raise the limit of open files from {soft} to {hard}: {error}; set LimitNOFILE=")


def _quiet_wakeups() -> None:
    """No complaint on standard error when signals come faster than the loop takes them: it is awake by then anyway."""
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)


def _ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """From the loop's handlers to none at all. Between the two asyncio sets the default, which ends the process."""
    numbers = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def _partly_blind(sentence: str) -> None:
    """Something works only in part: no inotify instance, no descriptor left. Said once each."""
    log.warning("works_in_part", why=sentence)


def _directories(root: cgroupfs.CgroupRoot, paths: dict[str, str]) -> dict[str, str]:
    """The targets' directories in the cgroup tree."""
    return {name: root.full(path) for name, path in paths.items()}


def _needs_restart(old: Config, new: Config) -> list[str]:
    """The settings that differ and that only a restart can change."""
    changed = [
        name
        for name in ("http", "log", "cgroup_root", "max_targets", "recorder", "kernel_log", "delays", "state_directory")
        if getattr(old, name) != getattr(new, name)
    ]
    if old.pressure_watches != new.pressure_watches:
        changed.append("pressure_watch")
    changed += [f"gate.{n}" for n in ("agent_port", "agent_address") if getattr(old.gate, n) != getattr(new.gate, n)]
    socket = [name for name in ("path", "mode", "group") if getattr(old.socket, name) != getattr(new.socket, name)]
    return changed + [f"socket.{name}" for name in socket]
