"""`make demo-llama`: the same callers on a real llama-server twice, under the same limits: bare and guarded.

    python -m tests.llama --program FILE --model FILE [--prompts N] [--minutes M] [--words N] [--only bare|guarded]
                          [--threads N] [--here]

Runs on this host's cgroup v2 if it has one that can be written, else inside user-mode Linux. Exit status 0: the bare
run had time-outs or kills, and in the guarded one nothing was killed and every request was answered or refused within
a second.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile

from tests.demo import timeline
from tests.demo.timeline import MIB, Limits
from tests.llama import load
from tests.llama.run import Result, Run, Stage, at_rest
from tests.support import cgroup
from tests.support.uml import runner

RUNS = {
    "bare": "llama-server alone; the kernel is left to its own means",
    "guarded": "edgeguardd, and its bridge that shuts a gate, drains, restarts, verifies and opens again",
}
ROWS = (
    "requests",
    "answered",
    "refused at once",
    "timed out",
    "lost with the server",
    "kills by the kernel",
    "restarts",
    "gate shut for them",
    "median answer",
    "slowest answer",
    "slowest refusal",
    "most memory needed",
    "memory.max events",
)
# memory.max above what the server needs at rest: some eight to ten prompts of 30 to 46 MB.
ROOM_BYTES = 288 * MIB
PROMPTS = 16
GUEST_MEMORY_BYTES = 1200 * MIB
# Twice what a busy two-core machine took for all; a guest that hangs is ended.
LIMIT_S = 3600.0


def main() -> int:
    """Choose the kernel, then run."""
    options = parser().parse_args()
    for path in (options.program, options.model):
        if not os.path.isfile(path):
            say(f"cannot find {path}: tests/llama/setup.sh makes it")
            return 2
    unusable = cgroup.usable()
    if options.here or unusable is None:
        return asyncio.run(all_runs(options))
    say(f"this kernel cannot be used ({unusable}): running inside user-mode Linux")
    return inside(LIMIT_S if options.minutes is None else LIMIT_S + 60.0 * len(RUNS) * options.minutes)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="python -m tests.llama", description=__doc__)
    made.add_argument("--program", required=True, type=os.path.abspath, help="a llama-server")
    made.add_argument("--model", required=True, type=os.path.abspath, help="a GGUF file")
    made.add_argument("--prompts", type=int, default=PROMPTS, help="a run lasts as long as so many prompts take")
    made.add_argument("--minutes", type=float, help="instead: until so many prompts are answered, or M minutes")
    made.add_argument("--words", type=int, default=load.PROMPT_WORDS, help="how long a prompt is")
    made.add_argument("--only", choices=RUNS)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--here", action="store_true", help="on this kernel, whatever it is")
    return made


def inside(limit_s: float) -> int:
    """The same program in a guest; its output as it comes."""
    argv = [sys.executable, "-m", "tests.llama", "--here", *sys.argv[1:]]
    try:
        outcome = runner.run(argv, to=sys.stdout.buffer, memory_bytes=GUEST_MEMORY_BYTES, limit_s=limit_s)
    except runner.GuestError as error:
        say(str(error))
        return 1
    if outcome.status is None:
        say(f"{outcome.console}\n{outcome.trouble}")
        return 1
    return outcome.status


async def all_runs(options: argparse.Namespace) -> int:
    """The runs one after the other, then the table."""
    results = await play(options)
    say("\n" + timeline.table([(each.name, figures(each)) for each in results], ROWS))
    return verdict({each.name: each for each in results})


async def play(options: argparse.Namespace) -> list[Result]:
    """The runs one after the other."""
    directory = tempfile.mkdtemp(prefix="edgeguardd-llama-", dir="/run")
    stage = Stage(options.program, options.model, directory, options.threads)
    try:
        most_s = None if options.minutes is None else 60.0 * options.minutes
        rest = await at_rest(stage, options.prompts, most_s, options.words)
        limits = Limits(rest.needed_bytes + ROOM_BYTES, rest.needed_bytes + ROOM_BYTES)
        say(
            f"llama-server loads in {rest.load_s:.1f} s, needs {rest.needed_bytes / MIB:.0f} MiB at rest, and answers "
            f"{load.CALLERS} prompts of about {rest.words:,} new tokens in {rest.prompt_s:.1f} s"
        )
        say(
            f"memory.max {limits.max_bytes / MIB:.0f} MiB, no swap; "
            f"{load.CALLERS} callers for {rest.seconds:.0f} s; one not answered within {rest.timeout_s:.0f} s has "
            f"timed out"
        )
        say("bar: # needed, : page cache that can be dropped, | memory.max")
        results = []
        for name in [options.only] if options.only else RUNS:
            say(f"\n== {name}: {RUNS[name]}")
            results.append(await Run(stage, name, rest, limits, say).go())
    finally:
        shutil.rmtree(directory)
    return results


def figures(result: Result) -> list[str]:
    """A run's column."""
    tally = result.tally
    answered_s = sorted(tally.answered_s)
    numbers = [tally.sent, len(answered_s), len(tally.refused_s), tally.timed_out, tally.lost]
    return [
        *map(str, [*numbers, result.kills, result.restarts]),
        f"{result.shut_s:.1f} s",
        f"{answered_s[len(answered_s) // 2]:.1f} s" if answered_s else "-",
        f"{answered_s[-1]:.1f} s" if answered_s else "-",
        f"{max(tally.refused_s):.2f} s" if tally.refused_s else "-",
        f"{result.peak_bytes / MIB:.0f} MiB",
        str(result.max_count),
    ]


def verdict(results: dict[str, Result]) -> int:
    """Whether trouble was shown and the promise kept; said in a line each. Exit status."""
    shown = kept = True
    if "bare" in results:
        bare = results["bare"]
        trouble = bare.kills + bare.tally.timed_out + bare.tally.lost
        shown = trouble > 0
        say(
            f"\nbare: {bare.kills} kills, {bare.tally.timed_out} time-outs, {bare.tally.lost} lost"
            f"{'' if shown else ': NO TROUBLE TO BE GUARDED FROM; give --prompts more'}"
        )
    if "guarded" in results:
        guarded = results["guarded"]
        kept = guarded.kills == 0 and guarded.tally.kept() and bool(guarded.tally.answered_s)
        say(
            f"guarded: {guarded.kills} kills, {guarded.tally.timed_out} time-outs, {guarded.tally.lost} lost, "
            f"{guarded.tally.slow_refusals} refusals slower than {load.REFUSED_WITHIN_S:.0f} s: "
            f"{'promise kept' if kept else 'PROMISE NOT KEPT'}"
        )
    return 0 if shown and kept else 1


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
