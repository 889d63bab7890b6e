"""edgeguardctl provision: sets up the isolation that the configuration asks for, proves it, and takes it back.

Must not: provision (isolate.provision does). Upstream: provisionrun. Downstream: edgeguardctl.
"""

import argparse

from edgeguardd.cli import common

DEFAULT_WAIT_S = 30.0
MAX_WAIT_S = 3600.0


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "provision",
        help="set up limits, guarantees and weights of slices and services",
        description="Set up what [provision] of the configuration asks for: through systemd where it runs, else in the "
        "cgroup tree. Each value is read back from the kernel; a second run changes nothing; a failure takes all of it "
        "back. Nothing is changed while anything is refused.",
        epilog="Exit status: 0 it is as wanted (or would be: --dry-run); 1 refused or failed, and nothing is changed; "
        "2 the configuration cannot be used.",
    )
    option = parser.add_argument
    option("--config", metavar="FILE", help=f"the configuration; without it {common.DEFAULT_CONFIG}")
    option("--dry-run", action="store_true", help="show what would be changed, as a diff, and change nothing")
    option("--undo", action="store_true", help="put back what was there before; what others have changed since stays")
    option("--runtime", action="store_true", help="with systemd: until the next boot only (/run instead of /etc)")
    option("--force", action="store_true", help="lower limits below what is in use: memory.high first, in steps")
    option(
        "--wait",
        metavar="SECONDS",
        type=_seconds,
        default=DEFAULT_WAIT_S,
        help=f"how long --force waits for reclaim before it gives up (default: {DEFAULT_WAIT_S:g})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.cli import provisionrun  # noqa: PLC0415 - all of isolate, which other commands do without

    return provisionrun.run(args)


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: write seconds above 0 and at most {MAX_WAIT_S:g}")
    return seconds
