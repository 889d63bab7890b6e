"""The cgroup v2 tree and the memory files of one cgroup in it.

Must not: wait, follow removals (tree does), judge figures (core.policy does). Upstream: core.kernelfmt, core.procfmt,
pressure. Downstream: tree, nodes, targets.
"""

import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from edgeguardd.core import kernelfmt, procfmt
from edgeguardd.core.model import Counters, Usage
from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError, FormatError, KernelError, TargetError
from edgeguardd.kernel.pressure import MEMORY_PRESSURE, PressureFile

EVENTS: Final = "memory.events"
EVENTS_LOCAL: Final = "memory.events.local"
CURRENT: Final = "memory.current"
STAT: Final = "memory.stat"
HIGH: Final = "memory.high"
MAX: Final = "memory.max"
SWAP_CURRENT: Final = "memory.swap.current"
SWAP_MAX: Final = "memory.swap.max"

# memory.stat of 6.18 has 2.6 KB, memory.events 80 bytes. A file that fills its read is cut at the last whole line.
STAT_READ_BYTES = 16384
READ_BYTES = 1024
# memory.stat counts refaults in pages; kernels for ARM may have pages of 16 or 64 KiB.
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
MAX_PATH_CHARS = 4096
# A container in a pod in a slice lies 6 deep, a kubelet in a container 12.
MAX_DEPTH = 32

Figure = TypeVar("Figure")

_MISSING = -1
_REMEDIES = {
    errno.EACCES: "run the daemon as root or grant read access",
    errno.EPERM: "run the daemon as root or grant read access",
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
    errno.ENFILE: "raise fs.file-max",
}
MAY_NOT_LOOK: Final = "grant the daemon the right to list and enter the directories there, or run it as root"
_DEFAULT_REMEDY = "see the kernel log"


class CgroupGoneError(KernelError):
    """The cgroup was removed, or its memory controller switched off. What comes under its path next has other files."""


class CgroupRoot:
    """Where the cgroup v2 tree is. Paths of cgroups begin with '/' and are relative to it."""

    def __init__(self, path: str) -> None:
        """`path`: the mount point, or the directory of a tree of plain files in tests."""
        self.path = path.rstrip("/") or "/"

    def full(self, cgroup_path: str) -> str:
        """The path to open."""
        return self.path if cgroup_path == "/" else self.path + cgroup_path


