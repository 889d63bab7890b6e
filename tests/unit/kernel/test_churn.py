"""Cgroups that go, come and lose their files in the middle of being looked at: nobody is told wrong, nothing leaks."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from edgeguardd.core.config import Policy
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    Event,
    SampleFailed,
    SampleTaken,
    TargetDropped,
)
from tests.support.descriptors import none_left, open_now
from tests.support.faketree import MIB, as_kernfs
from tests.support.scene import NEVER_S, OFTEN_S, Scene, about, job, play
from tests.support.wait import soon


@pytest.fixture(autouse=True)
def kernfs() -> Iterator[None]:
    """A file that was removed answers ENODEV for ever."""
    with as_kernfs():
        yield


# The memory controller is switched off and on


@pytest.mark.parametrize(
    ("later", "news"),
    [({"oom_kill": 1}, 1), ({"high": 9, "oom_kill": 3}, None), ({"high": 9, "oom_kill": 4}, 1), ({}, None)],
    ids=["new counters", "kept counters", "kept and counted", "nothing counted"],
)
def test_a_controller_switched_off_and_on_again(tmp_path: Path, later: Mapping[str, int], news: int | None) -> None:
    """The directory stays, its files are new ones: the target is attached again, and only what is new is told.

    The counters start from zero, except where another controller needs this one: then the kernel has only hidden it.
    """

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        cgroup.events(high=9, oom_kill=3)
        s.apply(job(), slow_s=OFTEN_S)
        s.told.clear()
        cgroup.switch_off()
        await soon(lambda: s.of(SampleFailed))
        assert s.kinds() == ["CgroupVanished", "SampleFailed"]
        assert "the memory controller is not enabled here" in s.of(SampleFailed)[0].reason
        assert s.targets.status()["job"].degraded == s.of(SampleFailed)[0].reason
        s.told.clear()
        cgroup.switch_on(**later)
        await soon(lambda: len(s.of(SampleTaken)) > 2)
        assert s.kinds()[:2] == ["CgroupAppeared", "SampleTaken"]
        assert len(s.of(CgroupAppeared)) == 1
        assert [move.delta.oom_kill for move in s.of(CountersMoved)] == ([] if news is None else [news])
        assert s.targets.status()["job"].degraded is None

    play(tmp_path, scene)


def test_a_cgroup_made_after_one_without_a_controller_counts_from_zero(tmp_path: Path) -> None:
    """What the one before had counted is not taken for its own."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        cgroup.events(oom_kill=3)
        s.apply(job(), slow_s=OFTEN_S)
        cgroup.switch_off()
        await soon(lambda: s.of(SampleFailed))
        s.told.clear()
        s.tree.remove("/job")
        # The engine takes it for degraded until it hears that it is gone.
        await soon(lambda: s.of(CgroupVanished))
        s.tree.cgroup("/.later").events(oom_kill=4)
        os.rename(s.tree.full("/.later"), s.tree.full("/job"))
        await soon(lambda: s.of(CountersMoved))
        assert s.of(CountersMoved)[0].delta.oom_kill == 4

    play(tmp_path, scene)


