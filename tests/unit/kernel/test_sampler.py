"""What is read of a target when, what of its ancestors, and what a fault costs; on a tree in a temporary directory."""

import asyncio
import errno
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.core.config import Policy, SamplingConfig
from edgeguardd.core.events import (
    CgroupAppeared,
    CountersMoved,
    Event,
    SampleFailed,
    SampleTaken,
    TargetAdded,
)
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.targets import Targets
from edgeguardd.kernel.wakeups import Begun, Cause
from tests.support.faketree import MIB, FakeTree
from tests.support.scene import NEVER_S, OFTEN_S, Scene, about, job, play
from tests.support.wait import soon

# Sampling


def test_a_target_that_exists_is_told_in_order_and_its_old_kills_raise_nothing(tmp_path: Path) -> None:
    """Added, appeared, sampled; what was counted before the daemon came is not news."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job", max_bytes=100 * MIB)
        cgroup.events(oom_kill=7)
        cgroup.usage(40 * MIB)
        s.apply(job())
        assert s.told[:2] == [TargetAdded("job", "/job", Policy()), CgroupAppeared("job")]
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken"]
        assert (s.usage("job").needed_bytes, s.usage("job").max_bytes) == (40 * MIB, 100 * MIB)

    play(tmp_path, scene)


def test_a_count_comes_after_the_sample_of_the_same_reading(tmp_path: Path) -> None:
    """And holds only what is new."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        cgroup.events(high=10, oom_kill=1)
        s.apply(job())
        s.told.clear()
        cgroup.usage(9 * MIB)
        cgroup.events(high=14, oom_kill=2)
        s.targets.sample_now("job")
        assert s.kinds() == ["SampleTaken", "CountersMoved"]
        moved = s.of(CountersMoved)[0]
        assert (moved.path, moved.local, moved.delta.high, moved.delta.oom_kill) == ("/job", True, 4, 1)
        assert s.usage("job").needed_bytes == 9 * MIB
        s.targets.sample_now("job")
        assert s.kinds()[2:] == ["SampleTaken"]

    play(tmp_path, scene)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.ENOMEM])
def test_what_has_been_told_is_not_told_again_after_its_directory_could_not_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The cgroup was there all the time: only what it counts meanwhile is news, and it is guarded meanwhile."""
    fails = threading.Event()
    seen = os.stat

    def stat(name: Any, **named: Any) -> os.stat_result:
        if fails.is_set() and name == "job":
            raise OSError(number, os.strerror(number))
        return seen(name, **named)

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        cgroup.events(high=497, oom_kill=3)
        s.apply(job(), slow_s=OFTEN_S)
        monkeypatch.setattr(os, "stat", stat)
        s.told.clear()
        fails.set()
        await soon(lambda: s.targets.faults)
        cgroup.events(high=498, oom_kill=3)
        await soon(lambda: s.of(CountersMoved))
        fails.clear()
        samples = len(s.of(SampleTaken))
        await soon(lambda: len(s.of(SampleTaken)) > samples + 2)
        assert [(moved.delta.high, moved.delta.oom_kill) for moved in s.of(CountersMoved)] == [(1, 0)]
        assert set(s.kinds()) == {"SampleTaken", "CountersMoved"}
        assert [sentence.startswith("cannot look for ") for sentence in s.targets.faults] == [True]

    play(tmp_path, scene)


def test_what_a_reading_began_with_is_known_while_it_is_told(tmp_path: Path) -> None:
    """The timer, and since when; for one that was asked for, nothing. Whoever is told may fail: then it is over too."""

    async def scene(s: Scene) -> None:
        begun: list[Begun | None] = []
        loop = asyncio.get_running_loop()

        def told(event: Event) -> None:
            if isinstance(event, SampleTaken):
                begun.append(s.targets.begun)
                assert s.targets.begun is None, "the timer's"

        s.tree.cgroup("/job")
        before = loop.time()
        s.while_told = told
        s.apply(job(), slow_s=OFTEN_S)
        assert begun == [None]
        await soon(lambda: len(begun) > 1)
        timed = begun[1]
        assert timed is not None
        assert timed.cause is Cause.TIMER
        assert before <= timed.at <= loop.time()
        assert s.targets.begun is None
        assert "the timer's" in s.defects[0]
        s.defects.clear()
        s.while_told = lambda event: begun.append(s.targets.begun)
        alarm = s.targets._roster.targets["job"].alarm
        assert alarm is not None
        alarm._on_stall()  # as the kernel's trigger has it called; plain files have none
        stalled = begun[-1]
        assert stalled is not None
        assert stalled.cause is Cause.STALL
        s.while_told = None

    play(tmp_path, scene)


def test_the_slow_poll_sees_what_no_wake_up_told(tmp_path: Path) -> None:
    """Plain files cannot wake: status says "poll", and the timer finds the count all the same."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        s.apply(job(), slow_s=OFTEN_S)
        cgroup.events(max=3)
        await soon(lambda: s.of(CountersMoved))
        assert s.of(CountersMoved)[0].delta.max == 3
        assert s.targets.status()["job"].watch == "poll"

    play(tmp_path, scene)


