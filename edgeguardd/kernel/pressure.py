"""Memory pressure (PSI) of one cgroup or of the machine: how long tasks waited for memory, and a wake-up when they do.

Must not: judge figures, take samples. Upstream: core.kernelfmt, asyncio. Downstream: cgroupfs, sampler, machine.

    PressureFile    the text, read through a descriptor of its own
    StallAlarm      a trigger on the same file, through another descriptor: reading that one would not re-arm it

Everything works without: a kernel without PSI, PSI switched off, no right to set a trigger. Then there is no figure, or
the figure is read at each sample and nobody is woken. Format and triggers: Documentation/accounting/psi.rst.
"""

import asyncio
import errno
import os
import select
from collections.abc import Callable

from msgspec import Struct

from edgeguardd.core import kernelfmt
from edgeguardd.errors import FormatError

MEMORY_PRESSURE = "memory.pressure"

# Two lines of at most 80 bytes; files with `full` and 20-digit totals included.
READ_BYTES = 512

# Without CAP_SYS_RESOURCE the window has to be a multiple of 2 s, and any other is EINVAL (psi_trigger_create,
# kernel/sched/psi.c).
WINDOW_US = 1_000_000
UNPRIVILEGED_WINDOW_US = 2_000_000

SWITCHED_OFF = "cannot use memory pressure: PSI is switched off in this kernel; boot with psi=1"

_OPEN = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
_REMEDIES = {
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
    errno.ENFILE: "raise fs.file-max",
}
# The right to write was not enough before unprivileged triggers (6.5).
_DEFAULT_REMEDY = "let the daemon write the file and, before Linux 6.5, give it CAP_SYS_RESOURCE"


