"""Where a crossing happens: a real cgroup whose memory.high is crossed, or, on a kernel whose memory controller cannot
be used, one whose huge pages are refused.

The second gives the figures of a real processor where the first would need user-mode Linux. Its memory.events is
hugetlb.2MB.events of a real cgroup, bound over a plain file: the same lines ("max 3"), the same notification
(cgroup_file_notify, kernel/cgroup/cgroup.c), the same limit of one wake-up per 10 ms. What stands in for the kernel are
memory.current, memory.stat and the limits: plain files.

Must not: know who watches. Upstream: crossings, cost, storm. Downstream: cgroup tree, trigger.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from tests.support import cgroup as cgroups
from tests.support.cgroup import Cgroup
from tests.support.faketree import MIB, FakeTree

TRIGGER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trigger.py")
HUGE_EVENTS = "hugetlb.2MB.events"
HUGE_LIMIT = "hugetlb.2MB.rsvd.max"
LIMIT_BYTES = 256 * MIB
REST_BYTES = 32 * MIB
# unshare(2), mount(2)
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2


class Stamps(NamedTuple):
    """Between these two moments the kernel counted; nanoseconds of CLOCK_MONOTONIC."""

    before_ns: int
    after_ns: int


class Ground(Protocol):
    """One cgroup, and the process in it that makes it count."""

    below_root: str
    events: str
    key: str

    def start(self) -> None:
        """Have the kernel count once; returns before it has."""

    def stamps(self) -> Stamps:
        """When it did; the trigger may be throttled for a while before it says so."""

    def rest(self) -> None:
        """Back to far below every mark."""


class Steered:
    """A trigger process, told over a pipe."""

    def __init__(self, cgroup: Cgroup, kind: str) -> None:
        argv = [sys.executable, "-I", "-S", "-B", TRIGGER, kind, cgroup.path]
        self._process = cgroup.spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def tell(self, order: str) -> None:
        """One order."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()

    def answer(self) -> str:
        """The answer to the oldest order without one."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().decode().strip()
        if not answer:
            raise RuntimeError(f"the trigger ended with status {self._process.wait()}")
        return answer

    def stamps(self) -> Stamps:
        """The answer to cross."""
        return Stamps(*map(int, self.answer().split()))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class MemoryGround:
    """memory.high of a real cgroup."""

    key = "high"

    def __init__(self, cgroup: Cgroup) -> None:
        cgroup.set(max=LIMIT_BYTES)
        self.below_root = cgroup.below_root
        self.events = cgroup.file("memory.events")
        self._steered = Steered(cgroup, "memory")

    def start(self) -> None:
        """See trigger."""
        self._steered.tell("cross")

    def stamps(self) -> Stamps:
        """See trigger."""
        return self._steered.stamps()

    def rest(self) -> None:
        """See trigger."""
        self._steered.tell("rest")
        self._steered.answer()

    def close(self) -> None:
        """End the trigger."""
        self._steered.close()


class HugeGround:
    """hugetlb.2MB.events of a real cgroup, as memory.events of a tree of plain files."""

    key = "max"

    def __init__(self, cgroup: Cgroup, tree: FakeTree, name: str) -> None:
        cgroup.write(HUGE_LIMIT, 0)
        self._stand_in = tree.cgroup(f"/{name}", max_bytes=LIMIT_BYTES)
        self.below_root = f"/{name}"
        self.events = f"{self._stand_in.path}/memory.events"
        bind(cgroup.file(HUGE_EVENTS), self.events)
        self._use(REST_BYTES)
        self._steered = Steered(cgroup, "huge")

    def start(self) -> None:
        """Needed bytes go to the limit, unseen until the kernel counts."""
        self._use(LIMIT_BYTES - MIB)
        self._steered.tell("cross")

    def stamps(self) -> Stamps:
        """See trigger."""
        return self._steered.stamps()

    def rest(self) -> None:
        """And back."""
        self._use(REST_BYTES)

    def close(self) -> None:
        """End the trigger."""
        self._steered.close()

    def _use(self, size: int) -> None:
        """In place and of one length, so that no reader finds half of it."""
        for file, text in (
            ("memory.stat", f"anon {size:012d}\nfile 0\nkernel 0\nshmem 0\nfile_mapped 0\n"),
            ("memory.current", f"{size:012d}\n"),
        ):
            descriptor = os.open(f"{self._stand_in.path}/{file}", os.O_WRONLY | os.O_CREAT)
            os.pwrite(descriptor, text.encode(), 0)
            os.ftruncate(descriptor, len(text))
            os.close(descriptor)


def huge_root() -> str | None:
    """A cgroup v2 tree with the hugetlb controller on this host; None: there is none that can be used."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file if " - cgroup2 " in line]
    for point in points:
        try:
            cgroups_enabled(point)
        except OSError:
            continue
        return point
    return None


def cgroups_enabled(point: str) -> None:
    """Have children of the root count huge pages. Raises OSError."""
    with open(f"{point}/cgroup.subtree_control", "w") as file:
        file.write("+hugetlb")


def own_mounts() -> None:
    """Mounts made from here on are this process's and its children's. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) < 0 or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) < 0:
        raise OSError(ctypes.get_errno(), "cannot have mounts of its own; run as root")


def bind(source: str, target: str) -> None:
    """Show one file at another's place. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), None, MS_BIND, None) < 0:
        raise OSError(ctypes.get_errno(), f"cannot bind {source} over {target}")


def unbind(target: str) -> None:
    """Take a bound file away again."""
    ctypes.CDLL(None).umount2(target.encode(), MNT_DETACH)


@contextlib.contextmanager
def memory_grounds(count: int) -> Iterator[list[MemoryGround]]:
    """So many real cgroups, gone afterwards."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            cgroup = stack.enter_context(Cgroup.fresh(f"bench{number}"))
            made.append(MemoryGround(cgroup))
            stack.callback(made[-1].close)
            stack.callback(cgroup.write, "memory.high", "max")
        yield made


@contextlib.contextmanager
def huge_grounds(root: str, tree: FakeTree, count: int) -> Iterator[list[HugeGround]]:
    """So many stand-ins on `tree`; `root` is the cgroup v2 tree with the hugetlb controller."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            cgroup = stack.enter_context(Cgroup(f"{root}/edgeguardd-bench-{os.getpid()}-{number}"))
            made.append(HugeGround(cgroup, tree, f"bench{number}"))
            stack.callback(unbind, made[-1].events)
            stack.callback(made[-1].close)
        yield made


def usable_here() -> bool:
    """Whether this kernel's own memory controller serves."""
    return cgroups.usable() is None
