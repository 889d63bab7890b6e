"""Cgroups come, go and lose their files in any order, also in the middle of being told: the story stays true."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeguardd.core.config import Policy, TargetSpec
from edgeguardd.core.events import CgroupAppeared, CgroupVanished, CountersMoved, Event, SampleTaken, TargetDropped
from edgeguardd.errors import TargetError
from tests.support.faketree import MIB, FakeCgroup, as_kernfs
from tests.support.scene import NEVER_S, Scene, about, job, play
from tests.support.wait import soon

OFTEN_S = 0.005
SPECS = (
    job("one", "/s/a"),
    job("two", "/s/a"),
    job("top", "/s"),
    job("deep", "/s/b/c"),
    TargetSpec("g", glob="/s/*"),
    TargetSpec("gg", glob="/*/*/c"),
    TargetSpec("u", unit="llm"),
)
PATHS = ("/s", "/s/a", "/s/b", "/s/b/c", "/x", "/llm.service")


class World:
    """What may happen to a tree and to the targets on it. A number says which of several."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.scene.targets._roster.most = 64
        self.peers: list[str] = []

    def there(self, path: str) -> bool:
        """Whether a cgroup is there."""
        return os.path.isdir(self.scene.tree.full(path))

    def usable(self, path: str) -> bool:
        """Whether it has the memory controller."""
        return os.path.exists(self.scene.tree.full(path) + "/memory.events")

    def make(self, path: str, number: int) -> None:
        if self.there(os.path.dirname(path)) and not self.there(path):
            limited = self.scene.tree.cgroup(path, high_bytes=10 * MIB if number % 2 else None)
            limited.events(oom_kill=number % 3)

    def remove(self, path: str, _: int) -> None:
        if self.there(path):
            self.scene.tree.remove(path)

    def replace(self, path: str, number: int) -> None:
        self.remove(path, number)
        self.make(path, number)

    def switch_off(self, path: str, _: int) -> None:
        if self.there(path):
            self._cgroup(path).switch_off()

    def switch_on(self, path: str, _: int) -> None:
        if self.there(path):
            self._cgroup(path).switch_on()

    def kill(self, path: str, _: int = 0) -> None:
        if self.usable(path):
            with open(self.scene.tree.full(path) + "/memory.events") as file:
                counted = dict(line.split() for line in file)
            self._cgroup(path).events(oom_kill=int(counted["oom_kill"]) + 1)

    def leave(self, _: str, number: int) -> None:
        if self.peers:
            self.scene.targets.release_peer(self.peers.pop(number % len(self.peers)))

    def join(self, path: str, _: int) -> None:
        try:
            self.peers.append(self.scene.targets.guard_peer(path, Policy()))
        except TargetError:
            return

    def reload(self, _: str, number: int) -> None:
        chosen = [spec for bit, spec in enumerate(SPECS) if number >> bit & 1]
        self.scene.apply(*chosen, slow_s=OFTEN_S if number >> 7 & 1 else NEVER_S)

    def sample(self, _: str, number: int) -> None:
        names = self.scene.targets.names()
        if names:
            self.scene.targets.sample_now(names[number % len(names)])

    def overflow(self, _: str, number: int) -> None:
        self.scene.targets._watch._start_again()

    def _cgroup(self, path: str) -> FakeCgroup:
        return FakeCgroup(self.scene.tree.full(path), path)

    def rests(self) -> bool:
        """Whether each target holds what is there now, and each match is a target."""
        rows = self.scene.targets._roster.targets.values()
        matches = {path for path in PATHS if os.path.dirname(path) == "/s" and self.there(path)}
        return {row.path for row in rows if row.name.startswith("g:")} == matches and all(
            row.attached == self.usable(row.path) and not any(link.watched.node.is_dead() for link in row.links)
            for row in rows
        )


# Others do these while something is told; the rest is the loop's own, which does one thing at a time.
TRICKS = (World.make, World.remove, World.replace, World.switch_off, World.switch_on, World.kill, World.leave)
DEEDS = {deed.__name__: deed for deed in (*TRICKS, World.join, World.reload, World.sample, World.overflow)}
NUMBERS = st.integers(0, 255)
STEPS = st.tuples(st.sampled_from(sorted(DEEDS)), st.sampled_from(PATHS), NUMBERS, st.integers(0, 2))
TRICK = st.tuples(st.sampled_from([deed.__name__ for deed in TRICKS]), st.sampled_from(PATHS), NUMBERS)


@given(st.lists(STEPS, min_size=10, max_size=60), st.lists(st.none() | TRICK, max_size=60))
@settings(max_examples=150)
def test_whatever_happens_the_story_stays_true(
    steps: list[tuple[str, str, int, int]], tricks: list[tuple[str, str, int] | None]
) -> None:
    """Targets come and go by turns, are sampled while there, and end up on what is there; a kill is told once to each.

    Nothing raises, and nothing stays open or watched for nobody.
    """

    async def scene(s: Scene) -> None:
        world = World(s)
        s.while_told = _played(world, iter(tricks))
        for deed, path, number, turns in steps:
            DEEDS[deed](world, path, number)
            for _ in range(turns):
                await asyncio.sleep(0)
        s.while_told = None
        s.apply(*SPECS, slow_s=OFTEN_S)
        await soon(world.rests, 5)
        _check_story(s.told)
        _check_kills(world)
        for name in world.peers:
            s.targets.release_peer(name)
        s.apply()
        assert s.targets.names() == []
        assert not s.targets._tree._top.kids
        assert not s.targets._watch._watches
        assert not s.targets._sampler._nodes._open

    path = tempfile.mkdtemp(prefix="edgeguardd-test-")
    try:
        with as_kernfs():
            play(Path(path), scene)
    finally:
        shutil.rmtree(path)


def _played(world: World, tricks: Iterator[tuple[str, str, int] | None]) -> Callable[[Event], None]:
    """Before each event that is told, the next trick; also before what a trick itself has told."""

    def play_next(_: Event) -> None:
        trick = next(tricks, None)
        if trick is not None:
            DEEDS[trick[0]](world, trick[1], trick[2])

    return play_next


def _check_story(told: list[Event]) -> None:
    there: set[str] = set()
    for event in told:
        match event:
            case CgroupAppeared():
                assert event.target not in there, f"{event} twice"
                there.add(event.target)
            case CgroupVanished() | TargetDropped():
                there.discard(event.target)
            case SampleTaken() | CountersMoved():
                assert about(event) in there, f"{event} of a cgroup that is not there"
            case _:
                pass


def _check_kills(world: World) -> None:
    s = world.scene

    def sample_all() -> None:
        for name in s.targets.names():
            s.targets.sample_now(name)

    sample_all()
    s.told.clear()
    for path in PATHS:
        world.kill(path)
    sample_all()
    for name, target in s.targets._roster.targets.items():
        told = [move.delta.oom_kill for move in s.of(CountersMoved, name) if move.local]
        assert told == ([1] if target.attached else [])
