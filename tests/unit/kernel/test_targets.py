"""Targets on a fake tree: what is told when cgroups come, count, break, go and come again."""

import asyncio
import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

from edgeguardd.core import wire
from edgeguardd.core.config import Mark, Policy, SamplingConfig, TargetSpec
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    Event,
    SampleFailed,
    SampleTaken,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.errors import TargetError
from edgeguardd.kernel import treewatch
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.targets import Targets
from edgeguardd.kernel.wakeups import Begun, Cause
from tests.support.faketree import MIB, FakeCgroup, FakeTree
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


# Gone and back


def test_removal_and_re_creation_are_told_at_once(tmp_path: Path) -> None:
    """By inotify, without any timer; the new cgroup's counts are all news, for it was made on our watch."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job").events(oom_kill=5)
        s.apply(job())
        s.told.clear()
        s.tree.remove("/job")
        await soon(lambda: s.of(CgroupVanished))
        assert s.targets.status()["job"].present is False
        assert s.targets.oldest_sample_age_s(0.0) is None
        s.told.clear()
        made = s.tree.cgroup("/.later")
        made.events(oom_kill=1)
        os.rename(made.path, s.tree.full("/job"))
        await soon(lambda: s.of(CountersMoved))
        assert s.kinds() == ["CgroupAppeared", "SampleTaken", "CountersMoved"]
        assert s.of(CountersMoved)[0].delta.oom_kill == 1

    play(tmp_path, scene)


def test_a_cgroup_replaced_between_two_looks_is_a_new_one(tmp_path: Path) -> None:
    """Equal counters do not hide it: the inode differs, and the directory held open keeps it from being reused."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job").events(oom_kill=1)
        s.apply(job())
        s.told.clear()
        s.tree.remove("/job")
        s.tree.cgroup("/job").events(oom_kill=1)
        await soon(lambda: s.of(CgroupAppeared))
        assert s.kinds()[-4:] == ["CgroupVanished", "CgroupAppeared", "SampleTaken", "CountersMoved"]
        assert s.of(CountersMoved)[-1].delta.oom_kill == 1

    play(tmp_path, scene)


def test_what_was_counted_just_before_the_removal_is_told_first(tmp_path: Path) -> None:
    """The files are read a last time, if they still answer."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        cgroup.events(oom_kill=1)
        shutil.rmtree(cgroup.path)
        await soon(lambda: s.of(CgroupVanished))
        assert s.kinds() == ["SampleTaken", "CountersMoved", "CgroupVanished"]

    play(tmp_path, scene)


def test_enodev_means_gone_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead descriptor met before inotify told of the removal: vanished once, no failure, no spin."""
    real = os.pread

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        s.tree.remove("/job")

        def pread(fd: int, size: int, offset: int) -> bytes:
            if "(deleted)" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.ENODEV, "No such device")
            return real(fd, size, offset)

        monkeypatch.setattr(os, "pread", pread)
        s.targets.sample_now("job")
        assert s.kinds() == ["CgroupVanished"]
        s.tree.cgroup("/job")
        await soon(lambda: s.of(SampleTaken))
        assert s.kinds() == ["CgroupVanished", "CgroupAppeared", "SampleTaken"]

    play(tmp_path, scene)


def test_an_ancestor_removed_and_made_again_is_followed_down(tmp_path: Path) -> None:
    """The whole branch goes, and comes back step by step."""

    async def scene(s: Scene) -> None:
        for path in ("/a", "/a/b", "/a/b/job"):
            s.tree.cgroup(path)
        s.apply(job(path="/a/b/job"))
        for _ in range(3):
            s.told.clear()
            s.tree.remove("/a")
            await soon(lambda: s.of(CgroupVanished))
            s.tree.cgroup("/a")
            await asyncio.sleep(0)
            s.tree.cgroup("/a/b")
            s.tree.cgroup("/a/b/job")
            await soon(lambda: bool(s.of(SampleTaken)) and bool(s.of(CgroupAppeared)))
        assert len(s.of(CgroupVanished)) == 1

    play(tmp_path, scene)


