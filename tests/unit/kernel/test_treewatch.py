"""Directory watches: what comes and goes is told by name, nothing leaks, and a full inotify is said once."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from edgeguardd.kernel import treewatch
from edgeguardd.kernel.treewatch import TreeWatch
from tests.support.descriptors import none_left, open_now
from tests.support.wait import soon


class Watching:
    """A TreeWatch and what it said."""

    def __init__(self) -> None:
        self.lost = 0
        self.faults: list[str] = []
        self.names: list[str] = []
        self.watch = TreeWatch(asyncio.get_running_loop(), self._lost, self.faults.append)

    def _lost(self) -> None:
        self.lost += 1

    @property
    def kept(self) -> int:
        """How many watches the library under it remembers."""
        inotify = self.watch._inotify
        return 0 if inotify is None else len(inotify.watches)


def scenario(play: Callable[[Watching], Awaitable[None]]) -> None:
    """Play; no descriptor may be left."""

    async def run() -> None:
        watching = Watching()
        try:
            await play(watching)
        finally:
            watching.watch.close()
            watching.watch.close()

    before = open_now()
    asyncio.run(run())
    none_left(before)


def test_entries_that_come_go_and_are_renamed_are_told_by_name(tmp_path: Path) -> None:
    """A rename is a going and a coming. A name is told once for all that happened to it: whoever is told looks."""

    async def play(watching: Watching) -> None:
        assert watching.watch.add(str(tmp_path), watching.names.append) is not None
        (tmp_path / "a").mkdir()
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b").rmdir()
        await soon(lambda: watching.names)
        assert watching.names == ["a", "b"]
        (tmp_path / "b").mkdir()
        await soon(lambda: watching.names[2:])
        assert watching.names == ["a", "b", "b"]

    scenario(play)


def test_a_missing_directory_is_no_fault(tmp_path: Path) -> None:
    """Its parent is watched instead."""

    async def play(watching: Watching) -> None:
        assert watching.watch.add(str(tmp_path / "none"), watching.names.append) is None
        assert watching.faults == []

    scenario(play)


def test_no_watch_leaks_over_many_removals(tmp_path: Path) -> None:
    """Whether the watch is removed before its directory or after."""

    async def play(watching: Watching) -> None:
        for turn in range(300):
            path = tmp_path / f"d{turn}"
            path.mkdir()
            watched = watching.watch.add(str(path), watching.names.append)
            assert watched is not None
            if turn % 2:
                path.rmdir()
            watching.watch.remove(watched)
            watching.watch.remove(watched)
            if turn % 50 == 0:
                await asyncio.sleep(0)
        await soon(lambda: watching.kept == 0)

    scenario(play)


def test_a_removed_watch_is_silent(tmp_path: Path) -> None:
    """Also for what was queued before."""

    async def play(watching: Watching) -> None:
        watched = watching.watch.add(str(tmp_path), watching.names.append)
        assert watched is not None
        (tmp_path / "a").mkdir()
        watching.watch.remove(watched)
        await soon(lambda: watching.kept == 0)
        assert watching.names == []

    scenario(play)


def test_a_flood_is_told_bit_by_bit(tmp_path: Path) -> None:
    """Whoever makes directories without end holds up nothing else on the loop; in the end each has been told once."""

    async def play(watching: Watching) -> None:
        assert watching.watch.add(str(tmp_path), watching.names.append) is not None
        for number in range(1000):
            (tmp_path / f"d{number}").mkdir()
        told = [0]
        while told[-1] < 1000:
            await asyncio.sleep(0)
            told.append(len(watching.names))
        assert max(now - before for before, now in pairwise(told)) <= 2 * treewatch._TOLD_AT_ONCE
        assert sorted(watching.names) == sorted(f"d{number}" for number in range(1000))

    scenario(play)


def test_one_name_that_comes_and_goes_without_end_is_told_once_a_turn(tmp_path: Path) -> None:
    """A restart loop, or an attack: two thousand events, and a look for each lot of them."""

    async def play(watching: Watching) -> None:
        assert watching.watch.add(str(tmp_path), watching.names.append) is not None
        for _ in range(1000):
            (tmp_path / "a").mkdir()
            (tmp_path / "a").rmdir()
        (tmp_path / "b").mkdir()
        await soon(lambda: "b" in watching.names)
        assert len(watching.names) <= 2000 / treewatch._TAKEN_AT_ONCE + 2

    scenario(play)


def test_an_overflow_means_looking_at_everything_and_the_watches_go_on(tmp_path: Path) -> None:
    """The queue of the kernel is filled for real: more events than it holds while the loop does not run."""

    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        room = int(file.read())
    if room > 100_000:
        pytest.skip(f"fs.inotify.max_queued_events is {room}: too many to fill")

    async def play(watching: Watching) -> None:
        assert watching.watch.add(str(tmp_path), watching.names.append) is not None
        # Identical events in a row are merged, so two names take turns.
        names = [str(tmp_path / "a"), str(tmp_path / "b")]
        for name in names:
            os.mkdir(name)
        for turn in range(room // 2 + 2):
            os.rmdir(names[turn % 2])
            os.mkdir(names[turn % 2])
        await soon(lambda: watching.lost)
        watching.names.clear()
        os.rmdir(names[0])
        await soon(lambda: "a" in watching.names)
        assert watching.kept == 1

    scenario(play)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.ENOSYS])
def test_without_inotify_the_reason_is_said_and_polling_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No instance left, no watch left, no inotify at all: a sentence with the sysctls, and None. Later it may work."""

    class Refusing:
        def __init__(self, **_: object) -> None:
            raise OSError(number, os.strerror(number))

    async def play(watching: Watching) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(treewatch, "Inotify", Refusing)
            assert watching.watch.add(str(tmp_path), watching.names.append) is None
        assert len(watching.faults) == 1
        assert os.strerror(number) in watching.faults[0]
        assert "fs.inotify.max_user_instances" in watching.faults[0]
        assert watching.watch.add(str(tmp_path), watching.names.append) is not None

    scenario(play)
