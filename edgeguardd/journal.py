"""What has been told since the last record was written: lines that survive a kill -9 and cost no more than one write.

    what is told ──write──▶ one of two files, in place; ──turn──▶ the other one, while a record is written; ──settle──▶

Must not: know what an entry means, wait for a disk (no fsync; where it can, it lies in memory), raise. Upstream: one
directory. Downstream: keeper.

Room is taken in advance and lines are written over old ones, so that a disk that has become full stops nobody. Each
file begins with its turn and the epoch whose numbers it holds; a line of another turn, or a torn one, ends what is
read, and a file of another epoch, as from another state directory, is not read at all. A death leaves a file with its
first line, and whole lines up to the last one: anything else is damage, and put aside. A record names the turn that
came with it, and a file says whether the other one follows it, so that none of them can be missing unseen.
Why so: docs/adr/0017.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from edgeguardd.errors import EdgeguardError
from edgeguardd.journalfile import FOLLOWED, OVERFLOWED, JournalFile, StrangeError
from edgeguardd.ownfiles import DAMAGED, is_at, unseen

NAMES: Final = ("told-a.journal", "told-b.journal")
_MISSING: Final = (
    "cannot find all of the journal in {}: it was removed, replaced, or written elsewhere, as with another "
    "RUNTIME_DIRECTORY; leave it to the daemon while it goes on; numbers are left out, and levels come from memory"
)
_PUT_ASIDE: Final = "it is {0}" + DAMAGED + " now, to be looked at and removed"
_ROOM = "make room there"
_IN_THE_WAY = "remove what is in its place"
_NOT_ALLOWED = "let the daemon write there"
_REMEDIES = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EISDIR: _IN_THE_WAY,
    errno.ELOOP: _IN_THE_WAY,
    errno.ENXIO: _IN_THE_WAY,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENOENT: "make the directory again",
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
}
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class JournalError(EdgeguardError):
    """There is no place for it."""


class Found(Struct, frozen=True):
    """What a run before this one has left: lines in order, when it was last alive (0.0: not known).

    overflowed: there were more, or may have been: no room, another epoch took it, it is damaged or not there.
    strange: there were lines of another epoch.
    """

    lines: tuple[bytes, ...] = ()
    alive_at: float = 0.0
    overflowed: bool = False
    strange: bool = False


class Journal:
    """The two files. on_fault is told what is the matter with them; on_failed that what is told is not written down.

    path      where they are
    complete  whether all that was told since the last record is written down
    """

    def __init__(self, path: str, on_fault: Callable[[str], None], on_failed: Callable[[str], None]) -> None:
        """Raises JournalError."""
        self.path = path
        self.overflowed = False
        self._on_fault = on_fault
        self._on_failed = on_failed
        self._epoch = ""
        self._highest = 0
        self._lost = False
        self._said = False
        try:
            self._files = self._open_all()
        except OSError as error:
            raise JournalError(self._sentence(error)) from None

    @property
    def latest_turn(self) -> int:
        """What is told now is written down under it: the record that is written next names it."""
        return self._files[0].turn

    @property
    def complete(self) -> bool:
        """Whether what is told now is written down."""
        return not self.overflowed and not self._lost

    def _open_all(self) -> list[JournalFile]:
        """Both files, made where they are missing. Raises OSError, JournalError."""
        files: list[JournalFile] = []
        directory = os.open(self.path, _OPEN_DIRECTORY)
        try:
            self._require_private(os.fstat(directory))
            for name in NAMES:
                files.append(self._opened(name, directory))  # noqa: PERF401 - those before one that fails are closed
        except (OSError, JournalError):
            _close(files)
            raise
        finally:
            os.close(directory)
        return files

    def _require_private(self, found: os.stat_result) -> None:
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise JournalError(f"cannot use {self.path}: others may write there; chmod go-w {self.path}")

    def _opened(self, name: str, directory: int) -> JournalFile:
        """A file that others may have written is put aside, and said: another one takes its place. Raises OSError."""
        try:
            return JournalFile(name, directory)
        except StrangeError as strange:
            os.rename(name, name + DAMAGED, src_dir_fd=directory, dst_dir_fd=directory)
            self._on_fault(f"cannot use {self.path}/{name}: {strange}; {_PUT_ASIDE.format(name)}")
        try:
            return JournalFile(name, directory)
        except StrangeError as strange:
            raise OSError(errno.EPERM, str(strange)) from None

    def renew(self) -> bool:
        """Whether files were removed, or others put in their place, and are made again, empty."""
        try:
            if all(is_at(file.fd, f"{self.path}/{file.name}", follow=False) for file in self._files):
                return False
        except OSError as error:
            self._on_fault(unseen(f"{self.path}/{NAMES[0]}", error))
            return False
        self._lost = True
        try:
            opened = self._open_all()
        except JournalError as error:
            self._failed(str(error))
            return False
        except OSError as error:
            self._failed(self._sentence(error))
            return False
        _close(self._files)
        self._files = opened
        self._lost = False
        self.take(self._epoch)
        return True

    def take(self, epoch: str) -> None:
        """Begin anew, whatever the files hold: all that is known is written into records next."""
        self._epoch = epoch
        self._highest = max(self._highest, *(file.turn for file in self._files)) + 1
        latest, spare = self._files
        with contextlib.suppress(OSError):  # said by write
            spare.begin(0, epoch, 0.0)
            latest.begin(self._highest, epoch, 0.0)

    def read(self, epoch: str, turn: int = 0) -> Found:
        """What was told in this epoch (empty: none goes on) and not settled, in order. Call it first, then own.

        `turn`: the one that the record names; 0 for none.
        """
        found, strange, taken = [], False, False
        for place, file in enumerate(self._files):
            try:
                part = file.read(epoch)
            except OSError as error:
                self._fault(error)
                continue
            self._highest = max(self._highest, file.turn)
            if file.epoch == epoch:
                found.append(part)
            else:
                strange |= bool(part.lines)
                taken |= file.epoch != ""
            if part.damage is not None:
                taken = True
                self._put_aside(place, part.damage)
        found.sort(key=lambda part: part.turn)
        if epoch and ((turn and turn not in {part.turn for part in found}) or (found and found[-1].followed)):
            if not taken:
                self._on_fault(_MISSING.format(self.path))
            taken = True
        self._highest = max(self._highest, turn)
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
            then = _PUT_ASIDE.format(name)
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
                self._highest += 1
                latest.begin(self._highest, epoch, 0.0)

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
            self._files[0].stamp(self._files[0].turn, now, OVERFLOWED * self.overflowed)

    def turn(self, now: float) -> None:
        """A record is about to be written: what comes from here on is not in it.

        Where the last record could not be written, what came before it is still needed: all goes into one file then.
        """
        latest, spare = self._files
        if spare.turn:
            return
        try:
            spare.begin(latest.turn + 1, self._epoch, now)
        except OSError as error:
            self._fault(error)
            return
        self._highest = spare.turn
        self._files = [spare, latest]
        with contextlib.suppress(OSError):  # then nobody would miss the one that follows; it is there
            latest.stamp(latest.turn, now, FOLLOWED | OVERFLOWED * self.overflowed)

    def settle(self) -> None:
        """The record is written: what was told before the turn is not needed any more."""
        self.overflowed, self._said = False, self._lost
        with contextlib.suppress(OSError):  # then it is read, and found in the record
            self._files[1].begin(0, self._epoch, 0.0)

    def close(self) -> None:
        """Let go of the files."""
        _close(self._files)
        self._files = []

    def _fault(self, error: OSError) -> None:
        self.overflowed = True
        self._failed(self._sentence(error))

    def _failed(self, sentence: str) -> None:
        """What is told is not written down, from now on: the first of such a row is told."""
        if not self._said:
            self._said = True
            self._on_failed(sentence)

    def _sentence(self, error: OSError) -> str:
        remedy = _REMEDIES.get(error.errno or 0, "see the kernel log")
        return f"cannot write {self.path}/{NAMES[0]}: {error.strerror}; {remedy}"


def _close(files: Sequence[JournalFile]) -> None:
    for file in files:
        os.close(file.fd)
