"""What outlives the daemon, written down as it changes and read at the next start: levels, commands, numbers, counters.

    engine's effects ──note──▶ journal (before anybody hears of it) ──a quarter of a second──▶ records, in a thread
    records + journal ──recalled──▶ StateRecalled, baselines of counters ──▶ engine, targets

Must not: decide, hold up a command for a disk, be fatal. Upstream: journal, recalled, state, core.resume. Downstream:
daemon. Why so, and what a kill -9 at each point means: docs/adr/0017.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from edgeguardd import __version__, recalled
from edgeguardd.core import resume
from edgeguardd.core.config import Policy
from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Deliver, Effect
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    CgroupAppeared,
    CountersMoved,
    Event,
    KillsWhileAway,
    SampleTaken,
    StateRecalled,
    SubscriberJoined,
    SubscriberLeft,
    TargetDropped,
)
from edgeguardd.core.model import Level
from edgeguardd.core.target import Target
from edgeguardd.errors import EdgeguardError
from edgeguardd.journal import Found, Journal, JournalError
from edgeguardd.kernel import beats
from edgeguardd.kernel.aside import Aside
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.held import boot_id
from edgeguardd.kernel.targets import Targets
from edgeguardd.logs import get_logger
from edgeguardd.recalled import Appeared, Entry, Killed, Leveled, RunRecord, Sent, Spent, TargetRecord, quoted
from edgeguardd.state import StateDirectory
from edgeguardd.statelock import StateLock

# A thousand subscribers with four commands each.
MAX_RECORD_BYTES: Final = 8 << 20
# systemd's name for the service's directory in memory: there a write waits for no disk. Else the state directory.
RUNTIME_VARIABLE: Final = "RUNTIME_DIRECTORY"

# How soon what has changed is in a record; until then it is in the journal.
SAVE_S: Final = 0.25
# After a record that could not be written.
RETRY_S: Final = 5.0
# A sign of life while there is something that a short absence must not lose.
ALIVE_S: Final = 5.0
# How long the last records may take to be written when the daemon stops.
CLOSE_S: Final = 2.0
# What is held at rest is kept when it has moved by this part of it.
LEARNED_PART: Final = 64
MAX_FAULTS: Final = 8

Record = tuple[str, str, Struct]

log = get_logger()


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


class Keeper:
    """Keeps for one engine. `epoch` is the last run's where that goes on."""

    def __init__(
        self,
        lock: StateLock,
        root: CgroupRoot,
        engine: Engine,
        targets: Targets,
        loop: asyncio.AbstractEventLoop,
        on_fault: Callable[[str], None],
    ) -> None:
        """Read what there is; nothing of it is fatal. The lock stays its owner's, to release."""
        directory = lock.directory
        self.stats = KeeperStats(directory)
        self._lock = lock
        self._on_fault = on_fault
        self.state = StateDirectory(directory, self._say, MAX_RECORD_BYTES, lambda: _refuse_anothers(lock))
        self._engine = engine
        self._targets = targets
        self._loop = loop
        self._encode = msgspec.json.Encoder().encode
        self._static: dict[str, int] = {}
        self._dirty: set[str] = set()
        self._gone: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._alive: asyncio.TimerHandle | None = None
        self._writing: Aside[None] | None = None
        self._started = False
        # Another daemon's state is read, and left alone.
        self._closed = lock.elsewhere
        if lock.elsewhere:
            self.stats.failing = True
            self._say(
                f"cannot keep state in {directory}: another edgeguardd does; set state_directory; "
                "until then no limit is lifted, nothing is frozen, and a restart forgets levels and commands"
            )
        self._boot_id = self._read_boot_id()
        self._journal = self._open_journal(directory)
        read = self._journal.read if self._journal is not None else lambda _: Found()
        self._recalled = recalled.recall(self.state, read, root, self._boot_id, loop.time(), self._say)
        self.epoch = self._recalled.epoch
        self._entries = self._recalled.last_entry
        if not self._can_write():
            self._recalled = recalled.without_numbers(self._recalled)
            self.epoch = self._recalled.epoch
        if self._journal is not None:
            self._journal.own(self.epoch)

    # Life

    def recall(self, emit: Callable[[StateRecalled], None]) -> None:
        """Tell the engine what goes on, and the log what does not. Call it before anything is guarded."""
        was, stats = self._recalled, self.stats
        stats.continued, stats.away_s = was.continued, was.away_s
        stats.recalled_targets = sum(1 for kept in was.event.targets if kept.announced > Level.NORMAL)
        stats.recalled_commands = sum(len(s.commands) for kept in was.event.targets for s in kept.subscribers)
        for one in was.dropped:
            log.warning("state_dropped", target=one.target, level=one.level.word, outstanding=one.commands, why=one.why)
        log.info(
            "state_read",
            epoch=was.epoch,
            continued=was.continued,
            away_s=None if was.away_s is None else round(was.away_s, 3),
            targets=len(was.event.targets),
            outstanding=stats.recalled_commands,
        )
        self._targets.expect(was.standing)
        emit(was.event)

    def guard_again(self, policy: Policy) -> None:
        """What subscribers had brought is guarded as before, until they had time to come back."""
        for path in self._recalled.dynamic:
            try:
                name = self._targets.guard_peer(path, policy)
            except EdgeguardError as error:
                self._say(str(error))
            else:
                self._loop.call_later(self._recalled.event.wait_s, self._targets.release_peer, name)

    def start(self) -> None:
        """All that is guarded is known: write it down before anybody is let in."""
        self._started = True
        if self._closed:
            return
        self._save_now()
        self._alive = self._loop.call_at(beats.due(self._loop.time(), ALIVE_S), self._say_alive)
        self._loop.call_later(2 * self._recalled.event.wait_s, self._forget_unknown)

    def close(self) -> None:
        """Write everything down a last time. What happens from here on is only the daemon's going."""
        self._closed = True
        for timer in (self._timer, self._alive):
            if timer is not None:
                timer.cancel()
        until = time.monotonic() + CLOSE_S
        while self._writing is not None and not self._writing.ended and time.monotonic() < until:
            time.sleep(0.001)
        if self._started and not self._lock.elsewhere:
            self._save_now(exact=True)
        if self._journal is not None:
            self._journal.close()

    # On the way of every event

    def note(self, event: Event, effects: Iterable[Effect], now: float) -> None:
        """The engine has decided, and nobody has heard of it yet."""
        if self._closed:
            return
        told: list[Entry] = []
        for effect in effects:
            match effect:
                case Deliver():
                    self._note_sent(effect, told)
                case AnnounceLevel():
                    self._note_level(effect, told)
                case CommandEnded():
                    self._dirty.add(effect.target)
                case _:
                    pass
        self._note_event(event, told)
        if told and self._journal is not None:
            self._journal.write([self._encode(entry) for entry in told], now)
        if self._dirty or self._gone:
            self._save_later(SAVE_S)

    def _note_event(self, event: Event, told: list[Entry]) -> None:
        match event:
            case SampleTaken():
                self._note_learned(event.sample.target)
            case CountersMoved() if event.local and event.delta.oom_kill:
                self._note_kills(event.target, told)
            case KillsWhileAway():
                self._note_kills(event.target, told)
            case CgroupAppeared():
                self._note_cgroup(event.target, told)
            case SubscriberJoined() if event.target is not None:
                self._dirty.add(event.target)
            case SubscriberLeft():
                self._dirty |= {name for name, target in self._engine.targets.items() if target.ledger.rung}
            case TargetDropped():
                self._static.pop(event.target, None)
                self._gone.add(event.target)
            case _:
                pass

    def _note_sent(self, order: Deliver, told: list[Entry]) -> None:
        target = self._engine.targets.get(order.command.target)
        self.stats.told_again += order.again
        if order.again:
            return
        if target is None:
            # The last that is said of a target that was dropped: its number is one command's all the same.
            told.append(Spent(self._next(), order.command.target, order.command.seq))
            return
        one = target.ledger.outstanding.get(order.command.seq)
        to = target.ledger.subscribers.get(order.subscriber)
        # One that was superseded by the next in the same breath is owed to nobody.
        if one is not None and to is not None:
            told.append(Sent(self._next(), target.name, to.name, to.pid, target.ledger.rung, resume.kept_command(one)))
        else:
            told.append(Spent(self._next(), target.name, order.command.seq))
        self._dirty.add(target.name)

    def _note_level(self, change: AnnounceLevel, told: list[Entry]) -> None:
        target = self._engine.targets.get(change.target)
        if target is not None:
            gauge, rung = target.gauge, target.ledger.rung
            told.append(
                Leveled(self._next(), target.name, gauge.level, gauge.reason, target.level, target.reason, rung)
            )
            self._dirty.add(target.name)

    def _note_kills(self, name: str, told: list[Entry]) -> None:
        told.append(Killed(self._next(), name, self._targets.standing(name).kills or 0))
        self._dirty.add(name)

    def _note_cgroup(self, name: str, told: list[Entry]) -> None:
        target = self._engine.targets.get(name)
        if target is not None:
            at = self._targets.standing(name)
            told.append(Appeared(self._next(), name, quoted(at.path), target.path, at.inode, at.kills, at.dynamic))
            self._dirty.add(name)

    def _note_learned(self, name: str) -> None:
        target = self._engine.targets.get(name)
        learned = None if target is None else target.gauge.learned_static_bytes
        known = self._static.get(name)
        if learned is not None and (known is None or abs(learned - known) * LEARNED_PART > known):
            self._static[name] = learned
            self._dirty.add(name)

    def _next(self) -> int:
        self._entries += 1
        return self._entries

    # Records

    def _save_later(self, within_s: float) -> None:
        if self._started and self._timer is None and self._writing is None:
            self._timer = self._loop.call_later(within_s, self._save)

    def _save(self) -> None:
        """Off the path: in a thread, since a disk may stand still just when memory is short."""
        self._timer = None
        names, self._dirty = self._dirty, set()
        gone, self._gone = self._gone, set()
        records = self._records(names)
        if self._journal is not None:
            self._journal.turn(self._loop.time())
        self._writing = Aside(lambda: self._write_aside(names, gone, records))

    def _write_aside(self, names: set[str], gone: set[str], records: Sequence[Record]) -> None:
        fault: str | None = None
        try:
            self._write(records)
            for name in gone - names:
                self.state.remove(recalled.TARGET_KIND, name)
        except EdgeguardError as error:
            fault = str(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and close() has written everything
            self._loop.call_soon_threadsafe(self._written, names, gone, fault)

    def _written(self, names: set[str], gone: set[str], fault: str | None) -> None:
        self._writing = None
        if self._closed:
            return
        if fault is None:
            self._settled()
        else:
            self._failed(fault)
            self._dirty |= names
            self._gone |= gone
        if self._dirty or self._gone:
            self._save_later(SAVE_S if fault is None else RETRY_S)

    def _save_now(self, *, exact: bool = False) -> None:
        """Everything, in place: at the start and at the end, when nobody waits for anything."""
        try:
            self._write(self._records(self._engine.targets, exact=exact))
        except EdgeguardError as error:
            self._failed(str(error))
            self._dirty.update(self._engine.targets)
            self._save_later(RETRY_S)
            return
        self._dirty.clear()
        if self._journal is not None:
            self._journal.turn(self._loop.time())
        self._settled()

    def _write(self, records: Iterable[Record]) -> None:
        for kind, key, record in records:
            self.state.save(kind, key, record, durable=False)

    def _records(self, names: Iterable[str], *, exact: bool = False) -> list[Record]:
        """The run's own first: a number that a target's record holds is not given again, though the rest be missing."""
        targets = [self._engine.targets[name] for name in names if name in self._engine.targets]
        found: list[Record] = [(recalled.TARGET_KIND, target.name, self._record(target)) for target in targets]
        return [(recalled.RUN_KIND, recalled.RUN_KIND, self._run(exact=exact)), *found]

    def _record(self, target: Target) -> TargetRecord:
        at = self._targets.standing(target.name)
        return TargetRecord(
            self._boot_id,
            self.epoch,
            self._loop.time(),
            self._entries,
            quoted(at.path),
            at.inode,
            at.kills,
            at.dynamic,
            resume.keep(target),
        )

    def _run(self, *, exact: bool) -> RunRecord:
        last_seq = self._engine.numbers.last
        if self._journal is None and not exact:
            last_seq += recalled.SKIPPED_NUMBERS
        machine = resume.keep_machine(self._engine.machine)
        return RunRecord(self._boot_id, self.epoch, self._loop.time(), last_seq, machine, __version__)

    # What is in the way

    def _settled(self) -> None:
        self.stats.failing = False
        if self._journal is not None:
            self._journal.settle()

    def _failed(self, fault: str) -> None:
        if not self.stats.failing:
            self.stats.failing = True
            self._say(f"{fault}; until then a restart may forget levels and commands")

    def _say(self, sentence: str) -> None:
        if sentence not in self.stats.faults:
            if len(self.stats.faults) < MAX_FAULTS:
                self.stats.faults.append(sentence)
            self._on_fault(sentence)

    def _read_boot_id(self) -> str:
        try:
            return boot_id()
        except EdgeguardError as error:
            self._say(str(error))
            return ""

    def _open_journal(self, directory: str) -> Journal | None:
        """In memory where systemd gives a place for it, else beside the records."""
        if self._closed:
            return None
        places = [place for place in (os.environ.get(RUNTIME_VARIABLE, "").partition(":")[0], directory) if place]
        fault = ""
        for place in places:
            try:
                return Journal(place, self._say)
            except JournalError as error:
                fault = str(error)
        self._say(fault)
        return None

    def _can_write(self) -> bool:
        """Whether numbers can go on: a record that stays old would let a later run give them once more."""
        if self._closed:
            return False
        try:
            self._write([(recalled.RUN_KIND, recalled.RUN_KIND, self._first_run())])
        except EdgeguardError as error:
            self._failed(str(error))
            return False
        return True

    def _first_run(self) -> RunRecord:
        event = self._recalled.event
        return RunRecord(self._boot_id, self.epoch, self._loop.time(), event.last_seq, event.machine, __version__)

    # Time

    def _say_alive(self) -> None:
        """What has not changed for long is not old: the next run wants to know for how long nobody was there."""
        targets = self._engine.targets.values()
        if self._journal is not None and any(t.level > Level.NORMAL or t.ledger.rung for t in targets):
            self._journal.alive(self._loop.time())
        self._alive = self._loop.call_at(beats.due(self._loop.time(), ALIVE_S), self._say_alive)

    def _forget_unknown(self) -> None:
        """Records of targets that nobody guards any more."""
        if not self._closed:
            self._gone |= {kept.name for kept in self._recalled.event.targets} - set(self._engine.targets)
            self._save_later(SAVE_S)


def _refuse_anothers(lock: StateLock) -> None:
    """Raises StateError for another daemon's directory. One that cannot be locked is tried nevertheless."""
    if lock.elsewhere:
        lock.require()
