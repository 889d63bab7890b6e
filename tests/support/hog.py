"""A process that holds exactly the memory it is told to, for tests of real pressure.

Must not: wait without a limit; a hog can hang in the kernel. Upstream: tests/kernel. Downstream: hog_program.
"""

import contextlib
import mmap
import os
import select
import subprocess
import sys
import time

from tests.support.cgroup import Cgroup

ANSWER_WITHIN_S = 60.0
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hog_program.py")


class HogKilledError(Exception):
    """The hog died before it answered; `status` is its exit status, negative for a signal."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the hog ended with status {status} before it answered")
        self.status = status


class Hog:
    """Steers one hog. Calls wait for the answer; `send` and `answer` apart let a test look on meanwhile."""

    def __init__(self, cgroup: Cgroup) -> None:
        """Start inside the cgroup and wait until it is ready."""
        argv = [sys.executable, "-I", "-S", "-B", SCRIPT]
        self.process = cgroup.spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._partial = b""
        self.answer()

    def grow(self, size: int) -> None:
        """Take and touch so many bytes of anonymous memory."""
        self.ask("grow", size)

    def shrink(self, size: int) -> int:
        """Give back at least so many bytes, the newest first; how many it was."""
        return self.ask("shrink", size)

    def share(self, size: int) -> None:
        """Take and touch so many bytes of shared memory, which the kernel counts as shmem."""
        self.ask("share", size)

    def map_file(self, path: str) -> None:
        """Map a file and touch all its pages; it stays mapped."""
        self.ask("map", path)

    def touch_files(self) -> None:
        """Read every page of the mapped files again."""
        self.ask("touch")

    def read_file(self, path: str) -> None:
        """Read a file through the page cache and forget it."""
        self.ask("read", path)

    def write_file(self, path: str, size: int) -> None:
        """Write a file of so many bytes."""
        self.ask("write", path, size)

    def ask(self, *words: object) -> int:
        """One order and its answer, a number of bytes. Raises HogKilledError if it dies over it."""
        self.send(*words)
        return self.answer()

    def send(self, *words: object) -> None:
        """One order, without waiting."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\t".join(map(str, words)).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise HogKilledError(self.process.wait()) from None

    def answer(self, within_s: float = ANSWER_WITHIN_S) -> int:
        """The answer to the oldest unanswered order."""
        assert self.process.stdout is not None
        until = time.monotonic() + within_s
        while b"\n" not in self._partial:
            left_s = until - time.monotonic()
            if left_s < 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                raise TimeoutError(f"the hog did not answer within {within_s} s")
            piece = os.read(self.process.stdout.fileno(), mmap.PAGESIZE)
            if not piece:
                raise HogKilledError(self.process.wait())
            self._partial += piece
        line, _, self._partial = self._partial.partition(b"\n")
        return int(line)

    def close(self) -> None:
        """End it and its pipes; already dead is fine."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
