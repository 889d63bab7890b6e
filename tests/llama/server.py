"""One llama-server in its cgroup without a guard: start it, tell when it answers, stop it, see when it is gone.

Must not: decide when. Upstream: run (bare). Downstream: the llama-server program, the cgroup.
"""

import asyncio
import contextlib
import dataclasses
import os
import signal
import time

from edgeguardd.bridges.calls import AwayError, Http
from edgeguardd.bridges.endpoint import Endpoint

# Long contexts for two at a time, as a small box would be set up; everything else is as the server comes. Its
# prompt cache may then grow to 8 GiB.
PLACES = 2
CONTEXT_TOKENS = 4096
OPTIONS = ("--parallel", str(PLACES), "--ctx-size", str(PLACES * CONTEXT_TOKENS), "--offline", "--log-verbosity", "1")
# Weights read into the server's own memory instead of mapped, as they are where an accelerator holds them. Mapped ones
# are evicted and read again before anything is killed: 1,000 s of thrashing in a guest whose disk is the host's memory.
# In the environment, where a server of another version ignores what it does not know.
ENVIRONMENT = {"LLAMA_ARG_LOAD_MODE": "none", "LLAMA_ARG_NO_MMAP": "1"}
READY_WITHIN_S = 120.0
ASK_EVERY_S = 0.1
# SIGTERM first: the server ends its answers; then SIGKILL, which frees the memory all the same.
STOP_WITHIN_S = 5.0
# memory.stat: what cannot be dropped for free.
NEEDED_KEYS = ("anon", "shmem", "file_mapped", "slab_unreclaimable", "pagetables", "kernel_stack")
HEALTH_WITHIN_S = 5.0


class NotReadyError(Exception):
    """The server ended or did not answer in time after its start."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where everything of one server is. `cgroup` is the full path."""

    program: str
    model: str
    cgroup: str
    socket: str
    log: str
    threads: int = 1

    def argv(self) -> list[str]:
        """The command line."""
        return [self.program, "--model", self.model, "--host", self.socket, "--threads", str(self.threads), *OPTIONS]


class Server:
    """One server process after another in one place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> float:
        """Start, and wait until it answers; the seconds that took. Raises NotReadyError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.place.socket)
        began = time.monotonic()
        with open(self.place.log, "ab") as log:  # noqa: ASYNC230 - a moment, in memory
            # A shell moves itself in and becomes the server, so that its first page counts in the cgroup.
            script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", script, self.place.cgroup, *self.place.argv()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
            )
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                while not await healthy(self.place.socket):
                    if self._process.returncode is not None:
                        raise NotReadyError(f"llama-server ended with {self._process.returncode}: see {self.place.log}")
                    await asyncio.sleep(ASK_EVERY_S)
        except TimeoutError:
            raise NotReadyError(f"llama-server does not answer within {READY_WITHIN_S:.0f} s") from None
        return time.monotonic() - began

    async def ended(self) -> int:
        """Wait for the end of the process; its status, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """End it and wait until its memory is back with the kernel."""
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def needed_bytes(self) -> int:
        """What its cgroup holds and could not drop for free."""
        with open(f"{self.place.cgroup}/memory.stat") as file:
            figures = {key: int(value) for key, value in (line.split() for line in file)}
        return sum(figures.get(key, 0) for key in NEEDED_KEYS)


async def healthy(socket: str) -> bool:
    """Whether the server at this Unix socket says that its model is loaded."""
    try:
        reply = await Http(Endpoint("localhost", path=socket), within_s=HEALTH_WITHIN_S).ask("GET", "/health")
    except AwayError:
        return False
    return reply.status == 200
