"""Last resorts on a real kernel and real processes: what is told is what happened."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable

import pytest

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.events import Event, LastResortEnded
from edgeguardd.core.model import LastResort
from edgeguardd.kernel import lastresort
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.lastresort import LastResorts
from edgeguardd.state import StateDirectory
from tests.support import cgroup as cgroups
from tests.support.cgroup import Cgroup
from tests.support.children import ending
from tests.support.hog import Hog
from tests.support.wait import eventually, soon

MIB = 1 << 20
# Long against the hog's answer to an order it can obey.
SILENT_S = 0.3
SLEEP = ["sleep", "600"]

# A daemon that freezes and is never heard of again.
CRASH_DUMMY = textwrap.dedent(
    """
    import asyncio, sys, time
    from edgeguardd.core.config import LastResortStep
    from edgeguardd.core.model import LastResort
    from edgeguardd.kernel.cgroupfs import CgroupRoot
    from edgeguardd.kernel.lastresort import LastResorts
    from edgeguardd.state import StateDirectory

    async def run(root, state, path):
        resorts = LastResorts(
            CgroupRoot(root), asyncio.get_running_loop(), lambda event: print(event.outcome, flush=True),
            time.monotonic, StateDirectory(state, print),
        )
        resorts.run("llm", path, LastResortStep(LastResort.FREEZE, max_freeze_s=600))
        await asyncio.sleep(600)

    asyncio.run(run(*sys.argv[1:]))
    """
)


class Daemon:
    """The last resorts of one daemon, and what it told."""

    def __init__(self, directory: str) -> None:
        self.told: list[Event] = []
        self.resorts = LastResorts(
            CgroupRoot(cgroups.ROOT),
            asyncio.get_running_loop(),
            self.told.append,
            time.monotonic,
            StateDirectory(f"{directory}/state", pytest.fail),
        )

    async def ended(self) -> LastResortEnded:
        """The next answer."""
        event = await soon(lambda: self.told.pop(0) if self.told else None)
        assert isinstance(event, LastResortEnded)
        print(event.action, event.outcome, event.message)
        return event

    async def run(self, cgroup: Cgroup, step: LastResortStep, reclaim_bytes: int | None = None) -> LastResortEnded:
        """One order for target llm and its answer."""
        self.resorts.run("llm", cgroup.below_root, step, None, reclaim_bytes)
        return await self.ended()


def scenario(directory: str, play: Callable[[Daemon], Awaitable[None]]) -> None:
    """Play with one daemon, and stop it in order."""

    async def run() -> None:
        daemon = Daemon(directory)
        try:
            await play(daemon)
        finally:
            await daemon.resorts.close()

    asyncio.run(run())


def freeze_for(max_freeze_s: float) -> LastResortStep:
    """A step that freezes for so long."""
    return LastResortStep(LastResort.FREEZE, max_freeze_s=max_freeze_s)


def stands_still(hog: Hog) -> bool:
    """Whether an order to the hog stays unanswered."""
    hog.send("grow", 4096)
    try:
        hog.answer(SILENT_S)
    except TimeoutError:
        return True
    return False


# Freeze and thaw


def test_a_frozen_target_stands_still_until_it_is_thawed(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Done is told when all have stopped; afterwards it goes on where it was."""

    async def play(daemon: Daemon) -> None:
        event = await daemon.run(cgroup, freeze_for(600))
        assert event.outcome == "done"
        assert re.match(r"1 process of .* stopped after \d\.\d\d s, for at most 600 s", str(event.message))
        assert stands_still(hog)
        daemon.resorts.thaw("llm")
        assert (await daemon.ended()).outcome == "thawed"
        assert hog.answer() == 4096
        assert cgroup.keyed("cgroup.events")["frozen"] == 0

    scenario(run_dir, play)


