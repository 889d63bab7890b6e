"""The records of what outlives the daemon: one for the run, one a target, as the engine is now; written in a thread.

Must not: decide, hold up the loop for a disk. Upstream: keeper, journalled (whose are old). Downstream: state, and the
journal, whose lines are settled once they are in a record.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from edgeguardd import __version__, recalled
from edgeguardd.core import resume
from edgeguardd.core.engine import Engine
from edgeguardd.core.target import Target
from edgeguardd.errors import EdgeguardError
from edgeguardd.journal import Journal
from edgeguardd.journalled import Entries
from edgeguardd.keeperstats import Faults
from edgeguardd.kernel.aside import Aside
from edgeguardd.kernel.targets import Targets
from edgeguardd.recalled import RunRecord, TargetRecord, quoted
from edgeguardd.state import StateDirectory

# How soon what has changed is in a record; until then it is in the journal.
SAVE_S: Final = 0.25
# After a record that could not be written.
RETRY_S: Final = 5.0
# How long the last records may take to be written when the daemon stops.
CLOSE_S: Final = 2.0

Record = tuple[str, str, Struct]


class Snapshot:
    """What the records of one run say, as of now."""

    def __init__(self, boot_id: str, epoch: str, engine: Engine, targets: Targets) -> None:
        self._engine = engine
        self._boot_id = boot_id
        self._epoch = epoch
        self._targets = targets

    def names(self) -> set[str]:
        """Of all targets."""
        return set(self._engine.targets)

    def of(self, names: Iterable[str], last_entry: int, now: float, *, turn: int, exact: bool = False) -> list[Record]:
        """The run's own first: a number that a target's record holds is not given again, though the rest be missing.

        `turn`: the journal's; 0 for none. `exact`: nothing is told any more.
        """
        targets = [self._engine.targets[name] for name in names if name in self._engine.targets]
        found: list[Record] = [(recalled.TARGET_KIND, one.name, self._target(one, last_entry, now)) for one in targets]
        return [(recalled.RUN_KIND, recalled.RUN_KIND, self._run(now, turn, exact)), *found]

    def _target(self, target: Target, last_entry: int, now: float) -> TargetRecord:
        at = self._targets.standing(target.name)
        return TargetRecord(
            self._boot_id,
            self._epoch,
            now,
            last_entry,
            quoted(at.path),
            at.inode,
            at.kills,
            at.dynamic,
            resume.keep(target),
        )

    def _run(self, now: float, turn: int, exact: bool) -> RunRecord:
        # Without a journal it is not known what was given after the last record: so many more count as given.
        last_seq = self._engine.numbers.last + (0 if exact or turn else recalled.SKIPPED_NUMBERS)
        machine = resume.keep_machine(self._engine.machine)
        # At the end all is in the records: the journal is not needed any more.
        return RunRecord(self._boot_id, self._epoch, now, last_seq, machine, __version__, 0 if exact else turn)


class Records:
    """Writes what is old in `entries`, once it is started and until it is closed."""

    def __init__(
        self,
        state: StateDirectory,
        journal: Journal | None,
        entries: Entries,
        snapshot: Snapshot,
        loop: asyncio.AbstractEventLoop,
        faults: Faults,
        look: Callable[[], None],
    ) -> None:
        """`look` is called before each writing: whether the directory is still there. `journal` may come later."""
        self.journal = journal
        self._look = look
        self._state = state
        self._entries = entries
        self._snapshot = snapshot
        self._loop = loop
        self._faults = faults
        self._timer: asyncio.TimerHandle | None = None
        self._writing: Aside[None] | None = None
        self._started = False
        self._closed = False

    @property
    def settled(self) -> bool:
        """Whether everything that is kept is in a record."""
        return not self._entries.changed and self._timer is None and self._writing is None

    def start(self) -> None:
        """Everything, in place, before anybody is let in."""
        self._started = True
        self._save_now()

    def close(self) -> None:
        """Everything a last time, with numbers as they are."""
        self.abandon()
        until = time.monotonic() + CLOSE_S
        while self._writing is not None and not self._writing.ended and time.monotonic() < until:
            time.sleep(0.001)
        if self._started:
            self._save_now(exact=True)

    def abandon(self) -> None:
        """Write no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def save_soon(self, within_s: float = SAVE_S) -> None:
        """In a while, if anything is old: all that becomes so until then is written with it."""
        old = self._entries.changed or self._entries.gone
        if old and self._started and not self._closed and self._timer is None and self._writing is None:
            self._timer = self._loop.call_later(within_s, self._save)

    def _save(self) -> None:
        """Off the path: in a thread, since a disk may stand still just when memory is short."""
        self._look()
        self._timer = None
        if self._closed:
            return
        entries = self._entries
        names, entries.changed = entries.changed, set()
        gone, entries.gone = entries.gone, set()
        now = self._loop.time()
        records = self._snapshot.of(names, entries.last, now, turn=self._turn(now))
        self._writing = Aside(lambda: self._write_aside(names, gone, records))

    def _write_aside(self, names: set[str], gone: set[str], records: Sequence[Record]) -> None:
        fault: str | None = None
        try:
            self._write(records)
            for name in gone - names:
                self._state.remove(recalled.TARGET_KIND, name)
        except EdgeguardError as error:
            fault = str(error)
        with contextlib.suppress(RuntimeError):  # the loop has ended, and close() has written everything
            self._loop.call_soon_threadsafe(self._written, names, gone, fault)

    def _written(self, names: set[str], gone: set[str], fault: str | None) -> None:
        self._writing = None
        if self._closed:
            return
        if fault is None:
            self._settle()
        else:
            self._faults.failed(fault)
            self._entries.changed |= names
            self._entries.gone |= gone
        self.save_soon(SAVE_S if fault is None else RETRY_S)

    def _save_now(self, *, exact: bool = False) -> None:
        """When nobody waits for anything: at the start and at the end."""
        entries, now = self._entries, self._loop.time()
        turn = self._turn(now)
        try:
            self._write(self._snapshot.of(self._snapshot.names(), entries.last, now, turn=turn, exact=exact))
        except EdgeguardError as error:
            self._faults.failed(str(error))
            entries.changed |= self._snapshot.names()
            self.save_soon(RETRY_S)
            return
        entries.changed.clear()
        self._settle()

    def _write(self, records: Iterable[Record]) -> None:
        for kind, key, record in records:
            self._state.save(kind, key, record, durable=False)

    def _turn(self, now: float) -> int:
        """What is told from here on goes to the journal's other file; which turn that is."""
        if self.journal is None:
            return 0
        self.journal.turn(now)
        return self.journal.latest_turn

    def _settle(self) -> None:
        if self.journal is not None:
            self.journal.settle()
            if self.journal.complete:
                self._faults.ended()
