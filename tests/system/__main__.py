"""`make system`: a Debian guest in QEMU installs the package, and every point is shown under a real systemd.

Builds what is missing (package, root file system), boots once a phase, prints each test's line as it comes from the
guest, then each point with how it ended, and ends with the worst of the guest's exit statuses.

Must not: touch the host's systemd or network. Upstream: make. Downstream: image, guest.
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.system import builder, image, machine, packages, points

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# One boot each, on the same disk: what has to survive a reboot is set in one and looked at in the next.
PHASES = ("first", "rebooted")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every phase passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.system", description=__doc__)
    parser.add_argument("--suite", default="bookworm", help="the Debian release of the guest (default: bookworm)")
    parser.add_argument("-k", dest="expression", default="", help="only tests that match, as pytest's -k")
    parser.add_argument("--keep", action="store_true", help="keep the disk, to look at it")
    options = parser.parse_args(argv)
    began = time.monotonic()
    try:
        image.require_tools()
        with tempfile.TemporaryDirectory(prefix="edgeguardd-system-") as directory:
            native = options.suite == builder.host_suite()
            package = built_package() if native else builder.build(REPOSITORY, options.suite, directory)
            # Its build ends with lintian, and fails with it.
            print(f"lintian is clean: {os.path.basename(package)}", flush=True)
            inside = {os.path.basename(package): package, "previous": packages.previous(package, directory)}
            watcher = packages.watcher(directory)
            if watcher is not None:
                inside["sdevent"] = watcher
            disk = image.make(REPOSITORY, options.suite, inside)
        worst = 0
        outcomes: dict[str, str] = {}
        for phase in PHASES:
            print(f"== {options.suite}, {phase} boot", flush=True)
            status, text = machine.run(disk, phase, options.expression)
            worst, outcomes = max(worst, status), outcomes | points.outcomes(text)
        minutes, seconds = divmod(round(time.monotonic() - began), 60)
        print(
            f"== {options.suite}: {len(outcomes)} tests in {minutes}:{seconds:02d}", *points.summary(outcomes), sep="\n"
        )
        if not options.keep:
            os.unlink(disk.path)
    except (image.ImageError, machine.MachineError) as error:
        print(f"cannot run system tests: {error}", file=sys.stderr)
        return 2
    return worst


def built_package() -> str:
    """The path of the package, built anew. Raises ImageError."""
    build = subprocess.run(
        [os.path.join(REPOSITORY, "packaging/debian/build.sh")], stdout=subprocess.PIPE, text=True, check=False
    )
    found = glob.glob(os.path.join(REPOSITORY, ".build/deb/edgeguardd_*.deb"))
    if build.returncode or len(found) != 1:
        raise image.ImageError("the package cannot be built; `make deb` says why")
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
