"""One run of the demonstration: a cgroup with limits, llama-server inside it, callers outside, a line every 5 s.

Must not: differ between bare and guarded in anything but who starts the server and what stands before it.
Upstream: __main__. Downstream: server (bare), bridge and guard (guarded), load.
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
from typing import Any

from tests.demo import timeline
from tests.demo.guard import socket_path
from tests.demo.run import look_at
from tests.demo.timeline import MIB, Limits
from tests.llama.guard import TARGET, Guard
from tests.llama.load import CALLERS, LEAST_TIMEOUT_S, PATIENCE_FACTOR, PROMPT_WORDS, Load, Tally, ask
from tests.llama.server import ENVIRONMENT, PLACES, Place, Server
from tests.support.cgroup import Cgroup

LOOK_EVERY_S = 5.0
RESTART_AFTER_S = 0.5
STOPPED_WITHIN_S = 60.0
OPEN_WITHIN_S = 180.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """What both runs share. `directory` is for sockets and logs."""

    program: str
    model: str
    directory: str
    threads: int

    def place(self, run: str, cgroup: Cgroup) -> Place:
        """Where the server of a run lives."""
        base = f"{self.directory}/{run}"
        return Place(self.program, self.model, cgroup.path, f"{base}-server.sock", f"{base}-server.log", self.threads)


@dataclasses.dataclass(frozen=True)
class Rest:
    """What the server is like on this machine when nothing is short.

    prompt_s is what each of CALLERS prompts takes side by side. A run lasts as long as `prompts` of them take; or, if
    `most_s` is given, until so many are answered or that time is over.
    """

    needed_bytes: int
    load_s: float
    prompt_s: float
    prompts: int
    most_s: float | None = None
    words: int = PROMPT_WORDS

    @property
    def seconds(self) -> float:
        """How long callers go on asking."""
        return self.prompts * self.prompt_s / CALLERS if self.most_s is None else self.most_s

    @property
    def enough(self) -> int | None:
        """How many answers end it before."""
        return None if self.most_s is None else self.prompts

    @property
    def timeout_s(self) -> float:
        """How long a caller waits for its answer."""
        return max(LEAST_TIMEOUT_S, PATIENCE_FACTOR * self.prompt_s)


@dataclasses.dataclass
class Result:
    """A run's outcome."""

    name: str
    tally: Tally
    kills: int = 0
    max_count: int = 0
    restarts: int = 0
    peak_bytes: int = 0
    shut_s: float = 0.0