def test_the_interval_is_the_engines_to_choose(tmp_path: Path) -> None:
    """A shorter one takes effect at once, a longer one stops the sampling in between."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job())
        s.targets.set_interval("job", OFTEN_S)
        await soon(lambda: len(s.of(SampleTaken)) > 5)
        s.targets.set_interval("job", NEVER_S)
        s.targets.set_interval("nobody", OFTEN_S)
        count = len(s.told)
        for _ in range(20):
            await asyncio.sleep(OFTEN_S / 5)
        assert len(s.told) == count

    play(tmp_path, scene)


def test_an_interval_chosen_while_the_first_sample_is_told_makes_no_second_timer(tmp_path: Path) -> None:
    """The engine answers a sample with the interval that it wants; a slower one later silences the target again."""

    async def run() -> None:
        tree = FakeTree(tmp_path)
        tree.cgroup("/job")
        told: list[Event] = []

        def emit(event: Event) -> None:
            told.append(event)
            if isinstance(event, SampleTaken):
                targets.set_interval("job", OFTEN_S if len(told) < 9 else NEVER_S)

        targets = Targets(find_root(str(tmp_path)), asyncio.get_running_loop(), emit)
        try:
            targets.apply([job()], SamplingConfig(slow_s=NEVER_S))
            await soon(lambda: len(told) >= 9)
            for _ in range(20):
                await asyncio.sleep(OFTEN_S / 5)
            assert len(told) == 9
        finally:
            targets.close()

    asyncio.run(run())


def test_a_wake_up_samples_every_target_that_stands_on_the_cgroup(tmp_path: Path) -> None:
    """Two names for one cgroup are two targets; the file is read once for both."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        s.apply(job("one"), job("two"))
        s.told.clear()
        cgroup.events(oom_kill=1)
        watched = s.targets._roster.targets["one"].links[0].watched
        s.targets._sampler._woken(watched)
        assert [about(event) for event in s.told] == ["one", "one", "two", "two"]
        assert len(s.of(CountersMoved)) == 2

    play(tmp_path, scene)


# Ancestors


def test_ancestors_with_a_limit_follow_the_own_figures_towards_the_root(tmp_path: Path) -> None:
    """Those without one are left out."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/a", max_bytes=900 * MIB)
        s.tree.cgroup("/a/b")
        s.tree.cgroup("/a/b/c", high_bytes=300 * MIB)
        s.tree.cgroup("/a/b/c/job")
        s.apply(job(path="/a/b/c/job"))
        sample = s.of(SampleTaken)[-1].sample
        assert [usage.path for usage in sample.usages] == ["/a/b/c/job", "/a/b/c", "/a"]
        assert s.targets.status()["job"].limited_by == ("/a/b/c", "/a")

    play(tmp_path, scene)


def test_a_limit_set_on_an_ancestor_at_run_time_is_found_and_lost_again(tmp_path: Path) -> None:
    """`systemctl set-property` on the slice. Its earlier counts are not news."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/a")
        above.events(local=True, max=5)
        s.tree.cgroup("/a/job")
        s.apply(job(path="/a/job"), slow_s=OFTEN_S)
        assert len(s.of(SampleTaken)[-1].sample.usages) == 1
        above.limits(max_bytes=50 * MIB)
        await soon(lambda: len(s.of(SampleTaken)[-1].sample.usages) == 2)
        assert s.of(CountersMoved) == []
        above.events(local=True, max=6)
        await soon(lambda: s.of(CountersMoved))
        moved = s.of(CountersMoved)[0]
        assert (moved.path, moved.local, moved.delta.max) == ("/a", False, 1)
        above.limits()
        await soon(lambda: len(s.of(SampleTaken)[-1].sample.usages) == 1)

    play(tmp_path, scene)


