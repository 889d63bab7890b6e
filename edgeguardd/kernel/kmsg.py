"""/dev/kmsg: the kernel's log, record by record, without waiting.

Must not: understand a record beyond its sequence number. Upstream: the kernel.
Downstream: kernel.oomwatch, isolate.oomlog.
Behaviour as in kernel/printk/printk.c, devkmsg_read: one read gives one record; a buffer that is too small gives EINVAL
and the same record again; records that were overwritten before they were read give EPIPE once, and reading goes on
with the oldest that is left.
"""

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from edgeguardd.errors import KernelError

PATH: Final = "/dev/kmsg"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
# PRINTK_MESSAGE_MAX is 2 KiB since 6.2, CONSOLE_EXT_LOG_MAX was 8 KiB before; escapes count.
BUFFER_BYTES: Final = 16 * 1024
MAX_BUFFER_BYTES: Final = 1024 * 1024
# mem(4) and the kernel's devices.txt: character device 1, 11.
DEVICE: Final = (1, 11)

_REMEDIES: Final = {
    errno.EPERM: "run as root, or allow CAP_SYSLOG; for the daemon's unit there is the drop-in kernel-log.conf",
    errno.EACCES: "run as root, or allow CAP_SYSLOG; for the daemon's unit there is the drop-in kernel-log.conf",
    errno.ENOENT: "hand the device in: --device /dev/kmsg of a container, the drop-in kernel-log.conf of the unit",
    errno.EBUSY: "see what holds it",
    errno.ENXIO: "see what the device is; in a container, hand in the host's /dev/kmsg",
    errno.ENODEV: "see what the device is; in a container, hand in the host's /dev/kmsg",
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
}


class Kmsg:
    """The kernel's log, open at its oldest record.

    `lost` counts records that were overwritten unread. Records up to `last_seq` are left out: set it to go on there.
    """

    def __init__(self, fd: int) -> None:
        """Takes over a descriptor that does not block and keeps records apart."""
        self.fd = fd
        self.lost = 0
        self.last_seq: int | None = None
        self._buffer_bytes = BUFFER_BYTES

    @classmethod
    def open(cls, path: str = PATH) -> "Kmsg":
        """Raises KernelError, one sentence with the remedy."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise _cannot_read(path, error) from None
        found = os.fstat(fd)
        if not stat.S_ISCHR(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != DEVICE:
            os.close(fd)
            raise KernelError(f"cannot read {path}: it is not the kernel's log; in a container, hand in the host's")
        log = cls(fd)
        try:
            # Some kernels tell only now that this user may not read (check_syslog_permissions in 3.x).
            os.lseek(fd, 0, os.SEEK_SET)
        except OSError as error:
            log.close()
            raise _cannot_read(path, error) from None
        return log

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fd)

    def to_end(self) -> None:
        """Leave out what is there already."""
        os.lseek(self.fd, 0, os.SEEK_END)

    def records(self, limit: int) -> Iterator[bytes]:
        """At most `limit` records that are there now, each without its dictionary lines. Raises KernelError."""
        for _ in range(limit):
            record = self._record()
            if record is None:
                return
            seq = sequence(record)
            if seq is not None and self.last_seq is not None:
                if seq <= self.last_seq:
                    continue
                self.lost += seq - self.last_seq - 1
            self.last_seq = self.last_seq if seq is None else seq
            yield record.partition(b"\n")[0]

    def _record(self) -> bytes | None:
        while True:
            try:
                return os.read(self.fd, self._buffer_bytes) or None
            except BlockingIOError:
                return None
            except BrokenPipeError:
                continue  # overwritten; how many is told by the next sequence number
            except OSError as error:
                if error.errno != errno.EINVAL or self._buffer_bytes >= MAX_BUFFER_BYTES:
                    raise _cannot_read(PATH, error) from None
                self._buffer_bytes *= 2


def sequence(record: bytes) -> int | None:
    """The sequence number of a record; None where it has none."""
    number = record[:64].split(b",", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else None


def boot_id() -> str:
    """This boot's name. Raises KernelError."""
    try:
        with open(BOOT_ID) as file:
            return file.read(64).strip()
    except OSError as error:
        raise _cannot_read(BOOT_ID, error) from None


def _cannot_read(path: str, error: OSError) -> KernelError:
    number = error.errno or 0
    return KernelError(f"cannot read {path}: {os.strerror(number)}; {_REMEDIES.get(number, 'see the kernel log')}")
