"""The program under test: started with the socket's path in its environment, watched, and ended with all its children.

Must not: know the protocol. Upstream: nothing. Downstream: stage.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError

# The same variable that the clients read.
PATH_VARIABLE = "EDGEGUARDD_SOCKET"
LOST_AFTER_VARIABLE = "EDGEGUARDD_LOST_AFTER_S"
STOP_S = 1.0
MAX_STATE_BYTES = 4096
# All that a pipe holds (pipe(7)). A look takes in no more: a program may print without end.
PIPE_BYTES = 65536
MAX_LAST_WORDS = 300


class Program:
    """A running program. `state` is what it has printed of itself, the latest of each field."""

    def __init__(self, argv: Sequence[str], socket_path: str, lost_after_s: float) -> None:
        """Start it. Raises EdgeguardError."""
        self.state: dict[str, Any] = {}
        self._rest = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - end() closes it
        environment = {**os.environ, PATH_VARIABLE: socket_path, LOST_AFTER_VARIABLE: f"{lost_after_s:g}"}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what to run is the user's to say
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._errors.close()
            why = os.strerror(error.errno or 0).lower()
            raise EdgeguardError(
                f"cannot start {printable(argv[0], 200)}: {why}; name a program that can be run"
            ) from None
        assert self._process.stdout is not None  # noqa: S101 - a pipe was asked for
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._pidfd = os.pidfd_open(self._process.pid)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def descriptors(self) -> list[int]:
        """For poll: its end, and its standard output as long as that is open."""
        return [self._pidfd] if self._stdout.closed else [self._pidfd, self._stdout.fileno()]

    def look(self) -> None:
        """Take in what it has printed by now. Lines that are no JSON object are its own affair."""
        if self._stdout.closed:
            return
        try:
            chunk = os.read(self._stdout.fileno(), PIPE_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._stdout.close()
            return
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-MAX_STATE_BYTES:]
        for line in lines:
            if not line.lstrip().startswith(b"{"):
                continue
            with contextlib.suppress(ValueError, RecursionError):
                shown = json.loads(line)
                if isinstance(shown, dict):
                    self.state.update(shown)

    def ended(self) -> str | None:
        """How it has ended, with its last words; None while it runs."""
        # Not reaped before end(), so that until then its number is nobody else's.
        result = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None
        status = result.si_status
        exited = result.si_code == os.CLD_EXITED
        how = f"ended with status {status}" if exited else f"was killed by {_signal_name(status)}"
        words = self.last_words()
        return f"the program {how}" + (f"; its last words: {words}" if words else "")

    def last_words(self) -> str:
        """The last line on its standard error."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 4096))
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return printable(lines[-1], MAX_LAST_WORDS) if lines else ""

    def end(self) -> None:
        """SIGTERM to all of it, and SIGKILL to what is left after a while."""
        self._signal(signal.SIGTERM)
        select.select([self._pidfd], [], [], STOP_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._pidfd)
        self._stdout.close()
        self._errors.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def _signal_name(number: int) -> str:
    """Real-time signals have no name of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
