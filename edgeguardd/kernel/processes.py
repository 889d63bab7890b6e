"""One process by a descriptor of its /proc directory: what it is, and its oom_score_adj.

Must not: choose the value, look at cmdline or environ (they touch the process's own pages, which may be swapped out).
Upstream: /proc, core.scores, core.procfmt. Downstream: kernel.scores.

The directory stands for the process, not for its number: once the process has ended, whatever is opened or read in
it gives ESRCH or ENOENT, also when another process has the number (proc_pid_lookup and get_proc_task, fs/proc/base.c).
"""

import contextlib
import errno
import os
from typing import Final

from edgeguardd.core import procfmt, scores
from edgeguardd.core.scores import Facts, Stat, Wanted
from edgeguardd.errors import FormatError, KernelError

MAX_BYTES: Final = 64 * 1024
GONE: Final = frozenset({errno.ESRCH, errno.ENOENT})
SCORE: Final = "oom_score_adj"


class GoneError(Exception):
    """The process has ended. Nothing to say of it."""


class RefusedError(KernelError):
    """The kernel does not let the daemon read or write; the message says what would."""


class Process:
    """A process that was there when this was made. Every method raises GoneError when it is there no longer."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        """Raises GoneError, KernelError."""
        self.pid = pid
        try:
            self._dir = os.open(f"{proc}/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in GONE:
                raise GoneError from None
            raise KernelError(f"cannot look at process {pid}: {error.strerror}; raise LimitNOFILE=") from None

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._dir)

    def facts(self, asked: Wanted) -> Facts:
        """What the rules ask for. What the kernel does not tell is None. Raises RefusedError for a link of exe."""
        comm = exe = cgroup = None
        if asked.comm:
            comm = _text(self._read("comm").removesuffix(b"\n"))
        if asked.exe:
            exe = self._exe()
        if asked.cgroup:
            with contextlib.suppress(FormatError):
                found = procfmt.membership(self._read("cgroup"))
                # A path that leads out of our cgroup namespace names nothing here.
                cgroup = None if found.outside_namespace else found.v2_path
        return Facts(comm, exe, cgroup)

    def stat(self) -> Stat:
        """When it began, and whether it is the kernel's own."""
        try:
            return scores.stat(self._read("stat"))
        except FormatError:
            raise GoneError from None  # cut short: it is on its way out

    def score(self) -> int:
        """oom_score_adj as it is."""
        try:
            return int(self._read(SCORE).partition(b"\n")[0])
        except ValueError:
            raise GoneError from None

    def set_score(self, value: int) -> None:
        """Write it. Raises RefusedError."""
        try:
            opened = os.open(SCORE, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._dir)
        except OSError as error:
            raise self._refused(error, "the daemon needs root, or CAP_DAC_OVERRIDE") from None
        try:
            # The descriptor itself is written: a buffered file would fail at its close only, where nobody looks.
            os.write(opened, b"%d\n" % value)
        except OSError as error:
            # __set_oom_adj, fs/proc/base.c: EACCES below the least value that a privileged process has given it.
            raise self._refused(error, f"to go as low as {value} the daemon needs CAP_SYS_RESOURCE") from None
        finally:
            os.close(opened)

    def _refused(self, error: OSError, remedy: str) -> Exception:
        if error.errno in GONE:
            return GoneError()
        return RefusedError(f"cannot set {SCORE} of process {self.pid}: {error.strerror}; {remedy}")

    def _exe(self) -> str | None:
        try:
            return _text(os.readlink(b"exe", dir_fd=self._dir))
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise GoneError from None
            if error.errno in {errno.EACCES, errno.EPERM}:
                raise RefusedError(
                    f"cannot read the link exe of process {self.pid}: {error.strerror}; give the daemon CAP_SYS_PTRACE "
                    "(drop-in oom-scores.conf), or name the processes otherwise"
                ) from None
            return None  # the kernel's own threads have none

    def _read(self, name: str) -> bytes:
        try:
            opened = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir)
        except OSError as error:
            raise self._unreadable(name, error) from None
        try:
            return os.read(opened, MAX_BYTES)
        except OSError as error:
            raise self._unreadable(name, error) from None
        finally:
            os.close(opened)

    def _unreadable(self, name: str, error: OSError) -> Exception:
        if error.errno in GONE:
            return GoneError()
        return RefusedError(f"cannot read {name} of process {self.pid}: {error.strerror}; run the daemon as root")


def pids(proc: str = "/proc") -> list[int]:
    """All processes that there are now. Raises KernelError."""
    try:
        return [int(name) for name in os.listdir(proc) if name.isdecimal()]
    except OSError as error:
        raise KernelError(f"cannot list {proc}: {error.strerror}; check that it is mounted") from None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