def test_a_freeze_ends_at_its_maximum(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Whoever forgot to thaw."""

    async def play(daemon: Daemon) -> None:
        assert (await daemon.run(cgroup, freeze_for(2 * SILENT_S))).outcome == "done"
        assert stands_still(hog)
        event = await daemon.ended()
        assert event.outcome == "thawed"
        assert "its time was up" in str(event.message)
        assert hog.answer() == 4096

    scenario(run_dir, play)


def test_a_daemon_that_stops_leaves_nobody_frozen(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """In order: SIGTERM."""

    async def play(daemon: Daemon) -> None:
        await daemon.run(cgroup, freeze_for(600))

    scenario(run_dir, play)
    assert hog.ask("grow", 4096) == 4096


@pytest.mark.cost(5)
def test_what_a_killed_daemon_froze_the_next_one_thaws(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """kill -9 while a target stands still."""
    argv = [sys.executable, "-c", CRASH_DUMMY, cgroups.ROOT, f"{run_dir}/state", cgroup.below_root]
    with ending(subprocess.Popen(argv, stdout=subprocess.PIPE)) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"done\n"
        victim.send_signal(signal.SIGKILL)
    assert stands_still(hog)

    async def play(daemon: Daemon) -> None:
        daemon.resorts.recover()
        assert (await daemon.ended()).outcome == "thawed"
        assert hog.answer() == 4096
        daemon.resorts.recover()
        assert daemon.told == []

    scenario(run_dir, play)


def test_a_cgroup_removed_while_frozen_is_told(cgroup: Cgroup, run_dir: str) -> None:
    """A freeze does not outlive what was frozen, nor does its record."""
    inner = cgroup.child("inner")
    sleeper = inner.spawn(SLEEP)
    eventually(inner.processes)

    async def play(daemon: Daemon) -> None:
        await daemon.run(inner, freeze_for(600))
        inner.remove()
        daemon.resorts.thaw("llm")
        event = await daemon.ended()
        assert (event.outcome, "removed" in str(event.message)) == ("thawed", True)
        daemon.resorts.recover()
        assert daemon.told == []

    scenario(run_dir, play)
    assert sleeper.wait() == -signal.SIGKILL


# Reclaim


@pytest.mark.needs("memory.reclaim")
def test_reclaim_frees_what_can_be_dropped_and_tells_how_much(
    cgroup: Cgroup, hog: Hog, run_dir: str, disk_dir: str
) -> None:
    """Mapped file goes; anonymous memory without swap stays, and that is a failure with its figures."""
    cgroup.set()
    hog.write_file(f"{disk_dir}/weights", 32 * MIB)
    hog.map_file(f"{disk_dir}/weights")
    hog.grow(8 * MIB)

    async def play(daemon: Daemon) -> None:
        step = LastResortStep(LastResort.RECLAIM)
        before = int(cgroup.read("memory.current"))
        event = await daemon.run(cgroup, step, 24 * MIB)
        freed = before - int(cgroup.read("memory.current"))
        assert event.outcome == "done"
        assert freed >= 23 * MIB
        told = re.search(r": ([\d.]+) MiB of 24.0 MiB in ", str(event.message))
        assert told is not None
        assert float(told[1]) == pytest.approx(freed / MIB, abs=1)
        event = await daemon.run(cgroup, step, 32 * MIB)
        assert event.outcome == "failed"
        assert "no more could be dropped" in str(event.message)

    scenario(run_dir, play)


# Signal and kill


def family(cgroup: Cgroup) -> list["subprocess.Popen[bytes]"]:
    """Three processes, two of them in cgroups inside this one."""
    inner = cgroup.child("inner")
    deep = inner.child("deep")
    other = Cgroup(f"{cgroup.path}/other")
    processes = [each.spawn(SLEEP) for each in (deep, deep, other)]
    eventually(lambda: len(deep.processes()) == 2 and len(other.processes()) == 1)
    eventually(lambda: all(os.readlink(f"/proc/{each.pid}/exe").endswith("sleep") for each in processes))
    return processes


def test_a_signal_reaches_every_process_below(cgroup: Cgroup, run_dir: str) -> None:
    """And nobody beside."""
    processes = family(cgroup)
    with Cgroup.fresh("beside") as beside:
        spared = beside.spawn(SLEEP)

        async def play(daemon: Daemon) -> None:
            event = await daemon.run(cgroup, LastResortStep(LastResort.SIGNAL, signal="SIGTERM"))
            assert event.outcome == "done"
            assert "SIGTERM reached 3 processes" in str(event.message)

        scenario(run_dir, play)
        assert [process.wait(20) for process in processes] == [-signal.SIGTERM] * 3
        assert spared.poll() is None
        spared.kill()
        spared.wait()


@pytest.mark.parametrize("file", [pytest.param("cgroup.kill", marks=pytest.mark.needs("cgroup.kill")), "no.such.file"])
def test_a_kill_is_told_when_nobody_is_left(
    cgroup: Cgroup, run_dir: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cgroup.kill, and one by one as before 5.14; frozen or not, children of children too."""
    monkeypatch.setattr(lastresort, "KILL", file)
    processes = family(cgroup)

    async def play(daemon: Daemon) -> None:
        await daemon.run(cgroup, freeze_for(600))
        daemon.resorts.run("llm", cgroup.below_root, LastResortStep(LastResort.KILL))
        assert (await daemon.ended()).outcome == "thawed"
        event = await daemon.ended()
        assert event.outcome == "done"
        assert "3 processes of " in str(event.message)
        assert cgroup.keyed("cgroup.events")["populated"] == 0

    scenario(run_dir, play)
    assert [process.wait(20) for process in processes] == [-signal.SIGKILL] * 3


def test_this_process_never_acts_on_itself(cgroup: Cgroup, run_dir: str) -> None:
    """Seen from the kernel's own list, however its cgroup is named."""
    cgroup.write("cgroup.subtree_control", "+memory")
    inner = Cgroup(f"{cgroup.path}/inner")
    inner.write("cgroup.procs", os.getpid())

    async def play(daemon: Daemon) -> None:
        for action in (LastResort.FREEZE, LastResort.KILL, LastResort.SIGNAL, LastResort.RECLAIM):
            for where in (cgroup, inner):
                event = await daemon.run(where, LastResortStep(action), MIB)
                assert event.outcome == "failed"
                assert "this daemon itself runs in it" in str(event.message)

    try:
        scenario(run_dir, play)
    finally:
        with open(f"{cgroups.ROOT}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
