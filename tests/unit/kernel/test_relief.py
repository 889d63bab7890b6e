"""Raising memory.high and putting it back, on a fake tree: every way in which it can go wrong is told, once.

Plain files take any value, keep what a shorter one does not cover, and reclaim nothing: going back to "max",
throttling, reclaim and removal under a descriptor are in tests/kernel.
"""

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from edgeguardd.core.events import Event, LimitPutBack, LimitRaised, ReliefFailed
from edgeguardd.kernel import relief as module
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.held import HeldCgroup
from edgeguardd.kernel.relief import KIND, LOST, Lifted, Relief
from edgeguardd.state import StateDirectory
from tests.support.descriptors import none_left, open_now
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.wait import eventually

NOBODY = 65534
BOOT = "11111111-2222-3333-4444-555555555555"


class Scene:
    """A tree with one cgroup at memory.high 20 MiB, a state directory, and any number of daemons one after another."""

    def __init__(self, path: Path) -> None:
        (path / "tree").mkdir()
        self.tree = FakeTree(path / "tree")
        self.llm = self.tree.cgroup("/llm", high_bytes=20 * MIB, max_bytes=40 * MIB)
        self.proc = self.tree.proc({"sys/kernel/random/boot_id": f"{BOOT}\n"})
        self.state_path = str(path / "state")
        self.said: list[str] = []
        self.told: list[Event] = []
        self.now = 100.0
        self.relief = self.daemon()

    def daemon(self) -> Relief:
        """The next daemon; the one before is as good as killed."""
        self.state = StateDirectory(self.state_path, self.said.append)
        self.relief = Relief(CgroupRoot(self.tree.path), self.state, self.told.append, lambda: self.now, self.proc)
        return self.relief

    def high(self, cgroup: FakeCgroup | None = None) -> str:
        """What memory.high holds."""
        return (Path((cgroup or self.llm).path) / "memory.high").read_text().strip()

    def records(self) -> dict[str, Lifted]:
        """What is written down."""
        return self.state.load_all(KIND, Lifted)

    def last(self) -> Event:
        """The one event told since the last look."""
        (event,) = self.told
        self.told.clear()
        return event

    def raised(self, to_bytes: int = 25 * MIB) -> None:
        """Raise /llm for target llm, and check that it was."""
        self.relief.raise_limit("llm", "/llm", 20 * MIB, to_bytes)
        assert self.last() == LimitRaised("llm", 20 * MIB, to_bytes)

    def killed(self) -> None:
        """The daemon ends without a word; the kernel closes its descriptors."""
        self.relief.close()
        self.daemon()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Every descriptor is closed after the test or the test fails."""
    before = open_now()
    found = Scene(tmp_path)
    yield found
    found.relief.close()
    eventually(lambda: threading.active_count() == 1, what="every thread has ended")
    none_left(before)


def put_back(event: Event, outcome: str) -> str:
    """The sentence of a LimitPutBack with this outcome."""
    assert isinstance(event, LimitPutBack)
    assert event.target == "llm"
    assert event.outcome == outcome
    return event.message or ""


def failed(event: Event) -> str:
    """The sentence of a ReliefFailed."""
    assert isinstance(event, ReliefFailed)
    assert event.target == "llm"
    assert event.message.startswith("cannot ")
    assert "; " in event.message or "removed" in event.message or "any more" in event.message
    return event.message


# The usual way


def test_a_limit_is_raised_and_put_back(scene: Scene) -> None:
    """The old value stands in a record as long as the raised one stands in the kernel."""
    scene.raised()
    assert scene.high() == str(25 * MIB)
    inode = os.stat(scene.llm.path).st_ino
    assert scene.records() == {"/llm": Lifted("llm", BOOT, inode, 20 * MIB, 25 * MIB, 100.0)}
    scene.now += 1.5
    scene.relief.put_back("llm")
    assert put_back(scene.last(), "restored") == "memory.high of /llm is 20.0 MiB again, after 1.50 s at 25.0 MiB"
    assert scene.high() == str(20 * MIB)
    assert scene.records() == {}
    scene.raised()


def test_limits_are_whole_pages(scene: Scene) -> None:
    """The kernel rounds down; what it then shows is ours all the same."""
    scene.relief.raise_limit("llm", "/llm", 20 * MIB + 5, 25 * MIB + 5)
    assert scene.last() == LimitRaised("llm", 20 * MIB + 5, 25 * MIB)
    scene.relief.put_back("llm")
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)


def test_everything_is_put_back_when_the_daemon_stops(scene: Scene) -> None:
    """Each target is told of."""
    other = scene.tree.cgroup("/other", high_bytes=50 * MIB)
    scene.raised()
    scene.relief.raise_limit("other", "/other", 50 * MIB, 60 * MIB)
    scene.told.clear()
    scene.relief.put_back_all()
    assert [event.target for event in scene.told if isinstance(event, LimitPutBack)] == ["llm", "other"]
    assert (scene.high(), scene.high(other)) == (str(20 * MIB), str(50 * MIB))
    assert scene.records() == {}


def test_nothing_is_raised_while_the_daemon_stops(scene: Scene) -> None:
    """An engine that is told of a limit put back in the middle of a trim asks for it again at once."""
    scene.raised()
    answers = list(scene.told)

    def react(event: Event) -> None:
        answers.append(event)
        if isinstance(event, LimitPutBack):
            scene.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)

    scene.relief._emit = react
    scene.relief.put_back_all()
    restored, refused = answers
    put_back(restored, "restored")
    assert "the daemon stops" in failed(refused)
    assert scene.high() == str(20 * MIB)
    assert scene.records() == {}


def test_a_cgroup_far_over_the_limit_is_written_from_a_thread(scene: Scene) -> None:
    """There the kernel would reclaim in the writer. The call returns as soon as the value stands."""
    scene.llm.usage(30 * MIB)
    scene.raised()
    scene.relief.put_back("llm")
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)
    assert threading.stack_size() == 0


def test_where_no_thread_can_be_had_the_write_is_done_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that stays raised would be worse than a daemon that waits."""
    scene.llm.usage(30 * MIB)
    scene.raised()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    scene.relief.put_back("llm")
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)