def test_dead_files_that_another_target_still_holds_are_not_used_again(tmp_path: Path) -> None:
    """Two targets share an ancestor; the one that looks again first opens the ancestor's new files."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/s", max_bytes=50 * MIB)
        one, two = s.tree.cgroup("/s/one"), s.tree.cgroup("/s/two")
        s.apply(job("one", "/s/one"), job("two", "/s/two"), slow_s=OFTEN_S)
        s.targets.set_interval("two", NEVER_S)
        for each in (one, two, above):
            each.switch_off()
        await soon(lambda: s.of(SampleFailed, "one"))
        s.told.clear()
        for cgroup, max_bytes in ((above, 60 * MIB), (two, None), (one, None)):
            cgroup.switch_on(max_bytes)
        await soon(lambda: s.of(SampleTaken, "one"))
        assert s.kinds()[:2] == ["CgroupAppeared", "SampleTaken"]
        assert (s.usage("one", 1).path, s.usage("one", 1).max_bytes) == ("/s", 60 * MIB)
        s.targets.sample_now("two")
        assert s.of(CgroupVanished) == [CgroupVanished("two")]
        await soon(lambda: s.of(SampleTaken, "two"))
        assert s.usage("two", 1).max_bytes == 60 * MIB

    play(tmp_path, scene)


# It goes while it is looked at


@pytest.mark.parametrize("made_again", [0, 1, 5])
def test_a_cgroup_that_goes_while_the_first_of_two_targets_is_told(tmp_path: Path, made_again: int) -> None:
    """Whatever comes in its place is opened once by each, and each of its counts is told once to each."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/s")
        s.apply(job("one", "/s/job"), job("two", "/s/job"))
        before = open_now()
        left = made_again

        def churn(event: Event) -> None:
            nonlocal left
            if isinstance(event, CgroupAppeared) and left >= 0:
                s.tree.remove("/s/job")
                if left > 0:
                    s.tree.cgroup("/s/job").events(oom_kill=1)
                left -= 1

        s.while_told = churn
        s.tree.cgroup("/s/job")
        await soon(lambda: left < 0 and not any(row.present for row in s.targets.status().values()))
        s.while_told = None
        none_left(before)
        made = s.tree.cgroup("/s/job")
        await soon(lambda: all(row.sample_age_s is not None and row.present for row in s.targets.status().values()))
        made.events(oom_kill=3)
        for name in ("one", "two"):
            s.targets.sample_now(name)
            assert [move.delta.oom_kill for move in s.of(CountersMoved, name)].count(3) == 1
        s.tree.remove("/s/job")
        await soon(lambda: not any(row.present for row in s.targets.status().values()))
        none_left(before)
        for name in ("one", "two"):
            turns = [event for event in s.told if isinstance(event, CgroupAppeared | CgroupVanished)]
            kinds = [type(event) for event in turns if event.target == name]
            assert kinds == [CgroupAppeared, CgroupVanished] * (len(kinds) // 2)
        assert s.of(SampleFailed) == []

    play(tmp_path, scene)


def test_a_target_dropped_while_another_of_its_cgroup_is_told(tmp_path: Path) -> None:
    """It hears no more, and holds nothing open."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/s")
        s.apply(job("one", "/s/job"), job("two", "/s/job"))
        before = open_now()
        s.while_told = lambda event: s.apply(job("one", "/s/job")) if isinstance(event, CgroupAppeared) else None
        s.tree.cgroup("/s/job")
        await soon(lambda: s.of(SampleTaken, "one"))
        s.while_told = None
        assert [type(event) for event in s.told if about(event) == "two"][1:] == [TargetDropped]
        s.tree.remove("/s/job")
        await soon(lambda: s.of(CgroupVanished, "one"))
        none_left(before)

    play(tmp_path, scene)


def test_a_target_that_ends_as_its_cgroup_is_replaced(tmp_path: Path) -> None:
    """The last subscriber goes with the old cgroup: the new one is not opened for nobody."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/s")
        s.apply(job("above", "/s"))
        s.tree.cgroup("/x")
        before = open_now()
        s.targets.guard_peer("/x", Policy())
        s.while_told = lambda event: s.targets.release_peer("/x") if isinstance(event, CgroupVanished) else None
        s.tree.remove("/x")
        s.tree.cgroup("/x")
        await soon(lambda: s.of(TargetDropped))
        none_left(before)

    play(tmp_path, scene)


def test_what_was_read_before_an_ancestor_went_is_told(tmp_path: Path) -> None:
    """The whole branch is removed between two reads: the kill that was still seen is not thrown away."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/s", max_bytes=50 * MIB)
        cgroup = s.tree.cgroup("/s/job")
        s.apply(job(path="/s/job"))
        s.told.clear()
        cgroup.events(oom_kill=1)
        above.switch_off()
        s.targets.sample_now("job")
        assert s.kinds() == ["CountersMoved", "CgroupVanished"]

    play(tmp_path, scene)
