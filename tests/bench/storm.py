"""A storm: many cgroups that each make the kernel count as often as it tells of it, and one crossing among them.

Three questions: is every count seen, what does it cost, and how long does a crossing take meanwhile. The kernel is the
oracle: what its files have counted at the end is what the daemon's metrics have to say.

Must not: take turns with the storm (it goes on by itself). Upstream: parts. Downstream: grounds, crossings, a daemon.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.bench import grounds
from tests.bench.crossings import POLICY, ToldByDaemon
from tests.bench.figures import SERIES_HEAD, in_series, mib, percentile
from tests.bench.grounds import HUGE_LIMIT, LIMIT_BYTES, REST_BYTES, HugeGround, bind, unbind
from tests.bench.probes import Found, Tell, kernel
from tests.bench.processes import resident_bytes, use
from tests.bench.report import Table
from tests.support.cgroup import Cgroup
from tests.support.faketree import FakeTree
from tests.support.running import Daemon
from tests.support.wait import eventually

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "storm_program.py")
SIZES = {"full": (100, 300), "quick": (5, 3)}
SEEN_WITHIN_S = 20.0


@contextlib.contextmanager
def cgroups(root: str, tree: FakeTree, count: int) -> Iterator[list[Cgroup]]:
    """So many, each a target of the tree, by its counter of huge pages."""
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(count):
            cgroup = stack.enter_context(Cgroup(f"{root}/edgeguardd-storm-{os.getpid()}-{number}"))
            cgroup.write(HUGE_LIMIT, 0)
            stand_in = tree.cgroup(f"/storm{number}", max_bytes=LIMIT_BYTES)
            stand_in.usage(REST_BYTES)
            bind(cgroup.file(grounds.HUGE_EVENTS), f"{stand_in.path}/memory.events")
            stack.callback(unbind, f"{stand_in.path}/memory.events")
            made.append(cgroup)
        yield made


@contextlib.contextmanager
def blowing(made: list[Cgroup], every_ms: float) -> Iterator[None]:
    """The storm, for as long as the block lasts."""
    argv = [sys.executable, "-I", "-S", "-B", PROGRAM, str(every_ms), *(each.path for each in made)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdout.readline()
        process.stdin.write(b"go\n")
        process.stdin.flush()
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def counted(made: list[Cgroup]) -> int:
    """What the kernel has counted in all."""
    return sum(each.keyed(grounds.HUGE_EVENTS)["max"] for each in made)


def seen(running: Daemon) -> int:
    """What the daemon says it has."""
    rows = running.get("/metrics").splitlines()
    wanted = 'edgeguardd_memory_events_total{event="max",target="storm'
    return int(sum(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(wanted)))


def one(root: str, count: int, crossings: int, every_ms: float, tell: Tell) -> tuple[list[str], dict[str, float]]:
    """A storm of `count` cgroups at this pace; its row, and the figures."""
    directory = tempfile.mkdtemp(prefix="eg", dir="/dev/shm")
    try:
        os.mkdir(f"{directory}/tree")
        tree = FakeTree(f"{directory}/tree")
        with cgroups(root, tree, count) as made, grounds.huge_grounds(root, tree, 1) as (ground,):
            rows = "".join(f'[[target]]\nname = "storm{n}"\npath = "/storm{n}"\n' for n in range(count))
            config = f'{POLICY}[[target]]\nname = "llm"\npath = "{ground.below_root}"\n{rows}'
            with Daemon(directory, config, cgroup_root=tree.path) as running:
                running.killed = True  # what it recorded of a storm is not worth replaying
                return _during(running, made, ground, crossings, every_ms)
    finally:
        shutil.rmtree(directory)


def _during(
    running: Daemon, made: list[Cgroup], ground: HugeGround, crossings: int, every_ms: float
) -> tuple[list[str], dict[str, float]]:
    told = ToldByDaemon(running.socket_path, "llm", ground)
    with blowing(made, every_ms):
        began, before, counted_before = time.monotonic(), use(running.pid), counted(made)
        took_s = [told.cross().took_s for _ in range(crossings)]
        lasted_s = time.monotonic() - began
        cpu = (use(running.pid).cpu_s - before.cpu_s) / lasted_s
        rate = (counted(made) - counted_before) / lasted_s
    told.close()
    total = counted(made)
    with contextlib.suppress(AssertionError):
        eventually(lambda: seen(running) == total, SEEN_WITHIN_S)
    lost = total - seen(running)
    row = [str(len(made)), f"{rate:,.0f}", f"{lost:,} of {total:,}", f"{cpu:.0%}", mib(resident_bytes(running.pid))]
    figures = {"storm_lost": float(lost), "storm_cpu": cpu * 100, "storm_p99": percentile(took_s, 0.99) * 1e3}
    return [*row, *in_series(took_s)], figures


def run(options: list[str], tell: Tell) -> Found:
    """`full` or `quick`."""
    count, crossings = SIZES[options[0]]
    root = grounds.huge_root()
    assert root is not None
    grounds.own_mounts()
    rows = []
    measured: dict[str, float] = {}
    for every_ms in (100.0, 10.0):
        tell(f"storm: {count} cgroups, a count every {every_ms:.0f} ms each")
        row, measured = one(root, count, crossings, every_ms, tell)
        rows.append(row)
    head = ["targets", "counts a second", "counts not seen", "processor", "resident", *SERIES_HEAD]
    note = (
        f"On {kernel()}, by counters of huge pages. The kernel passes on one wake-up per file and 10 ms. The last five "
        "columns are the reaction to crossings of one more target meanwhile, from before the count to the command."
    )
    return Found([Table("A storm of counts", head, rows, [note])], measured)
