"""Which cgroups a configuration means: paths, units, globs, as many as somebody likes to make, and reloads."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from edgeguardd.core import wire
from edgeguardd.core.config import Mark, Policy, SamplingConfig, TargetSpec
from edgeguardd.core.events import (
    CgroupAppeared,
    CgroupVanished,
    CountersMoved,
    SampleFailed,
    SampleTaken,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.errors import TargetError
from tests.support.scene import NEVER_S, Scene, about, job, play
from tests.support.wait import soon

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


def test_a_reload_reaches_those_at_rest_only_with_another_slow_interval(tmp_path: Path) -> None:
    """The engine has chosen, and does not choose again what it has chosen."""

    async def scene(s: Scene) -> None:
        s.tree.cgroup("/job")
        s.apply(job(), slow_s=20.0)
        s.targets.set_interval("job", 40.0)
        s.apply(job(), slow_s=20.0)
        assert s.targets.status()["job"].interval_s == 40.0
        s.apply(job(), slow_s=10.0)
        assert s.targets.status()["job"].interval_s == 10.0

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
