"""python -m tests.fuzz: the full count of nearly right lines against every part, with figures.

    python -m tests.fuzz --part NAME --minutes 10    any bytes at one parser, guided by coverage; "all": at each

Exit status 1: a part does not stand it.
"""

import argparse
import os
import sys
import tempfile

from tests.fuzz import guided
from tests.fuzz.clients import confuse
from tests.fuzz.figures import Figures
from tests.fuzz.server import attack, parse
from tests.fuzz.targets import PARTS as PARSERS
from tests.support.capi import SANITIZED, build

SERVER_LINES = 1_000_000
CLIENT_LINES = 100_000
PARTS = ("parser", "socket", "asyncio", "blocking", "c", "c-sanitized")


def main() -> int:
    """Run the parts one after another; figures go to standard output."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seed", type=int, default=1, help="other lines; default: 1")
    parser.add_argument("--share", type=float, default=1.0, help="of the full count; default: 1")
    parser.add_argument("--part", action="append", choices=[*PARSERS, "all"], help="fuzz this parser, guided, instead")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each --part; default: 1")
    parser.add_argument("--keep", action="store_true", help="write the corpus of each --part anew")
    args = parser.parse_args()
    if unknown := [part for part in args.lines if part not in PARTS]:
        parser.error(f"cannot fuzz {unknown[0]!r}: choose from {', '.join(PARTS)}")
    if args.lines and args.part:
        parser.error("cannot do both: name parts for lines, or --part for parsers")
    if args.part:
        return guide(list(PARSERS) if "all" in args.part else args.part, args.minutes, args.seed, keep=args.keep)
    status = 0
    for part in args.lines or PARTS:
        try:
            figures = run(part, args.share, args.seed)
            print(figures.sentence, flush=True)
            figures.check()
        except AssertionError as error:
            print(f"{part}: {error}", file=sys.stderr)
            status = 1
    return status


def guide(parts: list[str], minutes: float, seed: int, *, keep: bool) -> int:
    """The parsers, one after another. Returns the exit status."""
    if not guided.is_guided():
        print("fuzz: atheris is not here, so nothing guides (it has wheels for x86_64 only)")
    outcomes = []
    for part in parts:
        outcome = guided.run(part, 60 * minutes, seed, keep=keep)
        print(outcome.sentence, flush=True)
        if outcome.failure is not None:
            print(outcome.failure, file=sys.stderr)
        outcomes.append(outcome)
    return int(any(outcome.failure is not None for outcome in outcomes))


def run(part: str, share: float, seed: int) -> Figures:
    """One part with a share of its full count."""
    server_lines, client_lines = round(SERVER_LINES * share), round(CLIENT_LINES * share)
    if part == "parser":
        return parse(server_lines, seed)
    if part == "socket":
        return attack(server_lines, seed)
    with tempfile.TemporaryDirectory() as directory:
        if part in {"c", "c-sanitized"}:
            argv = [build(directory, "example.c", SANITIZED if part == "c-sanitized" else ("-O2",))]
        else:
            argv = [sys.executable, f"packaging/examples/python-client/{part}_server.py"]
            os.environ["PYTHONPATH"] = "."
        return confuse(part, argv, client_lines, seed)


if __name__ == "__main__":
    sys.exit(main())
