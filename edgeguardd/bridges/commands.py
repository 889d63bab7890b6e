"""Running a program to its end, and what it printed.

Must not: use a shell, wait for what a program leaves behind: a start script's server may hold its output open for ever.
Upstream: asyncio. Downstream: supervise.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence

from edgeguardd.bridges.calls import ServerError
from edgeguardd.core.text import printable

# systemd gives a service 90 s to stop before it kills it (DefaultTimeoutStopSec, systemd-system.conf(5)).
COMMAND_WITHIN_S = 100.0
MAX_ANSWER_CHARS = 400
MAX_PRINTED_BYTES = 64 * 1024
PIECE_BYTES = 4096


async def run(argv: Sequence[str], within_s: float = COMMAND_WITHIN_S) -> str:
    """Run a program to its end; what it printed. Raises ServerError with what it says when it fails or takes longer."""
    shown = printable(" ".join(argv), MAX_ANSWER_CHARS)
    with _Printed() as out, _Printed() as errors:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=out.writer, stderr=errors.writer
            )
        except OSError as error:
            raise ServerError(f"cannot run {shown}: {os.strerror(error.errno or 0)}; correct the command") from None
        out.begun()
        errors.begun()
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            raise ServerError(f"cannot say that `{shown}` did its work: not within {within_s:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            said = printable((errors.text() or out.text()).strip().replace("\n", " "), MAX_ANSWER_CHARS)
            raise ServerError(f"cannot {shown}: it ended with status {process.returncode} ({said})")
        return out.text()


class _Printed:
    """A pipe that a program prints into, read as it fills; the beginning is kept.

    Not asyncio's: its wait() waits for the end of the pipes, too, in some versions (cpython#119710).
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def __enter__(self) -> "_Printed":
        return self

    def __exit__(self, *_: object) -> None:
        self.begun()
        self._loop.remove_reader(self._reader)
        os.close(self._reader)

    def begun(self) -> None:
        """The program has its end now."""
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1

    def text(self) -> str:
        """What it had printed when it ended."""
        while len(self._kept) < MAX_PRINTED_BYTES and self._read():
            pass
        return self._kept.decode("utf-8", "replace")

    def _read(self) -> bool:
        """Take a piece. False: there is none now."""
        try:
            piece = os.read(self._reader, PIECE_BYTES)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._reader)
        self._kept += piece[: MAX_PRINTED_BYTES - len(self._kept)]
        return bool(piece)