def test_many_removals_leave_no_descriptor_and_no_watch(tmp_path: Path) -> None:
    """Hundreds of rounds of `systemctl restart`, and the daemon is as small as before."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/a.slice", max_bytes=MIB)
        s.apply(job(path="/a.slice/job.service"), TargetSpec("u", unit="job"), TargetSpec("g", glob="/*/job*"))
        descriptors, watches = [], set()
        for turn in range(300):
            s.told.clear()
            s.tree.cgroup("/a.slice/job.service")
            await soon(lambda: len(s.of(CgroupAppeared)) == 3)
            s.tree.remove("/a.slice/job.service")
            await soon(lambda: len(s.of(CgroupVanished)) == 3 and s.of(TargetDropped))
            if turn > 10:
                descriptors.append(len(os.listdir("/proc/self/fd")))
                watches.add(len(s.targets._watch._watches))
        # What tests before this one have left to the collector may go meanwhile; a leak would make it hundreds more.
        assert descriptors[-1] <= descriptors[0]
        assert len(watches) == 1
        assert s.faults == []

    play(tmp_path, scene)


# Without inotify


def test_without_inotify_everything_is_found_by_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once; removals, re-creations, units and globs are found a little later."""

    class Refusing:
        def __init__(self, **_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(treewatch, "Inotify", Refusing)

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job(), TargetSpec("u", unit="llm"), TargetSpec("g", glob="/pod*/c"), slow_s=OFTEN_S)
        assert len(s.faults) == 1
        assert "Too many open files" in s.faults[0]
        s.tree.remove("/job")
        await soon(lambda: s.of(CgroupVanished, "job"))
        s.tree.cgroup("/job")
        await soon(lambda: len(s.of(CgroupAppeared, "job")) == 2)
        s.tree.cgroup("/own.slice")
        s.tree.cgroup("/own.slice/llm.service")
        s.tree.cgroup("/pod1")
        s.tree.cgroup("/pod1/c")
        await soon(lambda: s.of(CgroupAppeared, "u") and s.of(CgroupAppeared, "g:/pod1/c"))
        s.tree.remove("/pod1")
        await soon(lambda: s.of(TargetDropped, "g:/pod1/c"))
        assert len(s.faults) == 1

    play(tmp_path, scene)


# Specs


def test_a_target_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    """Its path is known from the start."""

    async def scene(s: Scene) -> None:
        s.apply(job(path="/not/yet"), TargetSpec("u", unit="llm"))
        assert [(event.target, event.path) for event in s.of(TargetAdded)] == [
            ("job", "/not/yet"),
            ("u", "/system.slice/llm.service"),
        ]
        assert s.kinds() == ["TargetAdded", "TargetAdded"]
        s.tree.cgroup("/not")
        s.tree.cgroup("/not/yet")
        await soon(lambda: s.of(CgroupAppeared, "job"))

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        ("llm", "/system.slice/llm.service"),
        ("llm.service", "/edge.slice/edge-ai.slice/llm.service"),
        ("llm@main.service", "/system.slice/system-llm.slice/llm@main.service"),
        ("box.scope", "/machine.slice/box.scope"),
        ("edge-ai.slice", "/edge.slice/edge-ai.slice"),
        ("a\\x2db.service", "/system.slice/a\\x2db.service"),
        ("cgroup.service", "/system.slice/_cgroup.service"),
        ("llm", "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service"),
    ],
)
def test_a_unit_is_found_in_whatever_slice_it_runs(tmp_path: Path, unit: str, path: str) -> None:
    """System services, instances in their own slice, scopes, slices, escaped names, a user's services."""

    async def scene(s: Scene) -> None:
        parts = path.split("/")[1:]
        for depth in range(1, len(parts) + 1):
            s.tree.cgroup("/" + "/".join(parts[:depth]))
        s.tree.cgroup("/elsewhere")
        s.tree.cgroup(f"/elsewhere/{parts[-1]}")
        s.apply(TargetSpec("u", unit=unit))
        assert s.of(TargetAdded)[0].path == path
        assert s.of(CgroupAppeared, "u")

    play(tmp_path, scene)


