"""What is written down and read again: the journal's lines, records of any age and in any state."""

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgeguardd import journal as journals
from edgeguardd.core.config import Policy
from edgeguardd.core.effects import Deliver
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import AckReceived, Event, StateRecalled, SubscriberJoined, TargetDropped
from edgeguardd.core.model import AckStatus, Action, Level, Role
from edgeguardd.journal import Found, Journal, JournalError
from edgeguardd.keeper import RUNTIME_VARIABLE, Keeper
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.targets import Targets
from edgeguardd.statelock import StateLock
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.scene import NEVER_S, job
from tests.support.script import EVERYTHING
from tests.support.wait import soon


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    """In order, over two turns, and not the settled ones."""
    first = Journal(str(tmp_path), pytest.fail)
    first.read("e")
    first.own("e")
    first.write([b"gone"], 1.0)
    first.turn(2.0)
    first.write([b"a", b"b"], 3.0)
    first.settle()
    first.turn(4.0)
    first.write([b"c"], 5.0)
    first.alive(6.0)
    first.close()
    second = Journal(str(tmp_path), pytest.fail)
    found = second.read("e")
    second.close()
    assert (found.lines, found.alive_at, found.overflowed) == ((b"a", b"b", b"c"), 6.0, False)


def test_the_next_run_goes_on_behind_what_it_found(tmp_path: Path) -> None:
    """A run that dies before its first record leaves the lines of both."""
    for line in (b"one", b"two", b"three"):
        journal = Journal(str(tmp_path), pytest.fail)
        journal.read("e")
        journal.own("e")
        journal.write([line], 1.0)
        journal.close()
    journal = Journal(str(tmp_path), pytest.fail)
    assert journal.read("e").lines == (b"one", b"two", b"three")
    journal.close()


@pytest.mark.parametrize("name", journals.NAMES)
def test_a_journal_cut_or_spoilt_anywhere_gives_what_is_before(tmp_path: Path, name: str) -> None:
    """No byte of it is fatal; what is read is a beginning of what was written."""
    journal = Journal(str(tmp_path), pytest.fail)
    journal.read("e")
    journal.own("e")
    journal.turn(1.0)
    lines = [b'{"n":%d}' % n for n in range(5)]
    journal.write(lines[:3], 1.0)
    journal.turn(2.0)
    journal.write(lines[3:], 2.0)
    journal.close()
    whole = (tmp_path / name).read_bytes()
    used = len(whole.rstrip(b"\0"))
    for at in range(0, used, 3):
        for data in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
            (tmp_path / name).write_bytes(data)
            said: list[str] = []
            again = Journal(str(tmp_path), said.append)
            found = again.read("e")
            again.close()
            assert set(found.lines) <= set(lines)
            assert (found.overflowed, len(said)) in {(True, 1), (False, 0)}
    (tmp_path / name).write_bytes(whole)


