"""The parts of torture: what each runs, how long it may take, and the section that it makes.

    python -m tests.torture.parts NAME [OPTION…] RESULT     one part here; its section goes to RESULT, as JSON

Must not: bound itself (bounded does), write the page. Upstream: __main__. Downstream: calls, deaths, enemies, guest,
soak, strain.
"""

import argparse
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from tests.fuzz.targets import PARTS as PARSERS
from tests.support import cgroup
from tests.support.running import REPOSITORY
from tests.support.uml import runner
from tests.torture import calls, deaths, enemies, guest, report, soak

SEED = 1
ROUNDS = 160
MINUTES = 8.0
SOAK_MINUTES = 15.0
# Of each call: ENOMEM, and EMFILE where it takes a descriptor, else one that the seed draws.
ERRORS = 2
FUZZ_MINUTES = 0.5
GUESTS = 2
FAULTS_MEMORY_BYTES = 768 * runner.MIB
# Little, so that it thrashes soon.
STRAIN_MEMORY_BYTES = 192 * runner.MIB
# A round that has begun may wait for what does not come, three times over.
LAST_ROUND_MINUTES = 2.5
STRAIN_MINUTES = 6.0
# To start and to take down.
SPARE_MINUTES = 0.5


def parser(prog: str) -> argparse.ArgumentParser:
    """What can be said of the parts."""
    made = argparse.ArgumentParser(prog=prog)
    made.add_argument("--seed", type=int, default=SEED)
    made.add_argument("--rounds", type=int, default=ROUNDS, help="of faults")
    made.add_argument("--minutes", type=float, default=MINUTES, help="begin no round of faults after so long")
    made.add_argument("--kinds", help="only these kinds of faults, with commas between them")
    made.add_argument("--soak-minutes", type=float, default=SOAK_MINUTES)
    made.add_argument("--fuzz-minutes", type=float, default=FUZZ_MINUTES, help="for each of nine parsers")
    made.add_argument("--guests", type=int, default=GUESTS, help="user-mode kernels that share the rounds")
    return made


def main() -> int:
    """One part. Exit status 0: it has put down what it found."""
    signal.signal(signal.SIGTERM, _end)
    options = parser("python -m tests.torture.parts")
    options.add_argument("part", choices=PARTS)
    options.add_argument("result")
    chosen = options.parse_args()
    right, section = PARTS[chosen.part].run(chosen)
    with open(chosen.result, "w") as file:
        json.dump({"right": right, "section": section}, file)
    return 0


def _end(number: int, _: FrameType | None) -> NoReturn:
    # As an interrupt would: guests, daemons and directories are taken down on the way out.
    sys.exit(128 + number)


def faults(options: argparse.Namespace) -> tuple[bool, str]:
    """Rounds of faults, each judged."""
    words = ["faults", "--seed", str(options.seed), "--rounds", str(options.rounds)]
    words += ["--minutes", str(options.minutes), *(["--kinds", options.kinds] if options.kinds else [])]
    guests = 1 if here() else options.guests
    shares = [[*words, "--share", f"{number}/{guests}"] for number in range(guests)]
    rows, troubles = elsewhere(shares, FAULTS_MEMORY_BYTES, 60 * (options.minutes + LAST_ROUND_MINUTES))
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
    rows, troubles = elsewhere([["strain"]], STRAIN_MEMORY_BYTES, 60 * STRAIN_MINUTES)
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
            _say(f"{case}: {case.wrong[0]}")
    wrong = report.calls_wrong(cases)
    head = (
        "### Every call into the kernel\n\n"
        f"ENOMEM, and EMFILE where it takes a descriptor, else an error drawn by seed {options.seed}; on plain files."
    )
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
    growth = soak.run(options.soak_minutes, options.seed, _say)
    minutes = f"{options.soak_minutes:g} minutes"
    head = (
        f"### Soak\n\n{soak.HOURS} hours of an act a second, in {minutes}, {own_kernel()}; lines through what settled."
    )
    most = {"most_kib": growth.most_kib, "most_blocks": growth.most_blocks}
    allowed = {"allowed_kib": soak.ALLOWED_KIB, "allowed_blocks": soak.ALLOWED_BLOCKS}
    told = {**dataclasses.asdict(growth), "hours": growth.hours, **most, **allowed}
    return growth.right, "\n\n".join([head, report.soak(told)])


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
        try:
            statuses = [command.wait() for command in commands]
        finally:
            for command in commands:
                command.terminate()
                command.wait()
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
    linux = runner.binary()
    if linux is None:
        return "no kernel with cgroup v2"
    version = subprocess.run([linux, "--version"], check=True, capture_output=True, text=True).stdout
    return f"user-mode Linux {version.strip()}"


def own_kernel() -> str:
    """What runs the parts on plain files."""
    return f"Linux {platform.release()}"


def _say(text: str) -> None:
    """At once, also into a pipe."""
    print(text, flush=True)


@dataclasses.dataclass(frozen=True)
class Part:
    """The heading of a part, how it is run, the minutes that it may take with these options, and what is right."""

    heading: str
    run: Callable[[argparse.Namespace], tuple[bool, str]]
    limit_minutes: Callable[[argparse.Namespace], float]
    right: str


PARTS: dict[str, Part] = {
    "faults": Part(
        "Faults",
        faults,
        lambda options: options.minutes + LAST_ROUND_MINUTES + SPARE_MINUTES,
        "the oracle finds nothing wrong in any round; resident memory does not grow from round to round",
    ),
    "calls": Part("Every call into the kernel", every_call, lambda _: 11.0, "nothing is left of any call that failed"),
    "deaths": Part("kill -9 at each order", every_death, lambda _: 3.0, "whole after the next start"),
    "strain": Part(
        "Under pressure itself", strain, lambda _: STRAIN_MINUTES + SPARE_MINUTES, "each kill is told within 1 s"
    ),
    "soak": Part(
        "Soak", soaked, lambda options: options.soak_minutes + 2.0, "eight hours add at most 1 MiB, and no descriptor"
    ),
    "security": Part("Security", security, lambda _: 4.0, "each enemy is harmless"),
    "fuzz": Part(
        "Fuzz",
        fuzz,
        lambda options: len(PARSERS) * options.fuzz_minutes + 3.0,
        "no crash, and no input that takes long",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