def test_a_unit_that_moves_to_another_slice_is_followed(tmp_path: Path) -> None:
    """Slice= was changed and the unit restarted: the target keeps its name and gets its new path."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/system.slice")
        s.tree.cgroup("/edge.slice")
        s.tree.cgroup("/system.slice/llm.service").events(oom_kill=1)
        s.apply(TargetSpec("u", unit="llm"))
        s.tree.remove("/system.slice/llm.service")
        await soon(lambda: s.of(CgroupVanished))
        s.told.clear()
        s.tree.cgroup("/edge.slice/llm.service")
        await soon(lambda: s.of(SampleTaken))
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken"]
        assert s.of(TargetAdded)[0] == TargetAdded("u", "/edge.slice/llm.service", Policy())

    play(tmp_path, scene)


def test_a_template_stands_for_all_of_its_instances(tmp_path: Path) -> None:
    """Each is a target of its own, as with a glob."""

    async def scene(s: Scene) -> None:
        for path in ("/system.slice", "/system.slice/system-llm.slice", "/system.slice/system-llm.slice/llm@a.service"):
            s.tree.cgroup(path)
        s.apply(TargetSpec("u", unit="llm@.service"))
        s.tree.cgroup("/system.slice/system-llm.slice/llm@b.service")
        await soon(lambda: len(s.of(CgroupAppeared)) == 2)
        assert s.targets.names() == [
            "u:/system.slice/system-llm.slice/llm@a.service",
            "u:/system.slice/system-llm.slice/llm@b.service",
        ]

    play(tmp_path, scene)


def test_a_glob_gives_one_target_for_each_match_while_it_is_there(tmp_path: Path) -> None:
    """Only whole components match, hidden names do not; a match made on our watch counts from zero."""

    async def scene(s: Scene) -> None:
        for path in ("/k", "/k/pod1", "/k/pod1/c", "/k/pod2", "/k/other", "/k/other/c", "/k/pod1/c/deep"):
            s.tree.cgroup(path)
        s.apply(TargetSpec("g", glob="/k/pod?/*"))
        assert s.targets.names() == ["g:/k/pod1/c"]
        s.told.clear()
        made = s.tree.cgroup("/k/later")
        made.events(oom_kill=2)
        os.rename(made.path, s.tree.full("/k/pod2/x"))
        await soon(lambda: s.of(CountersMoved))
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken", "CountersMoved"]
        assert s.of(TargetAdded)[0].target == "g:/k/pod2/x"
        s.tree.remove("/k/pod1")
        await soon(lambda: s.of(TargetDropped))
        assert s.of(TargetDropped) == [TargetDropped("g:/k/pod1/c")]
        assert s.targets.names() == ["g:/k/pod2/x"]

    play(tmp_path, scene)


def test_names_that_are_not_utf_8_are_guarded_and_told_in_plain_text(tmp_path: Path) -> None:
    """Whatever a container runtime writes."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/pod\udcff\n")
        s.apply(TargetSpec("g", glob="/pod*"))
        assert s.of(CgroupAppeared)
        for event in s.told:
            about(event).encode()
        assert s.usage(s.targets.names()[0]).path.isprintable()

    play(tmp_path, scene)


def test_cgroups_whose_names_look_alike_are_guarded_each(tmp_path: Path) -> None:
    """One has a control character in its name, the other how that is shown; a third is long."""
    path = "/k/" + "0123456789abcdef" * 12 + ".scope"

    async def scene(s: Scene) -> None:
        for each in ("/k", "/k/a\x01b", "/k/a\\x01b", path):
            s.tree.cgroup(each)
        s.apply(TargetSpec("g", glob="/k/*"))
        assert s.faults == []
        names = s.targets.names()
        assert len(set(names)) == 3
        assert "g:/k/a\\x01b" in names
        for name in names:
            hello = wire.decode_client(wire.encode(wire.Hello("x", target=name)).rstrip())
            assert isinstance(hello, wire.Hello)
            assert s.targets.join_peer(hello.target or "") == name
        assert s.targets.contains(next(name for name in names if name.endswith("cdef.scope")), path)

    play(tmp_path, scene)


@pytest.mark.parametrize("name", ["pod\udcff", "pod\n\x1b[2J", "pod\u202e"], ids=["not UTF-8", "terminal", "override"])
@pytest.mark.parametrize("broken", ["memory.current", "memory.events", "memory.stat", "memory.high", "all"])
def test_what_is_said_of_a_badly_named_cgroup_can_be_printed(tmp_path: Path, name: str, broken: str) -> None:
    """Reasons go into logs, JSON and terminals: the name in them is escaped, whichever file cannot be used."""

    async def scene(s: Scene) -> None:
        cgroup = s.tree.cgroup(f"/{name}")
        if broken == "all":
            cgroup.unlink("memory.events")
        else:
            cgroup.break_file(broken)
        s.apply(TargetSpec("g", glob="/pod*"))
        (status,) = s.targets.status().values()
        said = [status.degraded, *(event.reason for event in s.of(SampleFailed)), *s.faults]
        assert status.degraded is not None
        for sentence in filter(None, said):
            sentence.encode()
            assert sentence.isprintable()
            assert "pod" in sentence

    play(tmp_path, scene)


