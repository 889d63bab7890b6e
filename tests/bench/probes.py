"""Runs one measurement as a process of its own: on this kernel, or as the command of a user-mode Linux guest.

A measurement is a module of tests.bench with `run(options, tell) -> Found`; the process writes what it found to a file.

    python -m tests.bench.probes MODULE FILE OPTION…

Must not: know what is measured. Upstream: the parts. Downstream: tests.support.uml, the modules named in PROBES.
"""

import contextlib
import importlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from tests.bench.report import Table
from tests.support import cgroup as cgroups
from tests.support.uml import runner

Tell = Callable[[str], None]
HERE, GUEST = "here", "guest"
LIMIT_S = 1200.0
# What a measurement that is given up may take to put back what it has changed.
ENDS_WITHIN_S = 10.0


class Found(Struct):
    """What one measurement found: tables ready to print, and figures by the names of budgets."""

    tables: list[Table]
    measured: dict[str, float] = {}
    kernel: str = ""


class ProbeError(Exception):
    """A measurement did not come to its end."""


def kernel_of_memory() -> str:
    """Where memory.high can be had: here, if this kernel's memory controller can be used, else in a guest."""
    return HERE if cgroups.usable() is None else GUEST


def probe(
    module: str, where: str, *options: str, memory_bytes: int = runner.MEMORY_BYTES, limit_s: float = LIMIT_S
) -> Found:
    """Run it, before everything else that runs on this machine, and read what it found. Raises ProbeError."""
    with tempfile.TemporaryDirectory(prefix="edgeguardd-bench-", dir="/tmp") as directory:
        into = f"{directory}/found"
        argv = [sys.executable, "-m", "tests.bench.probes", module, into, *options]
        with _urgent(pinned=where == GUEST):
            status = _here(argv) if where == HERE else _in_guest(argv, memory_bytes, limit_s)
        if status or not os.path.exists(into):
            raise ProbeError(f"{module} ended with status {status}; see above")
        with open(into, "rb") as file:
            return msgspec.json.decode(file.read(), type=Found)


def _here(argv: list[str]) -> int:
    """In a session of its own, so that all that it has started can be ended with it."""
    with subprocess.Popen(argv, start_new_session=True) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ENDS_WITHIN_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _in_guest(argv: list[str], memory_bytes: int, limit_s: float) -> int:
    outcome = runner.run(argv, to=sys.stdout.buffer, memory_bytes=memory_bytes, limit_s=limit_s)
    if outcome.status is None:
        raise ProbeError(f"{outcome.console}\n{outcome.trouble}")
    return outcome.status


@contextlib.contextmanager
def _urgent(*, pinned: bool) -> Iterator[None]:
    """Real-time priority for what is started meanwhile, so that what else runs here does not show; without the right
    to it, none. A guest, which has one processor, gets one of this machine's for all its helpers."""
    policy, priority, affinity = os.sched_getscheduler(0), os.sched_getparam(0), os.sched_getaffinity(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    if pinned:
        os.sched_setaffinity(0, {max(affinity)})
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)
        os.sched_setaffinity(0, affinity)


def kernel() -> str:
    """The kernel that runs this process."""
    release = platform.release()
    with open("/proc/cpuinfo") as file:
        return f"user-mode Linux {release}" if "User Mode Linux" in file.read() else f"Linux {release}"


def main() -> int:
    """In the process of its own."""
    module, into, *options = sys.argv[1:]
    # Given up, it still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def tell(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    found: Found = importlib.import_module(f"tests.bench.{module}").run(options, tell)
    found.kernel = kernel()
    # Through to the host: a guest caches host files like any disk.
    descriptor = os.open(into, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC, 0o644)
    os.write(descriptor, msgspec.json.encode(found))
    os.close(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
