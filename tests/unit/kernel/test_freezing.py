"""Reclaiming from a cgroup and freezing it: what is written, told, given up, and undone."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from edgeguardd.core.model import LastResort
from edgeguardd.kernel import freezer, lastresort
from edgeguardd.kernel.freezer import KIND, Frozen
from tests.support.faketree import MIB
from tests.support.resortscene import BOOT, Scene, freeze_for, scenario
from tests.support.wait import soon

pytestmark = pytest.mark.usefixtures("no_child_is_left")


# Reclaim


def test_reclaim_tells_what_memory_current_says(tmp_path: Path) -> None:
    """In pieces, the last of them the rest; plain files free nothing, and that is what is told."""

    async def play(scene: Scene) -> None:
        scene.llm.usage(30 * MIB)
        event = await scene.run(LastResort.RECLAIM, reclaim_bytes=lastresort.RECLAIM_PIECE_BYTES + 12_345_678)
        assert event.outcome == "done"
        assert event.message is not None
        assert event.message.startswith("reclaimed from /llm: 0.0 MiB of 27.8 MiB in ")
        assert event.message.endswith("memory.current 30.0 MiB to 30.0 MiB")
        assert scene.read("memory.reclaim") == "12345678"

    scenario(tmp_path, play)


@pytest.mark.parametrize("reclaim_bytes", [None, 0, -5])
def test_reclaiming_nothing_is_a_failure(tmp_path: Path, reclaim_bytes: int | None) -> None:
    """The order was without sense, and that is said."""

    async def play(scene: Scene) -> None:
        assert "nothing to be freed" in await scene.fails(LastResort.RECLAIM, reclaim_bytes=reclaim_bytes)

    scenario(tmp_path, play)


def test_reclaim_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not wait for it, and what is not begun is not begun any more."""
    monkeypatch.setattr(lastresort, "RECLAIM_WITHIN_S", 0.05)
    come_back = threading.Event()
    pieces = []

    def slow(fd: int, text: bytes, at: int) -> int:
        pieces.append(int(text))
        come_back.wait(20)
        return len(text)

    monkeypatch.setattr(os, "pwrite", slow)

    async def play(scene: Scene) -> None:
        assert "too slow" in await scene.fails(LastResort.RECLAIM, reclaim_bytes=4 * lastresort.RECLAIM_PIECE_BYTES)
        come_back.set()
        await soon(lambda: threading.active_count() == 1)
        assert pieces == [lastresort.RECLAIM_PIECE_BYTES]

    scenario(tmp_path, play)


# Freeze and thaw


def test_a_freeze_is_written_down_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Once each: stopped, running again; a second thaw has nothing to tell."""

    async def play(scene: Scene) -> None:
        scene.child()
        event = await scene.run(LastResort.FREEZE, step=freeze_for(600))
        assert event.outcome == "done"
        assert event.message is not None
        assert event.message.startswith("1 process of /llm stopped after ")
        assert event.message.endswith("for at most 600 s")
        assert scene.read("cgroup.freeze") == "1"
        record = scene.state.load(KIND, "/llm", Frozen)
        assert record is not None
        assert (record.target, record.boot_id, record.inode) == ("llm", BOOT, os.stat(scene.llm.path).st_ino)
        scene.last.thaw("other")
        assert scene.read("cgroup.freeze") == "1"
        scene.last.thaw("llm")
        scene.last.thaw("llm")
        (thawed,) = await scene.ended()
        assert thawed.outcome == "thawed"
        assert thawed.message is not None
        assert "/llm runs again after " in thawed.message
        assert scene.read("cgroup.freeze") == "0"
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


def test_a_freeze_ends_by_itself(tmp_path: Path) -> None:
    """At its maximum, whoever forgot it."""

    async def play(scene: Scene) -> None:
        scene.last.run("llm", "/llm", freeze_for(0.05))
        done, thawed = await scene.ended(2)
        assert (done.outcome, thawed.outcome) == ("done", "thawed")
        assert "its time was up" in str(thawed.message)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_a_freeze_that_never_takes_is_a_failure_and_is_undone(tmp_path: Path) -> None:
    """A process in a hung driver does not stop."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", freeze_for(0.05))
        thawed, failed = await scene.ended(2)
        assert (thawed.outcome, failed.outcome) == ("thawed", "failed")
        assert "not all processes had stopped" in str(failed.message)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_what_is_frozen_already_is_left_to_who_froze_it(tmp_path: Path) -> None:
    """Ours is not frozen twice, and somebody else's is not thawed by us."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.freeze", "1\n")
        assert "somebody else has frozen it" in await scene.fails(LastResort.FREEZE)
        scene.last.thaw("llm")
        assert scene.read("cgroup.freeze") == "1"
        scene.llm.write("cgroup.freeze", "0\n")
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        assert "we have frozen it" in await scene.fails(LastResort.FREEZE)

    scenario(tmp_path, play)


def test_stopping_the_daemon_thaws(tmp_path: Path) -> None:
    """And ends what is under way, each with its answer."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", freeze_for(600))
        await soon(lambda: scene.read("cgroup.freeze") == "1")
        await scene.last.close()
        failed, thawed = await scene.ended(2)
        assert (failed.outcome, thawed.outcome) == ("failed", "thawed")
        assert scene.read("cgroup.freeze") == "0"
        assert scene.state.load_all(KIND, Frozen) == {}
        assert "the daemon stops" in await scene.fails(LastResort.FREEZE)

    scenario(tmp_path, play)