def test_a_kill_in_a_neighbour_is_not_counted_against_the_target(tmp_path: Path) -> None:
    """The slice's memory.events repeats every kill below it; only its local file tells whose limit was met."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/a", max_bytes=50 * MIB)
        s.tree.cgroup("/a/job")
        s.apply(job(path="/a/job"))
        above.events(oom=1, oom_kill=1)
        s.targets.sample_now("job")
        assert s.of(CountersMoved) == []

    play(tmp_path, scene)


def test_an_unreadable_ancestor_leaves_the_target_its_own_figures(tmp_path: Path) -> None:
    """It is said once, and status keeps saying it."""

    async def scene(s: Scene) -> None:
        above = s.tree.cgroup("/a", max_bytes=50 * MIB)
        s.tree.cgroup("/a/job")
        s.apply(job(path="/a/job"))
        above.write("memory.max", "rubbish")
        s.targets.sample_now("job")
        s.targets.sample_now("job")
        assert [usage.path for usage in s.of(SampleTaken)[-1].sample.usages] == ["/a/job"]
        assert len(s.faults) == 1
        assert "/a/memory.max" in s.faults[0]
        assert "/a/memory.max" in (s.targets.status()["job"].degraded or "")
        above.limits(max_bytes=50 * MIB)
        s.targets.sample_now("job")
        assert s.targets.status()["job"].degraded is None

    play(tmp_path, scene)


# Faults


def test_one_targets_error_does_not_stop_another(tmp_path: Path) -> None:
    """It is told once for each reason, and a good reading ends it."""

    async def scene(s: Scene) -> None:
        bad = s.tree.cgroup("/bad")
        s.tree.cgroup("/good")
        s.apply(job("bad", "/bad"), job("good", "/good"), slow_s=OFTEN_S)
        bad.write("memory.current", "")
        await soon(lambda: s.of(SampleFailed, "bad"))
        count = len(s.of(SampleTaken, "good"))
        await soon(lambda: len(s.of(SampleTaken, "good")) > count + 5)
        assert len(s.of(SampleFailed)) == 1
        assert "memory.current: it is empty" in s.of(SampleFailed)[0].reason
        status = s.targets.status()["bad"]
        assert status.errors > 1
        assert status.degraded == s.of(SampleFailed)[0].reason
        assert s.targets.oldest_sample_age_s(asyncio.get_running_loop().time()) is not None
        s.told.clear()
        bad.write("memory.current", "4096\n")
        await soon(lambda: s.of(SampleTaken, "bad"))
        assert s.targets.status()["bad"].degraded is None

    play(tmp_path, scene)


def test_a_kill_is_told_even_when_the_figures_cannot_be_read(tmp_path: Path) -> None:
    """The counters are read first and on their own."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        cgroup.write("memory.current", "?")
        cgroup.events(oom_kill=1)
        s.targets.sample_now("job")
        assert s.kinds() == ["SampleFailed", "CountersMoved"]

    play(tmp_path, scene)


def test_unreadable_counters_leave_the_figures(tmp_path: Path) -> None:
    """What was counted meanwhile is told when they can be read again."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        cgroup.events(oom_kill=1)
        s.apply(job())
        s.told.clear()
        cgroup.write("memory.events", "")
        s.targets.sample_now("job")
        assert s.kinds() == ["SampleTaken"]
        assert "memory.events" in (s.targets.status()["job"].degraded or "")
        cgroup.events(oom_kill=3)
        s.targets.sample_now("job")
        assert s.of(CountersMoved)[0].delta.oom_kill == 2

    play(tmp_path, scene)


def test_a_cgroup_without_the_controller_is_degraded_until_it_has_it(tmp_path: Path) -> None:
    """The files come without any event, so the timer looks."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        cgroup.unlink("memory.events")
        s.apply(job(), slow_s=OFTEN_S)
        assert s.kinds() == ["TargetAdded", "SampleFailed"]
        assert "the memory controller is not enabled here" in s.of(SampleFailed)[0].reason
        cgroup.events(oom_kill=4)
        await soon(lambda: s.of(SampleTaken))
        assert s.kinds()[2:4] == ["CgroupAppeared", "SampleTaken"]
        assert s.of(CountersMoved) == []

    play(tmp_path, scene)


@pytest.mark.parametrize("room", [0, 1, 3, 6])
def test_running_out_of_descriptors_is_said_and_got_over(tmp_path: Path, room: int) -> None:
    """Wherever in the opening it happens: a sentence with the remedy, none lost, guarded when there is room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/a", max_bytes=MIB)
        s.tree.cgroup("/a/job")
        taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, hard))
        try:
            for fd in taken[:room]:
                os.close(fd)
            s.apply(job(path="/a/job"), slow_s=OFTEN_S)
            said = [event.reason for event in s.of(SampleFailed)] + s.faults
            assert any("Too many open files" in sentence for sentence in said)
            assert all("raise LimitNOFILE=" in sentence for sentence in said)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken[room:]:
                os.close(fd)
        await soon(lambda: s.of(SampleTaken) and len(s.of(SampleTaken)[-1].sample.usages) == 2)

    play(tmp_path, scene)
