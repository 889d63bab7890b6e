"""Survival: the demonstration's load on its server, guard against guard, with the same seeds on the same kernel.

    one probe a seed, so that a guest that dies costs one seed; its options: seed and seconds

Must not: differ from the demonstration in anything but who takes part. Upstream: parts. Downstream: tests.demo.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from tests.bench.figures import median, ms, percentile
from tests.bench.probes import Found, Tell, kernel
from tests.bench.report import Table
from tests.demo import contest, load, rivals, workload
from tests.demo.__main__ import prepare, wrong_answers
from tests.demo.contest import Contestant
from tests.demo.run import Result, Run
from tests.demo.timeline import LIMITS, MIB
from tests.support import oomd

# An emulated processor takes longer for the same requests.
EMULATED_SLOWER = 1.5
HEAD = [
    *("guard", "requests", "served", "refused in time", "timed out", "lost", "kills", "hangs", "restarts needed"),
    *("longest stall", "slowest recovery", "median answer", "p99 answer", "given back"),
]


def columns(result: Result) -> list[str]:
    """One row of the table."""
    tally = result.tally
    counts = [tally.sent, tally.served, tally.rejected, tally.timed_out, tally.lost]
    counts += [ended(result), tally.hangs, restarts_needed(result)]
    recovery = f"{result.recovery_s:.1f} s" if result.gone_at else "-"
    times = [f"{tally.longest_stall_s:.1f} s", recovery, ms(median(tally.times_s)), ms(percentile(tally.times_s, 0.99))]
    return [result.name, *map(str, counts), *times, f"{result.freed_bytes / MIB:.0f} MiB"]


def ended(result: Result) -> int:
    """How often the server was killed, by the kernel or by a guard."""
    return max(result.kills, result.restarts)


def restarts_needed(result: Result) -> int:
    """Kills, after which the server was started again, and hangs, after which somebody would have had to."""
    return ended(result) + result.tally.hangs


def table(title: str, seed: int, results: Sequence[Result], notes: list[str]) -> Table:
    """All of one seed, and who needed no restart."""
    without = [result.name for result in results if restarts_needed(result) == 0]
    said = f"Needed no restart: {', '.join(without) or 'none'}."
    return Table(f"{title}, seed {seed}", HEAD, [columns(result) for result in results], [*notes, said])


def measured(results: Sequence[Result]) -> dict[str, float]:
    """What is promised of edgeguardd: by the names of budgets."""
    own = next(each for each in results if each.name == "edgeguardd")
    others = max(each.tally.served for each in results if not each.name.startswith("edgeguardd"))
    return {
        "survival_kills": float(ended(own)),
        "survival_restarts": float(restarts_needed(own)),
        "survival_timeouts": float(own.tally.timed_out),
        "survival_served": float(others - own.tally.served),
    }


async def compete(
    seed: int, seconds: float, contestants: Sequence[Contestant], tell: Tell, slower: float = 1.0
) -> list[Result]:
    """One after the other, each from an empty cgroup. `slower`: so many times as much time for everything."""
    requests = [replace(each, at_s=each.at_s * slower) for each in workload.schedule(seed, seconds)]
    stage = prepare()
    results = []
    try:
        for contestant in contestants:
            result = await Run(stage, contestant, lambda _: None, load.TIMEOUT_S * slower).go(requests)
            tally = result.tally
            tell(
                f"survival, seed {seed}: {result.name}: served {tally.served} of {tally.sent}, timed out "
                f"{tally.timed_out}, lost {tally.lost}, kills {ended(result)}"
            )
            results.append(result)
    finally:
        shutil.rmtree(stage.directory)
        shutil.rmtree(stage.disk)
    return results


@contextlib.asynccontextmanager
async def of_oomd(setting: oomd.Setting) -> AsyncIterator[None]:
    """systemd-oomd beside the server; what it does is seen by what becomes of it."""
    with oomd.guarded_slice(setting):
        yield


def under_systemd() -> list[Contestant]:
    """Those in a cgroup, and systemd-oomd, in a guest that has it; without the seed article's, to save time."""

    def guard(setting: oomd.Setting) -> Contestant:
        name = f"systemd-oomd, {setting.words()}"
        return Contestant(name, "systemd-oomd", beside=lambda *_: of_oomd(setting), below=oomd.SLICE)

    guards = [guard(setting) for setting in (oomd.DEFAULT, oomd.FASTEST)]
    none, high, _, own = contest.LIMITED
    return [none, high, *guards, own]


def run(options: list[str], tell: Tell) -> Found:
    """Seed, seconds; `systemd`: where systemd-oomd is."""
    seed, seconds = int(options[0]), float(options[1])
    if options[2:]:
        results = asyncio.run(compete(seed, seconds, under_systemd(), tell, EMULATED_SLOWER))
        note = note_on(seconds, results, EMULATED_SLOWER)
        return Found([table("Survival in a cgroup under systemd", seed, results, [note])])
    without = rivals.missing()
    machine = [each for each in contest.ON_A_SMALL_MACHINE if each.name not in without]
    limited = asyncio.run(compete(seed, seconds, contest.LIMITED, tell))
    small = asyncio.run(compete(seed, seconds, machine, tell))
    most = LIMITS.max_bytes // MIB
    of_machine = [f"No limits on the server; the machine is filled until {most} MiB are available."]
    if without:
        of_machine.append(f"Not here: {', '.join(without)}; `make setup` fetches them.")
    note = note_on(seconds, [*limited, *small])
    return Found(
        [table("In a cgroup", seed, limited, [note]), table("On a small machine", seed, small, of_machine)],
        measured(limited),
    )


def note_on(seconds: float, results: Sequence[Result], slower: float = 1.0) -> str:
    """What all rows have in common."""
    high, most = LIMITS.high_bytes // MIB, LIMITS.max_bytes // MIB
    return (
        f"{seconds * slower:.0f} s of load on {kernel()}; memory.high {high} MiB, memory.max {most} MiB, no swap; a "
        f"request not answered within {load.TIMEOUT_S * slower:g} s has timed out. Killed servers are started again at "
        f"once. A hang: nobody was answered for {load.HANG_S:.0f} s while somebody waited. Answers that differ between "
        f"runs: {wrong_answers(list(results))}."
    )
