"""Memory pressure on plain files: the figures, and when a trigger's wake-up means anything.

Urgent data on a TCP socket stands in for a trigger; real ones are in tests/component/test_pressure.py.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from edgeguardd.core.config import Policy, SamplingConfig, TargetSpec
from edgeguardd.core.events import CgroupVanished, Event, SampleTaken
from edgeguardd.kernel import pressure
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.pressure import SWITCHED_OFF, PressureFile, StallAlarm, Trigger
from edgeguardd.kernel.targets import Targets
from tests.support.descriptors import none_left, open_now
from tests.support.faketree import FakeTree
from tests.support.urgent import Urgent
from tests.support.wait import soon

NEVER_S = 3600.0
LINE = "avg10=0.12 avg60=0.00 avg300=0.00 total="


# The file


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the PSI file is."""
    return str(tmp_path / "memory.pressure")


@pytest.fixture
def file(path: str) -> Iterator[PressureFile]:
    """The file under test; whatever happens, no descriptor is left."""
    before = open_now()
    opened = PressureFile(path, path)
    yield opened
    opened.close()
    opened.close()
    none_left(before)


def fill(path: str, some_us: int) -> None:
    """What the kernel writes."""
    Path(path).write_text(f"some {LINE}{some_us}\nfull {LINE}0\n")


def test_the_total_of_some_is_read_afresh_each_time(file: PressureFile, path: str) -> None:
    """In microseconds, of any size."""
    fill(path, 5)
    assert file.some_us() == 5
    fill(path, 2**63)
    assert file.some_us() == 2**63
    assert file.fault is None


def test_a_kernel_without_psi_is_no_fault(file: PressureFile, path: str) -> None:
    """Unknown, not zero; and a file that comes later is found."""
    assert (file.some_us(), file.fault) == (None, None)
    fill(path, 7)
    assert file.some_us() == 7


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no whole line of pressure"),
        ("some avg10=0.00 avg60=0.0", "no whole line of pressure"),
        ("some avg10=x avg60=0.00 avg300=0.00 total=-1\n", "no whole line of pressure"),
        (f"full {LINE}3\n", "no whole line `some`"),
        ("aggr 7\nsome 0.00 0.00 0.00\n", "PSI needs Linux 4.20"),
    ],
)
def test_text_that_is_not_understood_is_said_and_is_no_figure(
    file: PressureFile, path: str, content: str, says: str
) -> None:
    """The sentence names the file; a good reading takes it back."""
    Path(path).write_text(content)
    assert file.some_us() is None
    assert file.fault is not None
    assert path in file.fault
    assert says in file.fault
    fill(path, 1)
    assert file.some_us() == 1
    assert file.fault is None


