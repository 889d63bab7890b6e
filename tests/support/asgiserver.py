"""A real ASGI server as a process of its own, and callers that keep account of every answer.

Must not: use the code under test. Upstream: component and kernel tests.
"""

import contextlib
import dataclasses
import http.client
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.support.running import REPOSITORY
from tests.support.wait import DEADLINE_S, eventually


@dataclasses.dataclass(frozen=True)
class Answer:
    """A whole answer, or why there is none."""

    status: int
    body: bytes
    headers: dict[str, str]
    took_s: float
    dropped: str | None = None

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        return dict(json.loads(self.body)["error"])


class Server:
    """A server that says "Uvicorn running on http://ADDRESS:PORT" in `log_path` when it is ready."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_path: str) -> None:
        self.process = process
        self._log_path = log_path
        self._address = eventually(self._running_at, 60, what="the server starts") or ""

    def ask(self, path: str, body: Any = None) -> Answer:
        """A request on a connection of its own, GET or, with a body, POST of JSON; the whole answer."""
        start = time.monotonic()
        connection = http.client.HTTPConnection(self._address, timeout=DEADLINE_S * 3)
        with contextlib.closing(connection):
            try:
                if body is None:
                    connection.request("GET", path)
                else:
                    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                answer = connection.getresponse()
                first_at = time.monotonic()
                read = answer.read()  # raises IncompleteRead when the stream was cut off
            except (OSError, http.client.HTTPException) as error:
                return Answer(0, b"", {}, time.monotonic() - start, repr(error))
        return Answer(answer.status, read, {k.lower(): v for k, v in answer.getheaders()}, first_at - start)

    def anonymous_bytes(self) -> int:
        """RssAnon of the process."""
        with open(f"/proc/{self.process.pid}/status") as file:
            (line,) = [line for line in file if line.startswith("RssAnon:")]
        return int(line.split()[1]) * 1024

    def log_text(self) -> str:
        """All it has said so far."""
        with open(self._log_path, errors="replace") as file:
            return file.read()

    def _running_at(self) -> str | None:
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log_text()}"
        found = re.search(r"running on http://(\S+)", self.log_text())
        return found and found[1]


@contextlib.contextmanager
def running(argv: list[str], log_path: str, spawn: Any = subprocess.Popen, **environment: str) -> Iterator[Server]:
    """Start it, and end it as an operator does: with SIGTERM, after which it leaves by itself."""
    with open(log_path, "wb") as log:
        process = spawn(
            argv,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": REPOSITORY, **environment},
        )
    try:
        yield Server(process, log_path)
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


class Callers:
    """Threads that ask one after another until the block ends. `answers` holds every answer, also those cut off."""

    def __init__(self, server: Server, count: int, path: str, body: Any) -> None:
        self.answers: list[Answer] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(server, path, body)) for _ in range(count)]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def statuses(self, since: int = 0) -> list[int]:
        """The statuses of all answers after the first so many."""
        return [answer.status for answer in self.answers[since:]]

    def _ask(self, server: Server, path: str, body: Any) -> None:
        while not self._stop.is_set():
            answer = server.ask(path, body)
            self.answers.append(answer)
            if answer.status != 200:
                self._stop.wait(0.02)  # a caller that is refused comes again, though not in a busy loop
