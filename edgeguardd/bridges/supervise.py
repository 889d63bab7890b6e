"""Stopping and starting a server's process: as a systemd unit, by the operator's commands, or as the bridge's child.

Must not: run a shell, decide when. Upstream: asyncio, systemctl. Downstream: the servers' files, run.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.launch import STAY
from edgeguardd.core.text import printable

SYSTEMCTL = ("/usr/bin/systemctl", "/bin/systemctl")
# systemd gives a service 90 s to stop before it kills it (DefaultTimeoutStopSec, systemd-system.conf(5)).
COMMAND_WITHIN_S = 100.0
MAX_ANSWER_CHARS = 400
# A child gets SIGTERM first and ends its answers, then SIGKILL, which frees the memory all the same.
STOP_WITHIN_S = 10.0
RESTART_AFTER_S = 0.5
RESTART_AFTER_MOST_S = 30.0
# Who has run so long starts again at once.
PROVEN_S = 60.0


class Keeper(Protocol):
    """What stops and starts a server. After stop() its memory is back with the kernel."""

    async def stop(self) -> None:
        """End it and wait until it is gone. Raises ServerError."""

    async def start(self) -> None:
        """Start it; whether it answers is another question. Harmless where it runs. Raises ServerError."""


class UnitKeeper:
    """A systemd unit: `systemctl stop` and `systemctl start`."""

    def __init__(self, unit: str, places: Sequence[str] = SYSTEMCTL) -> None:
        self.unit = unit
        self._places = places

    async def stop(self) -> None:
        """Stop the unit."""
        await self._systemctl("stop")

    async def start(self) -> None:
        """Start the unit."""
        await self._systemctl("start")

    async def cgroup(self) -> str | None:
        """ControlGroup= of the unit; None while it has none."""
        said = await self._systemctl("show", "--property=ControlGroup", "--value")
        return said.strip() or None

    async def _systemctl(self, *words: str) -> str:
        program = next((place for place in self._places if os.access(place, os.X_OK)), None)
        if program is None:
            raise ServerError(f"cannot {words[0]} {self.unit}: there is no {self._places[0]}; give --start and --stop")
        verb, *options = words
        return await run([program, verb, "--no-ask-password", *options, "--", self.unit])


class CommandKeeper:
    """The operator's own commands, such as `docker stop llama` and `docker start llama`."""

    def __init__(self, stop: Sequence[str], start: Sequence[str]) -> None:
        self._stop = stop
        self._start = start

    async def stop(self) -> None:
        """Run the one."""
        await run(self._stop)

    async def start(self) -> None:
        """Run the other."""
        await run(self._start)


class ChildKeeper:
    """A child process; it is started again when it ends by itself.

    `cgroup_procs`: the cgroup.procs file of the cgroup it is to live in; None: the bridge's own.
    `listens_at`: the Unix socket that it makes; one left by a process that was killed is removed before it starts.
    `on_end` hears of an end that nobody asked for, with its status, negative for a signal.
    """

    def __init__(
        self,
        argv: Sequence[str],
        cgroup_procs: str | None,
        on_end: Callable[[int], None],
        listens_at: str | None = None,
    ) -> None:
        self._argv = argv
        self._listens_at = listens_at
        self._cgroup_procs = cgroup_procs
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._wanted = False
        self._started_at = 0.0

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it, unless it runs."""
        self._wanted = True
        if not self.running:
            await self._spawn()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if that is not enough."""
        self._wanted = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _spawn(self) -> None:
        program = shutil.which(self._argv[0])
        if program is None:
            raise ServerError(f"cannot start {self._argv[0]}: there is no such program; correct the command")
        # It moves itself in and becomes the server, so that the server's first page counts in its cgroup.
        launch = [sys.executable, "-m", "edgeguardd.bridges.launch", str(os.getpid()), self._cgroup_procs or STAY]
        if self._listens_at is not None:
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.lstat(self._listens_at).st_mode):
                    os.unlink(self._listens_at)
        try:
            # A session of its own: Ctrl-C is for the bridge, which lets the server's answers end first.
            self._process = await asyncio.create_subprocess_exec(
                *launch, *self._argv, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise ServerError(f"cannot start {sys.executable}: {os.strerror(error.errno or 0)}") from None
        self._started_at = time.monotonic()

    async def _watch(self) -> None:
        """Start it again when it ends, later each time that it ends early."""
        pause_s = RESTART_AFTER_S
        while True:
            status = -1 if self._process is None else await self._process.wait()
            if time.monotonic() - self._started_at >= PROVEN_S:
                pause_s = RESTART_AFTER_S
            self._on_end(status)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_AFTER_MOST_S)
            with contextlib.suppress(ServerError):
                await self._spawn()


async def run(argv: Sequence[str], within_s: float = COMMAND_WITHIN_S) -> str:
    """Run a program to its end; what it printed. Raises ServerError with what it says when it fails or takes longer."""
    shown = printable(" ".join(argv), MAX_ANSWER_CHARS)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise ServerError(f"cannot run {shown}: {os.strerror(error.errno or 0)}; correct the command") from None
    try:
        async with asyncio.timeout(within_s):
            out, errors = await process.communicate()
    except TimeoutError:
        raise ServerError(f"cannot say that `{shown}` did its work: not within {within_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
    if process.returncode != 0:
        said = printable((errors or out).decode("utf-8", "replace").strip().replace("\n", " "), MAX_ANSWER_CHARS)
        raise ServerError(f"cannot {shown}: it ended with status {process.returncode} ({said})")
    return out.decode("utf-8", "replace")
