"""Targets for subscribers on a tree in a temporary directory: whose they are, and how long they last."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from edgeguardd.core.config import Policy, TargetSpec
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    Event,
    SampleTaken,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.errors import TargetError
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.targets import Targets
from tests.support.faketree import FakeCgroup, FakeTree
from tests.support.scene import OFTEN_S, Scene, job, play
from tests.support.wait import soon

# Subscribers


def test_self_is_the_configured_target_of_that_cgroup_or_the_nearest_around_it(tmp_path: Path) -> None:
    """An exact one first; else the innermost that contains it."""

    async def scene(s: Scene) -> None:
        for path in ("/a", "/a/b", "/a/b/c", "/a/b/c/d", "/ab"):
            s.tree.cgroup(path)
        s.apply(job("outer", "/a"), job("inner", "/a/b"))
        assert s.targets.guard_peer("/a/b", Policy()) == "inner"
        assert s.targets.guard_peer("/a/b/c/d", Policy()) == "inner"
        assert s.targets.guard_peer("/a/", Policy()) == "outer"
        assert s.targets.guard_peer("/ab", Policy()) == "/ab"
        assert s.targets.contains("outer", "/a/b/c")
        assert s.targets.contains("outer", "/a")
        assert not s.targets.contains("outer", "/ab")
        assert not s.targets.contains("nobody", "/a")
        assert not s.targets.contains("outer", "/a/../x")

    play(tmp_path, scene)


def test_a_dynamic_target_lasts_as_long_as_its_subscribers(tmp_path: Path) -> None:
    """Two subscribers of one cgroup share it; the last one to leave ends it. Configured targets stay."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/x").events(oom_kill=1)
        s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        policy = Policy(dwell_s=1.0)
        assert s.targets.guard_peer("/x", policy) == "/x"
        assert s.told[0] == TargetAdded("/x", "/x", policy)
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken"]
        assert s.targets.guard_peer("/x", policy) == "/x"
        assert s.targets.join_peer("/x") == "/x"
        assert s.targets.join_peer("job") == "job"
        s.targets.release_peer("/x")
        s.targets.release_peer("/x")
        assert s.of(TargetDropped) == []
        s.targets.release_peer("/x")
        assert s.of(TargetDropped) == [TargetDropped("/x")]
        for _ in range(2):
            s.targets.release_peer("/x")
            s.targets.release_peer("job")
        assert s.targets.names() == ["job"]

    play(tmp_path, scene)


def test_a_dynamic_target_survives_the_removal_of_its_cgroup(tmp_path: Path) -> None:
    """As long as somebody subscribes, its path is followed."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/x")
        s.targets.guard_peer("/x", Policy())
        s.tree.remove("/x")
        await soon(lambda: s.of(CgroupVanished))
        s.tree.cgroup("/x")
        await soon(lambda: len(s.of(CgroupAppeared)) == 2)

    play(tmp_path, scene)


def _bare(cgroup: FakeCgroup) -> None:
    cgroup.unlink("memory.events")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "cannot guard the root cgroup: .*in a cgroup of its own"),
        ("/none", "cannot guard /none: no such cgroup"),
        ("/bare", "cannot guard /bare: the memory controller is not enabled there"),
        ("/../out", "run the daemon in the host's cgroup namespace"),
    ],
)
def test_a_cgroup_that_cannot_be_guarded_is_refused_in_one_sentence(tmp_path: Path, path: str, says: str) -> None:
    """The subscriber gets it as its error line."""

    async def scene(s: Scene) -> None:
        _bare(s.tree.cgroup("/bare"))
        with pytest.raises(TargetError, match=says):
            s.targets.guard_peer(path, Policy())
        assert s.told == []

    play(tmp_path, scene)


def test_the_namespace_root_of_a_container_can_be_guarded(tmp_path: Path) -> None:
    """It looks like the root but has files of its own, because it is not the machine's root."""

    async def scene(s: Scene) -> None:
        inside = s.tree.cgroup("/tmp")
        for name in os.listdir(inside.path):
            os.rename(f"{inside.path}/{name}", f"{s.tree.path}/{name}")
        assert s.targets.guard_peer("/", Policy()) == "/"
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken"]
        s.targets.sample_now("/")
        assert s.usage("/").path == "/"

    play(tmp_path, scene)


def test_no_more_targets_than_allowed(tmp_path: Path) -> None:
    """A flood of cgroups cannot exhaust the daemon."""

    async def scene(s: Scene) -> None:
        for number in range(9):
            s.tree.cgroup(f"/x{number}")
        for number in range(8):
            s.targets.guard_peer(f"/x{number}", Policy())
        with pytest.raises(TargetError, match="8 targets are guarded; raise max_targets"):
            s.targets.guard_peer("/x8", Policy())
        with pytest.raises(TargetError, match="cannot serve /x8: no such target"):
            s.targets.join_peer("/x8")

    play(tmp_path, scene)


def test_a_target_may_end_while_its_sample_is_told(tmp_path: Path) -> None:
    """An effect of the sample disconnects the last subscriber: nothing more is told, nothing breaks."""

    async def run() -> None:
        tree = FakeTree(tmp_path)
        cgroup = tree.cgroup("/x")
        told: list[str] = []

        def emit(event: Event) -> None:
            told.append(type(event).__name__)
            if isinstance(event, SampleTaken) and len(told) > 4:
                targets.release_peer("/x")

        targets = Targets(find_root(str(tmp_path)), asyncio.get_running_loop(), emit)
        try:
            targets.guard_peer("/x", Policy())
            targets.sample_now("/x")
            cgroup.events(oom_kill=1)
            targets.sample_now("/x")
            assert targets.names() == []
            assert told[4:] == ["SampleTaken", "TargetDropped"]
        finally:
            targets.close()

    asyncio.run(run())


def test_a_directory_that_is_there_and_is_said_not_to_be_is_looked_into_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would tell of it: it has not gone, so it does not come back either. What could not be seen is said."""
    listed = os.scandir

    def failing(path: str) -> object:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/pod1")
        monkeypatch.setattr(os, "scandir", failing)
        s.apply(TargetSpec("g", glob="/pod*"), slow_s=OFTEN_S)
        assert s.of(TargetAdded) == []
        monkeypatch.setattr(os, "scandir", listed)
        await soon(lambda: len(s.of(TargetAdded)) == 1)
        assert [sentence.startswith("cannot look into ") for sentence in s.targets.faults] == [True]

    play(tmp_path, scene)


def test_nothing_is_told_after_close(tmp_path: Path) -> None:
    """And closing twice is fine."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job(), TargetSpec("g", glob="/p*"), slow_s=OFTEN_S)
        s.targets.close()
        s.told.clear()
        s.tree.cgroup("/p1")
        s.tree.remove("/job")
        for _ in range(20):
            await asyncio.sleep(OFTEN_S / 5)
        assert s.told == []

    play(tmp_path, scene)
