"""Real memory pressure for tests: a cgroup with PSI, and a process in it that waits for memory as long as it is told.

Must not: use the code under test. Upstream: tests. Downstream: a cgroup v2 tree with PSI, whichever controllers it has:
where memory belongs to cgroup v1 the process is limited there, and its waiting counts in v2 all the same.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from tests.support.cgroup import Cgroup

MIB = 1024 * 1024
LIMIT = 24 * MIB
# Twice what may stay: each round reads it from disk again.
FILE_BYTES = 2 * LIMIT

# Reads the file over and over, through a page cache that is too small for it. argv: the file.
_PROGRAM = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
while True:
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)
    while os.read(file, 1 << 20):
        pass
"""


def trees() -> list[str]:
    """The mounted cgroup v2 trees."""
    with open("/proc/self/mountinfo") as file:
        rows = [line.split() for line in file]
    return [row[4] for row in rows if "cgroup2" in row[row.index("-") :]]


def psi_tree() -> tuple[str | None, str]:
    """A cgroup v2 tree where cgroups can be made and have PSI, or None and why not."""
    why = "no cgroup v2 tree is mounted"
    for tree in trees():
        try:
            with Cgroup(f"{tree}/edgeguardd-psi-probe-{os.getpid()}") as probe:
                probe.read("memory.pressure")
        except OSError as error:
            why = f"{tree} has no memory.pressure to use: {error.strerror}"
        else:
            return tree, ""
    return None, why


@contextlib.contextmanager
def psi_cgroup(tree: str, name: str = "psi") -> Iterator[Cgroup]:
    """A fresh cgroup in the tree, removed afterwards with all that runs in it."""
    with Cgroup(f"{tree}/edgeguardd-{name}-{os.getpid()}") as cgroup:
        yield cgroup


@contextlib.contextmanager
def stalling(cgroup: Cgroup) -> Iterator[None]:
    """While inside, a process of this cgroup keeps waiting for memory. Raises OSError when it cannot be limited."""
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(_file())
        join = [cgroup.file("cgroup.procs")]
        if os.path.exists(cgroup.file("memory.max")):
            cgroup.write("memory.max", LIMIT)
        else:
            limited = stack.enter_context(Cgroup(f"/sys/fs/cgroup/memory/{os.path.basename(cgroup.path)}"))
            limited.write("memory.limit_in_bytes", LIMIT)
            join.append(limited.file("cgroup.procs"))
        script = "".join(f"echo $$ > {procs} && " for procs in join) + 'exec "$@"'
        argv = ["/bin/sh", "-c", script, "sh", sys.executable, "-I", "-S", "-c", _PROGRAM, path]
        process = subprocess.Popen(argv)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _file() -> Iterator[str]:
    """A file on disk, written out, so that its pages can be dropped."""
    with tempfile.NamedTemporaryFile(prefix="edgeguardd-test-", dir="/var/tmp") as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        yield file.name
