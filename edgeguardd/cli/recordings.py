"""The recordings that replay and incidents read: a file, a directory, or the daemon's own.

Must not: replay. Upstream: core.recording, segments (names). Downstream: replay, incidents.
Files are read one at a time, and may go while the daemon goes on recording: the ring drops its oldest.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypeVar

from edgeguardd import __version__
from edgeguardd.cli import common
from edgeguardd.core.recording import RecordingError, Segment
from edgeguardd.core.replay import Opened, Step
from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError
from edgeguardd.segments import SUBDIRECTORY, is_segment

# A segment is an eighth of the ring; a larger file is not one of ours.
MAX_FILE_BYTES = 1 << 30

# The year 9999: further a calendar does not go.
LAST_S = 253370764800.0

T = TypeVar("T")


class Recordings:
    """The segments of one place, in order. Can be gone through again and again; `remarks` says what was wrong."""

    def __init__(self, place: str | None) -> None:
        """A file or a directory; None: where the configured daemon records. Raises EdgeguardError."""
        self.place = os.path.join(common.read_config(None).state_directory, SUBDIRECTORY) if place is None else place
        self.remarks: dict[str, None] = {}
        if place is None and not os.path.lexists(self.place) and _may_enter(os.path.dirname(self.place)):
            raise EdgeguardError(
                f"cannot read {_shown(self.place)}: the daemon has recorded nothing there yet; start it "
                "([recorder] enabled = true), or name a recording or a directory of them"
            )
        self._one_file = not os.path.isdir(self.place)
        self._paths = [self.place] if self._one_file else _listed(self.place)
        if not self._paths:
            raise EdgeguardError(
                f"cannot replay {_shown(self.place)}: there is no recording in it; is the recorder on?"
            )

    def __iter__(self) -> Iterator[Segment]:
        """The segments. Of a directory, those that cannot be read are passed over with a remark."""
        for path in self._paths:
            try:
                segment = Segment(_content(path), _shown(os.path.basename(path)))
            except FileNotFoundError:
                if self._one_file:
                    raise EdgeguardError(
                        f"cannot read {_shown(path)}: there is no such file; name a recording"
                    ) from None
                continue
            except RecordingError as error:
                self.unusable(error)
                continue
            yield segment
            if segment.damage is not None:
                self.remark(f"{segment.name} is read up to its damage: {segment.damage}")

    def unusable(self, error: RecordingError) -> None:
        """A segment has to be left out: a remark, or the end where it is the only one."""
        if self._one_file:
            raise error
        self.remark(str(error))

    def watched(self, items: Iterable[Opened | Step]) -> Iterator[Opened | Step]:
        """The items of a replay of these, remarking on what makes it less than exact. Raises EdgeguardError."""
        for item, _ in self.watched_pairs((item, None) for item in items):
            yield item

    def watched_pairs(self, pairs: Iterable[tuple[Opened | Step, T]]) -> Iterator[tuple[Opened | Step, T]]:
        """The same for items that come with something else."""
        empty = True
        for item, other in pairs:
            empty = False
            if isinstance(item, Opened):
                self._opened(item)
            elif item.defect is not None:
                self.remark(f"the engine failed at {clock_time(item.wall_s)} ({item.defect}): a defect")
            yield item, other
        if empty:
            why = "; ".join(self.remarks)
            raise EdgeguardError(f"cannot replay {_shown(self.place)}: none of its files can be read: {why}")

    def remark(self, sentence: str) -> None:
        """Remember something to say; each sentence once."""
        self.remarks[sentence] = None

    def _opened(self, opened: Opened) -> None:
        version = opened.header.version
        if version != __version__:
            self.remark(f"edgeguardd {version} made the decisions, {__version__} replays them: they may differ")
        elif opened.exact is False:
            self.remark(
                f"before segment {opened.header.segment} the replay came out elsewhere than the daemon: its "
                f"checkpoint is damaged, another build of {version} made the decisions, or it is a defect; "
                "compare with a recording that this build made"
            )


def _may_enter(directory: str) -> bool:
    """Whether what is missing in it is missing, and not only hidden; a directory that is not there hides nothing."""
    return not os.path.lexists(directory) or os.access(directory, os.X_OK)


def clock_time(wall_s: float) -> str:
    """A local date and time, to the millisecond."""
    return local(wall_s).strftime("%Y-%m-%d %H:%M:%S.") + f"{int(wall_s % 1 * 1000):03}"


def local(wall_s: float) -> datetime:
    """Wall-clock seconds as a local time. Times that a calendar cannot say become its limits."""
    return datetime.fromtimestamp(min(max(wall_s, 0.0), LAST_S)).astimezone()


def _listed(directory: str) -> list[str]:
    """The segments in a directory, or in the recordings/ of a state directory."""
    try:
        names = os.listdir(directory)
        if not any(map(is_segment, names)) and SUBDIRECTORY in names:
            directory = os.path.join(directory, SUBDIRECTORY)
            names = os.listdir(directory)
    except OSError as error:
        raise _unreadable(directory, error) from None
    return [os.path.join(directory, name) for name in sorted(names) if is_segment(name)]


def _shown(path: str) -> str:
    """A name can hold anything, also a line that looks like one of ours."""
    return printable(path, common.MAX_SHOWN_CHARS) or "''"


def _content(path: str) -> bytes:
    try:
        # O_NONBLOCK: a FIFO of that name must not hang the command.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise RecordingError(f"cannot read {_shown(path)}: it is no regular file; name a recording")
            # Not read(MAX_FILE_BYTES): that asks for so much memory first, on a box that may not have it.
            content = file.read() if found.st_size <= MAX_FILE_BYTES else None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unreadable(path, error) from None
    if content is None:
        raise RecordingError(f"cannot read {_shown(path)}: it has over {MAX_FILE_BYTES} bytes; is it a recording?")
    return content


def _unreadable(path: str, error: OSError) -> EdgeguardError:
    remedy = "run as root" if isinstance(error, PermissionError) else "name a recording or a directory of them"
    return EdgeguardError(f"cannot read {_shown(path)}: {error.strerror}; {remedy}")
