"""The tree of places by itself: each follower hears of comings and goings by turns, whatever another does meanwhile."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.tree import Follower, Place, Tree
from edgeguardd.kernel.treewatch import TreeWatch
from tests.support.descriptors import none_left, open_now


class Grove:
    """A tree over a temp dir, and what each follower heard, by name. Nothing is told but by `tree.check`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.heard: list[str] = []
        self.said: list[str] = []
        self.meanwhile: dict[str, list[Callable[[], None]]] = {}
        self.followers: dict[str, tuple[Place, Follower]] = {}
        self.watch = TreeWatch(asyncio.get_running_loop(), lambda: None, lambda _: None)
        self.tree = Tree(CgroupRoot(str(path)), self.watch, self.said.append)

    def follow(self, name: str, path: str) -> Place:
        """Follow a path under a name; `meanwhile[f"{name} comes"]` or goes is done once as it hears of that."""
        follower = Follower(lambda _: self._hear(f"{name} comes"), lambda _: self._hear(f"{name} goes"))
        place = self.tree.follow(path, follower)
        self.followers[name] = place, follower
        return place

    def unfollow(self, name: str) -> None:
        """Let go of what follow has begun."""
        self.tree.unfollow(*self.followers.pop(name))

    def _hear(self, what: str) -> None:
        self.heard.append(what)
        for do in self.meanwhile.pop(what, []):
            do()


def scenario(path: Path, play: Callable[[Grove], None]) -> None:
    """Play; no descriptor is left for those who have let go."""

    async def run() -> None:
        grove = Grove(path)
        # The first watch opens inotify, which stays.
        grove.follow("nobody", "/none")
        grove.unfollow("nobody")
        with_none = open_now()
        play(grove)
        for name in list(grove.followers):
            grove.unfollow(name)
        none_left(with_none)
        grove.tree.close()
        grove.watch.close()

    before = open_now()
    asyncio.run(run())
    none_left(before)


def test_a_cgroup_replaced_while_the_first_hears_of_it(tmp_path: Path) -> None:
    """The second hears of the new one only, and once; the first hears of both."""

    def play(grove: Grove) -> None:
        place = grove.follow("one", "/x")
        grove.follow("two", "/x")
        grove.meanwhile["one comes"] = [lambda: replace(tmp_path / "x"), lambda: grove.tree.check(place)]
        (tmp_path / "x").mkdir()
        grove.tree.check(place)
        assert grove.heard == ["one comes", "one goes", "two goes", "one comes", "two comes"]
        assert grove.tree.holds(place)

    scenario(tmp_path, play)


def test_a_cgroup_that_comes_back_while_the_first_hears_that_it_went(tmp_path: Path) -> None:
    """It is opened once, and nobody takes it for gone."""

    def play(grove: Grove) -> None:
        (tmp_path / "x").mkdir()
        place = grove.follow("one", "/x")
        grove.follow("two", "/x")
        grove.meanwhile["one goes"] = [(tmp_path / "x").mkdir, lambda: grove.tree.check(place)]
        (tmp_path / "x").rmdir()
        grove.tree.check(place)
        assert grove.heard[-2:] == ["one comes", "two comes"]
        assert grove.tree.holds(place)

    scenario(tmp_path, play)


def test_who_was_let_go_hears_nothing_more(tmp_path: Path) -> None:
    """Also when another lets it go in the middle."""

    def play(grove: Grove) -> None:
        place = grove.follow("one", "/x")
        grove.follow("two", "/x")
        grove.meanwhile["one comes"] = [lambda: grove.unfollow("two")]
        (tmp_path / "x").mkdir()
        grove.tree.check(place)
        assert grove.heard == ["one comes"]

    scenario(tmp_path, play)


def test_a_place_that_the_last_lets_go_of_as_it_goes_is_not_opened_again(tmp_path: Path) -> None:
    """Its cgroup was replaced, and nobody wants the new one."""

    def play(grove: Grove) -> None:
        (tmp_path / "x").mkdir()
        place = grove.follow("one", "/x")
        grove.meanwhile["one goes"] = [lambda: grove.unfollow("one")]
        replace(tmp_path / "x")
        grove.tree.check(place)
        assert grove.heard == ["one goes"]
        assert not place.present

    scenario(tmp_path, play)


def test_holding_is_told_from_being_there(tmp_path: Path) -> None:
    """A place holds the directory that it opened, not one that came after it; asking tells nobody."""

    def play(grove: Grove) -> None:
        (tmp_path / "x").mkdir()
        place = grove.follow("one", "/x")
        assert grove.tree.holds(place)
        replace(tmp_path / "x")
        assert not grove.tree.holds(place)
        (tmp_path / "x").rmdir()
        assert not grove.tree.holds(place)
        assert grove.heard == []

    scenario(tmp_path, play)


def test_what_cannot_be_seen_has_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears of it, it is said, and somebody has to look again: then what has really gone is told as gone."""

    def unseen(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def play(grove: Grove) -> None:
        (tmp_path / "x").mkdir()
        place = grove.follow("one", "/x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", unseen)
            grove.tree.check(place)
            grove.follow("two", "/y")
            (tmp_path / "y").mkdir()
            grove.tree.check_all()
        assert grove.heard == []
        assert {sentence.partition(";")[0] for sentence in grove.said} == {
            f"cannot look for {tmp_path}/{name}: No space left on device" for name in "xy"
        }
        polling = [grove.tree.polling]
        grove.tree.check_all()
        assert grove.heard == ["two comes"]
        assert [*polling, grove.tree.polling] == [True, False]
        replace(tmp_path / "x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", unseen)
            grove.tree.check_all()
        grove.tree.check_all()
        assert grove.heard == ["two comes", "one goes", "one comes"]

    scenario(tmp_path, play)


def replace(path: Path) -> None:
    """Another directory under the same name."""
    path.rmdir()
    path.mkdir()


def test_what_is_seen_and_then_said_not_to_be_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would tell that it comes. Of one that has really gone between two looks there is not a word."""

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def play(grove: Grove) -> None:
        (tmp_path / "x").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", gone)
            grove.follow("one", "/x")
        assert (grove.heard, grove.tree.polling) == ([], True)
        assert [sentence.partition(";")[0] for sentence in grove.said] == [
            f"cannot open {tmp_path}/x: No such file or directory"
        ]
        grove.tree.check_all()
        assert grove.heard == ["one comes"]
        (tmp_path / "x").rmdir()
        grove.tree.check_all()
        assert not grove.tree.polling
        opened_now = os.open

        def just_gone(path: str, *flags: int, dir_fd: int | None = None) -> int:
            if path == "y":
                (tmp_path / "y").rmdir()
            return opened_now(path, *flags, dir_fd=dir_fd)

        (tmp_path / "y").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", just_gone)
            grove.follow("two", "/y")
        assert (len(grove.said), grove.tree.polling) == (1, False)

    scenario(tmp_path, play)
