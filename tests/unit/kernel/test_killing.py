"""Signals and kills: whom they reach, whom they spare, and what counts as done."""

import os
import signal
from pathlib import Path

import pytest

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.model import LastResort
from edgeguardd.kernel import lastresort, pidsignal
from tests.support.resortscene import Scene, freeze_for, scenario
from tests.support.wait import eventually, soon

pytestmark = pytest.mark.usefixtures("no_child_is_left")


def test_a_signal_reaches_every_process_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cgroup and of those inside it, in batches, and nobody else."""
    monkeypatch.setattr(pidsignal, "BATCH", 2)

    async def play(scene: Scene) -> None:
        inner = scene.cgroup("/llm/inner")
        inside = [scene.child(cgroup) for cgroup in (scene.llm, scene.llm, scene.llm, inner)]
        outside = scene.child(scene.cgroup("/other"))
        event = await scene.run(LastResort.SIGNAL, step=LastResortStep(LastResort.SIGNAL, signal="SIGINT"))
        assert (event.outcome, event.message) == ("done", "SIGINT reached 4 processes of /llm")
        eventually(lambda: all(process.poll() for process in inside))
        assert [process.poll() for process in inside] == [-signal.SIGINT] * 4
        assert outside.poll() is None

    scenario(tmp_path, play)


def test_a_process_that_has_ended_is_not_counted(tmp_path: Path) -> None:
    """Nor is whoever has its number now."""

    async def play(scene: Scene) -> None:
        process = scene.child()
        process.kill()
        process.wait()
        assert "no process is in it" in await scene.fails(LastResort.SIGNAL)

    scenario(tmp_path, play)


def test_a_process_that_left_the_cgroup_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed, but not any more when its descriptor had been taken: the number may be somebody else's."""
    taken = os.pidfd_open

    async def play(scene: Scene) -> None:
        process = scene.child()

        def then_gone(pid: int) -> int:
            scene.llm.write("cgroup.procs", "")
            return taken(pid)

        monkeypatch.setattr(os, "pidfd_open", then_gone)
        assert "no process is in it" in await scene.fails(LastResort.SIGNAL)
        assert process.poll() is None

    scenario(tmp_path, play)


def test_a_process_of_another_pid_namespace_is_said(tmp_path: Path) -> None:
    """The kernel lists it as 0; signalling 0 would hit ourselves."""

    async def play(scene: Scene) -> None:
        process = scene.child()
        scene.holds(scene.llm, 0)
        sentence = await scene.fails(LastResort.SIGNAL)
        assert "SIGTERM reached 1 process and not 1 more; run the daemon as root" in sentence
        assert eventually(process.poll) == -signal.SIGTERM

    scenario(tmp_path, play)


def test_an_unknown_signal_is_said(tmp_path: Path) -> None:
    """The configuration is checked before; this is the last line."""

    async def play(scene: Scene) -> None:
        process = scene.child()
        step = LastResortStep(LastResort.SIGNAL, signal="SIGNOPE")
        assert "'SIGNOPE' is no signal" in await scene.fails(LastResort.SIGNAL, step=step)
        assert process.poll() is None

    scenario(tmp_path, play)


def test_a_frozen_target_is_thawed_to_act_on_its_signal(tmp_path: Path) -> None:
    """A stopped process would never see it."""

    async def play(scene: Scene) -> None:
        scene.child()
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        scene.last.run("llm", "/llm", LastResortStep(LastResort.SIGNAL))
        thawed, done = await scene.ended(2)
        assert (thawed.action, thawed.outcome) == (LastResort.FREEZE, "thawed")
        assert (done.action, done.outcome) == (LastResort.SIGNAL, "done")

    scenario(tmp_path, play)


# Kill


def test_a_kill_is_done_when_nothing_is_left(tmp_path: Path) -> None:
    """Not before, though the order was given."""

    async def play(scene: Scene) -> None:
        scene.child()
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        await soon(lambda: scene.read("cgroup.kill") == "1")
        assert scene.told == []
        scene.llm.write("cgroup.events", "populated 0\nfrozen 0\n")
        (event,) = await scene.ended()
        assert event.outcome == "done"
        assert str(event.message).startswith("1 process of /llm killed, all gone after ")

    scenario(tmp_path, play)


def test_a_kill_that_leaves_somebody_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the kernel."""
    monkeypatch.setattr(lastresort, "KILL_WITHIN_S", 0.05)

    async def play(scene: Scene) -> None:
        scene.child()
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        assert "1 process still there after" in await scene.fails(LastResort.KILL)

    scenario(tmp_path, play)


def test_without_cgroup_kill_each_process_is_killed_until_none_is_left(tmp_path: Path) -> None:
    """Before 5.14. One that comes meanwhile is found as well."""

    async def play(scene: Scene) -> None:
        scene.llm.unlink("cgroup.kill")
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        first = scene.child()
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        assert await soon(first.poll) == -signal.SIGKILL
        second = scene.child()
        assert await soon(second.poll) == -signal.SIGKILL
        scene.llm.write("cgroup.events", "populated 0\nfrozen 0\n")
        (event,) = await scene.ended()
        assert event.outcome == "done"

    scenario(tmp_path, play)


def test_a_killed_target_is_frozen_no_more(tmp_path: Path) -> None:
    """What starts in it next has to run."""

    async def play(scene: Scene) -> None:
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        thawed, done = await scene.ended(2)
        assert (thawed.outcome, done.outcome) == ("thawed", "done")
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)