@pytest.mark.parametrize(
    ("number", "fault"),
    [(errno.EOPNOTSUPP, SWITCHED_OFF), (errno.ENODEV, None), (errno.EIO, "cannot read {path}: Input/output error")],
)
def test_a_file_that_cannot_be_read_is_opened_again(
    file: PressureFile, path: str, number: int, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PSI that is switched off says so; a descriptor that died with its cgroup or its PSI is not kept."""
    fill(path, 1)
    assert file.some_us() == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail_with(number))
        assert file.some_us() is None
    if fault is None:
        assert file.fault is None
    else:
        assert file.fault is not None
        assert file.fault.startswith(fault.format(path=path))
    os.unlink(path)
    fill(path, 2)
    assert file.some_us() == 2


def fail_with(number: int) -> Callable[..., bytes]:
    """A system call that fails."""

    def call(*_: object, **__: object) -> bytes:
        raise OSError(number, os.strerror(number))

    return call


# The alarm


class Triggers:
    """Stands in for the kernel: a trigger is a socket, and a refusal an errno."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.made: list[Urgent] = []
        self.refuse: int | None = None

    def open(self, _: PressureFile, ratio: float) -> Trigger:
        self.asked.append(ratio)
        if self.refuse is not None:
            raise OSError(self.refuse, os.strerror(self.refuse))
        made = Urgent()
        self.made.append(made)
        return Trigger(os.dup(made.fd), 2.0)

    def close(self) -> None:
        for made in self.made:
            made.close()


class Scene:
    """One alarm over one plain file, a clock that is set by hand, and all that it told."""

    def __init__(self, path: str, triggers: Triggers) -> None:
        self.path = path
        self.triggers = triggers
        self.now = 100.0
        self.stalls: list[float] = []
        self.faults: list[str] = []
        self.file = PressureFile(path, path)
        self.alarm = StallAlarm(
            self.file,
            asyncio.get_running_loop(),
            lambda: self.now,
            lambda: self.stalls.append(self.now),
            self.faults.append,
        )

    def sample(self, some_us: int | None, ratio: float = 0.1) -> None:
        """A sample is taken that reads this total."""
        if some_us is not None:
            fill(self.path, some_us)
        self.alarm.follow(ratio, some_us)

    async def wake(self) -> None:
        """The kernel wakes the newest trigger; back when the loop has dealt with it."""
        self.triggers.made[-1].change()
        await turns()

    def close(self) -> None:
        self.alarm.close()
        self.alarm.close()
        self.file.close()
        self.triggers.close()


async def turns() -> None:
    """The loop has dealt with all that was pending."""
    for _ in range(50):
        await asyncio.sleep(0)


def play(path: str, patch: pytest.MonkeyPatch, scene: Callable[[Scene], Awaitable[None]]) -> None:
    """Run a scene; whatever happened in it, no descriptor is left."""
    triggers = Triggers()
    patch.setattr(pressure, "open_trigger", triggers.open)

    async def run() -> None:
        made = Scene(path, triggers)
        try:
            await scene(made)
        finally:
            made.close()

    before = open_now()
    asyncio.run(run())
    none_left(before)


def test_tasks_that_wait_call_back_and_a_wake_up_without_cause_does_not(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unprivileged trigger fires although the total has not moved, or hardly: no sample for that."""

    async def scene(s: Scene) -> None:
        s.sample(1_000_000)
        assert (s.alarm.mode, s.triggers.asked) == ("trigger", [0.1])
        s.now += 1.0
        await s.wake()
        assert s.stalls == []
        fill(s.path, 1_099_000)
        await s.wake()
        assert s.stalls == []
        fill(s.path, 1_100_000)
        await s.wake()
        assert s.stalls == [s.now]

    play(path, monkeypatch, scene)


def test_what_a_sample_has_told_does_not_count_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of the time since the last sample decides, over at most one window."""

    async def scene(s: Scene) -> None:
        s.sample(0)
        s.sample(500_000)
        s.now += 0.5
        await s.wake()
        assert s.stalls == []
        fill(s.path, 550_000)
        await s.wake()
        assert s.stalls == [s.now]
        s.sample(550_000)
        s.now += 60.0
        fill(s.path, 750_000)
        await s.wake()
        assert len(s.stalls) == 2

    play(path, monkeypatch, scene)


def test_another_ratio_sets_another_trigger(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload takes effect with the next sample, and the old trigger's descriptor is not kept."""

    async def scene(s: Scene) -> None:
        s.sample(0)
        open_before = open_now()
        for _ in range(10):
            s.sample(0, ratio=0.2)
            s.sample(0, ratio=0.3)
        # What each stand-in of the kernel itself keeps open: its two sockets.
        assert len(os.listdir("/proc/self/fd")) == open_before + 20 * 2
        assert s.triggers.asked == [0.1] + [0.2, 0.3] * 10

    play(path, monkeypatch, scene)


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "let the daemon write the file and, before Linux 6.5, give it CAP_SYS_RESOURCE"),
        (errno.EROFS, "let the daemon write the file"),
        (errno.EMFILE, "raise LimitNOFILE= of the daemon"),
    ],
)
def test_a_trigger_that_is_refused_is_said_and_not_asked_for_at_each_sample(
    path: str, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    """The figures are polled; a new ratio, or figures that come back, are a reason to try again."""

    async def scene(s: Scene) -> None:
        s.triggers.refuse = number
        for _ in range(5):
            s.sample(0)
        assert s.alarm.mode == "polled"
        assert len(s.triggers.asked) == 1
        (said,) = s.faults
        assert os.strerror(number) in said
        assert remedy in said
        s.triggers.refuse = None
        s.sample(None)
        s.sample(0)
        assert s.alarm.mode == "trigger"

    play(path, monkeypatch, scene)


def test_figures_that_go_away_take_the_trigger_with_them(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody switched the cgroup's pressure off: absent, and nothing is called any more."""

    async def scene(s: Scene) -> None:
        assert s.alarm.mode == "absent"
        s.sample(0)
        s.sample(None)
        assert s.alarm.mode == "absent"
        await s.wake()
        assert s.stalls == []

    play(path, monkeypatch, scene)


def test_a_dead_trigger_is_closed_and_a_sample_finds_out_why(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPOLLERR: the cgroup was removed, or its pressure switched off and on. In the second case a new one is set."""

    async def scene(s: Scene) -> None:
        s.sample(0)
        s.triggers.made[-1].die()
        await soon(lambda: s.stalls)
        assert s.alarm.mode == "polled"
        s.sample(0)
        assert (s.alarm.mode, len(s.triggers.made)) == ("trigger", 2)

    play(path, monkeypatch, scene)


def test_a_plain_file_is_not_written_into(path: str) -> None:
    """A tree in a directory, for tests: its figures are polled, and stay what they were."""
    fill(path, 3)
    faults: list[str] = []

    async def run() -> None:
        file = PressureFile(path, path)
        alarm = StallAlarm(file, asyncio.get_running_loop(), lambda: 0.0, lambda: None, faults.append)
        alarm.follow(0.1, file.some_us())
        assert (alarm.mode, file.some_us()) == ("polled", 3)
        alarm.close()
        file.close()

    asyncio.run(run())
    assert faults == []


# The targets


class Guarded:
    """Targets on a fake tree, with stand-in triggers."""

    def __init__(self, path: str) -> None:
        self.tree = FakeTree(path)
        self.told: list[Event] = []
        self.faults: list[str] = []
        self.targets = Targets(
            find_root(path), asyncio.get_running_loop(), self.told.append, on_fault=self.faults.append
        )

    def apply(self, *paths: str, policy: Policy | None = None) -> None:
        """Guard these; nothing is sampled by time."""
        specs = [TargetSpec(path[1:], path=path, policy=policy or Policy()) for path in paths]
        self.targets.apply(specs, SamplingConfig(slow_s=NEVER_S))

    def psi(self, name: str = "job") -> str:
        """What status says."""
        return self.targets.status()[name].psi

    def samples(self) -> list[int | None]:
        """The totals that were told, the target's own."""
        return [event.sample.usages[0].psi_some_us for event in self.told if isinstance(event, SampleTaken)]


def guard(path: Path, patch: pytest.MonkeyPatch, scene: Callable[[Guarded, Triggers], Awaitable[None]]) -> None:
    """Run a scene; whatever happened in it, no descriptor is left."""
    triggers = Triggers()
    patch.setattr(pressure, "open_trigger", triggers.open)

    async def run() -> None:
        made = Guarded(str(path))
        try:
            await scene(made, triggers)
        finally:
            made.targets.close()
            triggers.close()

    before = open_now()
    asyncio.run(run())
    none_left(before)


def test_a_target_whose_tasks_wait_is_sampled_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any timer; and its status says that it is woken."""

    async def scene(g: Guarded, triggers: Triggers) -> None:
        cgroup = g.tree.cgroup("/job")
        cgroup.pressure(5)
        g.apply("/job", policy=Policy(psi_ratio=0.25))
        assert (g.psi(), g.samples(), triggers.asked) == ("trigger", [5], [0.25])
        cgroup.pressure(10_000_000)
        triggers.made[0].change()
        await soon(lambda: len(g.samples()) == 2)
        assert g.samples() == [5, 10_000_000]
        triggers.made[0].change()
        await turns()
        assert len(g.samples()) == 2

    guard(tmp_path, monkeypatch, scene)


def test_a_reload_sets_the_trigger_of_the_new_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the next sample."""

    async def scene(g: Guarded, triggers: Triggers) -> None:
        g.tree.cgroup("/job").pressure(0)
        g.apply("/job")
        g.apply("/job", policy=Policy(psi_ratio=0.5))
        g.targets.sample_now("job")
        assert triggers.asked == [Policy().psi_ratio, 0.5]

    guard(tmp_path, monkeypatch, scene)


def test_without_psi_everything_else_works_and_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file at all is how old and small kernels are."""

    async def scene(g: Guarded, triggers: Triggers) -> None:
        g.tree.cgroup("/job")
        g.apply("/job")
        assert (g.psi(), g.samples(), triggers.asked, g.faults) == ("absent", [None], [], [])
        assert g.targets.status()["job"].degraded is None

    guard(tmp_path, monkeypatch, scene)


def test_what_is_wrong_with_psi_is_said_once_for_all_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And degrades none of them."""

    async def scene(g: Guarded, triggers: Triggers) -> None:
        triggers.refuse = errno.EACCES
        for name in ("a", "b", "c"):
            g.tree.cgroup(f"/{name}").pressure(1)
        g.apply("/a", "/b", "/c")
        g.targets.sample_now("a")
        assert [g.psi(name) for name in "abc"] == ["polled"] * 3
        assert len(g.faults) == 1
        assert "cannot be woken by memory.pressure: Permission denied" in g.faults[0]
        assert {row.degraded for row in g.targets.status().values()} == {None}

    guard(tmp_path, monkeypatch, scene)


def test_psi_that_is_switched_off_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers EOPNOTSUPP to whoever reads."""
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("memory.pressure"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)

    async def scene(g: Guarded, triggers: Triggers) -> None:
        for name in ("a", "b"):
            g.tree.cgroup(f"/{name}").pressure(1)
        g.apply("/a", "/b")
        g.targets.sample_now("a")
        assert (g.psi("a"), g.faults, triggers.asked) == ("absent", [SWITCHED_OFF], [])

    guard(tmp_path, monkeypatch, scene)


def test_cgroups_that_come_and_go_leave_no_trigger_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`systemctl restart`, many times: the next cgroup has a trigger of its own, the last ones have none."""

    async def scene(g: Guarded, triggers: Triggers) -> None:
        g.tree.cgroup("/job").pressure(0)
        g.apply("/job")
        for round_ in range(1, 6):
            g.tree.remove("/job")
            await soon(lambda: sum(isinstance(event, CgroupVanished) for event in g.told) == round_)  # noqa: B023
            assert g.psi() == "absent"
            g.tree.cgroup("/job")
            g.targets.sample_now("job")
            await soon(lambda: g.targets.status()["job"].present)
            write_pressure(g.tree, round_)
            g.targets.sample_now("job")
            assert g.psi() == "trigger"
        assert len(triggers.made) == 6
        # All but the last were closed by us: the stand-in's own end is the only one left.
        dups = [name for name in os.listdir("/proc/self/fd") if is_socket_of(name, triggers.made)]
        assert len(dups) == len(triggers.made) + 1

    def write_pressure(tree: FakeTree, some_us: int) -> None:
        Path(tree.full("/job"), "memory.pressure").write_text(f"some {LINE}{some_us}\nfull {LINE}0\n")

    guard(tmp_path, monkeypatch, scene)


def is_socket_of(name: str, made: list[Urgent]) -> bool:
    """Whether a descriptor of this process is the receiving end of one of them."""
    try:
        inode = os.fstat(int(name)).st_ino
    except OSError:
        return False
    return inode in {os.fstat(each.fd).st_ino for each in made}


def test_ancestors_have_figures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that is short of memory makes all below it wait."""

    async def scene(g: Guarded, triggers: Triggers) -> None:
        g.tree.cgroup("/slice", max_bytes=2**30).pressure(8)
        g.tree.cgroup("/slice/job").pressure(4)
        g.targets.apply([TargetSpec("job", path="/slice/job")], SamplingConfig(slow_s=NEVER_S))
        (sample,) = [event.sample for event in g.told if isinstance(event, SampleTaken)]
        assert [usage.psi_some_us for usage in sample.usages] == [4, 8]
        assert len(triggers.made) == 1

    guard(tmp_path, monkeypatch, scene)


def test_figures_survive_a_round_through_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the recorder writes is what was read."""

    async def scene(g: Guarded, _: Triggers) -> None:
        cgroup = g.tree.cgroup("/job")
        cgroup.usage(1, file_mapped=4096, file=8192)
        cgroup.pressure(2**63)
        g.apply("/job")
        (event,) = [event for event in g.told if isinstance(event, SampleTaken)]
        assert event.sample.usages[0].mapped_bytes == 4096
        assert msgspec.json.decode(msgspec.json.encode(event), type=SampleTaken) == event

    guard(tmp_path, monkeypatch, scene)
