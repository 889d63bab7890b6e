"""Stopping and starting a server's process: as a systemd unit, by the operator's commands, or as the bridge's child.

Must not: run a shell, decide when. Upstream: asyncio, commands, systemctl. Downstream: the servers' files, run.
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
from typing import Protocol, cast

from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.commands import run
from edgeguardd.bridges.launch import STAY

SYSTEMCTL = ("/usr/bin/systemctl", "/bin/systemctl")
# A child gets SIGTERM first and ends its answers, then SIGKILL, which frees the memory all the same.
STOP_WITHIN_S = 10.0
# What was killed is gone within that, but for zombies that nobody reaps, as in a container without an init.
GONE_WITHIN_S = 1.0
GONE_POLL_S = 0.01
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
    """A child process and all that it has started; it is started again when it ends by itself.

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
        """SIGTERM to it and what it has started, as the server behind a script; SIGKILL if that is not enough."""
        self._wanted = False
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        if self._process is None or self._process.returncode is not None:
            return
        self._signal_all(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self._signal_all(signal.SIGKILL)
            await self._process.wait()
        await self._clear_up()

    def _signal_all(self, number: int) -> bool:
        """Whether anybody was there. It leads a process group, which has its number."""
        try:
            os.killpg(cast(asyncio.subprocess.Process, self._process).pid, number)
        except ProcessLookupError:
            return False
        return True

    async def _clear_up(self) -> None:
        """It has just ended: end what it has left behind, which would hold its memory and its port."""
        until = time.monotonic() + GONE_WITHIN_S
        while self._signal_all(signal.SIGKILL) and time.monotonic() < until:  # noqa: ASYNC110 - other processes' end
            await asyncio.sleep(GONE_POLL_S)

    async def _spawn(self) -> None:
        program = shutil.which(self._argv[0])
        if program is None:
            raise ServerError(f"cannot start {self._argv[0]}: there is no such program; correct the command")
        # It moves itself in and becomes the server, so that the server's first page counts in its cgroup.
        launch = [sys.executable, "-m", "edgeguardd.bridges.launch"]
        launch += [str(os.getpid()), self._cgroup_procs or STAY, str(STOP_WITHIN_S)]
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
        pause_s, ended = RESTART_AFTER_S, None
        while True:
            status = -1 if self._process is None else await self._process.wait()
            if self._process is not ended:
                ended = self._process
                await self._clear_up()
            if time.monotonic() - self._started_at >= PROVEN_S:
                pause_s = RESTART_AFTER_S
            self._on_end(status)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_AFTER_MOST_S)
            with contextlib.suppress(ServerError):
                await self._spawn()
