"""What edgeguardd costs at rest, when its metrics are asked for, and at its start; and how that grows with targets.

Must not: need a kernel of its own (a tree of plain files stands in for cgroups; timers, sockets and Python are real).
Upstream: parts. Downstream: tests.support.running.Daemon, listener, processes.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.bench.figures import median, mib, ms, percentile
from tests.bench.probes import Found, Tell
from tests.bench.processes import resident_bytes, use
from tests.bench.report import Table
from tests.support.faketree import MIB, FakeTree
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import DEADLINE_S

FLOOR = "import time\nwhile True:\n    time.sleep(1)\n    open('/proc/meminfo').read()"
# As the daemon's command does; what ending takes is not counted.
IMPORTS = """
import os
from edgeguardd.cli import edgeguardd
from edgeguardd.standins import without_unused
with without_unused():
    import edgeguardd.daemon
os._exit(0)
"""
LIMIT_BYTES = 1024 * MIB
REST_BYTES = 64 * MIB


class Sizes(NamedTuple):
    """How much of everything."""

    targets: tuple[int, ...]
    settles_s: float
    watched_s: float
    pages: int
    starts: int


SIZES = {"full": Sizes((1, 10, 100, 1000), 3.0, 30.0, 100, 10), "quick": Sizes((1, 100), 0.2, 1.0, 3, 1)}


class Rested(NamedTuple):
    """A daemon with so many targets, far from their marks."""

    targets: int
    wakeups_per_s: float
    cpu_ratio: float
    resident_bytes: int
    pages_s: list[float]
    page_bytes: int


@contextlib.contextmanager
def daemon(targets: int, *, start: bool = True) -> Iterator[tuple[Daemon, FakeTree]]:
    """One with so many targets, on a tree of plain files."""
    directory = tempfile.mkdtemp(prefix="eg", dir="/dev/shm")
    try:
        os.mkdir(f"{directory}/tree")
        tree = FakeTree(f"{directory}/tree")
        for number in range(targets):
            tree.cgroup(f"/t{number}", max_bytes=LIMIT_BYTES).usage(REST_BYTES)
        rows = [f'[[target]]\nname = "t{number}"\npath = "/t{number}"\n' for number in range(targets)]
        # What others on this machine make the kernel say would be counted as the daemon's wake-ups.
        config = f"max_targets = {max(256, targets)}\n[kernel_log]\nenabled = false\n" + "\n".join(rows)
        with Daemon(directory, config, cgroup_root=tree.path, start=start) as running:
            running.killed = True  # nothing of it is worth replaying
            yield running, tree
    finally:
        shutil.rmtree(directory)


def rested(targets: int, sizes: Sizes) -> Rested:
    """Watch it do nothing; then ask for its metrics."""
    with daemon(targets) as (running, _):
        time.sleep(sizes.settles_s)  # start-up's own work is over
        began, before = time.monotonic(), use(running.pid)
        time.sleep(sizes.watched_s)
        after, took_s = use(running.pid), time.monotonic() - began
        resident = resident_bytes(running.pid)
        pages_s, size = [], 0
        for _ in range(sizes.pages):
            asked = time.monotonic()
            size = len(running.get("/metrics"))
            pages_s.append(time.monotonic() - asked)
        return Rested(
            targets,
            (after.switches - before.switches) / took_s,
            (after.cpu_s - before.cpu_s) / took_s,
            resident,
            pages_s,
            size,
        )


def floor(sizes: Sizes) -> tuple[float, float]:
    """Wake-ups a second and share of a processor of a Python that wakes once a second and reads one file."""
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", FLOOR])
    try:
        time.sleep(sizes.settles_s)
        began, before = time.monotonic(), use(process.pid)
        time.sleep(sizes.watched_s)
        after, took_s = use(process.pid), time.monotonic() - began
        return (after.switches - before.switches) / took_s, (after.cpu_s - before.cpu_s) / took_s
    finally:
        process.kill()
        process.wait()


# The start


def ready_s(targets: int) -> float:
    """From exec to READY=1, as systemd would be told."""
    with daemon(targets, start=False) as (running, _), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        path = f"{running.directory}/notify"
        notified.bind(path)
        notified.settimeout(DEADLINE_S)
        running.environment["NOTIFY_SOCKET"] = path
        began = time.monotonic()
        running.start(wait=False)
        while b"READY=1" not in notified.recv(4096):
            pass
        return time.monotonic() - began


def python_s(*words: str) -> float:
    """What a Python takes that does this and ends."""
    began = time.monotonic()
    subprocess.run([sys.executable, *words], check=True, cwd=REPOSITORY)
    return time.monotonic() - began


def starts(sizes: Sizes) -> tuple[Table, float]:
    """By stage, and the whole with one target."""
    bare = [python_s("-c", "pass") for _ in range(sizes.starts)]
    imported = [python_s("-c", IMPORTS) for _ in range(sizes.starts)]
    one, hundred = ([ready_s(targets) for _ in range(sizes.starts)] for targets in (1, 100))
    rows = [
        ["Python itself", ms(median(bare)), ms(max(bare))],
        ["what edgeguardd imports, beyond that", ms(median(imported) - median(bare)), ms(max(imported) - min(bare))],
        [
            "configuration, target, sockets, beyond that",
            ms(median(one) - median(imported)),
            ms(max(one) - min(imported)),
        ],
        ["start to READY=1, one target", ms(median(one)), ms(max(one))],
        ["start to READY=1, 100 targets", ms(median(hundred)), ms(max(hundred))],
    ]
    return Table(f"Start, {sizes.starts} times each", ["stage", "median", "most"], rows), median(one)


def run(options: list[str], tell: Tell) -> Found:
    """`full` or `quick`."""
    sizes = SIZES[options[0]]
    all_rested = []
    for targets in sizes.targets:
        tell(f"cost: {targets} targets at rest for {sizes.watched_s:.0f} s")
        all_rested.append(rested(targets, sizes))
    tell("cost: starts")
    started, one_s = starts(sizes)
    measured = {"ready": one_s}
    for each in all_rested:
        if each.targets == 1:
            measured |= {"idle_wakeups": each.wakeups_per_s, "idle_cpu": each.cpu_ratio * 100}
        if each.targets == 100:
            measured["metrics_page"] = median(each.pages_s) * 1e3
    rows = [
        [
            str(each.targets),
            f"{each.wakeups_per_s:.2f}",
            f"{each.cpu_ratio:.3%}",
            mib(each.resident_bytes),
            ms(median(each.pages_s)),
            ms(percentile(each.pages_s, 0.99)),
            f"{each.page_bytes / 1024:.0f} KiB",
        ]
        for each in all_rested
    ]
    wakes, cpu = floor(sizes)
    rows.insert(0, ["none: the floor", f"{wakes:.2f}", f"{cpu:.3%}", "", "", "", ""])
    head = ["targets", "wake-ups a second", "processor", "resident", "/metrics, median", "p99", "its size"]
    note = (
        f"Far from their marks, watched for {sizes.watched_s:.0f} s; /metrics asked for {sizes.pages} times, the "
        "connection made anew each time. The kernel's log, which others here fill, is not read meanwhile. Up to 16 "
        "targets and the machine share a wake-up; a wait for a lock, the kernel's too, counts as one. The floor is a "
        "Python that only wakes once a second and reads /proc/meminfo: what a wake-up costs here, busy as it is."
    )
    return Found([Table("At rest, as targets grow", head, rows, [note]), started], measured)
