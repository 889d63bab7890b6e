"""Restarts and kills of the daemon with ten subscribers at critical: for how long nobody is served, and what is lost.

As under systemd with the shipped units: the socket stays, a restart starts at once; after a kill -9 first comes
`edgeguardd put-back` (ExecStopPost=) and then RestartSec=.
Must not: judge lines (subscriberload does). Upstream: parts. Downstream: tests.support.restarts, subscriberload.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from tests.bench.figures import median, ms
from tests.bench.probes import Found, Tell
from tests.bench.report import Table
from tests.support.faketree import MIB, FakeTree
from tests.support.restarts import Memory, activated
from tests.support.running import REPOSITORY, Daemon
from tests.support.subscriberload import Journal, Line, Server, problems, read
from tests.support.subscriberload import run as load
from tests.support.wait import soon

TIMES = {"full": 10, "quick": 1}
SERVERS = 10
# systemd/edgeguardd.service
RESTART_S = 0.1
WITHIN_S = 30.0


class Absence(NamedTuple):
    """One time that the daemon was not there."""

    killed: bool
    gap_s: float
    all_back_s: float


def run(options: list[str], tell: Tell) -> Found:
    """`full` or `quick`."""
    times = TIMES[options[0]]
    logging.disable(logging.WARNING)  # the clients' words on a daemon that is gone
    directory = tempfile.mkdtemp(prefix="eg", dir="/dev/shm")
    try:
        os.mkdir(f"{directory}/tree")
        cgroup = FakeTree(f"{directory}/tree").cgroup("/llm", max_bytes=1000 * MIB)
        path = f"{directory}/journal"
        with activated(directory) as running:
            running.killed = True  # nothing of it is worth replaying
            absences = asyncio.run(_absences(running, Memory(cgroup), path, times, tell))
        lines = read(path)
    finally:
        shutil.rmtree(directory)
    return found(absences, lines)


async def _absences(running: Daemon, memory: Memory, path: str, times: int, tell: Tell) -> list[Absence]:
    """Restarts and kills in turn, under load; at the end all is as it was."""
    journal, until = Journal(path), asyncio.Event()
    servers = [
        Server(f"load-{n}", journal, take_s=0.02, release=memory.release, path=running.socket_path, target="llm")
        for n in range(SERVERS)
    ]
    loading = asyncio.create_task(load(servers, journal, running.socket_path, until))
    await soon(lambda: all(each.guard.connected for each in servers), WITHIN_S)
    memory.set(980 * MIB)
    growing = asyncio.create_task(memory.grow())
    absences = []
    for number, killed in itertools.product(range(times), (False, True)):
        await soon(lambda: all(each.guard.connected and not each.accepting for each in servers), WITHIN_S)
        tell(f"restart: {'kill -9' if killed else 'restart'} {number + 1} of {times}")
        absences.append(await _absence(running, path, killed=killed))
    growing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await growing
    memory.set(100 * MIB)
    await soon(lambda: all(each.accepting and each.settled() for each in servers), WITHIN_S)
    until.set()
    await loading
    journal.close()
    return absences


async def _absence(running: Daemon, path: str, *, killed: bool) -> Absence:
    """End it, start it, and wait until a stranger has been answered and all ten have been welcomed again."""
    ended_at = time.monotonic()
    await asyncio.to_thread(_restart, running, killed=killed)
    started_at = time.monotonic()

    def back() -> list[Line] | None:
        lines = [line for line in read(path) if line["at"] > ended_at]
        welcomed = {line["name"] for line in lines if line["what"] == "welcome"}
        answered = any(line["what"] == "pong" and line["at"] > started_at for line in lines)
        return lines if answered and len(welcomed) == SERVERS else None

    await soon(lambda: back() is not None, WITHIN_S)
    lines = back() or []
    before = max((line["at"] for line in read(path) if line["what"] == "pong" and line["at"] <= ended_at), default=0.0)
    answered = [before, *(line["at"] for line in lines if line["what"] == "pong")]
    gap_s = max(later - earlier for earlier, later in itertools.pairwise(answered))
    return Absence(killed, gap_s, max(line["at"] for line in lines if line["what"] == "welcome") - ended_at)


def _restart(running: Daemon, *, killed: bool) -> None:
    if killed:
        running.kill()
        put_back = [sys.executable, "-m", "edgeguardd", "put-back", "--config", running.config_path]
        subprocess.run(put_back, cwd=REPOSITORY, check=True)
        time.sleep(RESTART_S)
    else:
        running.stop()
    running.start()


def found(absences: list[Absence], lines: list[Line]) -> Found:
    """The table, and what is promised of it."""
    wrong = problems(lines, least_level="critical")
    done = {(line["name"], line["epoch"], line["seq"]) for line in lines if line["what"] == "end" and line["seq"]}
    begun = {(line["name"], line["epoch"], line["seq"]) for line in lines if line["what"] == "begin" and line["seq"]}
    wrong += [f"{name} began with command {seq} and did not end it" for name, _, seq in sorted(begun - done)]
    rows = []
    for word, killed in (("restart", False), ("kill -9", True)):
        of = [each for each in absences if each.killed == killed]
        gaps, backs = [each.gap_s for each in of], [each.all_back_s for each in of]
        rows.append([word, str(len(of)), ms(median(gaps)), ms(max(gaps)), ms(median(backs)), ms(max(backs))])
    head = ["how", "times", "gap, median", "gap, most", "all ten back, median", "most"]
    note = (
        f"{len(done)} commands were carried out meanwhile by {SERVERS} subscribers at critical, {len(wrong)} things "
        "went wrong. Gap: from the last answer to somebody new to the next one, asked for every 20 ms. Back: from "
        f"the end to the last welcome. A kill is followed by `edgeguardd put-back` and {RESTART_S:g} s, as in the unit."
    )
    measured = {"restart_gap": max(each.gap_s for each in absences), "restart_wrong": float(len(wrong))}
    return Found([Table("Gone and back under load", head, rows, [note, *wrong])], measured)