class Run:
    """`bare` or `guarded`, from an empty cgroup to the last answer."""

    def __init__(self, stage: Stage, name: str, rest: Rest, limits: Limits, tell: Callable[[str], None]) -> None:
        self._stage = stage
        self._name = name
        self._rest = rest
        self._limits = limits
        self._tell = tell
        self._level = "-"
        self._began = time.monotonic()
        self._over = False
        self.result = Result(name, Tally())

    async def go(self) -> Result:
        """Play it."""
        with Cgroup.fresh(f"llama-{self._name}") as cgroup:
            cgroup.set(max=self._limits.max_bytes)
            async with self._bare(cgroup) if self._name == "bare" else self._guarded(cgroup) as socket:
                self._began = time.monotonic()
                rest = self._rest
                load = Load(socket, rest.seconds, rest.timeout_s, self._event, rest.enough, rest.words)
                self.result.tally = load.tally
                watching = asyncio.create_task(self._watch(cgroup))
                try:
                    await load.run()
                finally:
                    self._over = True
                    watching.cancel()
                    counters = cgroup.counters()
                    self.result.kills, self.result.max_count = counters["oom_kill"], counters["max"]
        return self.result

    # Bare

    @contextlib.asynccontextmanager
    async def _bare(self, cgroup: Cgroup) -> AsyncIterator[str]:
        """The server alone, started again when it was killed, as a service manager would."""
        server = Server(self._stage.place(self._name, cgroup))
        await server.start()
        keeping = asyncio.create_task(self._keep_alive(server))
        try:
            yield server.place.socket
        finally:
            keeping.cancel()
            await server.stop()

    async def _keep_alive(self, server: Server) -> None:
        while True:
            self._event(f"llama-server is gone ({ending(await server.ended())}); starting it again")
            self.result.restarts += 1
            await asyncio.sleep(RESTART_AFTER_S)
            self._event(f"llama-server answers again after {await server.start():.1f} s")

    # Guarded

    @contextlib.asynccontextmanager
    async def _guarded(self, cgroup: Cgroup) -> AsyncIterator[str]:
        """edgeguardd, and its bridge with the server as a child in the cgroup."""
        directory = self._stage.directory
        async with Guard(directory, cgroup.below_root, self._guard_said):
            place = self._stage.place(self._name, cgroup)
            gate = f"{directory}/gate.sock"
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "bridge", "llama-server"),
                *("--url", f"unix:{place.socket}", "--listen", f"unix:{gate}", "--cgroup", cgroup.below_root),
                *("--socket", socket_path(directory), "--target", TARGET, "--log-format", "json"),
                # Who finds no place is to know it within a second, also on a processor that the server keeps busy.
                *("--places", str(PLACES), "--patience", "200ms", "--", *place.argv()),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **ENVIRONMENT},
            )
            opened = asyncio.Event()
            reading = asyncio.create_task(self._read(process, place.log, opened))
            try:
                await asyncio.wait_for(opened.wait(), OPEN_WITHIN_S)
                yield gate
            finally:
                await end(process)
                await reading

    async def _read(self, process: asyncio.subprocess.Process, log: str, opened: asyncio.Event) -> None:
        """The bridge's lines; the others are its child's, and kept in the server's log."""
        assert process.stderr is not None
        with open(log, "ab") as file:  # noqa: ASYNC230 - a moment, in memory
            while line := await process.stderr.readline():
                try:
                    said = json.loads(line)
                except ValueError:
                    file.write(line)
                else:
                    self._bridge_said(said, opened)

    def _bridge_said(self, said: dict[str, Any], opened: asyncio.Event) -> None:
        match said["event"]:
            case "bridge_ready":
                opened.set()
            case "bridge_released":
                shut_s = said["drain_s"] + said["release_s"]
                self.result.restarts += 1
                self.result.shut_s += shut_s
                self._event(
                    f"bridge: gate shut {shut_s:.1f} s: drained in {said['drain_s']:.1f} s, "
                    f"restarted in {said['release_s']:.1f} s; {said['freed_bytes'] / MIB:.0f} MiB given back"
                )
            case "bridge_server_ended":
                self._event(f"bridge: llama-server is gone ({ending(said['exit_status'])}); starting it again")
            case other if not self._over:
                self._event(f"bridge: {said.get('why', other)}")

    def _guard_said(self, text: str | None, level: str | None, _: int) -> None:
        """One thing of the daemon's log; when the load is through, what it says of the end is of no interest."""
        if self._over:
            return
        self._level = level or self._level
        if text:
            self._event(text)

    # What is told

    async def _watch(self, cgroup: Cgroup) -> None:
        while True:
            look, tally, counters = look_at(cgroup), self.result.tally, cgroup.counters()
            self.result.peak_bytes = max(self.result.peak_bytes, look.needed_bytes)
            self._tell(
                f"{self._at_s():5.0f} s {timeline.bar(look, self._limits)} {look.needed_bytes / MIB:4.0f} MiB  "
                f"{self._level:<9} answered {len(tally.answered_s):3d}  refused {len(tally.refused_s):3d}  "
                f"timed out {tally.timed_out:2d}  lost {tally.lost:2d}  max {counters['max']}"
            )
            await asyncio.sleep(LOOK_EVERY_S)

    def _event(self, text: str) -> None:
        self._tell(f"{self._at_s():5.0f} s     {text}")

    def _at_s(self) -> float:
        return time.monotonic() - self._began


async def at_rest(stage: Stage, prompts: int, most_s: float | None, words: int) -> Rest:
    """Measure: one load, and one prompt of each caller, without limits."""
    with Cgroup.fresh("llama-rest") as cgroup:
        server = Server(stage.place("rest", cgroup))
        load_s = await server.start()
        try:
            needed_bytes = server.needed_bytes()
            began = time.monotonic()
            await asyncio.gather(*(ask(server.place.socket, number, words) for number in range(CALLERS)))
            return Rest(needed_bytes, load_s, time.monotonic() - began, prompts, most_s, words)
        finally:
            await server.stop()


async def end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL if that is not enough."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOPPED_WITHIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def ending(status: int) -> str:
    """A process's end in a word."""
    return signal.Signals(-status).name if status < 0 else f"status {status}"
