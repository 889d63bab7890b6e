"""The daemon itself under memory pressure: its own MemoryMax tight, then the machine thrashing; it still delivers.

Must not: measure anything but the way from the kernel's count to the command at a subscriber. Upstream: __main__, in
a guest with little memory. Downstream: tests.support, a daemon of the product's own.
"""

import contextlib
import ctypes
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.cgroup import Cgroup
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

MIB = 1 << 20
CROSSINGS = 40
WITHIN_S = 1.0
# What a daemon does for the first time makes it load and touch what it then has.
WARM_UP = 5
SUPPORTS = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]
# Without the machine as a domain of its own: it would hold the level up while it thrashes, and each kill is to be told.
CONFIG = """
[machine]
enabled = false
[defaults]
dwell = 0.01
restore_dwell = 0.01
repeat = 30
relief = "off"
[[target]]
name = "llm"
path = "{path}"
"""
# Above what it has in memory, so much is left to the daemon where its own limit is tight.
SPARE_BYTES = 2 * MIB
VICTIM_BYTES = 12 * MIB
# Of a guest's memory, so much goes to hogs that read a file larger than what is left, again and again.
HOGS = 3
LEAST_MIB_PER_S = 1.0
THRASH = """
import mmap, os, sys

with open(sys.argv[1], "rb") as file:
    area = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
start = int(sys.argv[2]) * mmap.PAGESIZE
while True:
    area[start :: 4 * mmap.PAGESIZE]
"""
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4  # mlockall(2)


@dataclass
class Strain:
    """One condition: what was wrong, and how long each command took from the kernel's count to the subscriber."""

    name: str
    delays_s: list[float] = field(default_factory=list)
    evidence: str = ""
    lost: int = 0

    @property
    def right(self) -> bool:
        """Whether each crossing was told, and in time."""
        return not self.lost and len(self.delays_s) == CROSSINGS and max(self.delays_s) <= WITHIN_S


@dataclass
class Stage:
    """A daemon in a cgroup of its own, a cgroup in which the kernel kills, and a server that is told of it."""

    daemon: Daemon
    own: Cgroup
    victim: Cgroup
    subscriber: Subscriber


def run(tell: Callable[[str], None]) -> Iterator[Strain]:
    """All conditions, one after another, each with a daemon of its own."""
    # Or the one who measures would wait for its own pages.
    ctypes.CDLL(None, use_errno=True).mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT)
    for name, condition in (("at rest", at_rest), ("own MemoryMax tight", tight), ("the machine thrashing", thrashing)):
        strain = Strain(name)
        with stage() as made:
            for _ in range(WARM_UP):
                cross(made, Strain("not counted"))
            with condition(made, strain):
                for _ in range(CROSSINGS):
                    cross(made, strain)
        tell(f"{name}: {len(strain.delays_s)} of {CROSSINGS} told, worst {max(strain.delays_s, default=0.0):.3f} s")
        yield strain


@contextlib.contextmanager
def stage() -> Iterator[Stage]:
    """Everything set up, and nothing wrong yet."""
    directory = tempfile.mkdtemp(prefix="edgeguardd-strain-", dir="/run")
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory)
        own = undo.enter_context(Cgroup.fresh("own"))
        victim = undo.enter_context(Cgroup.fresh("victim"))
        victim.set(max=VICTIM_BYTES)
        daemon = Daemon(directory, start=False)
        # On a disk: what lies in a tmpfs would count as its memory, and could not be dropped.
        disk = tempfile.mkdtemp(prefix="edgeguardd-strain-", dir="/var/tmp")
        undo.callback(shutil.rmtree, disk)
        daemon.state_directory, daemon.log_path = f"{disk}/state", f"{disk}/log"
        daemon.write_config(CONFIG.format(path=victim.below_root))
        daemon.killed = True  # nothing of it is replayed here
        script = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', own.file("cgroup.procs")]
        daemon.within = script
        daemon.start()
        undo.callback(daemon.stop)
        hello = {"name": "strained", "target": "llm", "supports": SUPPORTS}
        subscriber = undo.enter_context(Subscriber(daemon.socket_path, hello))
        subscriber.wait_for("welcome")
        yield Stage(daemon, own, victim, subscriber)


@contextlib.contextmanager
def at_rest(_stage: Stage, strain: Strain) -> Iterator[None]:
    """Nothing is wrong."""
    strain.evidence = "nothing is wrong"
    yield


