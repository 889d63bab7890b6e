"""`make torture`: faults against a running daemon on a real kernel, the daemon itself under pressure, and a soak.

    python -m tests.torture [--seed N] [--rounds N] [--minutes M] [--parts faults,strain,…] [--kinds "disk full,…"]

On this host's cgroup v2 if it has one that can be written, else in user-mode Linux. The same seed makes the same
schedule of faults. Prints tables, and writes them into docs/explanation/reliability.md (--no-document leaves that).
No part takes longer than its limit, and all of them not longer than the deadline: what is not done then is ended, said
and wrong. Exit status 0: the oracle had nothing to say.
"""

import argparse
import contextlib
import datetime
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from tests.support.running import REPOSITORY
from tests.torture import bounded, report
from tests.torture.parts import PARTS, kernel, own_kernel, parser

# One stage after another; the lanes of a stage beside each other, the parts of a lane in turn. What is timed runs
# alone; the soak leaves most of a processor free, and the parts beside it wait most of the time.
STAGES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("faults",),),
    (("strain",),),
    (("soak",), ("calls", "deaths")),
    (("security",),),
    (("fuzz",),),
)
ON_A_REAL_KERNEL = {"faults", "strain"}
DEADLINE_MINUTES = 40.0
PAGE = os.path.join(REPOSITORY, "docs", "explanation", "reliability.md")


def main() -> int:
    """Run the parts, then print and write the tables."""
    options = arguments()
    signal.signal(signal.SIGTERM, _end)
    began = time.monotonic()
    done = []
    for one in run(options, began + 60 * options.deadline_minutes):
        say(f"{one.section}\n")
        done.append(one)
    took_s = time.monotonic() - began
    summary = report.summary(done, {name: part.right for name, part in PARTS.items()})
    sections = {one.name: report.dated(one.section, evidence(one.name, one.took_s)) for one in done}
    if {one.name for one in done} == set(PARTS):
        text = f"{report.ALL}\n\nThe soak and the parts on plain files run beside each other.\n\n{summary}"
        sections["all"] = report.dated(text, evidence("faults", took_s))
    if not options.no_document:
        with open(PAGE) as file:
            text = file.read()
        with open(PAGE, "w") as file:
            file.write(report.document(text, sections))
    right = all(one.right for one in done)
    say(f"{summary}\n\n{took_s / 60:.1f} min. {'The oracle had nothing to say.' if right else 'WRONG: see above.'}")
    return 0 if right else 1


def arguments() -> argparse.Namespace:
    """The command line; what of it concerns the parts is passed on to them as it is."""
    made = parser("python -m tests.torture")
    made.add_argument("--parts", default=",".join(PARTS))
    made.add_argument("--deadline-minutes", type=float, default=DEADLINE_MINUTES, help="for all parts together")
    made.add_argument("--no-document", action="store_true")
    options = made.parse_args()
    options.parts = options.parts.split(",")
    if unknown := [name for name in options.parts if name not in PARTS]:
        made.error(f"cannot run {unknown[0]!r}: choose from {', '.join(PARTS)}")
    return options


def run(options: argparse.Namespace, until: float) -> Iterator[bounded.Done]:
    """The parts that are wanted, in the order of the stages."""

    def begin(name: str) -> bounded.Running:
        left_s = max(0.0, until - bounded.GRACE_S - time.monotonic())
        limit_s = min(60 * PARTS[name].limit_minutes(options), left_s)
        say(f"--- {name}, seed {options.seed}, {limit_s / 60:.1f} min at most")
        argv = [sys.executable, "-m", "tests.torture.parts", name, *passed_on(options)]
        return bounded.Running(name, PARTS[name].heading, argv, limit_s)

    for stage in STAGES:
        lanes = [[name for name in lane if name in options.parts] for lane in stage]
        with contextlib.closing(bounded.play(lanes, begin)) as ending:
            yield from ending


def passed_on(options: argparse.Namespace) -> list[str]:
    """The options of the parts as words again."""
    known = vars(parser("").parse_args([]))
    chosen = {name: getattr(options, name) for name in known if getattr(options, name) is not None}
    return [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def evidence(name: str, took_s: float) -> str:
    """When, on what, how long, and the command."""
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    where = kernel() if name in ON_A_REAL_KERNEL else own_kernel()
    return f"{today}, {where}, {took_s / 60:.1f} min, `{shlex.join(['python', '-m', 'tests.torture', *sys.argv[1:]])}`."


def say(text: str) -> None:
    """At once, also into a pipe."""
    print(text, flush=True)


def _end(number: int, _: FrameType | None) -> NoReturn:
    # As an interrupt would: what runs is ended on the way out.
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
