"""A storm of short processes with survivors among them, and how soon the survivors that a rule fits have their score.

Must not: import the daemon; it also runs where only its package is. Upstream: component tests, tests in the guest.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.wait import eventually

# As /proc/PID/comm has them: the names under which the programs are started. A rule is for the whole machine, and a
# daemon of another test that runs at the same time must not take these for its own: the names are this process's.
FITS, DIFFERS = f"eg-f-{os.getpid()}", f"eg-d-{os.getpid()}"
POLL_S = 0.001


@dataclass
class Storm:
    """What a storm has left: survivors by number, and how long after its start each that fits had the score."""

    directory: str
    fitting: list[int] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    waited_s: dict[int, float] = field(default_factory=dict)
    took_s: float = 0.0

    def program(self, name: str, what: str) -> str:
        """The path of a program under another name, which becomes its comm."""
        path = os.path.join(self.directory, what, name)
        if not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            found = shutil.which(what)
            assert found is not None
            os.symlink(found, path)
        return path

    def survivor(self, name: str) -> int:
        """One process that lives for ten minutes, or until it is killed."""
        pid = os.posix_spawn(self.program(name, "sleep"), [name, "600"], {})
        (self.fitting if name == FITS else self.differing).append(pid)
        return pid

    def turncoat(self) -> int:
        """One that fits for a moment, and lives on as one that differs."""
        pid = os.posix_spawn(self.program(FITS, "sh"), [FITS, "-c", f'exec "{self.program(DIFFERS, "sleep")}" 600'], {})
        self.differing.append(pid)
        return pid

    def end(self) -> None:
        """Nothing is left running."""
        for pid in (*self.fitting, *self.differing):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


@contextlib.contextmanager
def ready(directory: str) -> Iterator[Storm]:
    """A storm that has not begun."""
    storm = Storm(directory)
    try:
        yield storm
    finally:
        storm.end()


def score(pid: int) -> int:
    """oom_score_adj as it is."""
    with open(f"/proc/{pid}/oom_score_adj") as file:
        return int(file.read())


def blow(storm: Storm, processes: int, value: int, *, every: int = 20) -> None:
    """So many short processes, every other of them fitting; after each `every` a survivor of either kind, and one that
    fits for a moment only.

    Returns when each survivor that fits has `value`.
    """
    began: dict[int, float] = {}
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(storm, began, value, over))
    watcher.start()
    started = time.monotonic()
    try:
        for number in range(processes):
            name = FITS if number % 2 else DIFFERS
            pid = os.posix_spawn(storm.program(name, "true"), [name], {})
            if number % every == 0:
                at = time.monotonic()
                began[storm.survivor(FITS)] = at
                storm.survivor(DIFFERS)
                storm.turncoat()
            os.waitpid(pid, 0)
        storm.took_s = time.monotonic() - started
        eventually(lambda: len(storm.waited_s) == len(began), what="each survivor has its score")
    finally:
        over.set()
        watcher.join()


def _watch(storm: Storm, began: dict[int, float], value: int, over: threading.Event) -> None:
    while not over.wait(POLL_S):
        for pid, at in list(began.items()):
            if pid not in storm.waited_s and score(pid) == value:
                storm.waited_s[pid] = time.monotonic() - at
