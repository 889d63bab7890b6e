"""One of the journal's two files: a first line that says whose it is, and whole lines behind it, each with a checksum.

Must not: know what a line means, wait for a disk. Upstream: one directory. Downstream: journal, which says why so.
"""

import contextlib
import errno
import os
import re
import stat
import zlib
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from edgeguardd.ownfiles import anothers

# Some 200 commands, far more than are told between two records; it grows where there is room.
ROOM_BYTES: Final = 64 * 1024
MAX_BYTES: Final = 1024 * 1024

_HEADER_BYTES: Final = 80
# Turn, when it was last alive, its flags, epoch, the checksum of these.
_HEADER: Final = re.compile(rb"(([0-9a-f]{8,}) ([0-9]+\.[0-9]{3}) ([0-3]) ([!-~]+))(?: ([0-9a-f]{8}))? *\n")
OVERFLOWED, FOLLOWED = 1, 2
# In place of an epoch, in a file that has just been made.
_NOBODYS: Final = "-"
_HEADLESS: Final = "it does not begin as a journal does"
_TORN: Final = "lines in the middle of it are damaged"
_CUT: Final = "its end is missing"
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StrangeError(Exception):
    """This file is none of ours; the text says why."""


def _require_ours(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StrangeError("it is no plain file")
    if (why := anothers(found)) is not None:
        raise StrangeError(why)


class Part(Struct):
    """What one of the two files holds. damage: why it cannot be all; that it ends in the middle of a line is none."""

    turn: int = 0
    alive_at: float = 0.0
    overflowed: bool = False
    followed: bool = False
    lines: list[bytes] = []
    damage: str | None = None


class JournalFile:
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
            self._header(os.pread(self.fd, _HEADER_BYTES, 0))
        except (OSError, StrangeError):
            os.close(self.fd)
            raise
        self._cut = self.turn > 0 and found.st_size < ROOM_BYTES
        with contextlib.suppress(OSError):  # what cannot be had now may be had when it is needed
            if not found.st_size:  # first, so that zeros alone are never what a death has left
                self.stamp(0, 0.0)
            if found.st_size < ROOM_BYTES:  # so that one which a turn has begun in is never shorter, on a full disk too
                os.ftruncate(self.fd, ROOM_BYTES)
            os.posix_fallocate(self.fd, 0, ROOM_BYTES)

    def _header(self, head: bytes) -> Part | None:
        """Whose it is, and which turn: taken over, and told. None: it has no first line that could be understood."""
        found = _HEADER.fullmatch(head)
        self.turn, self.epoch = 0, ""
        if found is None or found[6] not in (None, b"%08x" % zlib.crc32(found[1])):
            return None
        turn, alive_at, flags, owner = (found[place].decode("ascii") for place in range(2, 6))
        self.turn, self.epoch = int(turn, 16), "" if owner == _NOBODYS else owner
        return Part(self.turn, float(alive_at), bool(int(flags) & OVERFLOWED), bool(int(flags) & FOLLOWED))

    def read(self, epoch: str) -> Part:
        """What it holds, up to where it cannot be understood. `epoch`: of the run that goes on, empty for none.

        Where none goes on, the machine may have gone without power: of what was written anything may be missing.
        """
        data = os.pread(self.fd, MAX_BYTES, 0)
        head = data[:_HEADER_BYTES]
        part = self._header(head)
        if part is None:
            return Part(damage=_HEADLESS if epoch or any(head) else None)
        lines = data[_HEADER_BYTES:].split(b"\n")[:-1]
        for line in lines:
            if not self._is_own(line):
                break
            part.lines.append(line.partition(b" ")[2])
            self.end += len(line) + 1
        behind = lines[len(part.lines) + 1 :]
        if epoch and self.epoch == epoch:
            part.damage = _TORN if any(self._is_own(line) for line in behind) else _CUT if self._cut else None
        return part

    def _is_own(self, line: bytes) -> bool:
        """Whether it is a whole line of this turn."""
        mark, _, text = line.partition(b" ")
        return mark == _mark(self.turn, self.epoch, text)

    def begin(self, turn: int, epoch: str, alive_at: float) -> None:
        """Empty from here on, and this epoch's. Raises OSError."""
        self.epoch = epoch
        self.stamp(turn, alive_at)
        self.turn, self.end = turn, _HEADER_BYTES

    def stamp(self, turn: int, alive_at: float, flags: int = 0) -> None:
        """Write the first line. Raises OSError."""
        header = f"{turn:08x} {alive_at:.3f} {flags:d} {self.epoch or _NOBODYS}".encode()
        header += b" %08x" % zlib.crc32(header)
        os.pwrite(self.fd, header[: _HEADER_BYTES - 1].ljust(_HEADER_BYTES - 1) + b"\n", 0)

    def append(self, texts: Sequence[bytes]) -> None:
        """Add lines. Raises OSError."""
        data = b"".join(_mark(self.turn, self.epoch, text) + b" " + text + b"\n" for text in texts)
        if self.end + len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"it has {MAX_BYTES} bytes, and no record could be written meanwhile")
        os.pwrite(self.fd, data, self.end)
        self.end += len(data)


def _mark(turn: int, epoch: str, text: bytes) -> bytes:
    return b"%08x%08x" % (turn, zlib.crc32(text, zlib.crc32(epoch.encode())))
