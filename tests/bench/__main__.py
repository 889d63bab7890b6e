"""`make bench`: measures, prints tables, and writes them into docs/explanation.

    python -m tests.bench [PART…] [--quick] [--no-write]

Exit status 0: all was measured, whether or not every budget is met; a missed one is said in its table. A part that
cannot be measured is said, and the others go on.
"""

import argparse
import datetime
import os
import platform
import signal
import sys

from tests.bench import parts, report
from tests.bench.probes import ProbeError
from tests.bench.report import Circumstances
from tests.support.running import REPOSITORY
from tests.support.uml.runner import GuestError


def main(argv: list[str] | None = None) -> int:
    """The parts one after the other."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"only these: {', '.join(parts.PARTS)}")
    parser.add_argument("--quick", action="store_true", help="so little that figures mean nothing: tries the code")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave the pages as they are")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.part) - set(parts.PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts.PARTS)}")
    wanted = options.part or [name for name, part in parts.PARTS.items() if part.usual]
    size = parts.QUICK if options.quick else parts.FULL
    # Ended by a signal, it still ends its guests.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for name in wanted:
        circumstances = here_and_now(name)
        try:
            section = parts.PARTS[name].run(size, say)
        except (ProbeError, GuestError) as error:
            sys.stderr.write(f"cannot measure {name}: {error}\n")
            failed += 1
            continue
        section.circumstances = circumstances
        say(report.markdown(section))
        if options.write and not options.quick:
            report.write(os.path.join(REPOSITORY, parts.PARTS[name].page), section)
    return 1 if failed else 0


def here_and_now(part: str) -> Circumstances:
    """Date, kernel, processors, load and command."""
    return Circumstances(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        kernel=f"Linux {platform.release()}",
        machine=f"{os.cpu_count()} processors, Python {platform.python_version()}",
        load=f"{os.getloadavg()[0]:.1f}",
        command="make soak" if part == "soak" else f"make bench BENCH_OPTIONS={part}",
    )


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
