"""The recorder's files: a ring of segments in a directory, written by a thread of its own.

Must not: know events; be waited for by the event loop. A write can stand still for seconds just when memory is short
(writeback, reclaim, a worn SD card), and that is when the daemon has to be quick: docs/adr/0008.
Upstream: recorder. Downstream: recording-N.jsonl.gz in DIRECTORY/recordings, read by edgeguardctl replay and incidents.
"""

import contextlib
import errno
import os
import queue
import re
import stat
import threading
import time
from collections.abc import Callable
from typing import assert_never

from msgspec import Struct

from edgeguardd.core.recording import Packer

SUBDIRECTORY = "recordings"
SEGMENTS = 8
# What is still on its way when a segment is found full has to fit: three batches, packed.
MARGIN_BYTES = 64 << 10
# A daemon that is started again and again makes a small segment each time; a directory of more is slow to list.
MAX_FILES = 512
# What follows a rise is most worth having after a power cut; the disk is asked for it at most this often.
SYNC_S = 10.0
# The interpreter's own frames do not use it; locked memory (mlockall) would keep all of the usual 8 MiB.
STACK_BYTES = 256 << 10

_NAME = re.compile(r"recording-(\d{8})\.jsonl\.gz")
_BLOCK_BYTES = 4096
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW

_REMEDIES = {
    errno.ENOENT: "make that directory (systemd: StateDirectory=) or set state_directory",
    errno.ENOTDIR: "a part of it is no directory; set state_directory",
    errno.ELOOP: "a symbolic link is not followed here; remove it",
    errno.EACCES: "let the daemon write there, or set state_directory",
    errno.EPERM: "let the daemon write there, or set state_directory",
    errno.EROFS: "set state_directory to a file system that can be written",
    errno.ENOSPC: "make room on that file system",
    errno.EDQUOT: "make room in the quota",
}


def is_segment(name: str) -> bool:
    """Whether a file of this name is one of ours."""
    return _NAME.fullmatch(name) is not None


class Ring:
    """The directory and the segment that is being written. Every method may raise OSError; then the segment is over."""

    def __init__(
        self, directory: str, max_bytes: int, write: Callable[[int, bytes | memoryview], int] = os.write
    ) -> None:
        self.path = os.path.join(directory, SUBDIRECTORY)
        self.segment_bytes = 0
        self.total_bytes = 0
        self._max_bytes = max_bytes
        self.max_segment_bytes = max(_BLOCK_BYTES, max_bytes // SEGMENTS)
        self.full_bytes = self.max_segment_bytes - min(self.max_segment_bytes // 2, MARGIN_BYTES)
        self._directory = directory
        self._write_some = write
        self._fd: int | None = None
        self._packer = Packer()
        self._synced_at = 0.0

    def begin(self, opening: bytes, *, continuous: bool) -> None:
        """Start the next segment; the oldest ones make room. continuous: no event is missing since the last one."""
        if continuous:
            with contextlib.suppress(OSError):  # without its end it counts as not continuous, which is then the truth
                self.finish()
        self.close()
        self._packer = Packer()
        packed = self._packer.add(opening)
        if len(packed) > self.max_segment_bytes // 2:
            raise OSError(errno.EFBIG, f"the state takes {len(packed)} of {self.max_segment_bytes} bytes of a segment")
        directory_fd = self._open_directory()
        try:
            number, self.total_bytes = self._make_room(directory_fd)
            name = f"recording-{number:08}.jsonl.gz"
            self._fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=directory_fd)
            self.segment_bytes = 0
            try:
                self._write(self._fd, packed)
            except OSError:
                # Attempts at a full disk must not fill the ring with empty files.
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory_fd)
                raise
        finally:
            _let_go(directory_fd)

    def append(self, lines: bytes, *, sync: bool) -> None:
        """Add lines. sync: ask the disk to keep them now, if it was not asked a moment ago."""
        if self._fd is None:
            raise OSError(errno.EBADF, "no segment is open")
        self._write(self._fd, self._packer.add(lines))
        if sync and time.monotonic() - self._synced_at >= SYNC_S:
            self._synced_at = time.monotonic()
            os.fdatasync(self._fd)

    def finish(self) -> None:
        """End the segment in order."""
        if self._fd is not None:
            self._write(self._fd, self._packer.end())
        self.close()

    def close(self) -> None:
        """Let go of the segment as it is."""
        fd, self._fd = self._fd, None
        if fd is not None:
            # Also when this fails the descriptor is gone (close(2)): a second time would close somebody else's.
            os.close(fd)

    def _write(self, fd: int, packed: bytes) -> None:
        """All of it or nothing: what a full disk took of it is cut off again, so that the rest stays readable."""
        if self.segment_bytes + len(packed) > self.max_segment_bytes:
            raise OSError(errno.EFBIG, f"more than {self.max_segment_bytes} bytes came at once")
        done = 0
        try:
            while done < len(packed):
                done += self._write_some(fd, memoryview(packed)[done:])
        except OSError:
            with contextlib.suppress(OSError):  # the reader passes over a torn end as well
                os.ftruncate(fd, self.segment_bytes)
            raise
        self.segment_bytes += done
        self.total_bytes += done

    def _open_directory(self) -> int:
        state_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(SUBDIRECTORY, 0o700, dir_fd=state_fd)
            return os.open(SUBDIRECTORY, os.O_RDONLY | os.O_DIRECTORY | _OPEN, dir_fd=state_fd)
        finally:
            _let_go(state_fd)

    def _make_room(self, directory_fd: int) -> tuple[int, int]:
        """Remove the oldest segments until a full one fits. Returns the next number and the bytes that are kept."""
        found = sorted(name for name in os.listdir(directory_fd) if is_segment(name))
        sizes = {name: _size(name, directory_fd) for name in found}
        room = self._max_bytes - self.max_segment_bytes
        kept_bytes = sum(sizes.values())
        for name in found:
            if kept_bytes <= room and len(sizes) < MAX_FILES:
                break
            os.unlink(name, dir_fd=directory_fd)
            kept_bytes -= sizes.pop(name)
        match = _NAME.fullmatch(found[-1]) if found else None
        return (int(match[1]) + 1 if match else 1), kept_bytes


