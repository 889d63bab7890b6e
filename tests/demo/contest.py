"""Who stands between the load and the kernel in a run: one row each, and all that differs between runs is in the row.

Must not: run anything (run does). Upstream: guard, rivals. Downstream: run, tests.demo.__main__, the benchmarks.
"""

import enum
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from tests.demo import guard, rivals
from tests.demo.guard import Said


class Room(enum.Enum):
    """What keeps the server small."""

    HIGH_AND_MAX = enum.auto()  # memory.high and memory.max of its cgroup
    MAX = enum.auto()  # memory.max alone
    MACHINE = enum.auto()  # no limit: the machine has no more than memory.max would allow


@dataclass(frozen=True)
class Contestant:
    """One row. `beside`: what runs outside the server's cgroup; it gets a directory and where to say what it does.
    `below`: the cgroup that the server's is made in, when `beside` is there; empty: the root."""

    name: str
    about: str
    reaction: str = "bare"
    room: Room = Room.HIGH_AND_MAX
    beside: Callable[[str, Said], AbstractAsyncContextManager[object]] | None = None
    below: str = ""


BARE = Contestant("bare", "the kernel is left to its own means")
NAIVE = Contestant("naive", "the server waits on memory.events; any wake-up, it drops a quarter of its cache", "naive")
GUARDED = Contestant(
    "guarded", "edgeguardd, on its defaults, asks the server for what is needed", "guarded", beside=guard.Guard
)
DEMONSTRATED = (BARE, NAIVE, GUARDED)

# The survival table: the same server in a cgroup with limits, then on a machine that has no more memory than that.
LIMITED = (
    Contestant("none", "memory.max alone", room=Room.MAX),
    Contestant("memory.high", "memory.high and memory.max, and nobody who reacts"),
    Contestant("seed article", NAIVE.about, "naive"),
    Contestant("edgeguardd", GUARDED.about, "guarded", beside=guard.Guard),
)
ON_A_SMALL_MACHINE = (
    Contestant("none, machine", "the kernel's own OOM killer", room=Room.MACHINE),
    Contestant("earlyoom", "earlyoom", room=Room.MACHINE, beside=rivals.earlyoom),
    Contestant("nohang", "nohang", room=Room.MACHINE, beside=rivals.nohang),
    Contestant(
        "edgeguardd, machine", "edgeguardd by MemAvailable", "guarded", room=Room.MACHINE, beside=guard.machine_guard
    ),
)
