"""The flight recorder: every event on its way into the engine, in memory at once, on disk within five seconds.

    record() --lines--> memory --each second, few lines every fourth, at once at a level's change--> segments --> files

Must not: wait for the disk, raise into the daemon, judge which events matter. Upstream: daemon. Downstream: segments.
What cannot be kept is dropped and counted; then the next segment begins with a fresh checkpoint, so that each segment
replays exactly, whatever is missing between two of them.
"""

import asyncio
import time
from collections.abc import Callable

from msgspec import Struct

from edgeguardd import __version__
from edgeguardd.core import recording
from edgeguardd.core.config import Config
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import ConfigReloaded, Event
from edgeguardd.core.recording import Clock, Header
from edgeguardd.segments import Batch, Begin, Failure, Ring, Writer

# Handed over with the first event that comes so long after the last time, since the daemon is awake then anyway; after
# the latest time without one. A timer of a second would wake it once more for each sample of a quiet target. While a
# daemon at rest has a few lines only, the writer is let sleep for longer: each time wakes two threads.
FLUSH_S = 0.9
FEW_LINES = 8
FEW_S = 3.5
LATEST_S = 5.0
BATCH_BYTES = 128 << 10
# With a disk that stands still: some seconds of a storm, or an hour of one quiet target.
MAX_PENDING_BYTES = 1 << 20
MAX_BACKLOG = 2
# Making a checkpoint costs 0.2 ms a target: not at each event of a daemon that has no directory to write to.
RETRY_S = 30.0
# A wall clock that runs along is off by less than this; a board without a clock of its own jumps by years.
CLOCK_JUMP_S = 1.0
CLOSE_S = 2.0

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class RecorderStats(Struct, frozen=True):
    """written and dropped count events, bytes is what the recordings take on disk, fault why nothing is recorded."""

    written: int = 0
    dropped: int = 0
    bytes: int = 0
    longest_write_s: float = 0.0
    fault: str | None = None