@contextlib.contextmanager
def tight(stage: Stage, strain: Strain) -> Iterator[None]:
    """Its memory.max stands just above what it has: each page more makes the kernel reclaim first."""
    own = stage.own
    limit = int(own.read("memory.current")) + SPARE_BYTES
    own.write("memory.max", limit)
    yield
    counters = own.counters()
    strain.evidence = (
        f"memory.max {limit / MIB:.1f} MiB, {SPARE_BYTES / MIB:.0f} MiB above what it had; "
        f"met {counters['max']} times, {counters['oom_kill']} kills"
    )


@contextlib.contextmanager
def thrashing(_stage: Stage, strain: Strain) -> Iterator[None]:
    """Anonymous memory leaves little, and programs read a file larger than that, again and again."""
    free = available_bytes()
    with contextlib.ExitStack() as undo:
        directory = tempfile.mkdtemp(prefix="edgeguardd-strain-", dir="/var/tmp")
        undo.callback(shutil.rmtree, directory)
        with open(f"{directory}/weights", "wb") as file:
            for _ in range(free // MIB):
                file.write(os.urandom(4096) * (MIB // 4096))
        held = int(0.75 * free)
        undo.enter_context(running(["-c", f"import time\nheld = b'x' * {held}\ntime.sleep(3600)"]))
        eventually(lambda: available_bytes() < free - 0.9 * held, 60.0, what="memory is taken")
        for number in range(HOGS):
            undo.enter_context(running(["-c", THRASH, f"{directory}/weights", str(number)]))
        before = refaults()
        eventually(lambda: refaults() > before + 1000, 60.0, what="pages are read again and again")
        before, began = refaults(), time.monotonic()
        yield
        rate = (refaults() - before) * os.sysconf("SC_PAGE_SIZE") / MIB / (time.monotonic() - began)
        strain.evidence = f"MemAvailable {available_bytes() / MIB:.0f} MiB, {rate:.1f} MiB/s of pages read again"
        if rate < LEAST_MIB_PER_S:
            strain.lost += 1  # it did not thrash, so nothing was shown


@contextlib.contextmanager
def running(arguments: list[str]) -> Iterator[None]:
    """A program that the kernel kills first, if it has to."""
    process = subprocess.Popen([sys.executable, "-I", "-S", *arguments])
    try:
        with open(f"/proc/{process.pid}/oom_score_adj", "w") as file:
            file.write("1000")
        yield
    finally:
        process.kill()
        process.wait()


def cross(stage: Stage, strain: Strain) -> None:
    """The kernel kills in the victim: from its count to the command in the server's hands."""
    since = time.monotonic()
    counted = Counted(stage.victim)
    process = stage.victim.spawn(["tail", "/dev/zero"])  # which keeps all of a line that never ends
    process.wait()
    at = counted.at()
    try:
        told, _ = stage.subscriber.wait_for_timed("command", since=since, level="emergency")
        strain.delays_s.append(max(0.0, told - at))
    except AssertionError:
        strain.lost += 1
        return

    def rests() -> bool:
        row = stage.daemon.status()["targets"][0]
        return (row["level"], row["rung"], row["outstanding"]) == ("normal", "normal", [])

    eventually(rests, 60.0, what="normal again")


class Counted:
    """The moment at which the kernel counts a kill: an epoll on memory.events beside the daemon's."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._fd = os.open(cgroup.file("memory.events"), os.O_RDONLY)
        self._before = self._kills()
        self._at: float | None = None
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def at(self) -> float:
        """When it was."""
        self._thread.join(60.0)
        os.close(self._fd)
        assert self._at is not None, "the kernel has not counted"
        return self._at

    def _watch(self) -> None:
        with select.epoll() as poll:
            poll.register(self._fd, select.EPOLLPRI)
            while self._at is None:
                poll.poll(1.0)
                now = time.monotonic()
                if self._kills() != self._before:
                    self._at = now

    def _kills(self) -> str:
        text = os.pread(self._fd, 4096, 0).decode()
        return dict(line.split() for line in text.splitlines())["oom_kill"]


def available_bytes() -> int:
    """MemAvailable."""
    return 1024 * _keyed("/proc/meminfo")["MemAvailable:"]


def refaults() -> int:
    """Pages of files that were evicted and read again, since the start."""
    return _keyed("/proc/vmstat")["workingset_refault_file"]


def _keyed(path: str) -> dict[str, int]:
    with open(path) as file:
        return {words[0]: int(words[1]) for line in file if (words := line.split())[1].isdigit()}
