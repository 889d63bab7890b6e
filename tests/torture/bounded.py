"""Parts in processes of their own, beside each other or in turn; each is ended, with all that it has started, when its
time is over.

Must not: know the parts. Upstream: __main__. Downstream: `python -m tests.torture.parts`, which puts its section down
as JSON.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from tests.support.running import REPOSITORY

# What is asked to end takes down guests and daemons first.
GRACE_S = 15.0
POLL_S = 0.05


@dataclass(frozen=True)
class Done:
    """What became of a part."""

    name: str
    right: bool
    section: str
    took_s: float
    limit_s: float


class Running:
    """One part. `argv` is its command, which takes the file for its section last; `heading` the section's."""

    def __init__(self, name: str, heading: str, argv: Sequence[str], limit_s: float) -> None:
        self.name, self.heading, self.limit_s = name, heading, limit_s
        self._began = time.monotonic()
        self._directory = tempfile.mkdtemp(prefix="edgeguardd-torture-", dir="/tmp")
        # A session of its own: an interrupt at the terminal is for the one who started it, who ends all of it.
        self._process = subprocess.Popen(
            [*argv, f"{self._directory}/section"], cwd=REPOSITORY, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def done(self) -> Done | None:
        """What became of it; None while it runs and has time left."""
        took_s = time.monotonic() - self._began
        if not self._has_ended() and took_s < self.limit_s:
            return None
        status = self._process.poll()
        trouble = f"It ended with status {status}, and has put nothing down."
        if status is None:
            trouble = f"It was ended: it had not come to its end within {self.limit_s / 60:.1f} min."
        right, section = False, f"### {self.heading}\n\n{trouble}"
        with contextlib.suppress(FileNotFoundError), open(f"{self._directory}/section") as file:
            told = json.load(file)
            right, section = told["right"], told["section"]
        self.close()
        return Done(self.name, right, section, took_s, self.limit_s)

    def close(self) -> None:
        """Ask it to end, if it still runs, then kill what is left of it and of what it has started."""
        if self._process.poll() is None:
            groups = {self._process.pid, *groups_below(self._process.pid)}
            os.kill(self._process.pid, signal.SIGTERM)
            until = time.monotonic() + GRACE_S
            while not self._has_ended() and time.monotonic() < until:
                time.sleep(POLL_S)
            for group in groups - {os.getpgrp()}:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _has_ended(self) -> bool:
        # Not reaped: until then its number, which is its group's too, belongs to nobody else.
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def play(lanes: Sequence[Sequence[str]], begin: Callable[[str], Running]) -> Generator[Done, None, None]:
    """The lanes beside each other, the parts of each in turn; each told as it ends."""
    waiting = [list(lane) for lane in lanes]
    running: dict[int, Running] = {}
    try:
        while running or any(waiting):
            for number, lane in enumerate(waiting):
                if number not in running and lane:
                    running[number] = begin(lane.pop(0))
                if number in running and (done := running[number].done()) is not None:
                    del running[number]
                    yield done
            time.sleep(POLL_S)
    finally:
        for one in running.values():
            one.close()


def groups_below(pid: int) -> set[int]:
    """The process groups of everything that this process has started, and that those have."""
    below: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{name}/stat") as file:
                _, parent, group = file.read().rpartition(")")[2].split()[:3]
                below.setdefault(int(parent), []).append((int(name), int(group)))
    groups: set[int] = set()
    todo = [pid]
    while todo:
        children = below.get(todo.pop(), [])
        groups.update(group for _, group in children)
        todo += [child for child, _ in children]
    return groups
