"""One run: a cgroup with limits, the server inside it, the load outside, and a timeline of what happens.

Must not: differ between bare, naive and guarded in anything but the reaction. Upstream: __main__.
Downstream: server, load, guard, the cgroup tree.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, assert_never

from tests.demo import guard, load, model, timeline
from tests.demo.contest import Contestant, Room
from tests.demo.timeline import LIMITS, MIB, Look
from tests.demo.workload import Request
from tests.support.cgroup import Cgroup

BALLAST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ballast.py")
LOOK_EVERY_S = 1.0
RESTART_AFTER_S = 0.5
# So that a guard of the machine does not choose this process, which is larger than a server that has just begun.
SERVER_SCORE = 300
READY_WITHIN_S = 60.0
# memory.stat: what cannot be dropped for free.
NEEDED_KEYS = ("anon", "shmem", "file_mapped", "slab_unreclaimable", "pagetables", "kernel_stack")


@dataclasses.dataclass(frozen=True)
class Stage:
    """What all runs share: a place for sockets and one for files."""

    directory: str
    disk: str

    @property
    def weights(self) -> str:
        """The file that the model's weights are loaded from."""
        return f"{self.disk}/weights"

    @property
    def index(self) -> str:
        """The file that passages are retrieved from."""
        return f"{self.disk}/index"


@dataclasses.dataclass
class Result:
    """A run's outcome."""

    name: str
    tally: load.Tally
    kills: int = 0
    freed_bytes: int = 0
    restarts: int = 0
    gone_at: list[float] = dataclasses.field(default_factory=list)

    @property
    def recovery_s(self) -> float:
        """The longest time from the server's end to the next answer."""
        waits = [next((at for at in self.tally.answered_at if at > gone), None) for gone in self.gone_at]
        return max((at - gone for at, gone in zip(waits, self.gone_at, strict=True) if at is not None), default=0.0)


class Run:
    """One run from an empty cgroup to the last answer."""

    def __init__(
        self, stage: Stage, contestant: Contestant, tell: Callable[[str], None], timeout_s: float = load.TIMEOUT_S
    ) -> None:
        self._stage = stage
        self._timeout_s = timeout_s
        self._contestant = contestant
        self._tell = tell
        self._socket = f"{stage.directory}/server.sock"
        self._started = time.monotonic()
        self._level = "-"
        self._drops: list[int] = []
        self._over = False
        self.result = Result(contestant.name, load.Tally())

    async def go(self, requests: list[Request]) -> Result:
        """Play the whole schedule."""
        for path in (self._stage.weights, self._stage.index):
            model.forget(path)
        async with contextlib.AsyncExitStack() as stack:
            if self._contestant.beside is not None:
                await stack.enter_async_context(self._contestant.beside(self._stage.directory, self._guard_said))
            if self._contestant.room is Room.MACHINE:
                await stack.enter_async_context(small_machine(LIMITS.max_bytes))
            with Cgroup.fresh("demo", self._contestant.below) as cgroup:
                self._limit(cgroup)
                await self._play(cgroup, requests)
                self.result.kills = cgroup.counters()["oom_kill"]
                # Lifted, or a throttled server takes minutes to die.
                cgroup.write("memory.high", "max")
        return self.result

    def _limit(self, cgroup: Cgroup) -> None:
        match self._contestant.room:
            case Room.HIGH_AND_MAX:
                cgroup.set(high=LIMITS.high_bytes, max=LIMITS.max_bytes)
            case Room.MAX:
                cgroup.set(max=LIMITS.max_bytes)
            case Room.MACHINE:
                pass
            case _:
                assert_never(self._contestant.room)

    async def _play(self, cgroup: Cgroup, requests: list[Request]) -> None:
        """The server up, the load through, the server down."""
        ready = asyncio.Event()
        tasks = [asyncio.create_task(self._keep_alive(cgroup, ready))]
        try:
            await asyncio.wait_for(ready.wait(), READY_WITHIN_S)
            self._started = time.monotonic()
            tasks.append(asyncio.create_task(self._watch(cgroup)))
            await load.send_all(requests, self._socket, self.result.tally, self._timeout_s)
        finally:
            self._over = True
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _keep_alive(self, cgroup: Cgroup, ready: asyncio.Event) -> None:
        """Start the server, and again when it was killed, as a service manager would."""
        while True:
            process = await self._start(cgroup)
            try:
                assert process.stdout is not None
                while line := await process.stdout.readline():
                    self._server_said(json.loads(line), ready)
                status = await process.wait()
            except asyncio.CancelledError:
                cgroup.write("memory.high", "max")
                process.kill()
                await process.wait()
                raise
            self.result.gone_at.append(time.monotonic())
            self.result.restarts += 1
            self._event(
                f"the server is gone ({signal.Signals(-status).name if status < 0 else status}); starting it again"
            )
            await asyncio.sleep(RESTART_AFTER_S)

    async def _start(self, cgroup: Cgroup) -> asyncio.subprocess.Process:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        stage = self._stage
        options = ["--socket", self._socket, "--weights", stage.weights, "--index", stage.index]
        options += ["--reaction", self._contestant.reaction]
        argv = [sys.executable, "-m", "tests.demo.server", *options]
        return await asyncio.create_subprocess_exec(
            "/bin/sh",
            *(
                "-c",
                f'echo {SERVER_SCORE} > /proc/self/oom_score_adj; echo $$ > "$0" && exec "$@"',
                cgroup.file("cgroup.procs"),
                *argv,
            ),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "EDGEGUARDD_SOCKET": guard.socket_path(stage.directory)},
        )

    async def _watch(self, cgroup: Cgroup) -> None:
        while True:
            look = look_at(cgroup)
            self.result.tally.look(time.monotonic())
            self._tell_drops()
            self._tell(timeline.state_line(self._at_s(), look, LIMITS, self._level, self.result.tally))
            await asyncio.sleep(LOOK_EVERY_S)

    def _server_said(self, said: dict[str, Any], ready: asyncio.Event) -> None:
        if said["event"] == "ready":
            ready.set()
        elif said["event"] == "dropped":
            self.result.freed_bytes += said["bytes"]
            self._drops.append(said["bytes"])

    def _tell_drops(self) -> None:
        """What the naive reaction did since the last look; one line, for it can be dozens of times."""
        if self._drops:
            freed = sum(self._drops) / MIB
            self._event(f"woken {len(self._drops)} x, each time drops a quarter of its cache: {freed:.1f} MiB")
            self._drops.clear()

    def _guard_said(self, text: str | None, level: str | None, freed_bytes: int) -> None:
        """One thing of the daemon's log; when the load is through, what it says of the end is of no interest."""
        if self._over:
            return
        self._level = level or self._level
        self.result.freed_bytes += freed_bytes
        if text:
            self._event(text)

    def _event(self, text: str) -> None:
        self._tell(timeline.event_line(self._at_s(), text))

    def _at_s(self) -> float:
        return time.monotonic() - self._started


@contextlib.asynccontextmanager
async def small_machine(available_bytes: int) -> AsyncIterator[None]:
    """Meanwhile the machine has no more memory left than this."""
    ballast = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-B", BALLAST, str(available_bytes)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert ballast.stdout is not None
    try:
        assert await ballast.stdout.readline() == b"held\n"
        yield
    finally:
        ballast.kill()
        await ballast.wait()


def look_at(cgroup: Cgroup) -> Look:
    """The figures of one line."""
    stat = cgroup.keyed("memory.stat")
    needed = sum(stat.get(key, 0) for key in NEEDED_KEYS)
    return Look(needed, int(cgroup.read("memory.current")), cgroup.counters()["high"])