def _let_go(directory_fd: int) -> None:
    """Close a directory. Nothing was written through it that could be lost; failing closes it as well (close(2))."""
    with contextlib.suppress(OSError):
        os.close(directory_fd)


class Begin(Struct, frozen=True):
    """Start segment number `segment` of this run with these lines."""

    segment: int
    opening: bytes
    continuous: bool


class Batch(Struct, frozen=True):
    """So many events as lines. urgent: a level has risen."""

    lines: bytes
    events: int
    urgent: bool


class Failure(Struct, frozen=True):
    """Why a segment of this run was given up, as one sentence."""

    segment: int
    sentence: str


class Writer:
    """The thread. Figures are written by it alone and may be read by anyone.

    failure is the last one, if any; full the last segment of this run that has been filled, -1 before.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.failure: Failure | None = None
        self.full = -1
        self.written = 0
        self.dropped = 0
        self.longest_s = 0.0
        self._segment = -1
        self._given = self._done = 0
        self._orders: queue.SimpleQueue[Begin | Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="edgeguardd-recorder", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(before)

    def put(self, order: Begin | Batch) -> None:
        """Queue an order; never waits."""
        self._given += 1
        self._orders.put(order)

    @property
    def backlog(self) -> int:
        """Orders that have not been carried out."""
        return self._given - self._done

    def close(self, wait_s: float) -> bool:
        """End the segment in order. False: the disk did not answer in time, and the thread is left behind."""
        self._orders.put(None)
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            began = time.monotonic()
            try:
                self._carry_out(order)
            except OSError as error:
                self._give_up(error)
            self._done += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        try:
            self.ring.finish()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        # What fails a write may fail the closing as well, and there is nothing more to be told by that.
        with contextlib.suppress(OSError):
            self.ring.close()
        self.failure = Failure(self._segment, self._sentence(error))

    def _carry_out(self, order: Begin | Batch) -> None:
        match order:
            case Begin():
                self._segment = order.segment
                self.ring.begin(order.opening, continuous=order.continuous)
            case Batch():
                if self.failure is not None and self.failure.segment == self._segment:
                    self.dropped += order.events
                    return
                try:
                    self.ring.append(order.lines, sync=order.urgent)
                except OSError:
                    self.dropped += order.events
                    raise
                self.written += order.events
                if self.ring.segment_bytes >= self.ring.full_bytes:
                    self.full = self._segment
            case _:
                assert_never(order)

    def _sentence(self, error: OSError) -> str:
        remedy = _REMEDIES.get(error.errno or 0, "see errno(3)")
        return f"cannot record events in {self.ring.path}: {error.strerror}; {remedy}"


def _size(name: str, directory_fd: int) -> int:
    """What a file takes of the disk, roughly: whole blocks."""
    found = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    size = found.st_size if stat.S_ISREG(found.st_mode) else 0
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