def test_more_matches_than_targets_may_be_are_said_once(tmp_path: Path) -> None:
    """The others are guarded."""

    async def scene(s: Scene) -> None:
        for number in range(12):
            s.tree.cgroup(f"/pod{number:02}")
        s.apply(TargetSpec("g", glob="/pod*"))
        assert len(s.targets.names()) == 8
        assert len(s.faults) == 4
        assert "max_targets = 8 is reached" in s.faults[0]

    play(tmp_path, scene)


def test_what_there_was_no_room_for_is_guarded_when_there_is(tmp_path: Path) -> None:
    """Pods end, and those that were turned away take their places; so do targets named by path or unit."""

    async def scene(s: Scene) -> None:
        for path in ("/job", "/llm.service", *(f"/pod{number:02}" for number in range(12))):
            s.tree.cgroup(path).events(oom_kill=4)
        s.apply(TargetSpec("g", glob="/pod*"), job(), TargetSpec("u", unit="llm"))
        assert [f"g:/pod{number:02}" for number in range(8)] == s.targets.names()
        said = len(s.faults)
        for number in (8, *range(7)):
            s.tree.remove(f"/pod{number:02}")
        s.tree.cgroup("/own.slice")
        os.rename(s.tree.full("/llm.service"), s.tree.full("/own.slice/llm.service"))
        await soon(lambda: len(s.targets.names()) == 6 and s.of(SampleTaken, "u"))
        assert {*s.targets.names()} == {"job", "u", *(f"g:/pod{number:02}" for number in (7, 9, 10, 11))}
        assert s.targets.status()["u"].path == "/own.slice/llm.service"
        assert len(s.of(SampleTaken, "u")) == len(s.of(SampleTaken, "g:/pod11")) == 1
        # Its kills are as old as with any cgroup that was there before it was guarded.
        assert s.of(CountersMoved) == []
        assert len(s.faults) == said
        s.tree.remove("/job")
        await soon(lambda: s.of(CgroupVanished, "job"))
        assert len(s.targets.names()) == 6

    play(tmp_path, scene)


