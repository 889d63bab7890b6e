"""python -m tests.fuzz: the full count against every part, with figures. Exit status 1: a part does not stand it."""

import argparse
import os
import sys
import tempfile

from tests.fuzz.clients import confuse
from tests.fuzz.figures import Figures
from tests.fuzz.server import attack, parse
from tests.support.capi import SANITIZED, build

SERVER_LINES = 1_000_000
CLIENT_LINES = 100_000
PARTS = ("parser", "socket", "asyncio", "blocking", "c", "c-sanitized")


def main() -> int:
    """Run the parts one after another; figures go to standard output."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seed", type=int, default=1, help="other lines; default: 1")
    parser.add_argument("--share", type=float, default=1.0, help="of the full count; default: 1")
    args = parser.parse_args()
    if unknown := [part for part in args.part if part not in PARTS]:
        parser.error(f"cannot fuzz {unknown[0]!r}: choose from {', '.join(PARTS)}")
    status = 0
    for part in args.part or PARTS:
        try:
            figures = run(part, args.share, args.seed)
            print(figures.sentence, flush=True)
            figures.check()
        except AssertionError as error:
            print(f"{part}: {error}", file=sys.stderr)
            status = 1
    return status


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
