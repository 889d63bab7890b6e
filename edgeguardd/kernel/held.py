"""One cgroup held open for writing: what comes under its path later is another one, and is not touched.

Must not: decide what is written (relief, lastresort do), wait. Upstream: cgroupfs. Downstream: relief, lastresort.
"""

import errno
import os

from edgeguardd.core import kernelfmt
from edgeguardd.errors import FormatError, KernelError
from edgeguardd.kernel.cgroupfs import CgroupGoneError, CgroupRoot, normal_path, opened, shown

PROCS = "cgroup.procs"
READ_BYTES = 4096
MIB = 1 << 20

_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# How the files of a removed cgroup answer: an open one, and the lookup in its directory.
_REMOVED = (errno.ENODEV, errno.ENOENT)
_NOT_OURS = "run the daemon as root, or delegate the cgroup to its user"
_REMEDIES = {
    errno.ENOENT: "this kernel is too old for it, or the controller is not enabled there",
    errno.EACCES: _NOT_OURS,
    errno.EPERM: _NOT_OURS,
    errno.EROFS: "have cgroupfs mounted writable for the daemon (in a unit: no ProtectControlGroups=)",
    errno.EOPNOTSUPP: "name the cgroup above it: a threaded cgroup cannot be acted upon alone",
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
}
_DEFAULT_REMEDY = "see the kernel log"


class HeldCgroup:
    """One cgroup below the root. `inode` is its own for as long as this kernel runs (64 bits, kernfs_id_ino in
    include/linux/kernfs.h), so a record of it names no later one."""

    def __init__(self, root: CgroupRoot, path: str) -> None:
        """Raises CgroupGoneError when it is not there, KernelError, TargetError for what is no path."""
        self.path = normal_path(path)
        self.full_path = root.full(self.path)
        try:
            self._dir_fd, found = opened(self.full_path, _OPEN)
        except (FileNotFoundError, NotADirectoryError):
            raise CgroupGoneError(f"cannot open {shown(self.full_path)}: there is no such cgroup any more") from None
        except OSError as error:
            raise self._fault("open", "", error) from None
        self.inode = found.st_ino
        self._identity = (found.st_dev, found.st_ino)

    def __enter__(self) -> "HeldCgroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go. Twice is fine."""
        if self._dir_fd >= 0:
            os.close(self._dir_fd)
        self._dir_fd = -1

    @property
    def gone(self) -> bool:
        """Whether the cgroup has been removed."""
        try:
            found = os.stat(self.full_path, follow_symlinks=False)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != self._identity

    def read(self, name: str) -> bytes:
        """One small file. Raises CgroupGoneError, KernelError."""
        fd = self._open(name, os.O_RDONLY, "read")
        try:
            return os.pread(fd, READ_BYTES, 0)
        except OSError as error:
            raise self._fault("read", name, error) from None
        finally:
            os.close(fd)

    def limit(self, name: str) -> int | None:
        """A limit in bytes; None for "max". Raises FormatError, CgroupGoneError, KernelError."""
        return kernelfmt.limit(self.read(name), shown(f"{self.full_path}/{name}"))

    def number(self, name: str) -> int:
        """One figure. Raises as limit does."""
        return kernelfmt.number(self.read(name), shown(f"{self.full_path}/{name}"))

    def flag(self, name: str, key: str) -> bool:
        """Whether a key of a "key value" file is 1. Raises as limit does, FormatError also when it is not there."""
        value = kernelfmt.flat_keyed(self.read(name), shown(f"{self.full_path}/{name}")).get(key)
        if value is None:
            raise FormatError(f"cannot use {shown(self.full_path)}/{name}: no {key} in it; check what is mounted there")
        return value == 1

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        return os.access(name, os.F_OK, dir_fd=self._dir_fd, follow_symlinks=False)

    def write(self, name: str, text: str) -> None:
        """Write one file. Raises CgroupGoneError, KernelError."""
        self.write_and_close(self.open_to_write(name), name, text)

    def open_to_write(self, name: str) -> int:
        """A descriptor to be written through, in a thread perhaps, while this cgroup is let go. Raises as write does.

        It is O_NONBLOCK: a kernel that knows it (from 6.16 on, Documentation/admin-guide/cgroup-v2.rst) does not
        reclaim in the writer when a limit is lowered. 6.1 does not know it, and reclaims.
        """
        return self._open(name, os.O_WRONLY, "write")

    def write_and_close(self, fd: int, name: str, text: str) -> None:
        """The second half of write."""
        try:
            os.write(fd, text.encode())
        except OSError as error:
            raise self._fault("write", name, error) from None
        finally:
            os.close(fd)

    def processes(self) -> list[int]:
        """The processes of this cgroup and of all below it; 0: one that our pid namespace cannot name.

        Raises KernelError rather than leave any out; a cgroup that is removed meanwhile has none.
        """
        found: list[int] = []
        waiting = ["."]
        while waiting:
            path = waiting.pop()
            try:
                directory = os.open(path, _LIST, dir_fd=self._dir_fd)
                try:
                    found += _processes_in(directory)
                    waiting += [f"{path}/{name}" for name in _directories_in(directory)]
                finally:
                    os.close(directory)
            except OSError as error:
                if error.errno not in _REMOVED:
                    raise self._fault("list", f"{path}/{PROCS}", error) from None
        return found

    def _open(self, name: str, mode: int, verb: str) -> int:
        try:
            return os.open(name, mode | _FILE, dir_fd=self._dir_fd)
        except OSError as error:
            raise self._fault(verb, name, error) from None

    def _fault(self, verb: str, name: str, error: OSError) -> KernelError:
        number = error.errno or 0
        what = f"cannot {verb} {shown(self.full_path)}/{name}".rstrip("/")
        # Also when a controller was switched off, and the cgroup is there: what is owed to it is not to be forgotten.
        if number in _REMOVED and self.gone:
            return CgroupGoneError(f"{what}: the cgroup was removed")
        return KernelError(f"{what}: {os.strerror(number)}; {_REMEDIES.get(number, _DEFAULT_REMEDY)}")


