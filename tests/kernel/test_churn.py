"""Cgroups and their files that come and go on a real kernel, and a daemon that may not see, watch or run meanwhile."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from edgeguardd.core.config import TargetSpec
from edgeguardd.core.events import CgroupAppeared, CgroupVanished, CountersMoved, SampleFailed, SampleTaken
from edgeguardd.kernel.cgroupfs import CgroupRoot
from tests.support import cgroup as cgroups
from tests.support.cgroup import Cgroup
from tests.support.running import Daemon
from tests.support.scene import NEVER_S, Stage, job, perform
from tests.support.unprivileged import as_nobody, forked
from tests.support.wait import eventually, soon

MIB = 1 << 20
LIMIT = 16 * MIB
POLL_S = 0.1
CLONE_NEWUSER = 0x10000000  # sched.h

# Makes directories, all of them, and removes them again, so many times.
CHURN = """
import os, sys

rounds, parent, *names = sys.argv[1:]
paths = [f"{parent}/{name}" for name in names]
for _ in range(int(rounds)):
    for path in paths:
        os.mkdir(path)
    for path in paths:
        os.rmdir(path)
"""


def on_stage(scene: Callable[[Stage], Awaitable[None]]) -> None:
    """Play on the real tree; no descriptor is left, no callback has raised."""
    perform(lambda: Stage(CgroupRoot(cgroups.ROOT), max_targets=64), scene)


def killed_in(cgroup: Cgroup) -> None:
    """The kernel kills a process of this cgroup."""
    cgroup.set(max=LIMIT)
    assert cgroup.spawn(["tail", "/dev/zero"]).wait() == -9


def kills(stage: Stage, target: str) -> list[int | None]:
    """The kills told of a target's own cgroup, in order."""
    return [move.delta.oom_kill for move in stage.of(CountersMoved, target) if move.local and move.delta.oom_kill]


@pytest.fixture
def service(cgroup: Cgroup) -> Iterator[Cgroup]:
    """A cgroup in `cgroup`, which has the memory controller for it."""
    with cgroup.child("service") as made:
        yield made


# The memory controller is switched off and on


@pytest.mark.parametrize("kept", [pytest.param(True, marks=pytest.mark.needs("io")), False], ids=["with io", "alone"])
def test_a_controller_switched_off_and_on_again(cgroup: Cgroup, service: Cgroup, kept: bool) -> None:
    """Its files die and come back in the same directory: the target is attached again, and only what is new is told.

    Alone the counters start from zero. Where `io` is on, which needs it, the kernel hides it and keeps the counters.
    """

    async def scene(stage: Stage) -> None:
        if kept:
            cgroup.write("cgroup.subtree_control", "+io")
        stage.apply(job(path=service.below_root), slow_s=POLL_S)
        killed_in(service)
        await soon(lambda: kills(stage, "job") == [1])
        cgroup.write("cgroup.subtree_control", "-memory")
        await soon(lambda: stage.of(SampleFailed))
        assert stage.targets.status()["job"].degraded == stage.of(SampleFailed)[0].reason
        assert "the memory controller is not enabled here" in stage.of(SampleFailed)[0].reason
        cgroup.write("cgroup.subtree_control", "+memory")
        assert service.counters()["oom_kill"] == (1 if kept else 0)
        await soon(lambda: len(stage.of(CgroupAppeared)) == 2)
        assert kills(stage, "job") == [1]
        killed_in(service)
        await soon(lambda: kills(stage, "job") == [1, 1])
        assert stage.targets.status()["job"].degraded is None
        assert stage.targets.status()["job"].watch == "epoll"
        assert len(stage.of(SampleFailed)) == len(stage.of(CgroupVanished)) == 1

    on_stage(scene)


# Cgroups that come and go faster than they can be opened


