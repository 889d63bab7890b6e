"""systemd-oomd in a guest with systemd: its time from memory.high to its kill, as it comes and at its fastest.

A slice has ManagedOOMMemoryPressure=kill, and a sacrifice in a cgroup of it goes over memory.high and goes on reading a
file, so that there is something to reclaim: without that systemd-oomd does nothing (oomd-manager.c, 252). What it goes
by is the slice's ten-second average of PSI, which it reads once a second; a duration of less than a second it refuses.

Must not: run on a machine whose systemd-oomd is somebody's. Upstream: qemu. Downstream: systemctl, sacrifices.
"""

import contextlib
import os
import select
import subprocess
import sys
import time

from tests.bench.figures import SERIES_HEAD, in_series
from tests.bench.probes import Found, Tell, kernel
from tests.bench.report import Table
from tests.support.cgroup import Cgroup
from tests.support.oomd import DEFAULT, FASTEST, SLICE, guarded_slice

THROTTLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "throttled.py")
FILE = "/var/tmp/edgeguardd-bench-file"
FILE_BYTES = 32 << 20
HIGH_BYTES = 24 << 20
GIVEN_UP_S = 60.0


def one() -> float:
    """Seconds from a sacrifice's first look at a throttled self to its end. Raises TimeoutError."""
    with Cgroup.fresh("sacrifice", below=SLICE) as cgroup:
        cgroup.set(high=HIGH_BYTES, max=8 * HIGH_BYTES)
        argv = [sys.executable, "-I", "-S", "-B", THROTTLED, cgroup.path, FILE]
        process = cgroup.spawn(argv, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            crossed_ns = int(process.stdout.readline())
            if not select.select([process.stdout], [], [], GIVEN_UP_S)[0]:
                raise TimeoutError("systemd-oomd has not killed")
            # Its end of the pipe is closed when it is dead.
            return (time.monotonic_ns() - crossed_ns) / 1e9
        finally:
            cgroup.write("memory.high", "max")
            process.kill()
            process.wait()
            process.stdout.close()


def run(options: list[str], tell: Tell) -> Found:
    """How often."""
    count = int(options[0])
    with open(FILE, "wb") as file:
        file.write(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        os.fsync(file.fileno())
    rows = []
    for setting, times in ((FASTEST, count), (DEFAULT, max(1, count // 5))):
        tell(f"oomd: {setting.words()}, {times} times")
        took_s: list[float] = []
        with contextlib.suppress(TimeoutError):
            while len(took_s) < times:
                # Anew each time: it rests for 15 s after a kill, and the average would begin where the last one ended.
                with guarded_slice(setting):
                    took_s.append(one())
                tell(f"  killed after {took_s[-1]:.1f} s")
        rows.append([f"systemd-oomd, {setting.words()}", "SIGKILL", *in_series(took_s)])
    os.unlink(FILE)
    note = (
        f"On {kernel()}, from a count of `high` in a cgroup that goes on asking for memory and reading a file, to the "
        "end of its process. The first are the least limits that systemd-oomd takes, the second Debian's. It reads a "
        f"ten-second average once a second. Who did nothing within {GIVEN_UP_S:.0f} s was asked no more."
    )
    return Found([Table("Reaction of systemd-oomd", ["who", "does", *SERIES_HEAD], rows, [note])])