def test_without_a_record_nothing_is_frozen(tmp_path: Path) -> None:
    """A crash would leave it frozen for ever."""

    async def play(scene: Scene) -> None:
        (scene.path / "state").write_text("a file")
        assert "Not a directory" in await scene.fails(LastResort.FREEZE)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_a_thaw_that_fails_is_told_once_and_tried_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would."""
    monkeypatch.setattr(freezer, "THAW_AGAIN_S", 0.01)

    async def play(scene: Scene) -> None:
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        os.rename(f"{scene.llm.path}/cgroup.freeze", f"{scene.llm.path}/hidden")
        os.mkdir(f"{scene.llm.path}/cgroup.freeze")
        scene.last.thaw("llm")
        (failed,) = await scene.ended()
        assert failed.outcome == "failed"
        assert "tried again every" in str(failed.message)
        os.rmdir(f"{scene.llm.path}/cgroup.freeze")
        os.rename(f"{scene.llm.path}/hidden", f"{scene.llm.path}/cgroup.freeze")
        (thawed,) = await scene.ended()
        assert thawed.outcome == "thawed"
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_a_cgroup_that_is_there_and_is_said_not_to_be_is_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENODEV may mean that a controller was switched off; who is frozen is not forgotten for it."""
    monkeypatch.setattr(freezer, "THAW_AGAIN_S", 0.01)
    read = os.pread

    def gone(fd: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    async def play(scene: Scene) -> None:
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        monkeypatch.setattr(os, "pread", gone)
        scene.last.thaw("llm")
        monkeypatch.setattr(os, "pread", read)
        failed, thawed = await scene.ended(2)
        assert (failed.outcome, thawed.outcome) == ("failed", "thawed")
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def crashed(scene: Scene, **changes: object) -> None:
    """What a killed daemon leaves: a frozen cgroup and its record."""
    scene.llm.write("cgroup.freeze", "1\n")
    values = {"target": "llm", "boot_id": BOOT, "inode": os.stat(scene.llm.path).st_ino, "since": time.monotonic()}
    scene.state.save(KIND, "/llm", Frozen(**(values | changes)))  # type: ignore[arg-type]


def test_the_next_daemon_thaws_what_the_last_one_froze(tmp_path: Path) -> None:
    """Whatever ended it."""

    async def play(scene: Scene) -> None:
        crashed(scene)
        scene.daemon().recover()
        (event,) = await scene.ended()
        assert event.outcome == "thawed"
        assert "the daemon that froze it is gone" in str(event.message)
        assert scene.read("cgroup.freeze") == "0"
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


@pytest.mark.parametrize("changes", [{"boot_id": "another"}, {"inode": 1}])
def test_another_cgroup_or_another_boot_is_not_thawed(tmp_path: Path, changes: dict[str, object]) -> None:
    """Who froze it is somebody else."""

    async def play(scene: Scene) -> None:
        crashed(scene, **changes)
        scene.daemon().recover()
        assert scene.told == []
        assert scene.read("cgroup.freeze") == "1"
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)
