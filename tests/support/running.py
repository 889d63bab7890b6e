"""The daemon as a process of its own, and a subscriber that writes down what it gets and when.

Must not: use the client library; these tests are there to see the protocol itself. Upstream: component, kernel tests.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

from tests.support import replayed
from tests.support.wait import DEADLINE_S, eventually

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# sd_listen_fds(3): the first passed descriptor is 3, and the variables name the process that it is for.
ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
os.execv(sys.argv[2], sys.argv[2:])
"""


class Daemon:
    """One `edgeguardd run` with its own configuration, socket and log."""

    def __init__(
        self, directory: str, config: str = "", *, cgroup_root: str | None = None, start: bool = True, http: str = ""
    ) -> None:
        """`http`: what else stands in [http]."""
        self.directory = directory
        self.socket_path = os.path.join(directory, "s")
        self.config_path = os.path.join(directory, "edgeguardd.toml")
        self.log_path = os.path.join(directory, "log")
        self.cgroup_root = cgroup_root
        self.state_directory = os.path.join(directory, "state")
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        self.within: list[str] = []  # a program that starts the daemon elsewhere, in its own place
        self.command = [sys.executable, "-m", "edgeguardd", "run"]
        # As systemd does: the listening socket that the daemon finds, and keeps nobody waiting who comes meanwhile.
        self.listener: socket.socket | None = None
        self.killed = False
        self._http_keys = http
        self.write_config(config)
        if start:
            self.start()

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        if kind is None and not self.killed:
            replayed.check(self)

    def write_config(self, body: str) -> None:
        """The configuration file; the socket and a free HTTP port come with it."""
        root = f"cgroup_root = {json.dumps(self.cgroup_root)}\n" if self.cgroup_root else ""
        root += f"state_directory = {json.dumps(self.state_directory)}\n"
        with open(self.config_path, "w") as file:
            file.write(
                f'{root}{body}\n[socket]\npath = "{self.socket_path}"\n'
                f'[http]\nport = 0\n{self._http_keys}\n[log]\nformat = "json"\n'
            )

    def start(self, *, wait: bool = True) -> None:
        """Start, and wait until it says so."""
        seen = len(self.facts("started"))
        with open(self.log_path, "ab") as log:
            argv = [*self.within, *self.command, "--config", self.config_path]
            passed = () if self.listener is None else (self.listener.fileno(),)
            if self.listener is not None:
                argv = [sys.executable, "-c", ACTIVATED, str(self.listener.fileno()), *argv]
            self.process = subprocess.Popen(
                argv,
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                pass_fds=passed,
            )
        if wait:
            try:
                eventually(lambda: self._running() and len(self.facts("started")) > seen, what="the daemon starts")
            except BaseException:
                self.kill()  # no caller has it yet, to stop it
                raise

    def _running(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the daemon ended with {self.process.returncode}:\n{self.log_text()}")
        return True

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def listens(self) -> bool:
        """Whether the socket takes connections; its file is there a moment before."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            return asked.connect_ex(self.socket_path) == 0

    def kill(self) -> None:
        """kill -9. What it has not written by then cannot be replayed."""
        assert self.process is not None
        self.killed = True
        self.process.kill()
        self.process.wait()

    def hang_up(self) -> None:
        """SIGHUP: read the configuration again."""
        os.kill(self.pid, signal.SIGHUP)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def log_text(self) -> str:
        """All it has said so far."""
        try:
            with open(self.log_path, errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def facts(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one name."""
        return [fact for fact in self.all_facts() if fact["event"] == event]

    def all_facts(self) -> list[dict[str, Any]]:
        """All log lines, as objects."""
        lines = self.log_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    @property
    def http(self) -> str:
        """http://address:port of this run."""
        return f"http://{self.facts('started')[-1]['http']}"

    def get(self, path: str) -> str:
        """One page."""
        with urllib.request.urlopen(self.http + path, timeout=DEADLINE_S) as answer:  # noqa: S310  loopback
            return str(answer.read().decode())

    def status(self) -> dict[str, Any]:
        """/status."""
        return dict(json.loads(self.get("/status")))

    def metric(self, name: str, **labels: str) -> float | None:
        """One sample of /metrics, None if it is not there."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
                rest = line[len(name) :]
                if rest[:1] in "{ ":
                    return float(line.rsplit(" ", 1)[1])
        return None

    def descriptors(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_s(self) -> float:
        """Processor time it has used so far."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Subscriber:
    """A raw subscriber. Every line is kept with the monotonic time at which it could be read."""

    def __init__(self, path: str, hello: dict[str, Any] | None = None, *, ack: str | None = "done") -> None:
        """Connect and say hello; `ack` is how every command is answered, None: not at all."""
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self.ack = ack
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if hello is not None:
            self.send({"type": "hello", "v": 1, **hello})

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, message: dict[str, Any]) -> None:
        """One line."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End the connection and the reading thread."""
        with contextlib.suppress(OSError):  # the other side was faster
            self.socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(DEADLINE_S)
        self.socket.close()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one type, in order."""
        return [line for _, line in self.lines if line["type"] == kind]

    def actions(self) -> list[str]:
        """The commands got so far, by action."""
        return [line["action"] for line in self.of("command")]

    def wait_for(self, kind: str, deadline_s: float = DEADLINE_S, **fields: Any) -> dict[str, Any]:
        """The first line of this type with these fields, come or coming."""
        return self.wait_for_timed(kind, deadline_s, **fields)[1]

    def wait_for_timed(
        self, kind: str, deadline_s: float = DEADLINE_S, *, since: float = 0.0, **fields: Any
    ) -> tuple[float, dict[str, Any]]:
        """As wait_for, with the time at which the line could be read; only lines after `since`."""

        def found() -> tuple[float, dict[str, Any]] | None:
            for at, line in list(self.lines):
                if at >= since and line["type"] == kind and all(line.get(k) == v for k, v in fields.items()):
                    return at, line
            return None

        result = eventually(found, deadline_s, what=f"a line {kind} {fields}")
        assert result is not None
        return result

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                piece = self.socket.recv(65536)
            except OSError:
                return
            if not piece:
                return
            at = time.monotonic()
            buffer += piece
            *whole, buffer = buffer.split(b"\n")
            for raw in whole:
                line = json.loads(raw)
                self.lines.append((at, line))
                self._answer(line)

    def _answer(self, line: dict[str, Any]) -> None:
        answer: dict[str, Any] | None = None
        if line["type"] == "command" and self.ack is not None:
            answer = {"type": "ack", "v": 1, "seq": line["seq"], "status": self.ack}
        elif line["type"] == "ping":
            answer = {"type": "pong", "v": 1, "id": line.get("id")}
        if answer is not None:
            with contextlib.suppress(OSError):  # the daemon was killed; tests look at what came
                self.send(answer)
