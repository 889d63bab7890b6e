"""Restarting a unit: whose, through whom, and what comes of it."""

import os
from pathlib import Path

import pytest

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.model import LastResort
from edgeguardd.kernel import unitrestart
from tests.support.resortscene import Scene, scenario
from tests.support.wait import soon

pytestmark = pytest.mark.usefixtures("no_child_is_left")


@pytest.mark.parametrize("unit", ["llm@a.service", "-Hx.service"])
def test_a_restart_is_systemctls(tmp_path: Path, unit: str) -> None:
    """No shell, a bare environment, the unit after "--"; done when the job is."""

    async def play(scene: Scene) -> None:
        event = await scene.run(LastResort.RESTART, unit=unit)
        assert event.outcome == "done"
        assert str(event.message).startswith(f"{unit} was restarted in ")
        assert scene.log.read_text() == f"restart --no-ask-password -- {unit}\n"
        environment = scene.log.with_suffix(".env").read_text()
        assert "LC_ALL=C.UTF-8" in environment
        assert "HOME=" not in environment

    scenario(tmp_path, play)


def test_the_steps_unit_comes_before_the_targets(tmp_path: Path) -> None:
    """A supervisor restarts its server, say."""

    async def play(scene: Scene) -> None:
        step = LastResortStep(LastResort.RESTART, unit="supervisor.service")
        await scene.run(LastResort.RESTART, step=step, unit="llm.service")
        assert "supervisor.service" in scene.log.read_text()

    scenario(tmp_path, play)


def test_a_service_whose_cgroup_is_gone_is_restarted(tmp_path: Path) -> None:
    """It has crashed: now more than ever."""

    async def play(scene: Scene) -> None:
        event = await scene.run(LastResort.RESTART, "/missing", unit="llm.service")
        assert event.outcome == "done"

    scenario(tmp_path, play)


def test_what_systemctl_says_is_passed_on(tmp_path: Path) -> None:
    """On one line, and safe to print."""

    async def play(scene: Scene) -> None:
        sentence = await scene.fails(LastResort.RESTART, unit="fails.service")
        assert "systemctl ended with status 1 (Job for fails.service failed. \\x1b[31mSee it.)" in sentence
        assert sentence.isprintable()

    scenario(tmp_path, play)


def test_a_restart_that_takes_too_long_is_waited_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemctl is ended (see no_child_is_left), and nothing is claimed."""
    monkeypatch.setattr(unitrestart, "WITHIN_S", 0.1)

    async def play(scene: Scene) -> None:
        sentence = await scene.fails(LastResort.RESTART, unit="hangs.service")
        assert "its job goes on; look at systemctl list-jobs" in sentence

    scenario(tmp_path, play)


def test_stopping_the_daemon_leaves_no_systemctl(tmp_path: Path) -> None:
    """The order is answered, the child is gone."""

    async def play(scene: Scene) -> None:
        scene.last.run("llm", "/llm", LastResortStep(LastResort.RESTART), "hangs.service")
        file = scene.log.with_suffix(".pid")
        pid = await soon(lambda: file.exists() and file.read_text())
        await scene.last.close()
        (event,) = await scene.ended()
        assert event.outcome == "failed"
        assert not is_running(int(str(pid)))

    scenario(tmp_path, play)


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        (None, "no unit is named"),
        ("--help", "it is no name of"),
        ("a b.service", "it is no name of"),
        ("../x.service", "it is no name of"),
        ("x;reboot.service", "it is no name of"),
        ("llm@.service", "a template has no cgroup"),
        ("llm.slice", "only a service can be restarted"),
        ("edgeguardd.service", "this daemon itself runs in it"),
        ("\x1b[2J.service", "cannot restart \\x1b[2J.service"),
    ],
)
def test_only_a_well_named_service_of_others_is_restarted(tmp_path: Path, unit: str | None, why: str) -> None:
    """systemctl is not even started."""

    async def play(scene: Scene) -> None:
        assert why in await scene.fails(LastResort.RESTART, unit=unit)
        assert not scene.log.exists()

    scenario(tmp_path, play)


def test_a_machine_without_systemctl_is_said(tmp_path: Path) -> None:
    """As in a container."""

    async def play(scene: Scene) -> None:
        scene.systemctl.unlink()
        sentence = await scene.fails(LastResort.RESTART, unit="llm.service")
        assert sentence.startswith("cannot restart units: there is no ")

    scenario(tmp_path, play)


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
