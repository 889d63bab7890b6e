"""`make demo`: the same load on the same server three times, under the same limits: bare, naive, guarded.

    python -m tests.demo [--seed N] [--seconds S] [--only bare|naive|guarded] [--here]

Runs on this host's cgroup v2 if it has one that can be written, else inside user-mode Linux. Exit status 0: the guarded
run had no kill and no time-out, and served more than either other run.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile

from tests.demo import load, model, timeline, workload
from tests.demo.contest import DEMONSTRATED
from tests.demo.run import Result, Run, Stage
from tests.demo.timeline import LIMITS
from tests.support import cgroup
from tests.support.uml import runner

REACTIONS = {each.name: each for each in DEMONSTRATED}
ROWS = (
    "requests",
    "served",
    "rejected in time",
    "timed out",
    "lost with the server",
    "kills by the kernel",
    "longest stall",
    "median answer",
    "slowest answer",
    "KV cache freed",
    "tokens computed again",
)
GUEST_MEMORY_BYTES = 640 * runner.MIB
LIMIT_S = 400.0


def main() -> int:
    """Choose the kernel, then run."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", choices=REACTIONS)
    parser.add_argument("--here", action="store_true", help="on this kernel, whatever it is")
    options = parser.parse_args()
    unusable = cgroup.usable()
    if options.here or unusable is None:
        return asyncio.run(all_runs(options))
    say(f"this kernel cannot be used ({unusable}): running inside user-mode Linux")
    return inside(sys.argv[1:])


def inside(arguments: list[str]) -> int:
    """The same program in a guest; its output as it comes."""
    argv = [sys.executable, "-m", "tests.demo", "--here", *arguments]
    try:
        outcome = runner.run(argv, to=sys.stdout.buffer, memory_bytes=GUEST_MEMORY_BYTES, limit_s=LIMIT_S)
    except runner.GuestError as error:
        say(str(error))
        return 1
    if outcome.status is None:
        say(f"{outcome.console}\n{outcome.trouble}")
        return 1
    return outcome.status


async def all_runs(options: argparse.Namespace) -> int:
    """The runs one after the other, then the table."""
    requests = workload.schedule(options.seed, options.seconds)
    stage = prepare()
    try:
        say(
            f"{len(requests)} requests in {options.seconds:.0f} s, seed {options.seed}; memory.high "
            f"{LIMITS.high_bytes // timeline.MIB} MiB, memory.max {LIMITS.max_bytes // timeline.MIB} MiB, no swap; "
            f"a request not answered within {load.TIMEOUT_S:.0f} s has timed out"
        )
        say("bar: # needed, : page cache that can be dropped, | memory.high, right end memory.max")
        results = []
        for reaction in [options.only] if options.only else REACTIONS:
            say(f"\n== {reaction}: {REACTIONS[reaction].about}")
            results.append(await Run(stage, REACTIONS[reaction], say).go(requests))
    finally:
        shutil.rmtree(stage.directory)
        shutil.rmtree(stage.disk)
    say("\n" + timeline.table([(each.name, figures(each)) for each in results], ROWS))
    return verdict({each.name: each for each in results})


def prepare() -> Stage:
    """Sockets on tmpfs, files on a disk."""
    disk = tempfile.mkdtemp(prefix="edgeguardd-demo-", dir="/var/tmp")
    stage = Stage(tempfile.mkdtemp(prefix="edgeguardd-demo-", dir="/run"), disk)
    model.write_file(stage.weights, model.WEIGHTS_BYTES)
    model.write_file(stage.index, model.INDEX_BYTES)
    return stage


def figures(result: Result) -> list[str]:
    """A run's column."""
    tally = result.tally
    times_s = sorted(tally.times_s)
    median, slowest = (f"{times_s[at] * 1000:.0f} ms" if times_s else "-" for at in (len(times_s) // 2, -1))
    numbers = [tally.sent, tally.served, tally.rejected, tally.timed_out, tally.lost, result.kills]
    return [
        *map(str, numbers),
        f"{tally.longest_stall_s:.1f} s",
        median,
        slowest,
        f"{result.freed_bytes / timeline.MIB:.0f} MiB",
        str(tally.recomputed_tokens),
    ]


def wrong_answers(results: list[Result]) -> int:
    """Answers that differ between runs: a trimmed and recomputed cache must hold what the untouched one held."""
    first: dict[workload.Request, int] = {}
    return sum(
        first.setdefault(request, checksum) != checksum
        for result in results
        for request, checksum in result.tally.checksums.items()
    )


def verdict(results: dict[str, Result]) -> int:
    """Whether the guarded run kept its promise; said in a line."""
    if set(results) != set(REACTIONS):
        return 0
    guarded = results["guarded"]
    others = max(results[name].tally.served for name in ("bare", "naive"))
    kept = guarded.kills == 0 and guarded.tally.timed_out == 0 and guarded.tally.served > others
    wrong = wrong_answers(list(results.values()))
    if wrong:
        say(f"{wrong} answers differ between the runs: DEFECT")
        return 1
    say(
        f"\nguarded: {guarded.kills} kills, {guarded.tally.timed_out} time-outs, served {guarded.tally.served} against "
        f"{others} of the better of the others: {'promise kept' if kept else 'PROMISE NOT KEPT'}"
    )
    return 0 if kept else 1


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
