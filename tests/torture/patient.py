"""The daemon as a process with afflictions in it, and the way to its control socket.

Must not: choose afflictions. Upstream: world, calls. Downstream: afflicted.py, which it runs.
"""

import contextlib
import json
import os
import socket
import sys
from typing import Any

from tests.support.running import Daemon
from tests.support.wait import eventually

ANSWER_S = 60.0
# So many looks at descriptors, a few milliseconds apart, that are alike are the state of rest.
LOOKS_ALIKE = 20


class Afflicted(Daemon):
    """The daemon with afflictions in it, and the way to its control socket."""

    def __init__(self, directory: str, config: str, port: int) -> None:
        self.port = port
        self._facts: list[dict[str, Any]] = []
        self._read_bytes = 0
        # The last counts of calls heard of each run, by process.
        self.counted: dict[int, dict[str, Any]] = {}
        # What it said that is no log line: tracebacks, and sentences of the command.
        self.words: list[str] = []
        super().__init__(directory, config, start=False)
        self.control_path = f"{directory}/control"
        self.command = [sys.executable, "-m", "tests.torture.afflicted", "run"]
        self.environment = {"EDGEGUARDD_AFFLICTIONS": self.control_path}
        self.starting_with: list[dict[str, Any]] = []
        # What replayed.check compares is not to be had of a daemon that is killed again and again.
        self.killed = True

    @property
    def http(self) -> str:
        """Known also of a run whose log is what cannot be written."""
        return f"http://127.0.0.1:{self.port}"

    def write_config(self, body: str) -> None:
        """The whole configuration."""
        with open(self.config_path, "w") as file:
            file.write(body)

    def all_facts(self) -> list[dict[str, Any]]:
        """All log lines, each read once."""
        try:
            with open(self.log_path, "rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return self._facts
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                self._facts.append(json.loads(line))
            else:
                self.words.append(line.decode(errors="replace"))
        return self._facts

    def start(self, *, wait: bool = True) -> None:
        """Start with what `starting_with` says in force."""
        with open(f"{self.control_path}.start", "w") as file:
            file.writelines(json.dumps(asked) + "\n" for asked in self.starting_with)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.control_path)
        super().start(wait=wait)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        """One question to the control socket. A daemon that is dead, or dies over it, answers {}."""
        answer = self._asked(do, words)
        # Each run counts from zero; what was last heard of one before is kept.
        if answer and self.process is not None:
            self.counted[self.process.pid] = answer
        return answer

    def _asked(self, do: str, words: dict[str, Any]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(ANSWER_S)
                eventually(lambda: not self.alive or os.path.exists(self.control_path))
                sock.connect(self.control_path)
                with sock.makefile("rwb") as file:
                    file.write(json.dumps({"do": do, **words}).encode() + b"\n")
                    file.flush()
                    line = file.readline()
        except ConnectionError:
            return {}
        return dict(json.loads(line)) if line else {}

    def resident_bytes(self) -> int:
        """RSS."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> dict[str, int]:
        """What its descriptors are, and how many of each; numbers of sockets and pipes left out."""
        found: dict[str, int] = {}
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                what = os.readlink(f"/proc/{self.pid}/fd/{name}").split(":")[0]
                found[what] = found.get(what, 0) + 1
        return found

    def open_files_at_rest(self) -> dict[str, int]:
        """As open_files, once many looks are alike: a connection that was just asked through is about to be closed."""
        looks = [self.open_files()]

        def alike() -> bool:
            looks.append(self.open_files())
            return looks[-LOOKS_ALIKE:] == [looks[-1]] * LOOKS_ALIKE

        eventually(alike)
        return looks[-1]


def differing(first: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Of which there are more or fewer than at first.

    Recordings take turns, and what could not be opened at the start (a recording, the journal) is done without.
    """
    return {
        what: (first.get(what, 0), now.get(what, 0))
        for what in sorted(first.keys() | now.keys())
        if now.get(what, 0) > first.get(what, 0) or (now.get(what, 0) < first.get(what, 0) and "/state/" not in what)
        if "recording-" not in what
    }


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