def test_a_path_that_is_none_costs_its_own_target_only(tmp_path: Path) -> None:
    """It is said, and the rest is guarded."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job("out", "/../x"), job())
        assert s.targets.names() == ["job"]
        assert len(s.faults) == 1

    play(tmp_path, scene)


# Whoever may make cgroups may make many


@pytest.mark.parametrize("before", [True, False], ids=["before", "on our watch"])
def test_slices_nested_without_end(tmp_path: Path, before: bool) -> None:
    """Any user of systemd can nest slices: that ends neither the daemon nor its descriptors."""
    manager = "/user.slice/user-1.slice/user@1.service"

    async def scene(s: Scene) -> None:
        for path in ("/user.slice", "/user.slice/user-1.slice", manager, "/system.slice"):
            s.tree.cgroup(path)
        deep = s.tree.full(manager) + "/a.slice" * 450
        if before:
            os.makedirs(deep)
        s.apply(TargetSpec("u", unit="llm"))
        os.makedirs(deep, exist_ok=True)
        await soon(lambda: s.faults)
        assert "cannot look into all directories below " + manager in s.faults[0]
        assert len(s.targets._watch._watches) < 100
        s.tree.cgroup("/system.slice/new.slice")
        s.tree.cgroup("/system.slice/new.slice/llm.service")
        await soon(lambda: s.of(SampleTaken, "u"))
        assert len(s.faults) == 1

    play(tmp_path, scene)


@pytest.mark.parametrize("depth", [0, 4])
def test_a_users_cgroup_does_not_stand_in_for_the_systems_unit(tmp_path: Path, depth: int) -> None:
    """Any user can call a cgroup llm.service: that is the unit only while the system itself runs none."""
    slices = ["/system.slice", *(f"/system.slice{'/x.slice' * number}" for number in range(1, depth + 1))]
    real = slices[-1] + "/llm.service"
    fake = "/user.slice/user-1.slice/user@1.service/llm.service"

    async def scene(s: Scene) -> None:
        for path in (*slices, "/user.slice", "/user.slice/user-1.slice", os.path.dirname(fake), fake, real):
            s.tree.cgroup(path)
        s.apply(TargetSpec("u", unit="llm"))
        for _ in range(2):
            assert s.targets.status()["u"].path == real
            s.tree.remove(real)
            await soon(lambda: s.targets.status()["u"].path == fake)
            s.told.clear()
            s.tree.cgroup(real).events(oom_kill=1)
            await soon(lambda: s.targets.status()["u"].path == real)
            told = ["CgroupVanished", "TargetAdded", "CgroupAppeared", "SampleTaken", "CountersMoved"]
            assert s.kinds()[-5:] == told

    play(tmp_path, scene)


def test_slices_of_one_user_without_end(tmp_path: Path) -> None:
    """They share an allowance of their own, so that what the system makes later is still seen; room is used again."""
    manager = "/user.slice/user-1.slice/user@1.service"

    async def scene(s: Scene) -> None:
        for path in ("/user.slice", "/user.slice/user-1.slice", manager, "/system.slice"):
            s.tree.cgroup(path)
        s.apply(TargetSpec("u", unit="llm"), TargetSpec("v", unit="users.service"))
        for number in range(300):
            os.mkdir(f"{s.tree.full(manager)}/x{number}.slice")
        await soon(lambda: s.faults)
        assert len(s.faults) == 1
        assert len(s.targets._watch._watches) < 100
        s.tree.cgroup("/system.slice/new.slice")
        s.tree.cgroup("/system.slice/new.slice/llm.service")
        await soon(lambda: s.of(SampleTaken, "u"))
        for number in range(300):
            os.rmdir(f"{s.tree.full(manager)}/x{number}.slice")
        await soon(lambda: len(s.targets._watch._watches) < 20)
        s.tree.cgroup(manager + "/app.slice")
        s.tree.cgroup(manager + "/app.slice/users.service")
        await soon(lambda: s.of(SampleTaken, "v"))

    play(tmp_path, scene)


def test_a_cgroup_too_deep_to_be_guarded(tmp_path: Path) -> None:
    """Each level takes descriptors, so no subscriber chooses how many. Inside a target it may live anywhere."""
    deep = "/a" * 300

    async def scene(s: Scene) -> None:
        os.makedirs(s.tree.full(deep))
        with pytest.raises(TargetError, match="more than 32 levels deep; make a cgroup above it the target"):
            s.targets.guard_peer(deep, Policy())
        s.apply(job("deep", deep), TargetSpec("g", glob="/*" * 300))
        assert s.targets.names() == []
        assert len(s.faults) == 2
        shutil.rmtree(s.tree.full("/a"))
        s.tree.cgroup("/a")
        s.apply(job("outer", "/a"))
        assert s.targets.guard_peer(deep, Policy()) == "outer"

    play(tmp_path, scene)


# Reload


def test_a_reload_touches_only_what_changed(tmp_path: Path) -> None:
    """Unchanged targets go on without a gap, a new policy is told, a new path is another target."""

    async def scene(s: Scene) -> None:
        for name in ("keep", "policy", "gone", "moved", "moved2", "new"):
            s.tree.cgroup(f"/{name}")
        before = [job(name, f"/{name}") for name in ("keep", "policy", "gone", "moved")]
        s.apply(*before)
        s.told.clear()
        strict = Policy(high=Mark(ratio=0.5))
        s.apply(before[0], job("policy", "/policy", strict), job("moved", "/moved2"), job("new", "/new"))
        assert s.of(TargetDropped) == [TargetDropped("gone"), TargetDropped("moved")]
        assert s.of(TargetAdded) == [
            TargetAdded("policy", "/policy", strict),
            TargetAdded("moved", "/moved2", Policy()),
            TargetAdded("new", "/new", Policy()),
        ]
        assert {event.target for event in s.of(CgroupAppeared)} == {"moved", "new"}
        s.apply(before[0], job("policy", "/policy", strict), job("moved", "/moved2"), job("new", "/new"))
        assert len(s.of(TargetAdded)) == 3

    play(tmp_path, scene)


def test_a_reload_reaches_the_targets_of_subscribers(tmp_path: Path) -> None:
    """They are judged by [defaults]: new ones are told, the same ones are not."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.tree.cgroup("/x")
        s.apply(job())
        old, new = Policy(), Policy(high=Mark(ratio=0.5))
        s.targets.guard_peer("/x", old)
        s.told.clear()
        s.targets.apply([job()], SamplingConfig(slow_s=NEVER_S), old)
        assert s.told == []
        for _ in range(2):
            s.targets.apply([job()], SamplingConfig(slow_s=NEVER_S), new)
            assert s.told == [TargetAdded("/x", "/x", new)]
        assert s.targets.guard_peer("/x", new) == "/x"
        assert len(s.told) == 1

    play(tmp_path, scene)


