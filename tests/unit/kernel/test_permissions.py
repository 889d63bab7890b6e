"""A daemon that is not root: what it may not read is said with its remedy, and used as soon as it may."""

import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edgeguardd.core.config import Policy, TargetSpec
from edgeguardd.core.events import SampleFailed, SampleTaken
from edgeguardd.errors import TargetError
from tests.support.scene import OFTEN_S, Scene, job, play
from tests.support.unprivileged import as_nobody
from tests.support.wait import soon

READABLE, UNLISTABLE, UNREADABLE = 0o755, 0o111, 0


def play_as_nobody(scene: Callable[[Scene], Awaitable[None]]) -> None:
    """As play, in a tree of a user without privileges."""

    def run() -> None:
        path = tempfile.mkdtemp(prefix="edgeguardd-test-")
        try:
            play(Path(path), scene)
        finally:
            shutil.rmtree(path)

    as_nobody(run)


@pytest.mark.parametrize("name", ["memory.events", "memory.current", "memory.high"])
def test_a_file_that_may_not_be_read(name: str) -> None:
    """The target is degraded, with the remedy, until it may."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        os.chmod(f"{cgroup.path}/{name}", UNREADABLE)
        s.apply(job(), slow_s=OFTEN_S)
        (failed,) = s.of(SampleFailed)
        assert f"/job/{name}: Permission denied; run the daemon as root or grant read access" in failed.reason
        assert s.targets.status()["job"].degraded == failed.reason
        os.chmod(f"{cgroup.path}/{name}", READABLE)
        await soon(lambda: s.of(SampleTaken))
        assert s.targets.status()["job"].degraded is None
        assert len(s.of(SampleFailed)) == 1

    play_as_nobody(scene)


@pytest.mark.parametrize("name", ["memory.stat", "memory.swap.current"])
def test_a_file_that_the_others_can_do_without(name: str) -> None:
    """Its figures are unknown, and the reason is said once."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        os.chmod(f"{cgroup.path}/{name}", UNREADABLE)
        s.apply(job(), slow_s=OFTEN_S)
        assert s.of(SampleTaken)
        assert name in (s.targets.status()["job"].degraded or "")
        os.chmod(f"{cgroup.path}/{name}", READABLE)
        await soon(lambda: s.targets.status()["job"].degraded is None)
        assert len(s.faults) == 1

    play_as_nobody(scene)


def test_a_directory_that_may_not_be_entered() -> None:
    """It is not taken for one that does not exist: the reason is said, and names the place."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/a")
        s.tree.cgroup("/a/job")
        os.chmod(above.path, UNREADABLE)
        s.apply(job(path="/a/job"), slow_s=OFTEN_S)
        assert any("/a/job: Permission denied; grant" in sentence for sentence in s.faults)
        with pytest.raises(TargetError, match="cannot guard /a/other: Permission denied; grant"):
            s.targets.guard_peer("/a/other", Policy())
        os.chmod(above.path, READABLE)
        await soon(lambda: s.of(SampleTaken))
        said = len(s.faults)
        await soon(lambda: len(s.of(SampleTaken)) > 5)
        assert len(s.faults) == said

    play_as_nobody(scene)


def test_a_directory_that_may_not_be_listed() -> None:
    """A glob that looks into it finds nothing there, and that is said; its matches come when it may be."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/k")
        s.tree.cgroup("/k/pod")
        os.chmod(above.path, UNLISTABLE)
        s.apply(TargetSpec("g", glob="/k/*"), slow_s=OFTEN_S)
        for what in ("look into", "watch"):
            (said,) = [sentence for sentence in s.faults if what in sentence]
            assert "/k" in said
            assert "Permission denied; grant" in said
        os.chmod(above.path, READABLE)
        await soon(lambda: s.of(SampleTaken, "g:/k/pod"))
        assert len(s.faults) == 2

    play_as_nobody(scene)