@pytest.mark.cost(20)
@pytest.mark.timeout(240)
def test_cgroups_made_and_removed_in_a_storm(cgroup: Cgroup) -> None:
    """Four ways to one cgroup and twenty others, removed in the middle of being opened: each is opened once by each."""
    names = [f"p{number}" for number in range(20)]
    cgroup.write("cgroup.subtree_control", "+memory")

    async def scene(stage: Stage) -> None:
        path = f"{cgroup.below_root}/p1"
        stage.apply(
            TargetSpec("g", glob=f"{cgroup.below_root}/p*"),
            job("top", cgroup.below_root),
            job("one", path),
            job("two", path),
        )
        before = len(os.listdir("/proc/self/fd"))
        for rounds, storm in ((300, names), (1500, names[1:2])):
            churn = ["-c", CHURN, str(rounds), cgroup.path, *storm]
            program = await asyncio.create_subprocess_exec(sys.executable, *churn)
            assert await program.wait() == 0
        await soon(lambda: not any(row.present for name, row in stage.targets.status().items() if name != "top"))
        assert len(os.listdir("/proc/self/fd")) == before
        for name in ("one", "two"):
            turns = [type(event) for event in stage.told if getattr(event, "target", None) == name]
            turns = [turn for turn in turns if turn in (CgroupAppeared, CgroupVanished)]
            assert turns == [CgroupAppeared, CgroupVanished] * (len(turns) // 2)
        assert stage.of(SampleFailed) == []
        stage.told.clear()
        with cgroup.child("p1") as made:
            await soon(lambda: stage.of(SampleTaken, "one") and stage.of(SampleTaken, "two"))
            killed_in(made)
            # The kill may be read in the parent, where it went with its cgroup, but here the cgroup stays.
            await soon(lambda: kills(stage, "one") == kills(stage, "two") == kills(stage, f"g:{path}") == [1])
        await soon(lambda: stage.of(CgroupVanished, "one") and stage.of(CgroupVanished, "two"))

    on_stage(scene)


@pytest.mark.cost(20)
@pytest.mark.timeout(240)
def test_a_daemon_stopped_during_a_storm(cgroup: Cgroup, run_dir: str) -> None:
    """More happened than inotify remembers: once it goes on, it looks at what is there, and counts it once."""
    config = "".join(
        f'[[target]]\nname = "{name}"\n{kind} = "{cgroup.below_root}/{what}"\n'
        for name, kind, what in (("llm", "path", "service"), ("g", "glob", "s*"))
    )
    cgroup.write("cgroup.subtree_control", "+memory")
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        room = int(file.read())
    with Daemon(run_dir, config) as daemon:
        before = daemon.descriptors()
        with cgroup.child("service"):
            eventually(lambda: [row["sample_age_s"] is not None for row in daemon.status()["targets"]] == [True] * 2)
            opened = daemon.descriptors()
            os.kill(daemon.pid, signal.SIGSTOP)
        # Two events a name and round; equal ones in a row are merged.
        churn = [sys.executable, "-c", CHURN, str(room // 4 + 100), cgroup.path, "service", "s2"]
        subprocess.run(churn, check=True, timeout=200)
        with cgroup.child("service") as service:
            killed_in(service)
            os.kill(daemon.pid, signal.SIGCONT)
            found = ("llm", f"g:{service.below_root}")
            eventually(lambda: [told_kills(daemon, name) for name in found] == [1, 1])
            eventually(lambda: daemon.descriptors() == opened)
        eventually(lambda: not daemon.status()["targets"][0]["present"])
        eventually(lambda: daemon.descriptors() == before)
        assert told_kills(daemon, "llm") == 1
        assert daemon.facts("defect") == []


def told_kills(daemon: Daemon, target: str) -> float | None:
    """The OOM kills of a target that /metrics shows."""
    return daemon.metric("edgeguardd_memory_events_total", target=target, event="oom_kill")


# What the daemon may not do


def test_without_inotify_a_real_tree_is_polled(cgroup: Cgroup, service: Cgroup) -> None:
    """Every instance is taken: said once, removals and births are found a little later; then there is one again."""

    async def scene(stage: Stage) -> None:
        _inotify_instances(0)
        stage.apply(job(path=service.below_root), TargetSpec("g", glob=f"{cgroup.below_root}/p*"), slow_s=POLL_S)
        (said,) = stage.faults
        assert "cannot watch directories for changes: Too many open files; raise fs.inotify" in said
        killed_in(service)
        await soon(lambda: kills(stage, "job") == [1])
        assert stage.targets.status()["job"].watch == "epoll"
        pod = cgroup.child("p1")
        await soon(lambda: stage.of(CgroupAppeared, f"g:{cgroup.below_root}/p1"))
        pod.remove()
        service.remove()
        await soon(lambda: len(stage.of(CgroupVanished)) >= 1 and len(stage.targets.names()) == 1)
        _inotify_instances(8)
        await soon(lambda: stage.targets._watch._watches)
        # From here on nothing is polled: the next birth is told by inotify alone.
        stage.apply(job(path=service.below_root), TargetSpec("g", glob=f"{cgroup.below_root}/p*"), slow_s=NEVER_S)
        with cgroup.child("p2"):
            await soon(lambda: stage.of(CgroupAppeared, f"g:{cgroup.below_root}/p2"))
        assert len(stage.faults) == 1

    def alone() -> None:
        # A user namespace has limits of its own: nobody else on this machine goes without inotify.
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
            raise OSError(ctypes.get_errno(), "cannot make a user namespace")
        on_stage(scene)

    forked(alone)


def _inotify_instances(count: int) -> None:
    with open("/proc/sys/user/max_inotify_instances", "w") as file:
        file.write(str(count))


def test_a_daemon_that_is_not_root(cgroup: Cgroup, service: Cgroup) -> None:
    """Reading is enough to be woken and to tell; a file that it may not read is said, and used once it may."""
    os.chmod(service.file("memory.events"), 0o600)
    reader, writer = os.pipe()

    async def scene(stage: Stage) -> None:
        stage.apply(job(path=service.below_root), job("top", cgroup.below_root), slow_s=POLL_S)
        (failed,) = stage.of(SampleFailed)
        assert "memory.events: Permission denied; run the daemon as root or grant read access" in failed.reason
        os.write(writer, b"1")
        await soon(lambda: stage.of(SampleTaken, "job"))
        stage.apply(job(path=service.below_root), job("top", cgroup.below_root), slow_s=NEVER_S)
        os.write(writer, b"2")
        await soon(lambda: kills(stage, "job") == [1])
        assert stage.targets.status()["job"].watch == "epoll"
        assert stage.targets.status()["job"].degraded is None
        os.write(writer, b"3")
        await soon(lambda: stage.of(CgroupVanished, "job"))

    def grant() -> None:
        os.close(writer)
        assert os.read(reader, 1) == b"1"
        os.chmod(service.file("memory.events"), 0o444)
        assert os.read(reader, 1) == b"2"
        killed_in(service)
        assert os.read(reader, 1) == b"3"
        service.remove()

    as_nobody(lambda: on_stage(scene), grant)
    os.close(reader)
