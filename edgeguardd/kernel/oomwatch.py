"""The running kernel's OOM reports, as they come: /dev/kmsg read in the loop, a little at a time.

Must not: join reports with counters or say anything (oomreports does), import the readers of reports before there is
something to read. Upstream: kernel.kmsg, state. Downstream: daemon.

A position in the state directory keeps a report from being told twice: the boot, the record up to which all is told,
and the last kill that was told. A daemon that starts for the first time in a boot begins at the end of the log.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from edgeguardd.errors import EdgeguardError, KernelError
from edgeguardd.kernel import kmsg
from edgeguardd.kernel.kmsg import Kmsg
from edgeguardd.state import StateDirectory

if TYPE_CHECKING:  # the readers of reports: imported when there is a report
    from edgeguardd.core.oomlog.collector import Collector
    from edgeguardd.core.oomlog.report import Report

STATE_KIND: Final = "kmsg"
# A record takes about 10 µs: so many at once stay well under a millisecond, and what talks without end, as a broken
# driver does, gets 50 turns a second and no more.
BATCH_RECORDS: Final = 64
PAUSE_S: Final = 0.02
# The largest buffer that kernels are built with (16 MiB) holds fewer records; reading one takes 2 µs.
MAX_HISTORY: Final = 200_000
# The reaper's line comes within milliseconds of the kill; nobody waits for this line.
QUIET_S: Final = 0.5
# A log that never rests is told all the same.
PATIENCE_S: Final = 15.0
# Every report of the kernel begins with one of these, or says it in its only line.
BEGINNINGS: Final = (b"oom", b"ut of memory", b"lowmemorykiller")


class Position(Struct, frozen=True):
    """Up to where the log of a boot has been read, and the last kill that was told."""

    boot_id: str
    seq: int
    told: int


class OomWatch:
    """Reads while the daemon runs. `readable` and `lost_records` are for metrics; `why` says what is in the way.

    `on_unread` gets the sentence when the log cannot be read, `on_fault` when the position cannot be kept.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: StateDirectory,
        on_report: "Callable[[Report], None]",
        on_unread: Callable[[str], None],
        on_fault: Callable[[str], None],
        *,
        open_log: Callable[[], Kmsg] = Kmsg.open,
        boot_id: Callable[[], str] = kmsg.boot_id,
    ) -> None:
        self.readable = False
        self.why: str | None = None
        self._loop = loop
        self._state = state
        self._on_report = on_report
        self._on_unread = on_unread
        self._on_fault = on_fault
        self._open_log = open_log
        self._read_boot_id = boot_id
        self._boot_id = ""
        self._log: Kmsg | None = None
        self._collector: Collector | None = None
        self._read_up_to = -1
        self._told = -1
        self._saved: Position | None = None
        self._save_failed = False
        self._pending_since: float | None = None
        self._turn: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None

    @property
    def lost_records(self) -> int:
        """Records that the kernel overwrote before they were read."""
        return 0 if self._log is None else self._log.lost

    def start(self) -> None:
        """Open the log and go on where the daemon before this one stopped; what is in the way is said once."""
        try:
            self._boot_id = self._read_boot_id()
            self._log = self._open_log()
        except KernelError as error:
            self.why = str(error)
            self._on_unread(self.why)
            return
        self.readable = True
        saved = self._state.load(STATE_KIND, kmsg.PATH, Position)
        if saved is not None and saved.boot_id == self._boot_id:
            self._log.last_seq = self._read_up_to = saved.seq
            self._told, self._saved = saved.told, saved
        else:
            # What was in the log before anybody watched is history: `edgeguardctl oom` tells it.
            for _ in self._log.records(MAX_HISTORY):
                pass
            self._read_up_to = -1 if self._log.last_seq is None else self._log.last_seq
            self._save()
        self._loop.add_reader(self._log.fd, self._readable)

    def close(self) -> None:
        """Tell what is there, write the position down, give everything back."""
        log, self._log = self._log, None
        if log is None:
            return
        for timer in (self._turn, self._quiet):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(log.fd)
        self._flush(log)
        log.close()

    def _readable(self) -> None:
        log = self._log
        if log is None:
            return
        # The reader rests until the next turn, so that a flood of records does not become a flood of wake-ups.
        self._loop.remove_reader(log.fd)
        try:
            for record in log.records(BATCH_RECORDS):
                self._feed(record)
        except KernelError as error:
            self.readable, self.why = False, str(error)
            self._on_unread(self.why)
            return
        self._turn = self._loop.call_later(PAUSE_S, self._next_turn)
        if self._collector is not None:
            self._tell(self._collector.take())
        if self._pending_since is not None:
            self._wait_for_quiet(log)

    def _next_turn(self) -> None:
        if self._log is not None:
            self._loop.add_reader(self._log.fd, self._readable)

    def _feed(self, record: bytes) -> None:
        if self._collector is None:
            if not any(word in record for word in BEGINNINGS):
                return
            from edgeguardd.core.oomlog.collector import Collector  # noqa: PLC0415  see above

            self._collector = Collector()
        self._collector.feed(record)
        if self._pending_since is None and self._collector.busy:
            self._pending_since = self._loop.time()

    def _wait_for_quiet(self, log: Kmsg) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        waited_s = self._loop.time() - (self._pending_since or 0.0)
        self._quiet = self._loop.call_later(max(0.0, min(QUIET_S, PATIENCE_S - waited_s)), self._flush, log)

    def _flush(self, log: Kmsg) -> None:
        """Nothing has come for a while: all reports are whole, and all that was read is told."""
        self._pending_since = None
        if self._collector is not None:
            self._tell(self._collector.flush())
        if log.last_seq is not None:
            self._read_up_to = log.last_seq
            self._save()

    def _tell(self, reports: "list[Report]") -> None:
        for report in reports:
            seqs = [victim.when.seq for victim in report.victims if victim.when.seq is not None]
            last = max(seqs, default=report.when.seq if report.when.seq is not None else -1)
            if last <= self._told:
                continue
            # Written down first: a daemon that dies in between rather leaves a line out than says it twice.
            self._told = last
            self._save()
            self._on_report(report)

    def _save(self) -> None:
        position = Position(self._boot_id, self._read_up_to, self._told)
        if position == self._saved:
            return
        self._saved = position
        try:
            self._state.save(STATE_KIND, kmsg.PATH, position, durable=False)
        except EdgeguardError as error:
            if not self._save_failed:
                self._on_fault(f"{error}; until then a restart may tell an OOM report twice")
            self._save_failed = True
