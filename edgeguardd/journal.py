"""What has been told since the last record was written: lines that survive a kill -9 and cost no more than one write.

    what is told ──write──▶ one of two files, in place; ──turn──▶ the other one, while a record is written; ──settle──▶

Must not: know what an entry means, wait for a disk (no fsync; where it can, it lies in memory), raise. Upstream: one
directory. Downstream: keeper.

Room is taken in advance and lines are written over old ones, so that a disk that has become full stops nobody. Each
file begins with its turn; a line of another turn, or a torn one, ends what is read. Why so: docs/adr/0017.
"""

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from edgeguardd.errors import EdgeguardError

NAMES: Final = ("told-a.journal", "told-b.journal")
# Some 200 commands, far more than are told between two records; it grows where there is room.
ROOM_BYTES: Final = 64 * 1024
MAX_BYTES: Final = 1024 * 1024

_HEADER_BYTES: Final = 40
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class JournalError(EdgeguardError):
    """There is no place for it."""


class Found(Struct, frozen=True):
    """What a run before this one has left: lines in order, when it was last alive (0.0: not known).

    overflowed: there were more, for which there was no room.
    """

    lines: tuple[bytes, ...] = ()
    alive_at: float = 0.0
    overflowed: bool = False


class _File:
    """One of the two. `end`: where the next line goes."""

    def __init__(self, name: str, directory: int) -> None:
        self.fd = os.open(name, _OPEN, 0o600, dir_fd=directory)
        self.turn = 0
        self.end = _HEADER_BYTES
        try:
            _require_ours(os.fstat(self.fd))
        except OSError:
            os.close(self.fd)
            raise
        with contextlib.suppress(OSError):  # what cannot be had now may be had when it is needed
            os.posix_fallocate(self.fd, 0, ROOM_BYTES)

    def read(self) -> tuple[int, float, bool, list[bytes]]:
        """Turn, time, whether it overflowed, lines. Anything that cannot be understood is the end of it."""
        data = os.pread(self.fd, MAX_BYTES, 0)
        try:
            turn, alive_at, over = data[:_HEADER_BYTES].split()
            self.turn = int(turn, 16)
            when = float(alive_at)
        except ValueError:
            self.turn = 0
            return 0, 0.0, False, []
        lines = []
        for line in data[_HEADER_BYTES:].split(b"\n")[:-1]:
            mark, _, text = line.partition(b" ")
            if mark != _mark(self.turn, text):
                break
            lines.append(text)
            self.end += len(line) + 1
        return self.turn, when, over == b"1", lines

    def begin(self, turn: int, alive_at: float) -> None:
        """Empty from here on. Raises OSError."""
        self.stamp(turn, alive_at, over=False)
        self.turn, self.end = turn, _HEADER_BYTES

    def stamp(self, turn: int, alive_at: float, *, over: bool) -> None:
        """Write the first line. Raises OSError."""
        os.pwrite(self.fd, f"{turn:08x} {alive_at:.3f} {over:d}".ljust(_HEADER_BYTES - 1).encode() + b"\n", 0)

    def append(self, texts: Sequence[bytes]) -> None:
        """Add lines. Raises OSError."""
        data = b"".join(_mark(self.turn, text) + b" " + text + b"\n" for text in texts)
        if self.end + len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {MAX_BYTES} bytes, and no record could be written meanwhile")
        os.pwrite(self.fd, data, self.end)
        self.end += len(data)


def _require_ours(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
        raise OSError(errno.EINVAL, "it is no plain file of the daemon's user")


class Journal:
    """The two files. on_fault is told once why what is told is not written down."""

    def __init__(self, path: str, on_fault: Callable[[str], None]) -> None:
        """Raises JournalError."""
        self.path = path
        self.overflowed = False
        self._on_fault = on_fault
        self._said = False
        self._files: list[_File] = []
        try:
            directory = os.open(path, _OPEN_DIRECTORY)
            try:
                found = os.fstat(directory)
                if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
                    raise JournalError(f"cannot use {path}: others may write there; chmod go-w {path}")
                for name in NAMES:
                    self._files.append(_File(name, directory))
            finally:
                os.close(directory)
        except OSError as error:
            self.close()
            raise JournalError(f"cannot write {path}/{NAMES[0]}: {error.strerror}") from None
        except JournalError:
            self.close()
            raise

    def read(self) -> Found:
        """What was told and not settled, in order. Call it first."""
        found = []
        for file in self._files:
            try:
                found.append(file.read())
            except OSError as error:
                self._fault(error)
        found.sort(key=lambda part: part[0])
        self._files.sort(key=lambda file: file.turn, reverse=True)
        if self._files[0].turn == 0:
            with contextlib.suppress(OSError):  # said by write
                self._files[0].begin(1, 0.0)
        lines = tuple(line for part in found for line in part[3])
        return Found(lines, max((part[1] for part in found), default=0.0), any(part[2] for part in found))

    def write(self, texts: Sequence[bytes], now: float) -> None:
        """Write these down. Where that cannot be, it is said once, and marked for whoever reads."""
        try:
            self._files[0].append(texts)
        except OSError as error:
            self._fault(error)
            self.alive(now)

    def alive(self, now: float) -> None:
        """The daemon was there at this time."""
        with contextlib.suppress(OSError):  # said by write
            self._files[0].stamp(self._files[0].turn, now, over=self.overflowed)

    def turn(self, now: float) -> None:
        """A record is about to be written: what comes from here on is not in it. settle() was called for the last."""
        latest, spare = self._files
        try:
            spare.begin(latest.turn + 1, now)
        except OSError as error:
            self._fault(error)
            return
        self._files = [spare, latest]

    def settle(self) -> None:
        """The record is written: what was told before the turn is not needed any more."""
        self.overflowed = self._said = False
        with contextlib.suppress(OSError):  # then it is read, and found in the record
            self._files[1].begin(0, 0.0)

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            os.close(file.fd)
        self._files = []

    def _fault(self, error: OSError) -> None:
        self.overflowed = True
        if not self._said:
            self._said = True
            self._on_fault(f"cannot write {self.path}/{NAMES[0]}: {error.strerror}; make room there")


def _mark(turn: int, text: bytes) -> bytes:
    return b"%08x%08x" % (turn, zlib.crc32(text))
