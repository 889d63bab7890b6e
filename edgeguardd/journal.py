"""What has been told since the last record was written: lines that survive a kill -9 and cost no more than one write.

    what is told ──write──▶ one of two files, in place; ──turn──▶ the other one, while a record is written; ──settle──▶

Must not: know what an entry means, wait for a disk (no fsync; where it can, it lies in memory), raise. Upstream: one
directory. Downstream: keeper.

Room is taken in advance and lines are written over old ones, so that a disk that has become full stops nobody. Each
file begins with its turn and the epoch whose numbers it holds; a line of another turn, or a torn one, ends what is
read, and a file of another epoch, as from another state directory, is not read at all. A death leaves a file with its
first line, and whole lines up to the last one: anything else is damage, and put aside. Why so: docs/adr/0017.
"""

import contextlib
import errno
import os
import re
import stat
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from edgeguardd.errors import EdgeguardError
from edgeguardd.ownfiles import DAMAGED, anothers, is_at, unseen

NAMES: Final = ("told-a.journal", "told-b.journal")
# Some 200 commands, far more than are told between two records; it grows where there is room.
ROOM_BYTES: Final = 64 * 1024
MAX_BYTES: Final = 1024 * 1024

_HEADER_BYTES: Final = 80
# Turn, when it was last alive, whether it overflowed, epoch.
_HEADER: Final = re.compile(rb"([0-9a-f]{8,}) ([0-9]+\.[0-9]{3}) ([01]) ([!-~]+) *\n")
# In place of an epoch, in a file that has just been made.
_NOBODYS: Final = "-"
_HEADLESS: Final = "it does not begin as a journal does"
_TORN: Final = "lines in the middle of it are damaged"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class JournalError(EdgeguardError):
    """There is no place for it."""


class Found(Struct, frozen=True):
    """What a run before this one has left: lines in order, when it was last alive (0.0: not known).

    overflowed: there were more, or may have been: no room, another epoch took it, or it is damaged.
    strange: there were lines of another epoch.
    """

    lines: tuple[bytes, ...] = ()
    alive_at: float = 0.0
    overflowed: bool = False
    strange: bool = False


class _Part(Struct):
    """What one of the two files holds. damage: why it cannot be all; that it ends in the middle of a line is none."""

    turn: int = 0
    alive_at: float = 0.0
    overflowed: bool = False
    lines: list[bytes] = []
    damage: str | None = None


class _File:
    """One of the two. `end`: where the next line goes."""

    def __init__(self, name: str, directory: int) -> None:
        self.name = name
        self.fd = os.open(name, _OPEN, 0o600, dir_fd=directory)
        self.turn = 0
        self.epoch = ""
        self.end = _HEADER_BYTES
        try:
            found = os.fstat(self.fd)
            _require_ours(found)
        except (OSError, _StrangeError):
            os.close(self.fd)
            raise
        with contextlib.suppress(OSError):  # what cannot be had now may be had when it is needed
            if not found.st_size:  # first, so that zeros alone are never what a death has left
                self.stamp(0, 0.0, over=False)
            os.posix_fallocate(self.fd, 0, ROOM_BYTES)

    def read(self, epoch: str) -> _Part:
        """What it holds, up to where it cannot be understood. `epoch`: of the run that goes on, empty for none.

        Where none goes on, the machine may have gone without power: of what was written anything may be missing.
        """
        data = os.pread(self.fd, MAX_BYTES, 0)
        head = data[:_HEADER_BYTES]
        found = _HEADER.fullmatch(head)
        if found is None:
            self.turn, self.epoch = 0, ""
            return _Part(damage=_HEADLESS if epoch or any(head) else None)
        turn, alive_at, over, owner = (field.decode("ascii") for field in found.groups())
        part = _Part(int(turn, 16), float(alive_at), over == "1")
        self.turn, self.epoch = part.turn, "" if owner == _NOBODYS else owner
        lines = data[_HEADER_BYTES:].split(b"\n")[:-1]
        for line in lines:
            if not self._is_own(line):
                break
            part.lines.append(line.partition(b" ")[2])
            self.end += len(line) + 1
        behind = lines[len(part.lines) + 1 :]
        if epoch and self.epoch == epoch and any(self._is_own(line) for line in behind):
            part.damage = _TORN
        return part

    def _is_own(self, line: bytes) -> bool:
        """Whether it is a whole line of this turn."""
        mark, _, text = line.partition(b" ")
        return mark == _mark(self.turn, self.epoch, text)

    def begin(self, turn: int, epoch: str, alive_at: float) -> None:
        """Empty from here on, and this epoch's. Raises OSError."""
        self.epoch = epoch
        self.stamp(turn, alive_at, over=False)
        self.turn, self.end = turn, _HEADER_BYTES

    def stamp(self, turn: int, alive_at: float, *, over: bool) -> None:
        """Write the first line. Raises OSError."""
        header = f"{turn:08x} {alive_at:.3f} {over:d} {self.epoch or _NOBODYS}".encode()[: _HEADER_BYTES - 1]
        os.pwrite(self.fd, header.ljust(_HEADER_BYTES - 1) + b"\n", 0)

    def append(self, texts: Sequence[bytes]) -> None:
        """Add lines. Raises OSError."""
        data = b"".join(_mark(self.turn, self.epoch, text) + b" " + text + b"\n" for text in texts)
        if self.end + len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {MAX_BYTES} bytes, and no record could be written meanwhile")
        os.pwrite(self.fd, data, self.end)
        self.end += len(data)