def boot_id(proc: str = "/proc") -> str:
    """What names this run of the kernel. Raises KernelError."""
    path = f"{proc}/sys/kernel/random/boot_id"
    try:
        with open(path, "rb") as file:
            return file.read(READ_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise KernelError(
            f"cannot read {path}: {error.strerror}; let the daemon see /proc/sys (in a unit: no ProcSubset=pid)"
        ) from None


def held_again(root: CgroupRoot, path: str, inode: int, boot: str, proc: str = "/proc") -> HeldCgroup:
    """The cgroup that a record speaks of. Raises CgroupGoneError when it is no more, KernelError, TargetError."""
    if boot != boot_id(proc):
        raise CgroupGoneError(f"{shown(path)} is gone: the machine was started anew since")
    cgroup = HeldCgroup(root, path)
    if cgroup.inode == inode:
        return cgroup
    cgroup.close()
    raise CgroupGoneError(f"{shown(path)} is gone: what has its path now is another cgroup")


def mib(size_bytes: int | None) -> str:
    """A size or limit for people."""
    return "max" if size_bytes is None else f"{size_bytes / MIB:.1f} MiB"


def _processes_in(directory: int) -> list[int]:
    try:
        fd = os.open(PROCS, os.O_RDONLY | _FILE, dir_fd=directory)
        try:
            data = b"".join(iter(lambda: os.read(fd, READ_BYTES), b""))
        finally:
            os.close(fd)
    except OSError as error:
        # A threaded cgroup does not say; the domain above it lists its processes (cgroup-v2.rst, "Threads").
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise
    return [int(line) for line in data.split() if line.isdigit()]


def _directories_in(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
