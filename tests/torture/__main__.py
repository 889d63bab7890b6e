"""`make torture`: faults against a running daemon on a real kernel, the daemon itself under pressure, and a soak.

    python -m tests.torture [--seed N] [--rounds N] [--minutes M] [--parts faults,strain,…] [--kinds "disk full,…"]

On this host's cgroup v2 if it has one that can be written, else in user-mode Linux. The same seed makes the same
schedule of faults. Prints tables, and writes them into docs/explanation/reliability.md (--no-document leaves that).
Exit status 0: the oracle had nothing to say.
"""

import argparse
import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tests.support import cgroup
from tests.support.running import REPOSITORY
from tests.support.uml import runner
from tests.torture import calls, deaths, enemies, guest, report, soak

SEED = 1
ROUNDS = 160
MINUTES = 10.0
SOAK_MINUTES = 11.0
ERRORS = 2
FUZZ_MINUTES = 0.5
GUESTS = 2
FAULTS_MEMORY_BYTES = 768 * runner.MIB
# Little, so that it thrashes soon.
STRAIN_MEMORY_BYTES = 192 * runner.MIB
STRAIN_LIMIT_S = 600.0
PAGE = os.path.join(REPOSITORY, "docs", "explanation", "reliability.md")


def main() -> int:
    """Run the parts, then print and write the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="begin no round of faults after so long")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--kinds", help="only these kinds of faults, with commas between them")
    parser.add_argument("--soak-minutes", type=float, default=SOAK_MINUTES)
    parser.add_argument("--fuzz-minutes", type=float, default=FUZZ_MINUTES, help="for each of nine parsers")
    parser.add_argument("--guests", type=int, default=GUESTS, help="user-mode kernels that share the rounds")
    parser.add_argument("--no-document", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    right, sections = True, []
    for name in options.parts.split(","):
        say(f"--- {name}, seed {options.seed}")
        fine, section = PARTS[name](options)
        right = right and fine
        sections.append(section)
        say(section)
    command = shlex.join(["python", "-m", "tests.torture", *sys.argv[1:]])
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    where = f"{today}, {kernel()}, {(time.monotonic() - began) / 60:.0f} min, `{command}`."
    if not options.no_document:
        write("\n\n".join([where, *sections]))
    say(f"{where} {'The oracle had nothing to say.' if right else 'WRONG: see above.'}")
    return 0 if right else 1


def faults(options: argparse.Namespace) -> tuple[bool, str]:
    """Rounds of faults, each judged."""
    words = ["faults", "--seed", str(options.seed), "--rounds", str(options.rounds)]
    words += ["--minutes", str(options.minutes), *(["--kinds", options.kinds] if options.kinds else [])]
    guests = 1 if here() else options.guests
    shares = [[*words, "--share", f"{number}/{guests}"] for number in range(guests)]
    rows, troubles = elsewhere(shares, FAULTS_MEMORY_BYTES, 60 * options.minutes + 300.0)
    verdicts = [{**row["verdict"], "guest": row["verdict"]["number"] % guests} for row in rows if "verdict" in row]
    verdicts.sort(key=lambda verdict: int(verdict["number"]))
    sites = guest.merged([row["sites"] for row in rows if "sites" in row])
    wrong = report.findings(verdicts)
    flat, memory = report.memory(verdicts)
    right = not troubles and not wrong and flat and bool(verdicts)
    text = [f"### Faults\n\nSeed {options.seed}, {len(verdicts)} rounds.", report.faults(verdicts, sites), memory]
    return right, "\n\n".join([*text, *troubles, *([f"```text\n{wrong}\n```"] if wrong else [])])


def strain(_: argparse.Namespace) -> tuple[bool, str]:
    """The daemon itself under memory pressure."""
    rows, troubles = elsewhere([["strain"]], STRAIN_MEMORY_BYTES, STRAIN_LIMIT_S)
    strains = [row["strain"] for row in rows if "strain" in row]
    right = not troubles and bool(strains) and all(row["right"] for row in strains)
    head = "### Under pressure itself\n\nFrom the kernel's count of a kill to the command in the server's hands."
    return right, "\n\n".join([head, report.strain(strains), *troubles])


def every_call(options: argparse.Namespace) -> tuple[bool, str]:
    """Each call into the kernel failed in turn, on a tree of plain files."""
    cases = []
    for case in calls.play(calls.cases(options.seed, ERRORS)):
        cases.append({**dataclasses.asdict(case), "text": str(case)})
        if case.wrong:
            say(f"{case}: {case.wrong[0]}")
    wrong = report.calls_wrong(cases)
    head = f"### Every call into the kernel\n\nSeed {options.seed}, {ERRORS} errors each; plain files, {own_kernel()}."
    return not wrong, "\n\n".join([head, report.calls(cases), *([f"```text\n{wrong}\n```"] if wrong else [])])


def every_death(_: argparse.Namespace) -> tuple[bool, str]:
    """kill -9 before and after each order of the engine's, on a tree of plain files."""
    found = [dataclasses.asdict(death) for death in deaths.play()]
    head = (
        "### kill -9 at each order\n\nBefore and after each order that the engine can give, on a tree of plain files."
    )
    return not any(row["wrong"] for row in found), f"{head}\n\n{report.deaths(found)}"