class Recorder:
    """Records for one engine, from before its first event. on_fault is told why it cannot, each reason once."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        run: str,
        on_fault: Callable[[str], None],
        wall_clock: Callable[[], float] = time.time,
        ring: Ring | None = None,
    ) -> None:
        self._config = config
        self._engine = engine
        self._loop = loop
        self._run = run
        self._on_fault = on_fault
        self._wall_clock = wall_clock
        self._boot_id = boot_id()
        self._clock = self._clocks()
        self._segment = -1
        self._lines: list[bytes] = []
        self._pending_bytes = 0
        self._batch_bytes = BATCH_BYTES
        self._dropped = 0
        # Whether events have been lost since the last line: then the next line may only follow a fresh checkpoint.
        self._gap = False
        self._retry_at = 0.0
        self._pending_since = 0.0
        self._flush_at: asyncio.TimerHandle | None = None
        self._flush_now: asyncio.Handle | None = None
        self._urgent = False
        self._told: set[str] = set()
        self._writer: Writer | None = None
        if config.recorder.enabled:
            ring = ring or Ring(config.state_directory, config.recorder.max_bytes)
            self._batch_bytes = min(BATCH_BYTES, ring.max_segment_bytes)
            self._writer = Writer(ring)
            self._begin(self._writer, continuous=False)

    @property
    def stats(self) -> RecorderStats:
        """What became of the events so far."""
        writer = self._writer
        if writer is None:
            return RecorderStats()
        dropped = writer.dropped + self._dropped
        failure = self._failure(writer)
        fault = None if failure is None else failure.sentence
        return RecorderStats(writer.written, dropped, writer.ring.total_bytes, writer.longest_s, fault)

    def record(self, event: Event, now: float) -> None:
        """Take one event that the engine is about to handle, at its time."""
        if self._writer is None:
            return
        if isinstance(event, ConfigReloaded):
            self._config = event.config
        if self._gap:
            self._dropped += 1
            if now >= self._retry_at:
                self.flush_soon(urgent=False)
            return
        line = recording.event_line(event, now)
        if self._pending_bytes + len(line) > MAX_PENDING_BYTES:
            self._gap = True
            self._retry_at = now + FLUSH_S
            self._dropped += 1
            return
        self._lines.append(line)
        self._pending_bytes += len(line)
        if len(self._lines) == 1:
            self._pending_since = now
            if self._flush_now is None:
                self._flush_at = self._loop.call_at(now + LATEST_S, self._flush)
        elif self._pending_bytes >= self._batch_bytes or now - self._pending_since >= self._rest_s():
            self.flush_soon(urgent=False)

    def _rest_s(self) -> float:
        return FEW_S if len(self._lines) < FEW_LINES else FLUSH_S

    def flush_soon(self, *, urgent: bool = True) -> None:
        """Hand over what is there when the present event has been dealt with. urgent: a level has risen."""
        self._urgent |= urgent
        if self._flush_now is None and self._writer is not None:
            self._cancel()
            self._flush_now = self._loop.call_soon(self._flush)

    def begin_anew(self) -> None:
        """The directory was made again: the present segment lies in none. What was handed over for it is gone."""
        if self._writer is not None:
            self._put(self._writer)
            self._begin(self._writer, continuous=False)

    def close(self) -> None:
        """Write what is left and end the segment in order; a disk that hangs is waited for only so long."""
        self._cancel()
        if self._writer is not None:
            self._put(self._writer)
            self._writer.close(CLOSE_S)
            self._writer = None

    def _flush(self) -> None:
        """Between events: the engine has handled all that was recorded, so that this is when segments may change."""
        self._cancel()
        writer = self._writer
        if writer is None:
            return
        failure = self._failure(writer)
        if failure is not None and not self._gap:
            self._give_up(failure)
            return
        if writer.backlog >= MAX_BACKLOG:
            self._flush_at = self._loop.call_later(FLUSH_S, self._flush)
            return
        self._put(writer)
        if self._gap or writer.full == self._segment:
            self._begin(writer, continuous=not self._gap)

    def _put(self, writer: Writer) -> None:
        clock = self._clocks()
        events = len(self._lines)
        if abs(clock.wall_s - self._clock.wall(clock.monotonic_s)) > CLOCK_JUMP_S:
            self._clock = clock
            self._lines.append(recording.clock_line(clock))
        if self._lines:
            writer.put(Batch(b"".join(self._lines), events, self._urgent))
        self._lines.clear()
        self._pending_bytes = 0
        self._urgent = False

    def _begin(self, writer: Writer, *, continuous: bool) -> None:
        self._segment += 1
        self._gap = True
        self._retry_at = self._loop.time() + RETRY_S
        self._clock = self._clocks()
        header = Header(
            recording.FORMAT, __version__, self._run, self._segment, self._boot_id, self._clock, self._config
        )
        writer.put(Begin(self._segment, recording.beginning(header, self._engine), continuous))
        self._gap = False

    def _give_up(self, failure: Failure) -> None:
        """The segment is over; the events since are lost, and so are those until the next attempt."""
        self._gap = True
        self._retry_at = self._loop.time() + RETRY_S
        self._dropped += len(self._lines)
        self._lines.clear()
        self._pending_bytes = 0
        if failure.sentence not in self._told:
            self._told.add(failure.sentence)
            self._on_fault(failure.sentence)

    def _failure(self, writer: Writer) -> Failure | None:
        """Why the present segment was given up, if it was."""
        failure = writer.failure
        return failure if failure is not None and failure.segment == self._segment else None

    def _cancel(self) -> None:
        for handle in (self._flush_at, self._flush_now):
            if handle is not None:
                handle.cancel()
        self._flush_at = self._flush_now = None

    def _clocks(self) -> Clock:
        return Clock(self._wall_clock(), self._loop.time())


def boot_id() -> str | None:
    """Which boot of the machine this is; None: this kernel does not say."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return None