# What somebody else did


def test_a_limit_that_moved_since_the_sample_is_not_raised(scene: Scene) -> None:
    """Another value, or none: nothing is written, nothing kept."""
    for content in (22 * MIB, "max"):
        scene.llm.write("memory.high", f"{content}\n")
        scene.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
        assert "not the 20.0 MiB of the last sample" in failed(scene.last())
        assert scene.high() == str(content)
        assert scene.records() == {}


@pytest.mark.parametrize("content", [str(22 * MIB), "max"])
def test_a_limit_that_somebody_else_wrote_meanwhile_is_theirs(scene: Scene, content: str) -> None:
    """Left alone, and said with the figures."""
    scene.raised()
    scene.llm.write("memory.high", f"{content}\n")
    scene.relief.put_back("llm")
    assert "not the 25.0 MiB we had raised it to" in put_back(scene.last(), "changed")
    assert scene.high() == content
    assert scene.records() == {}


def test_a_limit_that_somebody_else_put_back_is_fine(scene: Scene) -> None:
    """`systemctl daemon-reload` writes MemoryHigh= again."""
    scene.raised()
    scene.llm.write("memory.high", f"{20 * MIB}\n")
    scene.relief.put_back("llm")
    assert "again" in put_back(scene.last(), "restored")
    assert scene.records() == {}


def test_a_cgroup_that_is_gone_needs_nothing(scene: Scene) -> None:
    """Removed, or removed and made again: the new one is not touched."""
    scene.raised()
    os.rename(scene.llm.path, f"{scene.llm.path}.old")
    again = scene.tree.cgroup("/llm", high_bytes=25 * MIB)
    scene.tree.remove("/llm.old")
    scene.relief.put_back("llm")
    assert "the cgroup was removed" in put_back(scene.last(), "gone")
    assert scene.high(again) == str(25 * MIB)
    assert scene.records() == {}


