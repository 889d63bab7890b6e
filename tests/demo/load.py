"""Sends the schedule to the server at its times, whatever the server does, and counts what becomes of each request.

Must not: slow down when the server does; people do not. Upstream: run. Downstream: the server's socket.
"""

import asyncio
import dataclasses
import json
import time
from typing import Any

from tests.demo.workload import Request

# How long a person waits. Not much less, or a busy machine alone would make requests time out.
TIMEOUT_S = 3.0
# No answer for so long while somebody waits: whoever watches the server restarts it.
HANG_S = 10.0


@dataclasses.dataclass
class Tally:
    """What became of the requests of one run, and the longest time without any answer while somebody waited."""

    sent: int = 0
    served: int = 0
    rejected: int = 0
    timed_out: int = 0
    lost: int = 0
    recomputed_tokens: int = 0
    longest_stall_s: float = 0.0
    checksums: dict[Request, int] = dataclasses.field(default_factory=dict)
    times_s: list[float] = dataclasses.field(default_factory=list)
    answered_at: list[float] = dataclasses.field(default_factory=list)
    waiting: int = 0
    hangs: int = 0
    _hanging: bool = False
    _waiting_since: float | None = None

    def begin(self, now: float) -> None:
        """Somebody asks."""
        self.sent += 1
        self.waiting += 1
        if self._waiting_since is None:
            self._waiting_since = now

    def end(self, now: float, answered: bool) -> None:
        """Somebody has an answer, or has given up; only an answer ends a stall."""
        self.waiting -= 1
        self.look(now)
        if answered:
            self.answered_at.append(now)
            self._waiting_since = now if self.waiting else None
            self._hanging = False

    def look(self, now: float) -> None:
        """Take the present wait into the longest stall; from HANG_S on it is a hang, once."""
        if self._waiting_since is None:
            return
        waited_s = now - self._waiting_since
        self.longest_stall_s = max(self.longest_stall_s, waited_s)
        if waited_s >= HANG_S and not self._hanging:
            self._hanging = True
            self.hangs += 1


async def send_all(requests: list[Request], socket_path: str, tally: Tally, timeout_s: float = TIMEOUT_S) -> None:
    """The whole schedule, from now on; returns when the last request has been answered or given up."""
    started = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for request in requests:
            await asyncio.sleep(started + request.at_s - time.monotonic())
            tasks.create_task(send(request, socket_path, tally, timeout_s))


async def send(request: Request, socket_path: str, tally: Tally, timeout_s: float) -> None:
    """One request from asking to its end."""
    began = time.monotonic()
    tally.begin(began)
    answered = False
    try:
        async with asyncio.timeout(timeout_s):
            answer = await exchange(request, socket_path)
        answered = True
        if answer["status"] == "rejected":
            tally.rejected += 1
        else:
            tally.served += 1
            tally.recomputed_tokens += answer["recomputed_tokens"]
            tally.checksums[request] = answer["checksum"]
            tally.times_s.append(time.monotonic() - began)
    except TimeoutError:
        tally.timed_out += 1
    except (OSError, EOFError):
        tally.lost += 1
    finally:
        tally.end(time.monotonic(), answered)


async def exchange(request: Request, socket_path: str) -> dict[str, Any]:
    """One line there, one line back."""
    reader, writer = await asyncio.open_unix_connection(socket_path)
    try:
        writer.write(json.dumps(dataclasses.asdict(request)).encode() + b"\n")
        line = await reader.readline()
        if not line:
            raise EOFError("the server hung up")
        answer: dict[str, Any] = json.loads(line)
        return answer
    finally:
        writer.close()
