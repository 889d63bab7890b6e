"""Programs that tests start: they hear an interrupt, and none outlives its test.

Must not: use the code under test. Upstream: tests, tests/conftest.py.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from types import FrameType
from typing import TypeVar

Text = TypeVar("Text", str, bytes)


def hear_interrupts() -> None:
    """From now on children of this process start with the default SIGINT.

    Under nohup, in a background job of a shell and in some CI it is ignored or blocked, which children inherit through
    exec() (signal(7)): a program that is to end with Ctrl-C would never end. A handler, unlike SIG_IGN, becomes the
    default there; this one does nothing, so that whoever had SIGINT ignored for this process keeps that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _go_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


@contextlib.contextmanager
def ending(process: "subprocess.Popen[Text]") -> "Iterator[subprocess.Popen[Text]]":
    """As contextlib.closing: what still runs at the end is killed, its pipes are closed, and it is waited for."""
    with process:
        try:
            yield process
        finally:
            process.kill()


def running() -> list[int]:
    """The children of this process that have not ended."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_running_child(name)]


def kill(pids: list[int]) -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_running_child(name: str) -> bool:
    try:
        with open(f"/proc/{name}/stat") as file:
            state, parent = file.read().rsplit(")", 1)[1].split()[:2]
    except (FileNotFoundError, ProcessLookupError):  # ended meanwhile
        return False
    return int(parent) == os.getpid() and state not in {"Z", "X"}


def _go_on(_number: int, _frame: FrameType | None) -> None:
    pass
