"""Which cgroup the process at the other end of a socket lives in.

Must not: decide what it may do (daemon does). Upstream: /proc, pidfd. Downstream: daemon.
"""

import os
import select

from edgeguardd.core import procfmt, scores
from edgeguardd.errors import FormatError, TargetError

_MAX_BYTES = 64 * 1024


def cgroup_of(pid: int, proc: str = "/proc", *, started: int | None = None) -> str:
    """The cgroup v2 path of a process, as this daemon's cgroup namespace sees it. Raises TargetError.

    Outside of the namespace it begins with "/.."; Targets.located says where that is in the tree.
    The pid may be given to another process while its files are read; a descriptor of the process, taken before and
    still alive after, excludes that. started: what its start has to be, in clock ticks since boot; None: any.
    """
    if pid <= 0:
        # SO_PEERCRED says 0 for a peer that our pid namespace cannot name (unix(7)).
        raise TargetError(
            "cannot find your cgroup: your process is outside this daemon's pid namespace; run the daemon in the "
            "host's (Kubernetes: hostPID: true; Docker: --pid host), or name a target and have your uid in allow_uids"
        )
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise TargetError(f"cannot find the cgroup of process {pid}: {error.strerror}; connect again") from None
    try:
        data = _read(pid, proc, "cgroup")
        same = started is None or _start(pid, proc) == started
        if _ended(pidfd) or not same:
            raise TargetError(f"cannot find the cgroup of process {pid}: it has ended; connect again")
    finally:
        os.close(pidfd)
    return _path(pid, data)


def _start(pid: int, proc: str) -> int | None:
    try:
        return scores.stat(_read(pid, proc, "stat")).started_ticks
    except FormatError:
        return None


def _read(pid: int, proc: str, name: str) -> bytes:
    try:
        with open(f"{proc}/{pid}/{name}", "rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        # ENOENT before the open, ESRCH after it: both say that the process has ended.
        raise TargetError(f"cannot read {proc}/{pid}/{name}: {error.strerror}; connect again") from None


def _ended(pidfd: int) -> bool:
    """A pidfd is readable from the moment its process ends (pidfd_open(2))."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _path(pid: int, data: bytes) -> str:
    try:
        found = procfmt.membership(data)
    except FormatError as error:
        raise TargetError(f"cannot find the cgroup of process {pid}: {error}") from None
    if found.v2_path is None:
        raise TargetError(f"cannot find the cgroup of process {pid}: it is in no cgroup v2; boot with cgroup_no_v1=all")
    if found.deleted:
        raise TargetError(f"cannot guard process {pid}: its cgroup was removed; connect again")
    return found.v2_path