def soaked(options: argparse.Namespace) -> tuple[bool, str]:
    """Eight hours in a few minutes."""
    growth = soak.run(options.soak_minutes, options.seed, say)
    minutes = f"{options.soak_minutes:g} minutes"
    head = (
        f"### Soak\n\n{soak.HOURS} hours of an act a second, in {minutes}, {own_kernel()}; lines through what settled."
    )
    return growth.right, "\n\n".join([head, report.soak({**dataclasses.asdict(growth), "hours": growth.hours})])


def security(_: argparse.Namespace) -> tuple[bool, str]:
    """Hostile peers, names, links and crowds."""
    right, text = enemies.security()
    return right, f"### Security\n\n{text}"


def fuzz(options: argparse.Namespace) -> tuple[bool, str]:
    """Any bytes at each parser."""
    right, text = enemies.fuzz(options.fuzz_minutes, options.seed)
    return right, f"### Fuzz\n\n{options.fuzz_minutes:g} minutes at each parser.\n\n{text}"


def elsewhere(shares: list[list[str]], memory_bytes: int, limit_s: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Run tests.torture.guest with each of these, at once; what they put down, and what went wrong with them."""
    with tempfile.TemporaryDirectory(prefix="edgeguardd-torture-", dir="/tmp") as directory:
        commands = []
        for number, words in enumerate(shares):
            argv = [sys.executable, "-m", "tests.torture.guest", f"{directory}/results{number}", *words]
            if not here():
                memory = str(memory_bytes // runner.MIB)
                uml = [sys.executable, "-m", "tests.support.uml", "--memory", memory, "--limit", str(limit_s), "--"]
                argv = [*uml, *argv]
            commands.append(subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL))
        statuses = [command.wait() for command in commands]
        rows = []
        for number in range(len(shares)):
            if os.path.exists(f"{directory}/results{number}"):
                with open(f"{directory}/results{number}") as file:
                    rows += [json.loads(line) for line in file]
    return rows, [f"Part {number} ended with status {status}." for number, status in enumerate(statuses) if status]


def here() -> bool:
    """Whether this host's own kernel serves."""
    return cgroup.usable() is None


def kernel() -> str:
    """What it all ran on."""
    if here():
        return f"Linux {platform.release()}"
    version = subprocess.run([str(runner.binary()), "--version"], check=True, capture_output=True, text=True).stdout
    return f"user-mode Linux {version.strip()}"


def own_kernel() -> str:
    """What runs the parts on plain files."""
    return f"Linux {platform.release()}"


def write(sections: str) -> None:
    """Into the page."""
    with open(PAGE) as file:
        text = file.read()
    with open(PAGE, "w") as file:
        file.write(report.document(text, sections))


def say(text: str) -> None:
    """At once, also into a pipe."""
    print(text, flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], tuple[bool, str]]] = {
    "faults": faults,
    "calls": every_call,
    "deaths": every_death,
    "strain": strain,
    "soak": soaked,
    "security": security,
    "fuzz": fuzz,
}


if __name__ == "__main__":
    sys.exit(main())
