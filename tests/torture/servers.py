"""The servers on stage: processes that hold memory and subscribe, steered through pipes.

Must not: judge what they say. Upstream: world. Downstream: actor.py, which each of them runs.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import Any

from tests.support.cgroup import Cgroup
from tests.support.wait import eventually

ANSWER_S = 60.0
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "actor.py")


class Actor:
    """One server process, its orders and its journal."""

    def __init__(self, cgroup: Cgroup, socket_path: str, name: str, target: str, seed: int) -> None:
        """Started inside the cgroup; without a `target` it subscribes to nothing."""
        self.name = name
        self.journal: list[dict[str, Any]] = []
        self._orders = self._done = 0
        argv = [sys.executable, "-I", "-S", "-B", SCRIPT, socket_path, target, str(seed)]
        self.process = cgroup.spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.first("ready")

    def first(self, what: str, since: int = 0) -> dict[str, Any]:
        """The first entry of a kind, come or coming."""
        found = eventually(lambda: self._said(what, since), ANSWER_S, what=f"{self.name} says {what}")
        assert found is not None
        return found

    def order(self, do: str, *, wait: bool = True, **words: Any) -> dict[str, Any]:
        """One order, and what it has come to. An actor that is dead, or dies over it, answers {}."""
        self._orders += 1
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {}
        if not wait:
            return {}
        number = self._orders
        with contextlib.suppress(DeadError):
            eventually(lambda: self._alive() and self._done >= number, ANSWER_S, what=f"{self.name} has done {do}")
            return next(entry for entry in reversed(self.journal) if entry["what"] == "did")
        return {}

    @property
    def busy(self) -> bool:
        """Whether it has orders that it has not carried out yet."""
        return self._done < self._orders

    def commands(self, since: float = 0.0) -> list[dict[str, Any]]:
        """The commands it got, as journal entries."""
        return [entry for entry in list(self.journal) if entry["what"] == "command" and entry["at"] >= since]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, its pipes and the thread."""
        self.process.kill()
        self.process.wait()
        self._reader.join(ANSWER_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _alive(self) -> bool:
        if not self.alive:
            raise DeadError(self.name)
        return True

    def _said(self, what: str, since: int) -> dict[str, Any] | None:
        found = next((entry for entry in self.journal[since:] if entry["what"] == what), None)
        return found if found is not None or self._alive() else None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # killed in the middle of a line
                entry = json.loads(line)
                self.journal.append(entry)
                self._done += entry["what"] == "did"


class DeadError(Exception):
    """An actor died."""
