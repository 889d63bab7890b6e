"""Other guards of memory, as Debian has them: they end processes when the machine runs out.

Their marks are shares of the machine's memory, made for gigabytes. Here they are their defaults' shares of what the
server has room for, as they would be on a machine of that size; edgeguardd's marks for the machine likewise.

Must not: tune anything else of them. Upstream: contest. Downstream: programs unpacked by tests.support.programs.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from tests.demo.guard import Said
from tests.demo.timeline import LIMITS, MIB
from tests.support import programs

# earlyoom -m (README), soft_threshold_min_mem and hard_threshold_min_mem of nohang.conf (Debian 12).
EARLYOOM_RATIO = 0.10
NOHANG_SOFT_RATIO, NOHANG_HARD_RATIO = 0.05, 0.02
STOPPED_WITHIN_S = 10.0
# What of their output says that something is done.
TELLING = (b"sending", b"SIGTERM", b"SIGKILL", b"mem avail", b"Victim", b"kill")


def missing() -> list[str]:
    """Those that are not here."""
    return [name for name in ("earlyoom", "nohang") if programs.find(name) is None]


@contextlib.asynccontextmanager
async def earlyoom(directory: str, said: Said) -> AsyncIterator[None]:
    """earlyoom without its periodic report."""
    least_kib = int(LIMITS.max_bytes * EARLYOOM_RATIO) // 1024
    argv = [program("earlyoom"), "-M", f"{least_kib},{least_kib // 2}", "-r", "0"]
    async with beside(argv, said):
        yield


@contextlib.asynccontextmanager
async def nohang(directory: str, said: Said, soft_ratio: float = NOHANG_SOFT_RATIO) -> AsyncIterator[None]:
    """nohang with its own configuration but for the two marks."""
    path = program("nohang")
    config = f"{directory}/nohang.conf"
    configure_nohang(f"{os.path.dirname(path)}/../../etc/nohang/nohang.conf", config, soft_ratio)
    async with beside([path, "--monitor", "--config", config], said):
        yield


def configure_nohang(original: str, config: str, soft_ratio: float) -> None:
    """Its own file, with other marks."""
    with open(original) as file:
        lines = file.read().splitlines()
    marks = {"soft_threshold_min_mem": soft_ratio, "hard_threshold_min_mem": NOHANG_HARD_RATIO}
    for at, line in enumerate(lines):
        key = line.partition("=")[0].strip()
        if key in marks:
            lines[at] = f"{key} = {LIMITS.max_bytes * marks[key] / MIB:.2f} M"
    with open(config, "w") as file:
        file.write("\n".join(lines) + "\n")
    os.chmod(config, 0o644)


def program(name: str) -> str:
    """Its path; the runs are not begun without it."""
    path = programs.find(name)
    assert path is not None, f"{name} is missing; make setup fetches it"
    return path


@contextlib.asynccontextmanager
async def beside(argv: Sequence[str], said: Said) -> AsyncIterator[None]:
    """A program that runs meanwhile, never chosen by a killer; what it says of its doings goes to the timeline."""
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", 'echo -1000 > /proc/self/oom_score_adj; exec "$0" "$@"', *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=programs.environment(),
    )
    reading = asyncio.create_task(_read(process, said))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOPPED_WITHIN_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reading


async def _read(process: asyncio.subprocess.Process, said: Said) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if any(word in line for word in TELLING):
            said(line.decode(errors="replace").strip(), None, 0)
