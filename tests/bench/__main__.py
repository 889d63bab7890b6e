"""`make bench`: measures, prints tables, and writes them into docs/explanation.

    python -m tests.bench [PART…] [--quick] [--no-write] [--minutes M]

Exit status 0: all was measured, whether or not every budget is met; a missed one is said in its table. 1: something
could not be measured; which and why is said in a line, on the page too, and the rest went on. 2: a wrong option.
"""

import argparse
import datetime
import math
import os
import platform
import signal
import subprocess
import sys
import time

from tests.bench import parts, report
from tests.bench.deadline import TimeUpError, within
from tests.bench.probes import ProbeError
from tests.bench.report import Circumstances
from tests.support.running import REPOSITORY
from tests.support.uml.runner import GuestError

# Of a run without parts named.
ALL_MINUTES = 44.0


def main(argv: list[str] | None = None) -> int:
    """The parts one after the other."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"only these: {', '.join(parts.PARTS)}")
    parser.add_argument("--quick", action="store_true", help="so little that figures mean nothing: tries the code")
    parser.add_argument("--minutes", type=float, help="for all parts together (default: 44 without parts named)")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave the pages as they are")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.part) - set(parts.PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(parts.PARTS)}")
    wanted = options.part or [name for name, part in parts.PARTS.items() if part.usual]
    size = parts.QUICK if options.quick else parts.FULL
    # Ended by a signal, it still ends its guests.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    usual = math.inf if options.part else ALL_MINUTES
    until = time.monotonic() + 60 * (usual if options.minutes is None else options.minutes)
    lines = [
        one(name, size, (until - time.monotonic()) / 60, write=options.write and not options.quick) for name in wanted
    ]
    say("\n".join(["", *lines]))
    return 1 if any(" NOT " in line for line in lines) else 0


def one(name: str, size: parts.Size, minutes_left: float, *, write: bool) -> str:
    """One part: measured, printed, written down; a line on it."""
    part = parts.PARTS[name]
    began = time.monotonic()
    circumstances = here_and_now(name)
    try:
        with within(min(part.most_minutes, minutes_left)):
            section = part.run(size, say)
    except (ProbeError, GuestError, TimeUpError, OSError, subprocess.SubprocessError) as error:
        return f"{name}: NOT measured: {error}"
    section.circumstances = circumstances
    say(report.markdown(section))
    if write:
        report.write(os.path.join(REPOSITORY, part.page), section)
    took = f"{name}: measured in {(time.monotonic() - began) / 60:.1f} min"
    return f"{took}, but NOT all: {'; '.join(section.missing)}" if section.missing else took


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
