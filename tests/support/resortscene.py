"""A tree with one cgroup and real processes that plain cgroup.procs files name, and last resorts on it.

Must not: know what is expected of an order. Upstream: faketree. Downstream: unit tests of
kernel.lastresort and its parts.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.events import Event, LastResortEnded
from edgeguardd.core.model import LastResort
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.lastresort import LastResorts
from edgeguardd.state import StateDirectory
from tests.support.descriptors import none_left, open_now
from tests.support.faketree import FakeCgroup, FakeTree
from tests.support.wait import soon

BOOT = "11111111-2222-3333-4444-555555555555"
# Says what it was started with, and then does as its unit's name tells it.
SYSTEMCTL = """#!/bin/sh
echo "$@" > "{log}"
env | sort > "{log}.env"
case "$4" in
    fails.service) printf 'Job for fails.service failed.\\n\\033[31mSee it.\\n' >&2; exit 1;;
    hangs.service) echo $$ > "{log}.pid"; exec sleep 600;;
esac
"""


class Scene:
    """A tree with one cgroup, and daemons one after another on it."""

    def __init__(self, path: Path) -> None:
        (path / "tree").mkdir(exist_ok=True)
        self.path = path
        self.tree = FakeTree(path / "tree")
        self.llm = self.cgroup("/llm")
        self.proc = self.tree.proc(
            {"sys/kernel/random/boot_id": f"{BOOT}\n", "self/cgroup": "0::/system.slice/edgeguardd.service\n"}
        )
        self.log = path / "systemctl-said"
        self.systemctl = path / "systemctl"
        self.systemctl.write_text(SYSTEMCTL.format(log=self.log))
        self.systemctl.chmod(0o755)
        self.said: list[str] = []
        self.told: list[Event] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.last = self.daemon()

    def daemon(self) -> LastResorts:
        """The next daemon."""
        self.state = StateDirectory(str(self.path / "state"), self.said.append)
        self.last = LastResorts(
            CgroupRoot(self.tree.path),
            asyncio.get_running_loop(),
            self.told.append,
            time.monotonic,
            self.state,
            proc=self.proc,
            systemctl=(str(self.path / "nothing"), str(self.systemctl)),
        )
        return self.last

    def cgroup(self, below_root: str) -> FakeCgroup:
        """A cgroup with the files that last resorts use."""
        made = self.tree.cgroup(below_root)
        for name, content in (("cgroup.procs", ""), ("cgroup.freeze", "0\n"), ("memory.reclaim", "")):
            made.write(name, content)
        made.write("cgroup.events", "populated 0\nfrozen 1\n")
        made.write("cgroup.kill", "")
        return made

    def child(self, cgroup: FakeCgroup | None = None) -> subprocess.Popen[bytes]:
        """A process that is said to be in a cgroup."""
        process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
        assert process.stdout is not None
        process.stdout.readline()
        self.children.append(process)
        self.holds(cgroup or self.llm, process.pid)
        return process

    def holds(self, cgroup: FakeCgroup, *pids: int) -> None:
        """Add processes to a cgroup."""
        with open(f"{cgroup.path}/cgroup.procs", "a") as file:
            file.writelines(f"{pid}\n" for pid in pids)

    def read(self, name: str, cgroup: FakeCgroup | None = None) -> str:
        """One file of a cgroup."""
        return (Path((cgroup or self.llm).path) / name).read_text().strip()

    async def ended(self, count: int = 1) -> list[LastResortEnded]:
        """So many answers, in their order."""
        await soon(lambda: len(self.told) >= count)
        told, self.told[:] = list(self.told), []
        assert len(told) == count
        return [event for event in told if isinstance(event, LastResortEnded)]

    async def run(
        self,
        action: LastResort,
        path: str = "/llm",
        *,
        step: LastResortStep | None = None,
        unit: str | None = None,
        reclaim_bytes: int | None = None,
    ) -> LastResortEnded:
        """One order for target llm and its answer."""
        self.last.run("llm", path, step or LastResortStep(action), unit, reclaim_bytes)
        (event,) = await self.ended()
        assert (event.target, event.action) == ("llm", action)
        return event

    async def fails(self, action: LastResort, path: str = "/llm", **options: object) -> str:
        """As run, for an order that fails: its sentence."""
        event = await self.run(action, path, **options)  # type: ignore[arg-type]
        assert event.outcome == "failed"
        assert event.message is not None
        assert event.message.startswith("cannot ")
        return event.message

    def close(self) -> None:
        """End the children."""
        for process in self.children:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def scenario(path: Path, play: Callable[[Scene], Awaitable[None]]) -> None:
    """Play; no descriptor, child or task may be left."""

    async def run() -> None:
        scene = Scene(path)
        try:
            await play(scene)
        finally:
            await scene.last.close()
            await scene.last.close()
            scene.close()
            assert len(asyncio.all_tasks()) == 1

    before = open_now()
    asyncio.run(run())
    none_left(before)


def freeze_for(max_freeze_s: float) -> LastResortStep:
    """A step that freezes for so long."""
    return LastResortStep(LastResort.FREEZE, max_freeze_s=max_freeze_s)