def test_a_limit_is_raised_again_when_its_cgroup_was_made_again(scene: Scene) -> None:
    """What became of the first is told before the second is raised."""
    scene.raised()
    os.rename(scene.llm.path, f"{scene.llm.path}.old")
    scene.tree.cgroup("/llm", high_bytes=20 * MIB)
    scene.tree.remove("/llm.old")
    scene.relief.raise_limit("llm", "/llm", 20 * MIB, 24 * MIB)
    first, second = scene.told
    put_back(first, "gone")
    assert second == LimitRaised("llm", 20 * MIB, 24 * MIB)
    assert [record.raised_bytes for record in scene.records().values()] == [24 * MIB]


def test_nothing_raised_is_nothing_to_put_back(scene: Scene) -> None:
    """The question is answered all the same."""
    scene.relief.put_back("llm")
    put_back(scene.last(), "gone")


# What cannot be raised


@pytest.mark.parametrize("target", ["llm", "twin"])
def test_a_raised_limit_is_not_raised_again(scene: Scene, target: str) -> None:
    """Neither by its own target nor by another one of the same cgroup: it would never come down again."""
    scene.raised()
    scene.relief.raise_limit(target, "/llm", 25 * MIB, 30 * MIB)
    event = scene.last()
    assert isinstance(event, ReliefFailed)
    assert "still raised for llm" in event.message
    assert scene.high() == str(25 * MIB)
    scene.relief.put_back("llm")
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)


def test_raising_goes_up_only(scene: Scene) -> None:
    """Less than a page more is not more."""
    for to_bytes in (20 * MIB, 19 * MIB, 20 * MIB + 4095):
        scene.relief.raise_limit("llm", "/llm", 20 * MIB, to_bytes)
        assert "is not above" in failed(scene.last())
    assert scene.high() == str(20 * MIB)


@pytest.mark.parametrize("path", ["/missing", "/../tree/llm", "/", "/link", "/llm/memory.high"])
def test_a_cgroup_that_is_none_is_not_written(scene: Scene, path: str) -> None:
    """Not there, outside the tree, the root (no memory.high), behind a symbolic link, a file."""
    os.symlink("llm", scene.tree.full("/link"))
    scene.relief.raise_limit("llm", path, 20 * MIB, 25 * MIB)
    failed(scene.last())
    assert scene.high() == str(20 * MIB)
    assert scene.records() == {}


@pytest.mark.parametrize("name", ["memory.high", "memory.current"])
def test_broken_files_are_said(scene: Scene, name: str) -> None:
    """What cannot be read is not written, and no record stays."""
    scene.llm.break_file(name)
    scene.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
    failed(scene.last())
    assert scene.records() == {}


def test_a_linked_limit_is_not_followed(scene: Scene, tmp_path: Path) -> None:
    """memory.high as a symbolic link is no kernel's."""
    victim = tmp_path / "victim"
    victim.write_text(f"{20 * MIB}\n")
    scene.llm.unlink("memory.high")
    os.symlink(victim, os.path.join(scene.llm.path, "memory.high"))
    scene.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
    assert "symbolic link" in failed(scene.last())
    assert victim.read_text() == f"{20 * MIB}\n"


def test_without_a_record_nothing_is_raised(scene: Scene) -> None:
    """No directory to write it to: a crash would leave the limit raised for ever."""
    Path(scene.state_path).write_text("a file")
    scene.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
    assert "Not a directory; " in failed(scene.last())
    assert scene.high() == str(20 * MIB)


def test_without_the_boot_id_nothing_is_raised(scene: Scene) -> None:
    """A record could not be told from one of another run of the kernel."""
    os.unlink(f"{scene.proc}/sys/kernel/random/boot_id")
    scene.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
    assert "no ProcSubset=pid" in failed(scene.last())
    assert scene.high() == str(20 * MIB)


