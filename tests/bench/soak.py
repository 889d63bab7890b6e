"""The soak: memory and descriptors of one daemon under mixed load, every ten seconds, for as long as is asked.

Must not: make the load (soaker does). Upstream: __main__. Downstream: a daemon on a tree of plain files, so that the
figures are those of this machine's own Python, whatever its kernel.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.bench.figures import MIB, mib, slope
from tests.bench.processes import descriptors, resident_bytes
from tests.bench.report import Section, Table
from tests.bench.soaker import Soaker, configuration
from tests.support.faketree import FakeTree
from tests.support.running import Daemon
from tests.support.wait import soon

EVERY_S = 10.0
# The first quarter fills what is bounded: series of departed targets, the recorder's buffers, the allocator's pools.
SETTLED_AFTER = 0.25
ROWS = 8
# Longer than the slowest look at a target.
LOOKS_WITHIN_S = 2.0
# Longer than three heartbeats: that an observer has hung up is seen by then.
CLOSED_WITHIN_S = 40.0


class Look(NamedTuple):
    """One sample."""

    at_s: float
    resident_bytes: int
    descriptors: int
    blocks: int = 0


class Soaked(NamedTuple):
    """What a soak saw."""

    looks: list[Look]
    acts: int
    commands: int
    defects: int
    opened: int


def run(seconds: float, tempo: float, seed: int, tell: Callable[[str], None]) -> Section:
    """The whole part."""
    soaked = asyncio.run(soak(seconds, tempo, seed, tell))
    return section(soaked, seconds)


async def soak(seconds: float, tempo: float, seed: int, tell: Callable[[str], None]) -> Soaked:
    """The load, and beside it the looks. `tempo`: acts a second."""
    with tempfile.TemporaryDirectory(prefix="eg", dir="/tmp") as directory:
        os.mkdir(f"{directory}/tree")
        tree = FakeTree(f"{directory}/tree")
        with Daemon(directory, configuration(), cgroup_root=tree.path) as daemon:
            daemon.killed = True  # what it recorded of an hour is more than is worth replaying
            soaker = Soaker(tree, daemon, seed)
            before = await _stable(daemon)
            looks: list[Look] = []
            looking = asyncio.create_task(_look(daemon, looks, min(EVERY_S, seconds / 20), tell))
            await soaker.run(seconds, tempo)
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
            opened = await _at_rest(daemon, before) - before
            defects = int(daemon.metric("edgeguardd_defects_total") or 0)
            return Soaked(looks, soaker.acts, soaker.commands, defects, opened)


async def _stable(daemon: Daemon) -> int:
    """How many descriptors it has when it opens no more."""
    last = -1
    while (now := descriptors(daemon.pid)) != last:
        last = now
        await asyncio.sleep(LOOKS_WITHIN_S)
    return now


async def _at_rest(daemon: Daemon, wanted: int) -> int:
    """How many descriptors are left, when it has had time to close all but those wanted."""
    with contextlib.suppress(AssertionError):
        await soon(lambda: descriptors(daemon.pid) <= wanted, CLOSED_WITHIN_S)
    return descriptors(daemon.pid)


async def _look(daemon: Daemon, looks: list[Look], every_s: float, tell: Callable[[str], None]) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        blocks = await asyncio.to_thread(daemon.metric, "edgeguardd_allocated_blocks")
        at_s = time.monotonic() - began
        looks.append(Look(at_s, resident_bytes(daemon.pid), descriptors(daemon.pid), int(blocks or 0)))
        if len(looks) % 30 == 1:
            tell(f"{looks[-1].at_s:6.0f} s  {mib(looks[-1].resident_bytes)}  {looks[-1].descriptors} descriptors")


def section(soaked: Soaked, seconds: float) -> Section:
    """The looks as a table of a few rows, and the lines fitted to what is settled."""
    looks = soaked.looks
    settled = [look for look in looks if look.at_s >= SETTLED_AFTER * seconds]
    hourly = [(look.at_s / 3600, look.resident_bytes / MIB) for look in settled]
    grown = slope(hourly)
    more = slope([(look.at_s / 3600, float(look.blocks)) for look in settled])
    step = max(1, len(looks) // ROWS)
    shown = [*looks[:1], *looks[step::step]]
    rows = [
        [f"{look.at_s / 60:.0f} min", mib(look.resident_bytes), f"{look.blocks:,}", str(look.descriptors)]
        for look in shown
    ]
    most = max(looks, key=lambda look: look.resident_bytes)
    note = (
        f"{soaked.acts} acts of mixed load, {soaked.commands} commands taken by subscribers, {soaked.defects} defects "
        f"survived; {len(looks)} looks. Most resident: {mib(most.resident_bytes)} after {most.at_s / 60:.0f} min. "
        f"Fitted over the last three quarters: {grown * 1024:+.0f} KiB and {more:+.0f} blocks an hour. "
        f"At rest there are {soaked.opened:+d} descriptors more than before."
    )
    head = ["after", "resident", "blocks in use", "descriptors"]
    table = Table(f"{seconds / 60:.0f} minutes of mixed load", head, rows, [note])
    measured = {
        "resident": looks[-1].resident_bytes / MIB,
        "resident_slope": grown,
        "descriptors_left": soaked.opened,
    }
    return Section("soak", "Memory over time", [table], measured)
