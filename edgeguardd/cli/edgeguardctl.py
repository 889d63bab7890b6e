"""edgeguardctl: the operator's command. One module a command, each registers itself through add(subparsers).

Must not: do a command's work, or import rich (watch does, when it runs). Upstream: cli.*. Downstream: nobody.
"""

import argparse
import sys
from collections.abc import Sequence

from edgeguardd import __version__
from edgeguardd.cli import (
    adr,
    audit,
    bridge,
    check_config,
    common,
    conformance,
    doctor,
    health,
    incidents,
    oom,
    parse,
    provision,
    replay,
    size,
    status,
    subscribe,
    watch,
)
from edgeguardd.cli.parser import Parser

# In the order of the help page.
COMMANDS = (
    status,
    watch,
    health,
    check_config,
    doctor,
    subscribe,
    parse,
    provision,
    size,
    replay,
    incidents,
    bridge,
    oom,
    audit,
    adr,
    conformance,
)


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    args = parser().parse_args(argv)
    return common.guarded("edgeguardctl", lambda: args.run(args))


def parser() -> argparse.ArgumentParser:
    """The command line of edgeguardctl."""
    top = Parser(
        prog="edgeguardctl",
        description="Look at edgeguardd, check its configuration, and see what subscribers see.",
        epilog="Exit status: 0 ok; 1 it did not work, one sentence on standard error says why; 2 wrong usage.",
    )
    top.add_argument("--version", action="version", version=f"edgeguardctl {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return top


def names() -> list[str]:
    """The commands as they are typed."""
    return [command.__name__.rpartition(".")[2].replace("_", "-") for command in COMMANDS]


if __name__ == "__main__":
    sys.exit(main())
