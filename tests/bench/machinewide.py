"""Reaction of guards of the whole machine: MemAvailable falls below their mark, and they do something.

Their trigger is not a cgroup's counter but a figure that they read now and then, so this is another table than the
reaction: from the write after which MemAvailable lay below the mark, as the process that wrote saw it, to the SIGTERM
that the process got (earlyoom, nohang), or to the command that its subscriber could read (edgeguardd, by the machine's
marks). Each has its mark at the same amount of memory, and is otherwise as it comes.

Must not: end anything but its own sacrifice. Upstream: parts. Downstream: tests.demo.rivals, sacrifice, a daemon.
"""

import asyncio
import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.bench.figures import SERIES_HEAD, in_series
from tests.bench.listener import Listener
from tests.bench.probes import Found, Tell, kernel
from tests.bench.report import Table
from tests.demo import rivals
from tests.demo.run import small_machine
from tests.demo.timeline import LIMITS, MIB
from tests.support.cgroup import Cgroup
from tests.support.running import Daemon

SACRIFICE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sacrifice.py")
MARK_BYTES = int(LIMITS.max_bytes * rivals.EARLYOOM_RATIO)
# A sacrifice takes some 10 MiB before it begins; edgeguardd calls the machine normal again when 2 % of its memory are
# available above the mark (core.machine), and each 5 s.
ROOM_BYTES = 48 * MIB
TOLD_WITHIN_S = 30.0


class Sacrifice:
    """A process that grows past the mark; see sacrifice."""

    def __init__(self, cgroup: Cgroup | None = None) -> None:
        start = subprocess.Popen if cgroup is None else cgroup.spawn
        argv = [sys.executable, "-I", "-S", "-B", SACRIFICE, str(MARK_BYTES)]
        self._process = start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, order: str) -> list[int]:
        """One order and its answer. Raises TimeoutError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n".encode())
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], TOLD_WITHIN_S)[0]:
            raise TimeoutError(f"no answer to {order} within {TOLD_WITHIN_S:.0f} s")
        answer = self._process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"the sacrifice ended with {self._process.wait()}")
        return [int(word) for word in answer]

    def close(self) -> None:
        """End it for good."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


async def of_killer(name: str, count: int, directory: str) -> list[float]:
    """Seconds to the signal, `count` times, each with a process of its own."""
    beside = rivals.earlyoom(directory, _silent)
    if name == "nohang":
        beside = rivals.nohang(directory, _silent, rivals.EARLYOOM_RATIO)
    async with beside, small_machine(MARK_BYTES + ROOM_BYTES):
        took_s: list[float] = []
        # One that does nothing keeps nobody waiting: its row has fewer than the others'.
        with contextlib.suppress(TimeoutError):
            while len(took_s) < count:
                took_s.append(await asyncio.to_thread(_ended))
        return took_s


def _silent(text: str | None, level: str | None, freed_bytes: int) -> None:
    """Nobody looks at what they say."""


def _ended() -> float:
    """One sacrifice: seconds to its signal."""
    sacrifice = Sacrifice()
    try:
        crossed_ns, told_ns = sacrifice.ask("cross")
        return (told_ns - crossed_ns) / 1e9
    finally:
        sacrifice.close()


async def of_edgeguardd(count: int, directory: str) -> list[float]:
    """Seconds to the command, `count` times; the target has no limit, so that the machine alone is judged."""
    share = MARK_BYTES / (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    config = f"""
[machine]
elevated = "{share:.4%}"
high = "{share / 2:.4%}"
critical = "{share / 4:.4%}"
[defaults]
dwell = "1ms"
restore_dwell = "1ms"
repeat = 30
"""
    with Cgroup.fresh("bench") as cgroup:
        target = f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n'
        with Daemon(directory, config + target) as running:
            running.killed = True  # all alike: not worth replaying
            async with small_machine(MARK_BYTES + ROOM_BYTES):
                return await asyncio.to_thread(_commands, running, cgroup, count)


def _commands(running: Daemon, cgroup: Cgroup, count: int) -> list[float]:
    # In the target itself: one that holds nothing would not be asked.
    sacrifice, listener = Sacrifice(cgroup), Listener(running.socket_path)
    try:
        listener.say(type="hello", name="bench", target="llm")
        listener.next("welcome")
        took_s: list[float] = []
        with contextlib.suppress(TimeoutError, OSError, EOFError):
            while len(took_s) < count:
                (crossed_ns,) = sacrifice.ask("take")
                at_ns = _obeyed(listener, lambda line: line["type"] == "command" and line["action"] != "restore")
                took_s.append((at_ns - crossed_ns) / 1e9)
                sacrifice.ask("give")
                _obeyed(listener, lambda line: line["type"] == "level" and line["level"] == "normal")
        return took_s
    finally:
        sacrifice.close()
        listener.close()


def _obeyed(listener: Listener, until: Callable[[dict[str, Any]], bool]) -> int:
    """Everything is done that is asked, until such a line has come; when it could be read."""
    while True:
        for line in listener.all():
            if line.said["type"] == "command":
                listener.say(type="ack", seq=line.said["seq"], status="done")
            elif line.said["type"] == "ping":
                listener.say(type="pong", id=line.said.get("id"))
            if until(line.said):
                return line.at_ns
        listener.read(TOLD_WITHIN_S, "what is waited for")


def run(options: Sequence[str], tell: Tell) -> Found:
    """How often."""
    count = int(options[0])
    rows = []
    missing = rivals.missing()
    directory = tempfile.mkdtemp(prefix="eg", dir="/run")
    try:
        for name in ("earlyoom", "nohang"):
            if name not in missing:
                tell(f"machine: {name}, {count} times")
                began = time.monotonic()
                rows.append([name, "SIGTERM", *in_series(asyncio.run(of_killer(name, count, directory)))])
                tell(f"  took {time.monotonic() - began:.0f} s")
        tell(f"machine: edgeguardd, {count} times")
        rows.append(["edgeguardd", "command", *in_series(asyncio.run(of_edgeguardd(count, directory)))])
    finally:
        shutil.rmtree(directory)
    how = (
        f"On {kernel()}. The mark of each is {MARK_BYTES / MIB:.1f} MiB of MemAvailable. All three read it now and "
        "then, sooner the nearer it is: none is woken by the kernel. Who did nothing within "
        f"{TOLD_WITHIN_S:.0f} s was asked no more."
    )
    notes = [how]
    if missing:
        notes.append(f"Not here: {', '.join(missing)}; `make setup` fetches them.")
    return Found([Table("Reaction to MemAvailable", ["who", "does", *SERIES_HEAD], rows, notes)])