class Node:
    """The memory files of one cgroup, kept open, each read whole with one pread.

    `own` is the cgroup of a target: memory.events counts what happens anywhere inside it. Of an ancestor only
    memory.events.local (5.2) counts: its memory.events would repeat the events of every other cgroup below.
    """

    def __init__(self, full_path: str, dir_fd: int, path: str, *, own: bool) -> None:
        """`dir_fd` stays the caller's and must outlive the node.

        Raises KernelError when the cgroup of a target lacks the files that every cgroup with the controller has.
        """
        self.path = path
        self.fault: str | None = None
        # For messages only: the files are opened through the directory.
        self._full_path = shown(full_path)
        self.pressure = PressureFile(MEMORY_PRESSURE, f"{self._full_path}/{MEMORY_PRESSURE}", dir_fd)
        self._dir_fd = dir_fd
        self._own = own
        self._fds: dict[str, int] = {}
        self._events_read = b""
        self._counters = Counters()
        if own:
            try:
                self._require(EVENTS)
                self._require(CURRENT)
            except KernelError:
                self.close()
                raise

    @property
    def events_fd(self) -> int | None:
        """The descriptor that wakes up when the counters move; None: there is no such file."""
        name = self._events_name()
        return None if name is None else self._fds[name]

    def counters(self) -> Counters | None:
        """The counters; None for an ancestor without any. Raises FormatError, KernelError, CgroupGoneError."""
        name = self._events_name()
        if name is None:
            return None
        data = self._read(name)
        if data != self._events_read:
            self._counters = kernelfmt.memory_events(data, f"{self._full_path}/{name}")
            self._events_read = data
        return self._counters

    def usage(self) -> Usage:
        """The figures. Raises FormatError, KernelError, CgroupGoneError.

        memory.stat or swap files that cannot be used leave their figures unknown, and the reason in `fault`. Pressure
        that cannot be read is no fault of the cgroup: the reason stays in `pressure`.
        """
        self.fault = None
        current_bytes = self._figure(CURRENT)
        if current_bytes is None:
            raise KernelError(f"cannot read {self._full_path}/{CURRENT}: no such file; enable the memory controller")
        high_bytes, max_bytes = self.limits()
        stat = self._spare(self._stat) or {}
        needed_bytes, refaults = kernelfmt.needed_bytes(stat), kernelfmt.refaults(stat)
        if needed_bytes is None and self.fault is None:
            self.fault = f"cannot use {self._full_path}/{STAT}: figures that needed bytes stand on are missing"
        return Usage(
            path=self.path,
            current_bytes=current_bytes,
            needed_bytes=needed_bytes,
            high_bytes=high_bytes,
            max_bytes=max_bytes,
            swap_bytes=self._spare(lambda: self._figure(SWAP_CURRENT)),
            swap_max_bytes=self._spare(lambda: self._limit(SWAP_MAX)),
            refaulted_bytes=None if refaults is None else refaults * PAGE_BYTES,
            mapped_bytes=stat.get("file_mapped"),
            psi_some_us=self.pressure.some_us(),
        )

    def limits(self) -> tuple[int | None, int | None]:
        """memory.high and memory.max; a file that is not there is no limit. Raises as usage does."""
        return self._limit(HIGH), self._limit(MAX)

    def is_dead(self) -> bool:
        """Whether its files answer that the cgroup is gone, as they then do for ever.

        Asked of the limits: to read the counters would take back a wake-up that is still on its way.
        """
        try:
            self.limits()
        except CgroupGoneError:
            return True
        except EdgeguardError:
            return False
        return False

    def close(self) -> None:
        """Close every descriptor. Twice is fine."""
        for fd in self._fds.values():
            if fd != _MISSING:
                os.close(fd)
        self._fds.clear()
        self.pressure.close()

    def _events_name(self) -> str | None:
        names = (EVENTS,) if self._own else (EVENTS_LOCAL, EVENTS)
        return next((name for name in names if self._open(name) != _MISSING), None)

    def _figure(self, name: str) -> int | None:
        if self._open(name) == _MISSING:
            return None
        return kernelfmt.number(self._read(name), f"{self._full_path}/{name}")

    def _limit(self, name: str) -> int | None:
        if self._open(name) == _MISSING:
            return None
        return kernelfmt.limit(self._read(name), f"{self._full_path}/{name}")

    def _stat(self) -> dict[str, int | None]:
        if self._open(STAT) == _MISSING:
            return {}
        return kernelfmt.memory_stat(self._read(STAT, STAT_READ_BYTES))

    def _spare(self, read: Callable[[], Figure | None]) -> Figure | None:
        """A figure that the others can do without."""
        try:
            return read()
        except CgroupGoneError:
            raise
        except EdgeguardError as error:
            self.fault = self.fault or str(error)
            return None

    def _require(self, name: str) -> None:
        if self._open(name) == _MISSING:
            what = "the root cgroup has none" if self.path == "/" else "the memory controller is not enabled here"
            raise KernelError(
                f"cannot watch {self._full_path}: no {name}, {what}; "
                "write +memory to cgroup.subtree_control of the parent, or set MemoryAccounting=yes on the unit"
            )

    def _open(self, name: str) -> int:
        """The descriptor, opened at first use; _MISSING is remembered, files do not come later."""
        fd = self._fds.get(name)
        if fd is None:
            try:
                # O_NONBLOCK: a FIFO put in place of a file must not stop the daemon.
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
                fd = os.open(name, flags, dir_fd=self._dir_fd)
            except FileNotFoundError:
                fd = _MISSING
            except OSError as error:
                raise self._fault("open", name, error) from None
            self._fds[name] = fd
        return fd

    def _read(self, name: str, size: int = READ_BYTES) -> bytes:
        try:
            data = os.pread(self._fds[name], size, 0)
        except OSError as error:
            raise self._fault("read", name, error) from None
        return data if len(data) < size else data[: data.rfind(b"\n") + 1]

    def _fault(self, verb: str, name: str, error: OSError) -> KernelError:
        number = error.errno or 0
        text = f"cannot {verb} {self._full_path}/{name}: {os.strerror(number)}"
        # ENODEV is how kernfs answers for a file whose cgroup is gone (fs/kernfs/file.c), for ever.
        if number == errno.ENODEV:
            return CgroupGoneError(f"{text}; the cgroup was removed")
        return KernelError(f"{text}; {_REMEDIES.get(number, _DEFAULT_REMEDY)}")


