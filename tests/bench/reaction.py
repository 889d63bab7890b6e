"""Reaction: the kernel counts, and a subscriber can read a command. The C loop, the same in
the barest asyncio, and edgeguardd, a crossing each in turn.

Must not: know in which kernel it runs. Upstream: __main__, which runs it here or in a guest. Downstream: crossings.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.bench import grounds
from tests.bench.crossings import POLICY, Crossing, ToldByDaemon, ToldByLoop
from tests.bench.figures import SERIES_HEAD, in_series, median, ms, percentile
from tests.bench.grounds import Ground
from tests.bench.probes import Found, Tell, kernel
from tests.bench.report import Table
from tests.bench.staged import STAGES
from tests.support.faketree import FakeTree
from tests.support.running import REPOSITORY, Daemon

SOURCE = os.path.join(REPOSITORY, "tests/bench/epoll_loop.c")
BARE = os.path.join(REPOSITORY, "tests/bench/asyncio_loop.py")
LOOP = os.path.join(REPOSITORY, ".build/bench/epoll_loop")
WARM_UP = 5
# What lies between two stamps, in the order in which it happens.
BETWEEN = (
    ("the kernel counts and wakes the daemon", "before", "woken"),
    ("the loop finds the target", "woken", "reading"),
    ("files read and understood", "reading", "read"),
    ("judged, command chosen", "read", "judged"),
    ("level told, metrics, recorder", "judged", "delivering"),
    ("command written to the socket", "delivering", "delivered"),
    ("the subscriber wakes up", "delivered", "readable"),
)


class Ring(NamedTuple):
    """Where crossings are made: three grounds, and a place for sockets. cgroup_root None: the kernel's own."""

    grounds: Sequence[Ground]
    directory: str
    cgroup_root: str | None


class Series(NamedTuple):
    """Seconds of each crossing."""

    loop_s: list[float]
    bare_s: list[float]
    daemon_s: list[float]
    stages_s: dict[str, list[float]]
    early: int


def built_loop() -> str:
    """The C program's path, compiled when it is new."""
    if not os.path.exists(LOOP) or os.path.getmtime(LOOP) < os.path.getmtime(SOURCE):
        os.makedirs(os.path.dirname(LOOP), exist_ok=True)
        # Static, so that it runs in a guest with another C library too.
        subprocess.run(
            ["cc", "-std=gnu11", "-O2", "-static", "-Wall", "-Wextra", "-Werror", SOURCE, "-o", LOOP], check=True
        )
    return LOOP


@contextlib.contextmanager
def ring(memory: bool) -> Iterator[Ring]:
    """memory: real memory.high. Else huge pages, and mounts of this process's own."""
    directory = tempfile.mkdtemp(prefix="eg", dir="/run" if memory else "/dev/shm")
    try:
        if memory:
            with grounds.memory_grounds(3) as real:
                yield Ring(real, directory, None)
            return
        root = grounds.huge_root()
        assert root is not None
        grounds.own_mounts()
        os.mkdir(f"{directory}/tree")
        tree = FakeTree(f"{directory}/tree")
        with grounds.huge_grounds(root, tree, 3) as stand_ins:
            yield Ring(stand_ins, directory, tree.path)
    finally:
        shutil.rmtree(directory)


def measure(here: Ring, count: int, tell: Tell, *, stages: bool) -> Series:
    """`count` crossings each, in turn; then, where that is wanted, as many with stamps at the stages."""
    first, second, third = here.grounds
    with contextlib.ExitStack() as stack:
        loop = ToldByLoop([LOOP], here.directory, first)
        stack.callback(loop.close)
        bare = ToldByLoop([sys.executable, "-I", "-S", BARE], here.directory, second)
        stack.callback(bare.close)
        running = stack.enter_context(daemon(here, third))
        told = ToldByDaemon(running.socket_path, "llm", third)
        stack.callback(told.close)
        rows = []
        for number in range(WARM_UP + count):
            rows.append([each.cross().took_s for each in (loop, bare, told)])
            if number % 50 == 0:
                tell(f"  crossing {number}: C, asyncio, edgeguardd: {', '.join(ms(took_s) for took_s in rows[-1])}")
    loop_s, bare_s, daemon_s = (list(column) for column in zip(*rows[WARM_UP:], strict=True))
    if stages:
        tell("  once more, with stamps at the stages")
    return Series(loop_s, bare_s, daemon_s, staged(here, third, count) if stages else {}, told.early)