def test_a_journal_that_is_full_says_so_and_the_next_run_knows(tmp_path: Path) -> None:
    """Nothing was settled for a megabyte of lines."""
    said: list[str] = []
    journal = Journal(str(tmp_path), said.append)
    journal.read("e")
    journal.own("e")
    for _ in range(70):
        journal.write([b"x" * 16384], 1.0)
    journal.close()
    assert len(said) == 1
    again = Journal(str(tmp_path), pytest.fail)
    found = again.read("e")
    again.close()
    assert found.overflowed
    assert 0 < len(found.lines) < 70


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "random bytes": lambda good: random.Random(1).randbytes(len(good)),  # noqa: S311  the same ones each time
    "zeros": lambda good: bytes(len(good)),
    "text": lambda good: b"something else\n",
    "a head without its end": lambda good: good[:20],
    "a hole": lambda good: good.replace(b"two", b"\0\0\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_journal_that_is_damaged_is_put_aside_and_said(tmp_path: Path, damage: str) -> None:
    """Whoever reads knows that there may have been more; what is written from then on is found again."""
    first = Journal(str(tmp_path), pytest.fail)
    first.read("e")
    first.own("e")
    first.write([b"one", b"two", b"three"], 1.0)
    first.close()
    name = next(name for name in journals.NAMES if b"three" in (tmp_path / name).read_bytes())
    bad = DAMAGES[damage]((tmp_path / name).read_bytes())
    (tmp_path / name).write_bytes(bad)
    said: list[str] = []
    second = Journal(str(tmp_path), said.append)
    found = second.read("e")
    assert (found.lines, found.overflowed) == ((b"one",) if damage == "a hole" else (), True)
    assert len(said) == 1
    assert said[0].startswith(f"cannot use {tmp_path}/{name}: ")
    assert f"{name}.damaged now" in said[0]
    assert (tmp_path / f"{name}.damaged").read_bytes().startswith(bad)
    second.own("e")
    second.write([b"four"], 2.0)
    second.close()
    third = Journal(str(tmp_path), pytest.fail)
    assert third.read("e").lines == (b"four",)
    third.close()


def test_a_damaged_journal_that_cannot_be_put_aside_is_said_and_written_over(tmp_path: Path) -> None:
    """Something stands where it would be put."""
    for name in journals.NAMES:
        (tmp_path / name).write_bytes(b"something else")
        (tmp_path / f"{name}.damaged").mkdir()
    said: list[str] = []
    first = Journal(str(tmp_path), said.append)
    first.read("e")
    assert ["cannot be put aside (Is a directory), so remove it" in sentence for sentence in said] == [True, True]
    first.own("e")
    first.write([b"one"], 1.0)
    first.close()
    second = Journal(str(tmp_path), pytest.fail)
    assert second.read("e").lines == (b"one",)
    second.close()


# All but one: behind the first half of a line's mark, an old line has the new turn.
@pytest.mark.parametrize("left", [*range(8), *range(9, 60)])
def test_a_journal_that_ends_in_the_middle_of_a_line_is_no_damage(tmp_path: Path, left: int) -> None:
    """kill -9 in a write: what is behind is as it was before, zeros of the room taken or lines of an older turn."""
    first = Journal(str(tmp_path), pytest.fail)
    first.read("e")
    first.own("e")
    for turn in range(2):  # into the same file again
        first.write([b"old one", b"old two", b"old three"], 1.0 + turn)
        first.turn(2.0 + turn)
        first.settle()
    latest = first._files[0].name
    before = (tmp_path / latest).read_bytes()
    start = first._files[0].end
    first.write([b"one", b"another one"], 4.0)
    first.close()
    after = (tmp_path / latest).read_bytes()
    torn = after[: start + left] + before[start + left :]
    (tmp_path / latest).write_bytes(torn)
    second = Journal(str(tmp_path), pytest.fail)
    found = second.read("e")
    second.close()
    assert found.lines == (b"one", b"another one")[: len(found.lines)]
    assert not found.overflowed


def test_a_journal_that_nobody_has_owned_yet_is_no_damage(tmp_path: Path) -> None:
    """kill -9 between the making of the files and the first line, in each place where that can be."""
    Journal(str(tmp_path), pytest.fail).close()
    first = Journal(str(tmp_path), pytest.fail)
    assert first.read("e") == Found()
    first.close()
    for name in journals.NAMES:
        (tmp_path / name).write_bytes(b"")
        second = Journal(str(tmp_path), pytest.fail)
        assert second.read("e") == Found()
        second.close()


def test_zeros_in_place_of_a_journal_are_no_damage_where_no_run_goes_on(tmp_path: Path) -> None:
    """The machine went without power: room that was taken is there, and what was written is not."""
    for name in journals.NAMES:
        (tmp_path / name).write_bytes(bytes(journals.ROOM_BYTES))
    journal = Journal(str(tmp_path), pytest.fail)
    assert journal.read("") == Found()
    journal.close()


@pytest.mark.parametrize("place", ["missing", "shared", "a file in the way"])
def test_a_place_that_will_not_do_is_an_error(tmp_path: Path, place: str) -> None:
    """Which the keeper survives."""
    directory = tmp_path / "d"
    if place != "missing":
        directory.mkdir()
    if place == "shared":
        directory.chmod(0o777)
    if place == "a file in the way":
        (directory / journals.NAMES[0]).mkdir()
    with pytest.raises(JournalError, match=r"^cannot (use|write) "):
        Journal(str(directory), pytest.fail)


def test_lines_of_another_epoch_are_not_read_and_that_is_said(tmp_path: Path) -> None:
    """Nor is when it was alive. They may have replaced others, so numbers are left out; they never come back."""
    first = Journal(str(tmp_path), pytest.fail)
    first.read("one")
    first.own("one")
    first.write([b"a", b"b"], 1.0)
    first.alive(6.0)
    first.close()
    second = Journal(str(tmp_path), pytest.fail)
    assert second.read("two") == Found(overflowed=True, strange=True)
    second.own("two")
    second.write([b"c"], 7.0)
    second.close()
    third = Journal(str(tmp_path), pytest.fail)
    assert third.read("two").lines == (b"c",)
    third.close()


class Run:
    """One run on a fake tree: engine, targets and keeper, as the daemon has them."""

    def __init__(self, place: Path) -> None:
        self.said: list[str] = []
        self.effects: list[Any] = []
        loop = asyncio.get_running_loop()
        root = find_root(str(place / "tree"))
        self.engine = Engine()
        self.targets = Targets(root, loop, self.emit, on_fault=self.said.append)
        self.lock = StateLock(str(place / "state"))
        self.keeper = Keeper(self.lock, root, self.engine, self.targets, loop, self.said.append)
        self.keeper.recall(self.emit)
        self.targets.apply([job("llm", "/llm")], _sampling(), Policy())
        self.keeper.start()

    def emit(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        effects = self.engine.handle(event, now)
        keeper = getattr(self, "keeper", None)
        if keeper is not None and not isinstance(event, StateRecalled):
            keeper.note(event, effects, now)
        self.effects += effects

    def join(self, subscriber: int = 1) -> None:
        self.emit(SubscriberJoined(subscriber, "server", Role.INFERENCE, "llm", EVERYTHING, 7))

    def told(self) -> list[tuple[int, Action, bool]]:
        return [(e.command.seq, e.command.action, e.again) for e in self.effects if isinstance(e, Deliver)]

    def die(self) -> None:
        """kill -9: nothing is written any more."""
        self.keeper._closed = True
        self.keeper._records.abandon()
        if self.keeper._alive is not None:
            self.keeper._alive.cancel()
        if self.keeper._journal is not None:
            self.keeper._journal.close()
        self.lock.release()
        self.targets.close()

    def end(self) -> None:
        self.keeper.close()
        self.lock.release()
        self.targets.close()


def _sampling() -> Any:
    from edgeguardd.core.config import SamplingConfig  # noqa: PLC0415

    return SamplingConfig(slow_s=NEVER_S)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def llm(place: Path) -> FakeCgroup:
    cgroup = FakeTree(str(place / "tree")).cgroup("/llm", max_bytes=1000 * MIB)
    cgroup.usage(950 * MIB)
    return cgroup


def played(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


@pytest.mark.parametrize("when", ["at once", "later", "clean"])
def test_the_next_run_tells_again_whenever_the_last_one_died(place: Path, llm: FakeCgroup, when: str) -> None:
    """Before its first record, after it, or in order: the same numbers."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        if when == "later":
            await soon(lambda: first.keeper.settled)
        first.end() if when == "clean" else first.die()
        second = Run(place)
        assert second.engine.targets["llm"].level is Level.CRITICAL
        second.join(2)
        assert second.keeper.epoch == first.keeper.epoch
        assert second.told() == [(seq, action, True) for seq, action, _ in first.told()]
        assert second.said == []
        second.end()

    played(scene)


def test_what_a_restart_adds_to_a_commands_time_is_kept_over_the_next_ones(place: Path, llm: FakeCgroup) -> None:
    """In the record, before anybody is let in: however soon the next death comes, none begins it anew."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        first.die()
        ends = []
        for number in range(2, 5):
            run = Run(place)
            outstanding = run.engine.targets["llm"].ledger.outstanding
            ends.append({seq: (one.due_at, one.ends_by) for seq, one in outstanding.items()})
            if number % 2:
                run.join(number)
            run.die()
        assert ends[0]
        assert all(ends_by is not None for _, ends_by in ends[0].values())
        assert ends[1:] == ends[:-1]

    played(scene)


def test_what_was_answered_before_the_last_record_is_not_told_again(place: Path, llm: FakeCgroup) -> None:
    """And its number is known as one that has ended."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        done = next(seq for seq, action, _ in first.told() if action is Action.REJECT_REQUESTS)
        first.emit(AckReceived(1, done, AckStatus.DONE))
        first.end()
        second = Run(place)
        second.join(2)
        assert done not in [seq for seq, _, _ in second.told()]
        assert done in second.engine.targets["llm"].ledger.commands.ended
        second.end()

    played(scene)


@pytest.mark.parametrize("damage", ["cut", "empty", "huge", "newer", "shape", "bytes", "directory", "link"])
@pytest.mark.parametrize("which", ["run", "target"])
def test_no_record_is_fatal_whatever_it_holds(place: Path, llm: FakeCgroup, damage: str, which: str) -> None:
    """It is put aside, or left where even that cannot be; it is said, and what is left of the rest is used."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        first.end()
        (path,) = (place / "state").glob(f"{which}-*.json")
        good = path.read_bytes()
        path.unlink()
        match damage:
            case "directory":
                path.mkdir()
            case "link":
                path.symlink_to("/etc/passwd")
            case _:
                bad = {
                    "cut": good[: len(good) // 2],
                    "empty": b"",
                    "huge": b"[" * (9 << 20),
                    "newer": good.replace(b'"v":1', b'"v":2', 1),
                    "shape": b"[1,2,3]",
                    "bytes": bytes(range(256)),
                }
                path.write_bytes(bad[damage])
        second = Run(place)
        assert second.said
        assert (second.keeper.epoch == first.keeper.epoch) is (which == "target")
        assert second.engine.targets["llm"].level is Level.CRITICAL
        second.join(2)
        assert min(seq for seq, _, again in second.told() if not again) > 0
        second.end()

    played(scene)


@pytest.mark.parametrize("damage", ["random bytes", "zeros"])
def test_no_number_is_given_again_for_a_journal_that_is_damaged(place: Path, llm: FakeCgroup, damage: str) -> None:
    """The run dies before its record: what it told is not known, but that it may have told something is."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        told = {seq for seq, _, _ in first.told()}
        assert told
        first.die()
        for name in journals.NAMES:
            path = place / "state" / name
            path.write_bytes(DAMAGES[damage](path.read_bytes()))
        second = Run(place)
        assert len(second.said) == len(second.keeper.stats.faults) == 2
        assert all("begin as a journal" in sentence for sentence in second.said)
        second.join(2)
        assert second.keeper.epoch == first.keeper.epoch
        assert second.told()
        assert not told & {seq for seq, _, _ in second.told()}
        second.die()
        third = Run(place)
        third.join(3)
        assert (third.said, third.told()) == ([], [(seq, action, True) for seq, action, _ in second.told()])
        third.end()

    played(scene)


def test_a_journal_of_before_the_machine_was_started_anew_is_not_said(place: Path, llm: FakeCgroup) -> None:
    """It went without power, and nothing goes on that its lines could be missed for."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        first.die()
        from edgeguardd.recalled import RUN_KIND, RunRecord  # noqa: PLC0415

        was = first.keeper.state.load(RUN_KIND, RUN_KIND, RunRecord)
        assert was is not None
        first.keeper.state.save(RUN_KIND, RUN_KIND, msgspec.structs.replace(was, boot_id="another"), durable=False)
        for name in journals.NAMES:
            (place / "state" / name).write_bytes(bytes(journals.ROOM_BYTES))
        second = Run(place)
        assert second.said == []
        assert second.keeper.epoch != first.keeper.epoch
        second.end()

    played(scene)


def test_a_newer_versions_fields_are_passed_over_and_an_older_ones_missing_ones_are_at_rest(
    place: Path, llm: FakeCgroup
) -> None:
    """Both ways of an upgrade, as long as the format is the same."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        state = first.keeper.state
        first.end()
        from edgeguardd.recalled import TARGET_KIND, TargetRecord  # noqa: PLC0415

        record = msgspec.to_builtins(state.load(TARGET_KIND, "llm", TargetRecord))
        record["kept"]["a_later_figure"] = {"deep": [1]}
        for name in ("exhausted", "course", "resorted", "ended", "flaps"):
            del record["kept"][name]

        class Raw(msgspec.Struct):
            boot_id: str
            epoch: str
            at: float
            upto: int
            path: str
            inode: int | None
            kills: int | None
            dynamic: bool
            kept: Any

        state.save(TARGET_KIND, "llm", Raw(**record), durable=False)
        second = Run(place)
        second.join(2)
        assert (second.said, second.told()) == ([], [(seq, action, True) for seq, action, _ in first.told()])
        second.end()

    played(scene)


def test_a_second_daemon_leaves_the_firsts_state_alone(place: Path, llm: FakeCgroup) -> None:
    """Started by mistake, it says so, counts in an epoch of its own, and writes nothing."""

    async def scene() -> None:
        first = Run(place)
        second = Run(place)
        second.join()
        assert "another edgeguardd does" in second.said[0]
        assert second.keeper.epoch != first.keeper.epoch
        second.end()
        first.join(3)
        first.die()
        third = Run(place)
        third.join(4)
        assert (third.keeper.epoch, third.said) == (first.keeper.epoch, [])
        assert [seq for seq, _, again in third.told() if again] == [seq for seq, _, _ in first.told()]
        third.end()

    played(scene)


def test_another_boot_and_another_cgroup_leave_what_was_learned(place: Path, llm: FakeCgroup) -> None:
    """The level is what memory says; nothing is told again."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        first.engine.targets["llm"].gauge.lead.learned_s = 2.5
        first.end()
        llm.usage(100 * MIB)
        os.rename(llm.path, f"{llm.path}-old")
        shutil.copytree(f"{llm.path}-old", llm.path)
        second = Run(place)
        target = second.engine.targets["llm"]
        assert (target.level, target.ledger.outstanding, target.gauge.lead.learned_s) == (Level.NORMAL, {}, 2.5)
        assert second.keeper.epoch == first.keeper.epoch
        assert min([n for n, _, _ in second.told()], default=99) > 0
        second.end()

    played(scene)


def test_a_place_in_memory_is_preferred_for_the_journal(
    place: Path, llm: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As systemd names it; where it will not do, the state directory is taken."""

    async def scene() -> None:
        run = Run(place)
        run.end()

    (place / "run").mkdir(mode=0o755)
    monkeypatch.setenv(RUNTIME_VARIABLE, f"{place}/run:/elsewhere")
    played(scene)
    assert sorted(os.listdir(place / "run")) == sorted(journals.NAMES)
    assert not set(journals.NAMES) & set(os.listdir(place / "state"))
    monkeypatch.setenv(RUNTIME_VARIABLE, f"{place}/missing")
    played(scene)
    assert set(journals.NAMES) <= set(os.listdir(place / "state"))


def test_the_number_of_a_dropped_targets_restore_is_not_given_again(place: Path, llm: FakeCgroup) -> None:
    """It was told, and the daemon was killed before any record: the next run's new commands come after it."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        first.emit(TargetDropped("llm"))
        told = first.told()
        assert told[-1][1] is Action.RESTORE
        first.die()
        second = Run(place)
        assert second.keeper.epoch == first.keeper.epoch
        assert second.engine.numbers.last >= told[-1][0]
        second.emit(SubscriberJoined(2, "another", Role.INFERENCE, "llm", EVERYTHING, 8))
        new = [seq for seq, _, again in second.told() if not again]
        assert new
        assert not {seq for seq, _, _ in told} & set(new)
        second.end()

    played(scene)


def test_a_journal_of_another_state_directory_is_said_and_left(
    place: Path, llm: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One place in memory, two directories of state in turn: each run believes its own journal alone."""

    async def scene() -> None:
        first = Run(place)
        first.end()
        os.rename(place / "state", place / "kept")
        (place / "state").mkdir(mode=0o700)
        other = Run(place)
        other.join()
        assert other.told()
        other.die()
        shutil.rmtree(place / "state")
        os.rename(place / "kept", place / "state")
        third = Run(place)
        assert third.keeper.epoch == first.keeper.epoch
        assert [sentence for sentence in third.said if "another epoch" in sentence] == third.said
        assert len(third.said) == 1
        assert third.engine.targets["llm"].ledger.outstanding == {}
        third.end()

    (place / "run").mkdir(mode=0o755)
    monkeypatch.setenv(RUNTIME_VARIABLE, f"{place}/run")
    played(scene)


def test_what_was_given_while_its_server_was_away_is_told_for_the_first_time(place: Path, llm: FakeCgroup) -> None:
    """It is journalled then like any other, and a third run tells it again."""

    async def scene() -> None:
        llm.usage(100 * MIB)
        first = Run(place)
        first.join()
        assert first.told() == []
        first.end()
        llm.usage(950 * MIB)
        second = Run(place)
        second.join(2)
        given = second.told()
        assert given
        assert [again for _, _, again in given] == [False] * len(given)
        assert second.keeper.stats.told_again == 0
        second.die()
        third = Run(place)
        third.join(3)
        assert third.told() == [(seq, action, True) for seq, action, _ in given]
        third.end()

    played(scene)


def test_a_directory_that_cannot_be_looked_at_is_said_once_and_written_to(
    place: Path, llm: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records go on meanwhile, and nothing in the directory is taken for lost."""

    def unseen(fd: int, path: str) -> bool:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    async def scene() -> None:
        run = Run(place)
        kept = {path.name: path.stat().st_ino for path in (place / "state").iterdir()}
        with monkeypatch.context() as patch:
            for module in ("statelock", "journal"):
                patch.setattr(f"edgeguardd.{module}.is_at", unseen)
            for subscriber in (1, 2):
                run.join(subscriber)
                assert not run.keeper.settled
                await soon(lambda: run.keeper.settled)
        state = place / "state"
        assert [sentence.partition(";")[0] for sentence in run.said] == [
            f"cannot see whether {path} is still there: Cannot allocate memory"
            for path in (state, state / "told-a.journal")
        ]
        assert run.keeper.state.faults == 0
        assert run.lock.held
        assert {path.name for path in state.iterdir()} == set(kept)
        assert [
            path.name for path in state.iterdir() if "target" in path.name and path.stat().st_ino != kept[path.name]
        ]
        run.end()

    played(scene)
