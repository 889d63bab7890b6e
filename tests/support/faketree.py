"""A cgroup tree of plain files in a temp dir: what the kernel layer reads, without a kernel.

Must not: use the code under test. Upstream: tests. Downstream: kernel.cgroupfs, with cgroup_root set to `path`.
Plain files cannot wake anybody (epoll refuses them), and a removed one stays readable through its descriptor, except
inside `as_kernfs()`: wake-ups are for the tests on a real kernel.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping

MIB = 1024 * 1024

_EVENTS = ("low", "high", "max", "oom", "oom_kill", "oom_group_kill")


class FakeCgroup:
    """One directory with memory files, all of them rewritten in place as the kernel's are."""

    def __init__(self, path: str, below_root: str) -> None:
        self.path = path
        self.below_root = below_root

    def write(self, name: str, content: str | bytes) -> None:
        """Set the whole content of one file."""
        data = content.encode() if isinstance(content, str) else content
        with open(os.path.join(self.path, name), "wb") as file:
            file.write(data)

    def unlink(self, name: str) -> None:
        """Take one file away, as a kernel without the feature does."""
        os.unlink(os.path.join(self.path, name))

    def break_file(self, name: str) -> None:
        """Make every read of one file fail: a directory in its place gives EISDIR."""
        self.unlink(name)
        os.mkdir(os.path.join(self.path, name))

    def events(self, *, local: bool = False, **counters: int) -> None:
        """Set the counters; those not named are 0."""
        lines = [f"{key} {counters.get(key, 0)}\n" for key in _EVENTS]
        self.write("memory.events.local" if local else "memory.events", "".join(lines))

    def usage(self, anon_bytes: int, **stat: int) -> None:
        """Set memory.current and memory.stat: anonymous memory, and what else `stat` names."""
        figures = {"anon": anon_bytes, "file": 0, "kernel": 0, "shmem": 0, "file_mapped": 0, "slab_reclaimable": 0}
        figures |= stat
        self.write("memory.stat", "".join(f"{key} {value}\n" for key, value in figures.items()))
        self.write("memory.current", f"{figures['anon'] + figures['file'] + figures['kernel']}\n")

    def pressure(self, some_us: int) -> None:
        """Set the total of memory.pressure, which is not there before."""
        line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={some_us}"
        self.write("memory.pressure", f"some {line}\nfull {line}\n")

    def switch_off(self) -> None:
        """Take the memory controller away, as -memory in the parent's cgroup.subtree_control; the directory stays."""
        for name in os.listdir(self.path):
            if name.startswith("memory."):
                self.unlink(name)

    def switch_on(self, max_bytes: int | None = None, **counters: int) -> None:
        """Bring it back; memory.events is what a target waits for, so it comes last."""
        self.usage(0)
        self.limits(max_bytes=max_bytes)
        self.events(local=True)
        self.events(local=False, **counters)

    def limits(self, high_bytes: int | None = None, max_bytes: int | None = None) -> None:
        """Set memory.high and memory.max; None is "max"."""
        self.write("memory.high", f"{'max' if high_bytes is None else high_bytes}\n")
        self.write("memory.max", f"{'max' if max_bytes is None else max_bytes}\n")


@contextlib.contextmanager
def as_kernfs() -> Iterator[None]:
    """Meanwhile a file that was removed answers ENODEV for ever, as the kernel's do."""
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(" (deleted)"):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return real(fd, size, offset)

    os.pread = pread
    try:
        yield
    finally:
        os.pread = real


class FakeTree:
    """The tree. Its root has no memory files, as the kernel's has none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path`: an empty directory."""
        self.path = os.fspath(path)
        with open(os.path.join(self.path, "cgroup.controllers"), "w") as file:
            file.write("cpu memory pids\n")

    def cgroup(self, below_root: str, high_bytes: int | None = None, max_bytes: int | None = None) -> FakeCgroup:
        """Make one cgroup, ready as the kernel shows it: complete from the moment that it is there."""
        full = self.full(below_root)
        # The name comes last, so that nobody sees a half-made cgroup.
        parent, name = os.path.split(full)
        hidden = os.path.join(self.path, f".new-{name}")
        os.mkdir(hidden)
        made = FakeCgroup(hidden, below_root)
        made.events()
        made.events(local=True)
        made.usage(0)
        made.limits(high_bytes, max_bytes)
        made.write("memory.swap.current", "0\n")
        made.write("memory.swap.max", "max\n")
        os.rename(hidden, os.path.join(parent, name))
        made.path = full
        return made

    def full(self, below_root: str) -> str:
        """The path to open."""
        return self.path + below_root

    def remove(self, below_root: str) -> None:
        """Remove a cgroup and all below it."""
        shutil.rmtree(self.full(below_root))

    def proc(self, files: Mapping[str, str]) -> str:
        """A directory to stand in for /proc, beside the tree."""
        path = self.path + "-proc"
        for name, content in files.items():
            full = os.path.join(path, name)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w") as file:
                file.write(content)
        return path
