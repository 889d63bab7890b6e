"""edgeguardctl replay: a recording's decisions, or what another configuration would have changed about them.

Must not: replay or compare itself (core does), print (replayviews does). Upstream: recordings, core.replay, difference.
Downstream: edgeguardctl. The daemon is not asked, and nothing is changed.
"""

import argparse


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "replay",
        help="show the decisions of a recording, or what another configuration would have changed",
        description="Run a flight recording through the engine again and print its decisions: levels, commands, "
        "outcomes, with their figures. With --config print instead what that configuration would have done earlier, "
        "later, never, or anew; memory, reports and peers stay as they were recorded.",
        epilog="Exit status: 0 ok; 1 no recording could be read; 2 the configuration cannot be used. With --json each "
        "line is one object whose `type` is segment, decision, episode, or summary.",
    )
    parser.add_argument(
        "place",
        nargs="?",
        metavar="PLACE",
        help="a recording, or a directory of them; without it the daemon's own (state_directory)",
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration to compare with; - for standard input")
    parser.add_argument("--target", metavar="NAME", help="only what concerns this target")
    parser.add_argument("--decisions", action="store_true", help="with --config: also print its decisions")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.cli import replayviews  # noqa: PLC0415 - imports the engine, which the other commands do without

    return replayviews.run(args)
