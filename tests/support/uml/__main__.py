"""`python -m tests.support.uml [--memory MIB] [--limit S] -- COMMAND…`: run anything on a real cgroup v2 kernel."""

import argparse
import signal
import sys
from types import FrameType
from typing import NoReturn

from tests.support.uml import runner


def main() -> int:
    """Exit status: the command's; 124 when a limit ended it; 125 when the guest failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.uml", description=__doc__)
    parser.add_argument("--memory", type=int, default=runner.MEMORY_BYTES // runner.MIB, metavar="MIB")
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="end the guest after so long")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    try:
        outcome = runner.run(
            options.command,
            to=sys.stdout.buffer,
            memory_bytes=options.memory * runner.MIB,
            limit_s=options.limit,
        )
    except runner.GuestError as error:
        sys.stderr.write(f"{error}\n")
        return 125
    if outcome.status is None:
        sys.stderr.write(f"{outcome.console}\n{outcome.trouble}\n")
        return 124 if "within" in (outcome.trouble or "") else 125
    return outcome.status if outcome.status >= 0 else 128 - outcome.status


def _end(number: int, _: FrameType | None) -> NoReturn:
    # As an interrupt would: the guest is taken down on the way out.
    sys.exit(128 + number)


sys.exit(main())