@contextlib.contextmanager
def daemon(here: Ring, ground: Ground, command: Sequence[str] = (), more: str = "") -> Iterator[Daemon]:
    """edgeguardd with its defaults but for POLICY, guarding the ground as llm."""
    config = f'{POLICY}{more}[[target]]\nname = "llm"\npath = "{ground.below_root}"\n'
    running = Daemon(here.directory, config, cgroup_root=here.cgroup_root, start=False)
    running.command = [*command] or running.command
    running.start()
    running.killed = True  # its crossings are many and all alike: they are not worth replaying
    with running:
        yield running


def staged(here: Ring, ground: Ground, count: int) -> dict[str, list[float]]:
    """Seconds between the stamps, by the words of BETWEEN."""
    path = f"{here.directory}/stamps"
    with daemon(here, ground, [sys.executable, "-m", "tests.bench.staged", path, "run"]) as running:
        told = ToldByDaemon(running.socket_path, "llm", ground)
        crossings = [told.cross() for _ in range(WARM_UP + count)][WARM_UP:]
        told.close()
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    found: dict[str, list[float]] = {words: [] for words, _, _ in BETWEEN}
    for crossing in crossings:
        row = _row_of(crossing, rows)
        if row is not None:
            for words, begins, ends in BETWEEN:
                found[words].append((row[ends] - row[begins]) / 1e9)
    return found


def _row_of(crossing: Crossing, rows: list[dict[str, int]]) -> dict[str, int] | None:
    """The stamps between a crossing's own."""
    before, readable = crossing.stamps.before_ns, crossing.readable_ns
    for row in rows:
        if before <= row["woken"] and row[STAGES[-2]] <= readable:
            return {**row, "before": before, "readable": readable}
    return None


def tables(where: str, series: Series) -> list[Table]:
    """The tables of one kernel."""

    def row(who: str, times_s: list[float]) -> list[str]:
        floor_s = series.loop_s
        ratios = [median(times_s) / median(floor_s), percentile(times_s, 0.99) / percentile(floor_s, 0.99)]
        return [who, *in_series(times_s), *(f"{ratio:.1f}" for ratio in ratios)]

    rows = [
        row("C epoll loop", series.loop_s),
        row("the same in the barest asyncio", series.bare_s),
        row("edgeguardd", series.daemon_s),
    ]
    head = ["who", *SERIES_HEAD, "median against C", "p99 against C"]
    early = f"{series.early} crossings were left out, as a timer found them before the kernel counted."
    found = [Table(f"Reaction, {where}", head, rows, [early])]
    if series.stages_s:
        stages = [[words, ms(median(each)), ms(percentile(each, 0.99))] for words, each in series.stages_s.items()]
        found.append(Table(f"Where edgeguardd's time goes, {where}", ["stage", "median", "p99"], stages))
    return found


def measured(series: Series) -> dict[str, float]:
    """By the names of budgets."""
    return {
        "reaction_p50": median(series.daemon_s) * 1e3,
        "reaction_p99": percentile(series.daemon_s, 0.99) * 1e3,
        "reaction_ratio": median(series.daemon_s) / median(series.loop_s),
    }


def run(options: list[str], tell: Tell) -> Found:
    """`memory` or `huge`, how many crossings, and perhaps `whole`: without the stages."""
    kind, count, *more = options
    where = f"memory.high on {kernel()}" if kind == "memory" else f"a hugetlb counter on {kernel()}"
    tell(f"reaction: {count} crossings each, {where}")
    with ring(kind == "memory") as here:
        series = measure(here, int(count), tell, stages=not more)
    return Found(tables(where, series), measured(series))