def test_a_reload_changes_the_slow_interval(tmp_path: Path) -> None:
    """Of those that sample slowly; near the marks the engine has chosen."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.tree.cgroup("/near")
        s.apply(job(), job("near", "/near"))
        s.targets.set_interval("near", 50.0)
        s.apply(job(), job("near", "/near"), slow_s=20.0)
        status = s.targets.status()
        assert (status["job"].interval_s, status["near"].interval_s) == (20.0, 50.0)

    play(tmp_path, scene)


def test_a_withdrawn_glob_takes_its_targets_along(tmp_path: Path) -> None:
    """And finds nothing any more."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/pod1")
        s.apply(TargetSpec("g", glob="/pod*"))
        s.apply()
        s.tree.cgroup("/pod2")
        await asyncio.sleep(0)
        assert s.targets.names() == []
        assert s.of(TargetDropped) == [TargetDropped("g:/pod1")]

    play(tmp_path, scene)


# Subscribers


def test_self_is_the_configured_target_of_that_cgroup_or_the_nearest_around_it(tmp_path: Path) -> None:
    """An exact one first; else the innermost that contains it."""

    async def scene(s: Scene) -> None:
        for path in ("/a", "/a/b", "/a/b/c", "/a/b/c/d", "/ab"):
            s.tree.cgroup(path)
        s.apply(job("outer", "/a"), job("inner", "/a/b"))
        assert s.targets.guard_peer("/a/b", Policy()) == "inner"
        assert s.targets.guard_peer("/a/b/c/d", Policy()) == "inner"
        assert s.targets.guard_peer("/a/", Policy()) == "outer"
        assert s.targets.guard_peer("/ab", Policy()) == "/ab"
        assert s.targets.contains("outer", "/a/b/c")
        assert s.targets.contains("outer", "/a")
        assert not s.targets.contains("outer", "/ab")
        assert not s.targets.contains("nobody", "/a")
        assert not s.targets.contains("outer", "/a/../x")

    play(tmp_path, scene)


def test_a_dynamic_target_lasts_as_long_as_its_subscribers(tmp_path: Path) -> None:
    """Two subscribers of one cgroup share it; the last one to leave ends it. Configured targets stay."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/x").events(oom_kill=1)
        s.tree.cgroup("/job")
        s.apply(job())
        s.told.clear()
        policy = Policy(dwell_s=1.0)
        assert s.targets.guard_peer("/x", policy) == "/x"
        assert s.told[0] == TargetAdded("/x", "/x", policy)
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken"]
        assert s.targets.guard_peer("/x", policy) == "/x"
        assert s.targets.join_peer("/x") == "/x"
        assert s.targets.join_peer("job") == "job"
        s.targets.release_peer("/x")
        s.targets.release_peer("/x")
        assert s.of(TargetDropped) == []
        s.targets.release_peer("/x")
        assert s.of(TargetDropped) == [TargetDropped("/x")]
        for _ in range(2):
            s.targets.release_peer("/x")
            s.targets.release_peer("job")
        assert s.targets.names() == ["job"]

    play(tmp_path, scene)


def test_a_dynamic_target_survives_the_removal_of_its_cgroup(tmp_path: Path) -> None:
    """As long as somebody subscribes, its path is followed."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/x")
        s.targets.guard_peer("/x", Policy())
        s.tree.remove("/x")
        await soon(lambda: s.of(CgroupVanished))
        s.tree.cgroup("/x")
        await soon(lambda: len(s.of(CgroupAppeared)) == 2)

    play(tmp_path, scene)


