"""Last resorts on a fake tree: what is refused, what fails and why, and that each order is answered once.

The processes are real ones, named in plain cgroup.procs files. What only a kernel does (stopping, reclaiming, killing
at once) is in tests/kernel.
"""

import os
from pathlib import Path

import pytest

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.events import Event
from edgeguardd.core.model import LastResort
from edgeguardd.kernel.freezer import KIND, Frozen
from tests.support.faketree import MIB
from tests.support.resortscene import Scene, scenario

pytestmark = pytest.mark.usefixtures("no_child_is_left")

EVERY = pytest.mark.parametrize("action", list(LastResort))
ON_CGROUPS = pytest.mark.parametrize("action", [action for action in LastResort if action is not LastResort.RESTART])


# Whom it never touches


@EVERY
def test_the_root_is_never_acted_upon(tmp_path: Path, action: LastResort) -> None:
    """However its path is spelt."""

    async def play(scene: Scene) -> None:
        for path in ("/", "//.", "/."):
            assert "it is the root of the tree" in await scene.fails(action, path, unit="llm.service", reclaim_bytes=1)
        assert not scene.log.exists()

    scenario(tmp_path, play)


@EVERY
def test_the_daemons_own_cgroup_is_never_acted_upon(tmp_path: Path, action: LastResort) -> None:
    """Nor any around it, however deep this process is inside."""

    async def play(scene: Scene) -> None:
        child = scene.child()
        scene.cgroup("/llm/inner")
        deep = scene.cgroup("/llm/inner/deep")
        scene.holds(deep, os.getpid())
        for path in ("/llm", "/llm/inner", "/llm/inner/deep"):
            sentence = await scene.fails(action, path, unit="llm.service", reclaim_bytes=1)
            assert "this daemon itself runs in it" in sentence
        assert child.poll() is None
        assert scene.read("cgroup.freeze") == "0"
        assert scene.read("cgroup.kill") == ""
        assert not scene.log.exists()

    scenario(tmp_path, play)


@ON_CGROUPS
def test_a_cgroup_whose_processes_cannot_be_listed_is_not_acted_upon(tmp_path: Path, action: LastResort) -> None:
    """This daemon may be among them."""

    async def play(scene: Scene) -> None:
        inner = scene.cgroup("/llm/inner")
        inner.break_file("cgroup.procs")
        assert "Is a directory" in await scene.fails(action, reclaim_bytes=1)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


@ON_CGROUPS
@pytest.mark.parametrize("path", ["/missing", "/../tree/llm", "/link", "llm"])
def test_a_cgroup_that_is_none_is_said(tmp_path: Path, action: LastResort, path: str) -> None:
    """Gone, outside the tree, behind a symbolic link, no path."""

    async def play(scene: Scene) -> None:
        os.symlink("llm", scene.tree.full("/link"))
        await scene.fails(action, path, reclaim_bytes=1)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


@pytest.mark.parametrize(
    ("action", "name"), [(LastResort.RECLAIM, "memory.reclaim"), (LastResort.FREEZE, "cgroup.freeze")]
)
def test_a_kernel_without_the_feature_is_said(tmp_path: Path, action: LastResort, name: str) -> None:
    """The file is not there."""

    async def play(scene: Scene) -> None:
        scene.llm.unlink(name)
        sentence = await scene.fails(action, reclaim_bytes=MIB)
        assert f"{name}: No such file or directory; this kernel is too old" in sentence
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


# One at a time


def test_an_answer_may_bring_the_same_order_again(tmp_path: Path) -> None:
    """The engine reacts at once."""

    async def play(scene: Scene) -> None:
        left = [1, 2]

        def react(event: Event) -> None:
            scene.told.append(event)
            if left:
                left.pop()
                scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))

        scene.last._emit = react
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        assert [event.outcome for event in await scene.ended(3)] == ["done"] * 3

    scenario(tmp_path, play)


def test_an_order_that_had_not_begun_is_answered_too(tmp_path: Path) -> None:
    """The daemon stops in the same moment."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        await scene.last.close()
        (event,) = await scene.ended()
        assert (event.outcome, "interrupted" in str(event.message)) == ("failed", True)

    scenario(tmp_path, play)


def test_an_order_is_not_begun_twice(tmp_path: Path) -> None:
    """The second is refused while the first is under way; another target is another matter."""

    async def play(scene: Scene) -> None:
        scene.cgroup("/other")
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        assert "still under way" in await scene.fails(LastResort.KILL)
        scene.last.run("other", "/other", LastResortStep(LastResort.KILL))
        (other,) = await scene.ended()
        assert (other.target, other.outcome) == ("other", "done")
        scene.llm.write("cgroup.events", "populated 0\nfrozen 0\n")
        (event,) = await scene.ended()
        assert (event.target, event.outcome) == ("llm", "done")
        assert (await scene.run(LastResort.KILL)).outcome == "done"

    scenario(tmp_path, play)