class PressureFile:
    """One PSI file. `fault`: why the last reading gave no figure, in a sentence; a file not there is no fault."""

    def __init__(self, name: str, full_path: str, dir_fd: int | None = None) -> None:
        """`name` is relative to `dir_fd`, which stays the caller's; full_path is for messages. Opened when first read.

        None for dir_fd: `name` is an absolute path.
        """
        self.name = name
        self.full_path = full_path
        self.dir_fd = dir_fd
        self.fault: str | None = None
        self._fd: int | None = None

    def some_us(self) -> int | None:
        """For how long in all some task waited for memory, in microseconds. None: unknown."""
        self.fault = None
        try:
            found = kernelfmt.pressure(self._read(), self.full_path)
        except FormatError as error:
            self.fault = str(error)
            return None
        except OSError as error:
            self._failed(error.errno or 0)
            return None
        if found is None or found.some is None:
            self.fault = f"cannot use {self.full_path}: it has no whole line `some`; PSI needs Linux 4.20"
            return None
        return found.some.total_us

    def close(self) -> None:
        """Close the descriptor. Twice is fine."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read(self) -> bytes:
        if self._fd is None:
            self._fd = os.open(self.name, os.O_RDONLY | _OPEN, dir_fd=self.dir_fd)
        return os.pread(self._fd, READ_BYTES, 0)

    def _failed(self, number: int) -> None:
        # ENODEV: the cgroup is gone, or its PSI was switched off through cgroup.pressure. Once that is on again only a
        # new descriptor gives figures (6.18), and until then there is no such file.
        self.close()
        if number == errno.EOPNOTSUPP:
            self.fault = SWITCHED_OFF
        elif number not in (errno.ENOENT, errno.ENODEV):
            self.fault = f"cannot read {self.full_path}: {os.strerror(number)}; see the kernel log"


class Trigger(Struct, frozen=True):
    """A descriptor that the kernel wakes, and the window in which it adds up how long was waited."""

    fd: int
    window_s: float


class StallAlarm:
    """Calls back when tasks waited for memory for more than a share of the time.

    The kernel says so at most once a window, and without CAP_SYS_RESOURCE also without cause: what counts is by how
    much the total has moved since the last sample. It may also say nothing: whoever reads the text just when the kernel
    would look takes its place (psi_show, psi_avgs_work). So a trigger adds to the samples and replaces none.

    Each trigger has an epoll of its own. A look at a trigger takes its event away (psi_trigger_poll), and the loop's
    epoll looks through the inner one to see whether that is ready: an inner epoll shared by many would wake the loop
    and then have nothing to tell (6.18). That it is ready has to be all that it says.
    """

    def __init__(
        self,
        file: PressureFile,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        on_stall: Callable[[], None],
        on_fault: Callable[[str], None],
    ) -> None:
        """`on_stall` is to take a sample. `on_fault` gets a sentence when no trigger can be set; polling goes on."""
        self._file = file
        self._loop = loop
        self._clock = clock
        self._on_stall = on_stall
        self._on_fault = on_fault
        self._trigger: Trigger | None = None
        self._epoll: select.epoll | None = None
        self._ratio: float | None = None
        self._seen_us: int | None = None
        self._seen_at = 0.0

    @property
    def mode(self) -> str:
        """ "trigger": the kernel wakes us; "polled": there are figures at each sample; "absent": there are none."""
        if self._trigger is not None:
            return "trigger"
        return "absent" if self._seen_us is None else "polled"

    def follow(self, ratio: float, some_us: int | None) -> None:
        """A sample with this total was taken; wake from now on when more than `ratio` of the time is waited.

        A trigger that cannot be set is tried again when the ratio changes, or the figures come back after they were
        gone.
        """
        if some_us is None:
            self._disarm()
            self._ratio = None
        elif ratio != self._ratio:
            self._disarm()
            self._ratio = ratio
            self._arm(ratio)
        self._seen_us, self._seen_at = some_us, self._clock()

    def close(self) -> None:
        """Take the trigger away. Twice is fine."""
        self._disarm()
        self._seen_us = self._ratio = None

    def _arm(self, ratio: float) -> None:
        try:
            trigger = open_trigger(self._file, ratio)
        except OSError as error:
            self._refused(error.errno or 0)
            return
        if trigger is None:
            return
        self._trigger = trigger
        try:
            self._epoll = select.epoll()
            # Not before the trigger is set: a file without one gives an epoll nothing to wait for (psi_trigger_poll).
            self._epoll.register(trigger.fd, select.EPOLLPRI | select.EPOLLET)
            self._loop.add_reader(self._epoll.fileno(), self._woken)
        except OSError as error:
            self._disarm()
            self._refused(error.errno or 0)

    def _refused(self, number: int) -> None:
        self._on_fault(
            f"cannot be woken by {self._file.name}: {os.strerror(number)}; it is read at each sample instead; "
            + _REMEDIES.get(number, _DEFAULT_REMEDY)
        )

    def _disarm(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        if self._trigger is not None:
            os.close(self._trigger.fd)
            self._trigger = None

    def _woken(self) -> None:
        trigger = self._trigger
        if trigger is None or self._epoll is None:
            return
        self._epoll.poll(0)
        if _is_dead(trigger.fd):
            # The next sample finds out whether the cgroup is gone or only its pressure, and sets a trigger again.
            self._disarm()
            self._ratio = None
            self._on_stall()
        elif self._has_moved(trigger.window_s):
            self._on_stall()

    def _has_moved(self, window_s: float) -> bool:
        """Whether tasks waited since the last sample for so much of the time as the trigger is about.

        What they waited before that sample is in it. No more than one window counts, since the trigger does not look
        further back either.
        """
        some_us = self._file.some_us()
        if some_us is None or self._seen_us is None or self._ratio is None:
            return True
        moved_us = some_us - self._seen_us
        since_s = min(max(0.0, self._clock() - self._seen_at), window_s)
        return moved_us > 0 and moved_us >= self._ratio * since_s * 1e6


def open_trigger(file: PressureFile, ratio: float) -> Trigger | None:
    """Have the kernel wake a descriptor when tasks waited for `ratio` of a window. Raises OSError.

    None: a plain file, which no kernel watches and which would keep what is written. The kernel's own have no size.
    """
    fd = os.open(file.name, os.O_RDWR | _OPEN, dir_fd=file.dir_fd)
    try:
        if os.fstat(fd).st_size == 0:
            return Trigger(fd, _set(fd, ratio) / 1e6)
    except OSError:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _set(fd: int, ratio: float) -> int:
    """Set the trigger, once a descriptor (a second is EBUSY); the length of the window in microseconds."""
    try:
        return _write(fd, ratio, WINDOW_US)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return _write(fd, ratio, UNPRIVILEGED_WINDOW_US)


def _write(fd: int, ratio: float, window_us: int) -> int:
    stall_us = min(max(1, int(ratio * window_us)), window_us)
    # The kernel overwrites the last byte of what it gets with the end of the text (psi_write): give it one to spare.
    os.write(fd, f"some {stall_us} {window_us}\0".encode())
    return window_us


def _is_dead(fd: int) -> bool:
    """Whether the kernel has taken the trigger away: its cgroup was removed, or its pressure switched off."""
    poll = select.poll()
    poll.register(fd, select.POLLPRI)
    return any(events & select.POLLERR for _, events in poll.poll(0))