def _bare(cgroup: FakeCgroup) -> None:
    cgroup.unlink("memory.events")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "cannot guard the root cgroup: .*in a cgroup of its own"),
        ("/none", "cannot guard /none: no such cgroup"),
        ("/bare", "cannot guard /bare: the memory controller is not enabled there"),
        ("/../out", "run the daemon in the host's cgroup namespace"),
    ],
)
def test_a_cgroup_that_cannot_be_guarded_is_refused_in_one_sentence(tmp_path: Path, path: str, says: str) -> None:
    """The subscriber gets it as its error line."""

    async def scene(s: Scene) -> None:
        _bare(s.tree.cgroup("/bare"))
        with pytest.raises(TargetError, match=says):
            s.targets.guard_peer(path, Policy())
        assert s.told == []

    play(tmp_path, scene)


def test_the_namespace_root_of_a_container_can_be_guarded(tmp_path: Path) -> None:
    """It looks like the root but has files of its own, because it is not the machine's root."""

    async def scene(s: Scene) -> None:
        inside = s.tree.cgroup("/tmp")
        for name in os.listdir(inside.path):
            os.rename(f"{inside.path}/{name}", f"{s.tree.path}/{name}")
        assert s.targets.guard_peer("/", Policy()) == "/"
        assert s.kinds() == ["TargetAdded", "CgroupAppeared", "SampleTaken"]
        s.targets.sample_now("/")
        assert s.usage("/").path == "/"

    play(tmp_path, scene)


def test_no_more_targets_than_allowed(tmp_path: Path) -> None:
    """A flood of cgroups cannot exhaust the daemon."""

    async def scene(s: Scene) -> None:
        for number in range(9):
            s.tree.cgroup(f"/x{number}")
        for number in range(8):
            s.targets.guard_peer(f"/x{number}", Policy())
        with pytest.raises(TargetError, match="8 targets are guarded; raise max_targets"):
            s.targets.guard_peer("/x8", Policy())
        with pytest.raises(TargetError, match="cannot serve /x8: no such target"):
            s.targets.join_peer("/x8")

    play(tmp_path, scene)


def test_a_target_may_end_while_its_sample_is_told(tmp_path: Path) -> None:
    """An effect of the sample disconnects the last subscriber: nothing more is told, nothing breaks."""

    async def run() -> None:
        tree = FakeTree(tmp_path)
        cgroup = tree.cgroup("/x")
        told: list[str] = []

        def emit(event: Event) -> None:
            told.append(type(event).__name__)
            if isinstance(event, SampleTaken) and len(told) > 4:
                targets.release_peer("/x")

        targets = Targets(find_root(str(tmp_path)), asyncio.get_running_loop(), emit)
        try:
            targets.guard_peer("/x", Policy())
            targets.sample_now("/x")
            cgroup.events(oom_kill=1)
            targets.sample_now("/x")
            assert targets.names() == []
            assert told[4:] == ["SampleTaken", "TargetDropped"]
        finally:
            targets.close()

    asyncio.run(run())


def test_a_directory_that_is_there_and_is_said_not_to_be_is_looked_into_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would tell of it: it has not gone, so it does not come back either. What could not be seen is said."""
    listed = os.scandir

    def failing(path: str) -> object:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/pod1")
        monkeypatch.setattr(os, "scandir", failing)
        s.apply(TargetSpec("g", glob="/pod*"), slow_s=OFTEN_S)
        assert s.of(TargetAdded) == []
        monkeypatch.setattr(os, "scandir", listed)
        await soon(lambda: len(s.of(TargetAdded)) == 1)
        assert [sentence.startswith("cannot look into ") for sentence in s.targets.faults] == [True]

    play(tmp_path, scene)


def test_nothing_is_told_after_close(tmp_path: Path) -> None:
    """And closing twice is fine."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job(), TargetSpec("g", glob="/p*"), slow_s=OFTEN_S)
        s.targets.close()
        s.told.clear()
        s.tree.cgroup("/p1")
        s.tree.remove("/job")
        for _ in range(20):
            await asyncio.sleep(OFTEN_S / 5)
        assert s.told == []

    play(tmp_path, scene)