@pytest.fixture
def unprivileged() -> Iterator[Scene]:
    """A scene whose limit may be read and not written, as an unprivileged daemon finds it."""
    with tempfile.TemporaryDirectory(prefix="edgeguardd-relief-") as path:
        os.chmod(path, 0o755)  # noqa: S103 - every user has to reach it
        scene = Scene(Path(path))
        os.makedirs(scene.state_path, mode=0o700)
        os.chmod(f"{scene.llm.path}/memory.high", 0o444)
        user = os.geteuid()
        if user == 0:
            os.chown(scene.state_path, NOBODY, -1)
            os.seteuid(NOBODY)
        yield scene
        scene.relief.close()
        os.seteuid(user)


def test_a_limit_that_may_not_be_written_is_said(unprivileged: Scene) -> None:
    """And no record stays of what was not done."""
    unprivileged.relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
    assert "Permission denied; run the daemon as root" in failed(unprivileged.last())
    assert unprivileged.records() == {}
    assert os.listdir(unprivileged.state_path) == []


def test_a_limit_that_cannot_be_put_back_is_tried_again(scene: Scene) -> None:
    """It stays ours: with its record, not to be raised further, and for the next daemon."""
    scene.raised()
    scene.llm.break_file("memory.high")
    scene.relief.put_back("llm")
    assert "cannot " in put_back(scene.last(), "failed")
    assert scene.records() != {}
    scene.relief.raise_limit("llm", "/llm", 25 * MIB, 30 * MIB)
    assert "still raised" in failed(scene.last())
    scene.killed()
    scene.relief.recover()
    put_back(scene.last(), "failed")
    os.rmdir(os.path.join(scene.llm.path, "memory.high"))
    scene.llm.write("memory.high", f"{25 * MIB}\n")
    scene.relief.put_back_all()
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)
    assert scene.records() == {}


