"""systemd-oomd set to watch one slice, on a machine whose systemd is there to be tried.

Must not: run where systemd-oomd is somebody's. Upstream: the benchmarks in a guest. Downstream: systemctl, the slice's
cgroup.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.cgroup import ROOT

SLICE = "benchoomd.slice"
UNIT = f"/run/systemd/system/{SLICE}"
DROP_IN = "/run/systemd/oomd.conf.d/bench.conf"


class Setting(NamedTuple):
    """Share of the ten-second average, and for how long it has to be exceeded."""

    percent: int
    duration_s: int

    def words(self) -> str:
        """For a table."""
        return f"{self.percent} % for {self.duration_s} s"


# systemd-oomd-defaults of Debian 12, and the least that systemd-oomd takes.
DEFAULT = Setting(60, 20)
FASTEST = Setting(10, 1)


@contextlib.contextmanager
def guarded_slice(setting: Setting) -> Iterator[None]:
    """Meanwhile systemd-oomd watches SLICE, and cgroups below it have the memory controller."""
    _write(UNIT, f"[Slice]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit={setting.percent}%\n")
    _write(DROP_IN, f"[OOM]\nDefaultMemoryPressureDurationSec={setting.duration_s}s\n")
    for words in (["daemon-reload"], ["restart", "systemd-oomd"], ["start", SLICE]):
        _systemctl(*words)
    _write(f"{ROOT}/{SLICE}/cgroup.subtree_control", "+memory")
    try:
        yield
    finally:
        _systemctl("stop", SLICE)
        os.unlink(UNIT)
        os.unlink(DROP_IN)


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def _systemctl(*words: str) -> None:
    subprocess.run(["systemctl", *words], check=True)
