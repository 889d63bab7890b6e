"""edgeguardctl incidents: what happened, as a list, as one incident's story, or as a page to keep.

Must not: find or show incidents itself. Upstream: incidentviews. Downstream: edgeguardctl.
The latest incident has number 1, so that a number means the same until the next incident.
"""

import argparse

from edgeguardd.cli import common


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "incidents",
        help="list incidents, tell one, or write it as a page",
        description="List the incidents of the flight recordings: from a target's first level above normal until it is "
        "normal again. With a number, tell that one; the latest is 1.",
        epilog="Exit status: 0 ok; 1 no recording could be read, or there is no such incident. COMMANDS does not count "
        "restores; FREED is what left needed bytes while commands were out.",
    )
    parser.add_argument("number", nargs="?", type=common.count, metavar="N", help="the incident to tell")
    parser.add_argument(
        "--directory",
        metavar="PLACE",
        help="a directory of recordings, or one recording; without it the daemon's own (state_directory)",
    )
    parser.add_argument("--html", metavar="FILE", help="write incident N as one self-contained page; - for the output")
    parser.add_argument("--json", action="store_true", help="print JSON: a list, or incident N with story and curve")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.cli import incidentviews  # noqa: PLC0415 - imports the engine, which the other commands do without

    if args.html is not None and args.number is None:
        args.parser.error("cannot write a page: no N given; the latest incident is 1")
    return incidentviews.run(args)
