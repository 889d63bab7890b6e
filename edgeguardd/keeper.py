"""What outlives the daemon, written down as it changes and read at the next start: levels, commands, numbers, counters.

    engine's effects ──journalled──▶ journal (before anybody hears of it) ──soon──▶ records, in a thread
    records + journal ──recalled──▶ StateRecalled, baselines of counters ──▶ engine, targets

Must not: decide, hold up a command for a disk, be fatal. Upstream: journal, journalled, records, recalled. Downstream:
dispatch, daemon. Why so, and what a kill -9 at each point means: docs/adr/0017.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from edgeguardd import __version__, recalled
from edgeguardd.core.config import Policy
from edgeguardd.core.effects import Effect
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import Event, StateRecalled
from edgeguardd.core.model import Level
from edgeguardd.errors import EdgeguardError
from edgeguardd.journal import Found, Journal, JournalError
from edgeguardd.journalled import Entries
from edgeguardd.keeperstats import Faults, KeeperStats
from edgeguardd.kernel import beats
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.held import boot_id
from edgeguardd.kernel.targets import Targets
from edgeguardd.logs import get_logger
from edgeguardd.recalled import Recalled, RunRecord
from edgeguardd.records import Records, Snapshot
from edgeguardd.state import StateDirectory, StateError
from edgeguardd.statelock import StateLock

# A thousand subscribers with four commands each.
MAX_RECORD_BYTES: Final = 8 << 20
# systemd's name for the service's directory in memory: there a write waits for no disk. Else the state directory.
RUNTIME_VARIABLE: Final = "RUNTIME_DIRECTORY"
# A sign of life while there is something that a short absence must not lose.
ALIVE_S: Final = 5.0

LOST: Final = "cannot find {} any more: it was removed or replaced under the running daemon; it is made again"

log = get_logger()


class Keeper:
    """Keeps for one engine. `epoch` is the last run's where that goes on.

    on_made_again  called when the directory had to be made again, for what others have in it
    """

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
        self.stats = KeeperStats(lock.directory)
        self._faults = Faults(self.stats, on_fault)
        self.state = StateDirectory(lock.directory, self._faults.say, MAX_RECORD_BYTES, lambda: _refuse_anothers(lock))
        self.on_made_again: list[Callable[[], None]] = []
        self._missing = False
        self._lock = lock
        self._engine = engine
        self._targets = targets
        self._loop = loop
        self._encode = msgspec.json.Encoder().encode
        self._alive: asyncio.TimerHandle | None = None
        # Another daemon's state is read, and left alone.
        self._anothers = self._closed = lock.elsewhere
        if self._anothers:
            self.stats.failing = True
            self._faults.say(
                f"cannot keep state in {lock.directory}: another edgeguardd does; set state_directory, or "
                "restart this one once that one has ended; until then no limit is lifted, nothing is frozen, and a "
                "restart forgets levels and commands"
            )
        boot = _read_boot_id(self._faults.say)
        self._journal = None if self._anothers else self._open_journal()
        read = self._journal.read if self._journal is not None else lambda *_: Found(overflowed=True)
        was = recalled.recall(self.state, read, root, boot, loop.time(), self._faults.say)
        self._own(was.epoch)
        self._recalled = was if self._can_write(was, boot) else recalled.without_numbers(was)
        self.epoch = self._recalled.epoch
        self._own(self.epoch)
        self._entries = Entries(engine, targets, was.last_entry)
        snapshot = Snapshot(boot, self.epoch, engine, targets)
        self._records = Records(
            self.state, self._journal, self._entries, snapshot, loop, self._faults, self._look_after_place
        )

    @property
    def settled(self) -> bool:
        """Whether everything that is kept is in a record."""
        return self._records.settled

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
                self._faults.say(str(error))
            else:
                self._loop.call_later(self._recalled.event.wait_s, self._targets.release_peer, name)

    def start(self) -> None:
        """All that is guarded is known: write it down before anybody is let in."""
        if self._closed:
            return
        self._records.start()
        self._alive = self._loop.call_at(beats.due(self._loop.time(), ALIVE_S), self._say_alive)
        self._loop.call_later(2 * self._recalled.event.wait_s, self._forget_unknown)

    def note(self, event: Event, effects: Iterable[Effect], now: float) -> None:
        """The engine has decided, and nobody has heard of it yet."""
        if self._closed:
            return
        told = self._entries.of(event, effects)
        self.stats.told_again = self._entries.told_again
        if told and self._journal is not None:
            self._journal.write([self._encode(entry) for entry in told], now)
        self._records.save_soon()

    def close(self) -> None:
        """Write everything down a last time. What happens from here on is only the daemon's going."""
        self._closed = True
        if self._alive is not None:
            self._alive.cancel()
        self._records.close()
        if self._journal is not None:
            self._journal.close()

    def _say_alive(self) -> None:
        """What has not changed for long is not old: the next run wants to know for how long nobody was there."""
        self._look_after_place()
        if self._closed:
            return
        targets = self._engine.targets.values()
        if self._journal is not None and any(t.level > Level.NORMAL or t.ledger.rung for t in targets):
            self._journal.alive(self._loop.time())
        self._alive = self._loop.call_at(beats.due(self._loop.time(), ALIVE_S), self._say_alive)

    def _look_after_place(self) -> None:
        """The directory may have been removed, or another one put in its place: what was in it is written again."""
        try:
            self._missing |= self._lock.renew()
            if self._missing:
                self._faults.failed(LOST.format(self._lock.directory))
                self.state.make()
                self._lock.renew()
        except StateError as error:  # the next look comes with the next record, or sign of life
            self._faults.say(str(error))
        if self._lock.elsewhere:
            self._give_up()
            return
        back = self._missing and self._lock.held
        if back or self._look_after_journal():
            self._entries.changed |= set(self._engine.targets)
            self._records.save_soon(0)
        if back:
            self._missing = False
            for tell in self.on_made_again:
                tell()

    def _look_after_journal(self) -> bool:
        """Whether it was made again, empty: all that is known has to be written down."""
        if self._journal is not None:
            return self._journal.renew()
        self._journal = self._records.journal = self._open_journal()
        if self._journal is None:
            return False
        self._journal.take(self.epoch)
        return True

    def _open_journal(self) -> Journal | None:
        """In memory where systemd gives a place for it, else beside the records."""
        places = [os.environ.get(RUNTIME_VARIABLE, "").partition(":")[0], self._lock.directory]
        fault = ""
        for place in filter(None, places):
            try:
                return Journal(place, self._faults.say, self._faults.failed)
            except JournalError as error:
                fault = str(error)
        self._faults.failed(fault)
        return None

    def _own(self, epoch: str) -> None:
        if self._journal is not None:
            self._journal.own(epoch)

    def _give_up(self) -> None:
        """Another daemon has made the directory anew before this one, and keeps its own there."""
        self._faults.failed(f"cannot keep state in {self._lock.directory}: another edgeguardd does; restart this one")
        self._anothers = self._closed = True
        self._records.abandon()

    def _forget_unknown(self) -> None:
        """Records of targets that nobody guards any more."""
        self._entries.gone |= {kept.name for kept in self._recalled.event.targets} - set(self._engine.targets)
        if self._entries.gone:
            self._records.save_soon()

    def _can_write(self, was: Recalled, boot: str) -> bool:
        """Whether numbers can go on: a record that stays old would let a later run give them once more."""
        if self._anothers:
            return False
        turn = 0 if self._journal is None else self._journal.latest_turn
        run = RunRecord(boot, was.epoch, self._loop.time(), was.event.last_seq, was.event.machine, __version__, turn)
        try:
            self.state.save(recalled.RUN_KIND, recalled.RUN_KIND, run, durable=False)
        except EdgeguardError as error:
            self._faults.failed(str(error))
            return False
        return True


def _read_boot_id(say: Callable[[str], None]) -> str:
    try:
        return boot_id()
    except EdgeguardError as error:
        say(str(error))
        return ""


def _refuse_anothers(lock: StateLock) -> None:
    """Raises StateError for another daemon's directory. One that cannot be locked is tried nevertheless."""
    if lock.elsewhere:
        lock.require()
