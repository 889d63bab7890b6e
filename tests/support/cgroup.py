"""Real cgroups for tests: make one, set its limits, run programs inside, read it, leave nothing behind.

Must not: use the code under test; it reads the kernel's files in its own, plain way. Upstream: tests, demo.
Downstream: the cgroup v2 tree at ROOT.
"""

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import time
from typing import IO, Any

ROOT = "/sys/fs/cgroup"
REMOVE_WITHIN_S = 20.0
_numbers = itertools.count(1)


class Cgroup:
    """One cgroup. `with Cgroup.fresh(…) as cgroup:` removes it with all it holds."""

    def __init__(self, path: str) -> None:
        """Make the cgroup; `path` is the full one."""
        self.path = path
        os.mkdir(path)

    @classmethod
    def fresh(cls, name: str = "test", below: str = "") -> "Cgroup":
        """A new cgroup directly under the root, or below another, its name taken by nobody else."""
        return cls(os.path.join(ROOT, below, f"edgeguardd-{name}-{os.getpid()}-{next(_numbers)}"))

    def __enter__(self) -> "Cgroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def below_root(self) -> str:
        """The path as targets spell it: below the cgroup root, beginning with '/'."""
        return self.path.removeprefix(ROOT)

    def child(self, name: str) -> "Cgroup":
        """A cgroup inside this one, with the memory controller; this one must then hold no process itself."""
        self.write("cgroup.subtree_control", "+memory")
        return Cgroup(f"{self.path}/{name}")

    def file(self, name: str) -> str:
        """The full path of one of its files."""
        return f"{self.path}/{name}"

    def write(self, name: str, value: object) -> None:
        """Write one of its files."""
        with open(self.file(name), "w") as file:
            file.write(str(value))

    def read(self, name: str) -> str:
        """One of its files, without the last newline."""
        with open(self.file(name)) as file:
            return file.read().rstrip("\n")

    def keyed(self, name: str) -> dict[str, int]:
        """A file of "key number" lines: memory.events, memory.stat, cgroup.events."""
        pairs = (line.split() for line in self.read(name).splitlines())
        return {key: int(value) for key, value in pairs}

    def set(self, *, high: int | None = None, max: int | None = None, swap_max: int | None = 0) -> "Cgroup":  # noqa: A002
        """Set limits in bytes; swap is off unless asked for, so that tests mean memory."""
        for name, value in (("memory.high", high), ("memory.max", max), ("memory.swap.max", swap_max)):
            if value is not None and os.path.exists(self.file(name)):
                self.write(name, value)
        return self

    def counters(self) -> dict[str, int]:
        """memory.events."""
        return self.keyed("memory.events")

    def processes(self) -> list[int]:
        """Process ids in this cgroup, children's not."""
        return [int(line) for line in self.read("cgroup.procs").split()]

    def spawn(self, argv: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a program inside. A shell moves itself in and becomes it, so that its first page counts here."""
        script = 'echo $$ > "$0" && exec "$@"'
        return subprocess.Popen(["/bin/sh", "-c", script, self.file("cgroup.procs"), *argv], **options)

    def remove(self) -> None:
        """Kill everything inside, children's too, and remove the tree. Already gone is fine."""
        if not os.path.isdir(self.path):
            return
        until = time.monotonic() + REMOVE_WITHIN_S
        while True:
            left = remove_tree(self.path)
            if left is None:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"cannot remove {left} within {REMOVE_WITHIN_S} s: still holds processes")
            time.sleep(0.005)


def remove_tree(path: str) -> str | None:
    """One round of killing and removing; the path that is still busy, or None when all is gone."""
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            with open(f"{directory}/cgroup.procs") as file:
                kill_all(file)
            os.rmdir(directory)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return directory
            if error.errno not in {errno.ENOENT, errno.ENODEV}:
                raise
    return None


def kill_all(processes: IO[str]) -> None:
    """SIGKILL to each process of a cgroup.procs file."""
    for line in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)


def usable() -> str | None:
    """Why this host's own cgroup tree cannot be used for tests; None if it can: v2, memory controller, writable."""
    try:
        with open(f"{ROOT}/cgroup.controllers") as file:
            controllers = file.read().split()
    except FileNotFoundError:
        return f"{ROOT} is not a cgroup v2 tree"
    if "memory" not in controllers:
        return f"{ROOT} has no memory controller"
    try:
        with open(f"{ROOT}/cgroup.subtree_control", "w") as file:
            file.write("+memory")
        with Cgroup.fresh("usable") as cgroup:
            cgroup.set(max=1 << 40)
    except OSError as error:
        return f"{ROOT} cannot be written: {error.strerror}"
    return None