def test_a_write_that_hangs_holds_nobody_up_and_is_never_overtaken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A raise that lands late must not land on the limit put back before it."""
    land, landed = threading.Event(), threading.Event()
    write = HeldCgroup.write_and_close

    def late(self: HeldCgroup, fd: int, name: str, text: str) -> None:
        land.wait(20)
        write(self, fd, name, text)
        landed.set()

    monkeypatch.setattr(HeldCgroup, "write_and_close", late)
    monkeypatch.setattr(module, "IN_FORCE_WITHIN_S", 0.0)
    scene.llm.usage(30 * MIB)
    scene.raised()
    assert scene.high() == str(20 * MIB)
    scene.relief.put_back("llm")
    assert "has not reached the kernel" in put_back(scene.last(), "failed")
    land.set()
    assert landed.wait(20)
    monkeypatch.undo()
    scene.relief.put_back("llm")
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)


# After a crash


def test_the_next_daemon_puts_back_what_the_last_one_raised(scene: Scene) -> None:
    """Whatever ended it; once."""
    scene.raised()
    scene.killed()
    scene.now += 60
    scene.relief.recover()
    assert "again, after 60.00 s at 25.0 MiB" in put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)
    scene.relief.recover()
    assert scene.told == []
    assert scene.records() == {}


def test_a_crash_between_record_and_write_leaves_nothing_to_do(scene: Scene) -> None:
    """The old value stands already."""
    scene.raised()
    scene.killed()
    scene.llm.write("memory.high", f"{20 * MIB}\n")
    scene.relief.recover()
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)
    assert scene.records() == {}


def test_what_somebody_else_wrote_after_the_crash_is_theirs(scene: Scene) -> None:
    """Left alone, and said."""
    scene.raised()
    scene.killed()
    scene.llm.write("memory.high", f"{30 * MIB}\n")
    scene.relief.recover()
    put_back(scene.last(), "changed")
    assert scene.high() == str(30 * MIB)
    assert scene.records() == {}


def test_another_cgroup_under_the_old_path_is_not_touched(scene: Scene) -> None:
    """Even if its limit happens to be the raised one."""
    scene.raised()
    os.rename(scene.llm.path, f"{scene.llm.path}.old")
    again = scene.tree.cgroup("/llm", high_bytes=25 * MIB)
    scene.killed()
    scene.relief.recover()
    assert "another cgroup" in put_back(scene.last(), "gone")
    assert scene.high(again) == str(25 * MIB)
    assert scene.records() == {}


def test_another_run_of_the_kernel_is_not_touched(scene: Scene) -> None:
    """Limits do not survive a boot; inode numbers are given anew."""
    scene.raised()
    scene.killed()
    Path(f"{scene.proc}/sys/kernel/random/boot_id").write_text("another\n")
    scene.relief.recover()
    assert "started anew" in put_back(scene.last(), "gone")
    assert scene.high() == str(25 * MIB)
    assert scene.records() == {}


def test_a_cgroup_that_went_with_the_crash_is_forgotten(scene: Scene) -> None:
    """Nothing to put back."""
    scene.raised()
    scene.killed()
    scene.tree.remove("/llm")
    scene.relief.recover()
    put_back(scene.last(), "gone")
    assert scene.records() == {}


def test_a_damaged_record_does_not_keep_the_others_from_being_put_back(scene: Scene) -> None:
    """It is said by the state directory, with what may have stayed as it was."""
    scene.raised()
    scene.killed()
    (Path(scene.state_path) / f"lifted-{'0' * 32}.json").write_text("{")
    scene.relief.recover()
    put_back(scene.last(), "restored")
    assert scene.high() == str(20 * MIB)
    assert [sentence.endswith(LOST) for sentence in scene.said] == [True]


def test_a_cgroup_whose_name_is_no_text_is_put_back_as_well(scene: Scene) -> None:
    """Names are bytes."""
    path = "/b\udcffd"
    odd = scene.tree.cgroup(path, high_bytes=20 * MIB)
    scene.relief.raise_limit("llm", path, 20 * MIB, 25 * MIB)
    scene.last()
    scene.killed()
    scene.relief.recover()
    assert put_back(scene.last(), "restored").isprintable()
    assert scene.high(odd) == str(20 * MIB)


class Meddled(StateDirectory):
    """A state directory that takes its time, in which somebody else sets memory.high."""

    meddle: FakeCgroup | None = None

    def save(self, kind: str, key: str, record: Struct, *, durable: bool = True) -> None:
        """As the real one; meanwhile an operator writes."""
        super().save(kind, key, record, durable=durable)
        if self.meddle is not None:
            self.meddle.write("memory.high", f"{22 * MIB}\n")


def test_what_somebody_else_writes_while_a_record_is_saved_stays(scene: Scene) -> None:
    """Saving takes milliseconds; the value is looked at once more behind it. Nothing is raised, nothing is recorded."""
    state = Meddled(scene.state_path, scene.said.append)
    state.meddle = scene.llm
    relief = Relief(CgroupRoot(scene.tree.path), state, scene.told.append, lambda: scene.now, scene.proc)
    relief.raise_limit("llm", "/llm", 20 * MIB, 25 * MIB)
    assert "somebody else has just changed it" in failed(scene.last())
    assert scene.high() == str(22 * MIB)
    assert scene.records() == {}
    relief.close()


@pytest.mark.parametrize("needed_mib", [10, 30])
def test_what_somebody_else_writes_just_before_the_put_back_stays(
    scene: Scene, needed_mib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the write, whether that would reclaim or not, the value is looked at again."""
    scene.raised()
    scene.llm.usage(needed_mib * MIB)
    number = HeldCgroup.number

    def meddling(cgroup: HeldCgroup, name: str) -> int:
        scene.llm.write("memory.high", f"{22 * MIB}\n")
        return number(cgroup, name)

    monkeypatch.setattr(HeldCgroup, "number", meddling)
    scene.relief.put_back("llm")
    assert "not the 25.0 MiB we had raised it to" in put_back(scene.last(), "changed")
    assert scene.high() == str(22 * MIB)
    assert scene.records() == {}
