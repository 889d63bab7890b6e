"""Cgroups that go and come back, with inotify and without it; on a tree in a temporary directory."""

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest

from edgeguardd.core.config import TargetSpec
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    SampleTaken,
    TargetDropped,
)
from edgeguardd.kernel import treewatch
from tests.support.faketree import MIB
from tests.support.scene import OFTEN_S, Scene, job, play
from tests.support.wait import soon

# Gone and back


def test_removal_and_re_creation_are_told_at_once(tmp_path: Path) -> None:
    """By inotify, without any timer; the new cgroup's counts are all news, for it was made on our watch."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job").events(oom_kill=5)
        s.apply(job())
        s.told.clear()
        s.tree.remove("/job")
        await soon(lambda: s.of(CgroupVanished))
        assert s.targets.status()["job"].present is False
        assert s.targets.oldest_sample_age_s(0.0) is None
        s.told.clear()
        made = s.tree.cgroup("/.later")
        made.events(oom_kill=1)
        os.rename(made.path, s.tree.full("/job"))
        await soon(lambda: s.of(CountersMoved))
        assert s.kinds() == ["CgroupAppeared", "SampleTaken", "CountersMoved"]
        assert s.of(CountersMoved)[0].delta.oom_kill == 1

    play(tmp_path, scene)


def test_a_cgroup_replaced_between_two_looks_is_a_new_one(tmp_path: Path) -> None:
    """Equal counters do not hide it: the inode differs, and the directory held open keeps it from being reused."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job").events(oom_kill=1)
        s.apply(job())
        s.told.clear()
        s.tree.remove("/job")
        s.tree.cgroup("/job").events(oom_kill=1)
        await soon(lambda: s.of(CgroupAppeared))
        assert s.kinds()[-4:] == ["CgroupVanished", "CgroupAppeared", "SampleTaken", "CountersMoved"]
        assert s.of(CountersMoved)[-1].delta.oom_kill == 1

    play(tmp_path, scene)


def test_what_was_counted_just_before_the_removal_is_told_first(tmp_path: Path) -> None:
    """The files are read a last time, if they still answer."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        cgroup.events(oom_kill=1)
        shutil.rmtree(cgroup.path)
        await soon(lambda: s.of(CgroupVanished))
        assert s.kinds() == ["SampleTaken", "CountersMoved", "CgroupVanished"]

    play(tmp_path, scene)


def test_enodev_means_gone_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead descriptor met before inotify told of the removal: vanished once, no failure, no spin."""
    real = os.pread

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        s.tree.remove("/job")

        def pread(fd: int, size: int, offset: int) -> bytes:
            if "(deleted)" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENODEV, "No such device")
            return real(fd, size, offset)

        monkeypatch.setattr(os, "pread", pread)
        s.targets.sample_now("job")
        assert s.kinds() == ["CgroupVanished"]
        s.tree.cgroup("/job")
        await soon(lambda: s.of(SampleTaken))
        assert s.kinds() == ["CgroupVanished", "CgroupAppeared", "SampleTaken"]

    play(tmp_path, scene)


def test_an_ancestor_removed_and_made_again_is_followed_down(tmp_path: Path) -> None:
    """The whole branch goes, and comes back step by step."""

    async def scene(s: Scene) -> None:
        for path in ("/a", "/a/b", "/a/b/job"):
            s.tree.cgroup(path)
        s.apply(job(path="/a/b/job"))
        for _ in range(3):
            s.told.clear()
            s.tree.remove("/a")
            await soon(lambda: s.of(CgroupVanished))
            s.tree.cgroup("/a")
            await asyncio.sleep(0)
            s.tree.cgroup("/a/b")
            s.tree.cgroup("/a/b/job")
            await soon(lambda: bool(s.of(SampleTaken)) and bool(s.of(CgroupAppeared)))
        assert len(s.of(CgroupVanished)) == 1

    play(tmp_path, scene)


def test_many_removals_leave_no_descriptor_and_no_watch(tmp_path: Path) -> None:
    """Hundreds of rounds of `systemctl restart`, and the daemon is as small as before."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/a.slice", max_bytes=MIB)
        s.apply(job(path="/a.slice/job.service"), TargetSpec("u", unit="job"), TargetSpec("g", glob="/*/job*"))
        descriptors, watches = [], set()
        for turn in range(300):
            s.told.clear()
            s.tree.cgroup("/a.slice/job.service")
            await soon(lambda: len(s.of(CgroupAppeared)) == 3)
            s.tree.remove("/a.slice/job.service")
            await soon(lambda: len(s.of(CgroupVanished)) == 3 and s.of(TargetDropped))
            if turn > 10:
                descriptors.append(len(os.listdir("/proc/self/fd")))
                watches.add(len(s.targets._watch._watches))
        # What tests before this one have left to the collector may go meanwhile; a leak would make it hundreds more.
        assert descriptors[-1] <= descriptors[0]
        assert len(watches) == 1
        assert s.faults == []

    play(tmp_path, scene)


# Without inotify


def test_without_inotify_everything_is_found_by_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once; removals, re-creations, units and globs are found a little later."""

    class Refusing:
        def __init__(self, **_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(treewatch, "Inotify", Refusing)

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job(), TargetSpec("u", unit="llm"), TargetSpec("g", glob="/pod*/c"), slow_s=OFTEN_S)
        assert len(s.faults) == 1
        assert "Too many open files" in s.faults[0]
        s.tree.remove("/job")
        await soon(lambda: s.of(CgroupVanished, "job"))
        s.tree.cgroup("/job")
        await soon(lambda: len(s.of(CgroupAppeared, "job")) == 2)
        s.tree.cgroup("/own.slice")
        s.tree.cgroup("/own.slice/llm.service")
        s.tree.cgroup("/pod1")
        s.tree.cgroup("/pod1/c")
        await soon(lambda: s.of(CgroupAppeared, "u") and s.of(CgroupAppeared, "g:/pod1/c"))
        s.tree.remove("/pod1")
        await soon(lambda: s.of(TargetDropped, "g:/pod1/c"))
        assert len(s.faults) == 1

    play(tmp_path, scene)
