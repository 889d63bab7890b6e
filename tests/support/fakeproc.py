"""A /proc of plain files, for processes that are, change and end as a test says. Upstream: unit tests."""

import os
import shutil


class FakeProc:
    """The directory stands for /proc."""

    def __init__(self, directory: str) -> None:
        self.path = directory

    def process(
        self,
        pid: int,
        comm: str = "sh",
        *,
        exe: str | None = "/bin/sh",
        cgroup: str = "/",
        score: int = 0,
        started: int = 100,
        state: str = "S",
        flags: int = 0,
    ) -> None:
        """A process, new or changed."""
        place = f"{self.path}/{pid}"
        os.makedirs(place, exist_ok=True)
        self.write(pid, "comm", comm + "\n")
        self.write(pid, "cgroup", f"0::{cgroup}\n")
        self.write(pid, "oom_score_adj", f"{score}\n")
        self.write(pid, "stat", f"{pid} ({comm}) {state} 1 1 1 0 -1 {flags} {'0 ' * 12}{started} 0 0\n")
        if os.path.lexists(f"{place}/exe"):
            os.unlink(f"{place}/exe")
        if exe is not None:
            os.symlink(exe, f"{place}/exe")

    def write(self, pid: int, name: str, text: str) -> None:
        """One file."""
        with open(f"{self.path}/{pid}/{name}", "w", errors="surrogateescape") as file:
            file.write(text)

    def score(self, pid: int) -> int:
        """What was written last: a real one forgets the digits before."""
        with open(f"{self.path}/{pid}/oom_score_adj") as file:
            return int(file.read().split("\n")[0])

    def end(self, pid: int) -> None:
        """It is gone."""
        shutil.rmtree(f"{self.path}/{pid}")