def find_root(override: str | None = None, proc: str = "/proc") -> CgroupRoot:
    """The cgroup v2 tree with the memory controller. Raises KernelError, which names the kernel parameter to set.

    `override` is the configured cgroup_root; `proc` is where procfs is.
    """
    if override is not None:
        if not os.path.isdir(override):
            raise KernelError(f"cannot use cgroup_root {override}: not a directory; correct it or leave it out")
        controllers = _controllers(override)
        if controllers:
            return CgroupRoot(override)
        if controllers is None:
            raise KernelError(
                f"cannot use cgroup_root {override}: no cgroup v2 tree, as it has no cgroup.controllers to read; "
                "name where cgroup v2 is mounted (usually /sys/fs/cgroup), or leave it out"
            )
        raise KernelError(_why_not(_mounts(proc), proc, override))
    mounts = _mounts(proc)
    for point in mounts.cgroup2:
        if _controllers(point):
            return CgroupRoot(point)
    raise KernelError(_why_not(mounts, proc, mounts.cgroup2[0] if mounts.cgroup2 else None))


def normal_path(path: str) -> str:
    """A cgroup's path in its one spelling. Raises TargetError for what is no path below the root."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not path.startswith("/") or ".." in parts or "\0" in path or len(path) > MAX_PATH_CHARS:
        raise TargetError(
            f"cannot guard {shown(path)}: not a path inside this daemon's cgroup tree; "
            "begin it with '/', or run the daemon in the host's cgroup namespace"
        )
    return "/" + "/".join(parts)


def target_path(path: str) -> str:
    """As normal_path, for a cgroup to be guarded. Raises TargetError also where too many levels are above it.

    Each of them is held open, and whoever may make cgroups may nest hundreds.
    """
    path = normal_path(path)
    if path.count("/") > MAX_DEPTH:
        raise TargetError(
            f"cannot guard {shown(path)}: it is more than {MAX_DEPTH} levels deep; make a cgroup above it the target"
        )
    return path


def opened(path: str, flags: int, dir_fd: int | None = None) -> tuple[int, os.stat_result]:
    """A descriptor, and what it is. Raises OSError, and then nothing is left open."""
    fd = os.open(path, flags, dir_fd=dir_fd)
    try:
        return fd, os.fstat(fd)
    except OSError:
        os.close(fd)
        raise


def shown(path: str) -> str:
    """A path as events, logs and the protocol carry it: printable whatever the name holds."""
    return path if path.isprintable() and len(path) <= MAX_PATH_CHARS else printable(path, MAX_PATH_CHARS)


def _controllers(point: str) -> bool | None:
    """Whether the tree has the memory controller; None: it does not say (no kernel's tree)."""
    try:
        with open(f"{point}/cgroup.controllers", "rb") as file:
            return "memory" in kernelfmt.words(file.read(READ_BYTES))
    except OSError:
        return None


def _mounts(proc: str) -> procfmt.Mounts:
    try:
        with open(f"{proc}/self/mountinfo", "rb") as file:
            return procfmt.mounts(file.read())
    except OSError as error:
        raise KernelError(f"cannot read {proc}/self/mountinfo: {error.strerror}; mount procfs on {proc}") from None


def _why_not(mounts: procfmt.Mounts, proc: str, tree: str | None) -> str:
    if mounts.memory_v1:
        what = "runs cgroup v1" if tree is None else "is hybrid, its memory controller on cgroup v1"
        return (
            f"cannot watch memory: this machine {what} ({mounts.memory_v1[0]}); "
            "boot with systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all on the kernel command line"
        )
    if _switched_off(proc):
        return (
            "cannot watch memory: the memory controller is switched off at boot; put cgroup_enable=memory on the "
            "kernel command line (Raspberry Pi: /boot/firmware/cmdline.txt) and remove cgroup_disable=memory"
        )
    if tree is None:
        return (
            "cannot watch memory: no cgroup v2 tree is mounted; boot with systemd.unified_cgroup_hierarchy=1 "
            "on the kernel command line, or mount -t cgroup2 none /sys/fs/cgroup"
        )
    return (
        f"cannot watch memory: {tree} has no memory controller; boot with cgroup_enable=memory on the kernel command "
        "line, use a kernel with CONFIG_MEMCG, or in a container have the controller delegated"
    )


def _switched_off(proc: str) -> bool:
    """Whether the kernel has the controller but was told not to use it."""
    try:
        with open(f"{proc}/cgroups", "rb") as file:
            if procfmt.controllers(file.read()).memory_enabled is False:
                return True
    except (OSError, FormatError):
        pass
    try:
        with open(f"{proc}/cmdline", "rb") as file:
            options = file.read().split()
    except OSError:
        return False
    return any(
        option.startswith(b"cgroup_disable=") and b"memory" in option.partition(b"=")[2].split(b",")
        for option in options
    )