class _StrangeError(Exception):
    """This file is none of ours; the text says why."""


def _require_ours(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _StrangeError("it is no plain file")
    if (why := anothers(found)) is not None:
        raise _StrangeError(why)


class Journal:
    """The two files. on_fault is told once why what is told is not written down."""

    def __init__(self, path: str, on_fault: Callable[[str], None]) -> None:
        """Raises JournalError."""
        self.path = path
        self.overflowed = False
        self._on_fault = on_fault
        self._said = False
        self._epoch = ""
        self._files: list[_File] = []
        try:
            directory = os.open(path, _OPEN_DIRECTORY)
            try:
                found = os.fstat(directory)
                if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
                    raise JournalError(f"cannot use {path}: others may write there; chmod go-w {path}")
                for name in NAMES:
                    self._files.append(self._opened(name, directory))
            finally:
                os.close(directory)
        except OSError as error:
            self.close()
            raise JournalError(f"cannot write {path}/{NAMES[0]}: {error.strerror}") from None
        except JournalError:
            self.close()
            raise

    def _opened(self, name: str, directory: int) -> _File:
        """A file that others may have written is put aside, and said: another one takes its place. Raises OSError."""
        try:
            return _File(name, directory)
        except _StrangeError as strange:
            os.rename(name, name + DAMAGED, src_dir_fd=directory, dst_dir_fd=directory)
            self._on_fault(f"cannot use {self.path}/{name}: {strange}; it is {name}{DAMAGED} now, to be looked at")
        try:
            return _File(name, directory)
        except _StrangeError as strange:
            raise OSError(errno.EPERM, str(strange)) from None

    def renew(self) -> bool:
        """Whether files were removed, or others put in their place: then they are made again, empty."""
        try:
            if all(is_at(file.fd, f"{self.path}/{file.name}") for file in self._files):
                return False
        except OSError as error:
            self._on_fault(unseen(f"{self.path}/{NAMES[0]}", error))
            return False
        try:
            directory = os.open(self.path, _OPEN_DIRECTORY)
        except OSError as error:
            self._fault(error)
            return True
        try:
            for place, file in enumerate(self._files):
                self._files[place] = self._opened(file.name, directory)
                os.close(file.fd)
        except OSError as error:
            self._fault(error)
        finally:
            os.close(directory)
        self.own(self._epoch)
        return True

    def read(self, epoch: str) -> Found:
        """What was told in this epoch (empty: none goes on) and not settled, in order. Call it first, then own."""
        found, strange, taken = [], False, False
        for place, file in enumerate(self._files):
            try:
                part = file.read(epoch)
            except OSError as error:
                self._fault(error)
                continue
            if file.epoch == epoch:
                found.append(part)
            else:
                strange |= bool(part.lines)
                taken |= file.epoch != ""
            if part.damage is not None:
                taken = True
                self._put_aside(place, part.damage)
        found.sort(key=lambda part: part.turn)
        lines = tuple(line for part in found for line in part.lines)
        alive_at = max((part.alive_at for part in found), default=0.0)
        return Found(lines, alive_at, taken or any(part.overflowed for part in found), strange)

    def _put_aside(self, place: int, why: str) -> None:
        """A damaged file is there to be looked at, and an empty one in its place; or it is written over."""
        damaged = self._files[place]
        name = damaged.name
        try:
            directory = os.open(self.path, _OPEN_DIRECTORY)
            try:
                os.rename(name, name + DAMAGED, src_dir_fd=directory, dst_dir_fd=directory)
                self._files[place] = self._opened(name, directory)
            finally:
                os.close(directory)
            os.close(damaged.fd)
            then = f"it is {name}{DAMAGED} now, to be looked at and removed"
        except OSError as error:
            then = f"it cannot be put aside ({os.strerror(error.errno or 0)}), so remove it"
        self._on_fault(f"cannot use {self.path}/{name}: {why}; {then}")

    def own(self, epoch: str) -> None:
        """What is written from here on is of this epoch; what is there of another is given up."""
        self._epoch = epoch
        self._files.sort(key=lambda file: file.turn, reverse=True)
        latest, spare = self._files
        with contextlib.suppress(OSError):  # said by write
            if spare.epoch != epoch:
                spare.begin(0, epoch, 0.0)
            if latest.epoch != epoch or latest.turn == 0:
                latest.begin(latest.turn + 1, epoch, 0.0)

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
            spare.begin(latest.turn + 1, self._epoch, now)
        except OSError as error:
            self._fault(error)
            return
        self._files = [spare, latest]

    def settle(self) -> None:
        """The record is written: what was told before the turn is not needed any more."""
        self.overflowed = self._said = False
        with contextlib.suppress(OSError):  # then it is read, and found in the record
            self._files[1].begin(0, self._epoch, 0.0)

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


def _mark(turn: int, epoch: str, text: bytes) -> bytes:
    return b"%08x%08x" % (turn, zlib.crc32(text, zlib.crc32(epoch.encode())))
