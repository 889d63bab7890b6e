"""The box the tests run on: systemd, the daemon's configuration and what it says of itself.

Must not: import the daemon; what is tested is the installed package. Upstream: the tests of every boot.
Downstream: systemctl, journalctl, http://127.0.0.1:9464.
"""

import contextlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tests.support import wait

T = TypeVar("T")

MIB = 1 << 20
SERVICE = "edgeguardd.service"
CONFIG = "/etc/edgeguardd/edgeguardd.toml"
UNITS = "/run/systemd/system"
SHIPPED = "/usr/share/doc/edgeguardd/drop-ins"
# Where the package keeps the libraries that Debian lacks.
LIBRARIES = "/usr/lib/edgeguardd"
# Under emulation a start takes ten times as long as on a machine; nothing that passes waits for it.
PATIENCE_S = 120.0
# Asking takes the guest's processor from what is waited for.
ASK_EVERY_S = 0.1


def eventually(condition: Callable[[], T], deadline_s: float = PATIENCE_S, what: str = "") -> T:
    """The first true value of condition(), asked now and then."""
    return wait.eventually(condition, deadline_s, what, every_s=ASK_EVERY_S)


def run(*argv: str) -> str:
    """Standard output of a command that has to work."""
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, f"{' '.join(argv)}: exit status {ended.returncode}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def show(key: str, unit: str = SERVICE) -> str:
    """One property of a unit."""
    return run("systemctl", "show", f"--property={key}", "--value", unit).strip()


def main_pid(unit: str = SERVICE) -> int:
    """Its main process; 0: none."""
    return int(show("MainPID", unit))


def kernel(name: str, unit: str) -> str:
    """A file of the unit's cgroup."""
    with open(f"/sys/fs/cgroup{show('ControlGroup', unit)}/{name}") as file:
        return file.read().strip()


def counts(name: str, unit: str) -> dict[str, int]:
    """A file of the unit's cgroup with a name and a number in each line."""
    return {key: int(value) for key, value in (line.split() for line in kernel(name, unit).splitlines())}


def stalled_us(unit: str) -> int:
    """For how long its tasks have waited for memory, by PSI."""
    return int(kernel("memory.pressure", unit).splitlines()[0].rpartition("total=")[2])


def page(path: str) -> str:
    """A page of the daemon's."""
    with urllib.request.urlopen(f"http://127.0.0.1:9464{path}", timeout=60) as answer:
        return str(answer.read().decode())


def status() -> dict[str, Any]:
    """/status."""
    return dict(json.loads(page("/status")))


def answers() -> bool:
    """Whether the daemon is there to be asked: it may just be starting again."""
    try:
        page("/healthz")
    except OSError:
        return False
    return True


def target(name: str) -> dict[str, Any]:
    """What /status says of a target; {}: it is not there."""
    return next((dict(row) for row in status()["targets"] if row["name"] == name), {})


def metric(series: str) -> float:
    """The value of a series as /metrics spells it; 0 before there is one."""
    lines = (line.rpartition(" ") for line in page("/metrics").splitlines())
    return next((float(value) for name, _, value in lines if name == series), 0.0)


def journal(since: float, *match: str, unit: str = SERVICE) -> list[str]:
    """The unit's own lines with all of these words, since a wall clock time."""
    argv = ["journalctl", "--no-pager", "-o", "cat", "-u", unit, f"--since=@{since:.6f}"]
    return [line for line in run(*argv).splitlines() if all(word in line for word in match)]


def says(since: float, *match: str, unit: str = SERVICE) -> list[str]:
    """Wait for such lines."""
    return eventually(lambda: journal(since, *match, unit=unit), PATIENCE_S, what=f"the journal has {match}")


def configure(text: str) -> None:
    """The daemon's configuration file, as its next start or reload finds it."""
    with open(CONFIG, "w") as file:
        file.write(text)


def drop_in(unit: str, name: str, text: str) -> None:
    """A drop-in until the next boot; the caller reloads systemd."""
    os.makedirs(f"{UNITS}/{unit}.d", exist_ok=True)
    with open(f"{UNITS}/{unit}.d/{name}.conf", "w") as file:
        file.write(text)


def shipped(name: str, changes: Mapping[str, str] | None = None) -> str:
    """The text of a drop-in of the package, with the sizes that have to be changed, changed."""
    with open(f"{SHIPPED}/{name}.conf") as file:
        text = file.read()
    for old, new in (changes or {}).items():
        assert old in text
        text = text.replace(old, new)
    return text


def remove(*paths: str) -> None:
    """Files of ours, where they are; a drop-in's directory too, when it is empty then."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if path.endswith(".conf"):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))


@contextlib.contextmanager
def configured(text: str, **drop_ins: str) -> Iterator[None]:
    """The daemon, restarted with this configuration and these drop-ins; afterwards both are as they were."""
    with open(CONFIG) as file:
        before = file.read()
    try:
        configure(text)
        for name, body in drop_ins.items():
            drop_in(SERVICE, name, body)
        run("systemctl", "daemon-reload")
        run("systemctl", "reset-failed", SERVICE)
        run("systemctl", "restart", SERVICE)
        yield
    finally:
        # Whoever needs the daemon otherwise restarts it; each start takes its time here.
        configure(before)
        remove(*(f"{UNITS}/{SERVICE}.d/{name}.conf" for name in drop_ins))


def installed() -> None:
    """The package of this build, for a test that is run by itself."""
    if not os.path.exists("/usr/bin/edgeguardd"):
        run("dpkg", "-i", package("edgeguardd_[0-9]*.deb"))


def package(pattern: str) -> str:
    """The one .deb file of this name beside the tests."""
    import glob  # noqa: PLC0415

    (found,) = glob.glob(pattern)
    return found


def now() -> float:
    """The wall clock, for journal()."""
    return time.time()
