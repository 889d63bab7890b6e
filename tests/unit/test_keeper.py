"""What is written down and read again: records and a journal of any age and in any state, run after run."""

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

from edgeguardd.core.config import Policy
from edgeguardd.core.effects import Deliver
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import AckReceived, Event, StateRecalled, SubscriberJoined, TargetDropped
from edgeguardd.core.model import AckStatus, Action, Level, Role
from edgeguardd.journal import NAMES
from edgeguardd.journalfile import ROOM_BYTES, _mark
from edgeguardd.keeper import RUNTIME_VARIABLE, Keeper
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.targets import Targets
from edgeguardd.statelock import StateLock
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.scene import NEVER_S, job
from tests.support.script import EVERYTHING
from tests.support.wait import soon


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

    def keeps(self) -> bool:
        """Whether it says that all is written down."""
        return not self.keeper.stats.failing

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


DAMAGES: dict[str, Callable[[int], bytes]] = {"random bytes": random.Random(1).randbytes, "zeros": bytes}  # noqa: S311


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_number_is_given_again_for_a_journal_that_is_damaged(place: Path, llm: FakeCgroup, damage: str) -> None:
    """The run dies before its record: what it told is not known, but that it may have told something is."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        told = {seq for seq, _, _ in first.told()}
        assert told
        first.die()
        for name in NAMES:
            path = place / "state" / name
            path.write_bytes(DAMAGES[damage](len(path.read_bytes())))
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


def _latest(state: Path) -> Path:
    """The file that a run which has just died wrote to."""
    return max((state / name for name in NAMES), key=lambda path: int(path.read_bytes()[:8], 16))


def _of_a_newer_version(path: Path) -> None:
    """Whole lines, of an action that this version does not know."""
    head, *lines = path.read_bytes().split(b"\n")
    turn, epoch = int(head.split()[0], 16), head.split()[3].decode()
    texts = [line.partition(b" ")[2].replace(b"trim_kv_cache", b"evict_kv_pages") for line in lines if b"{" in line]
    path.write_bytes(
        b"\n".join([head, *(_mark(turn, epoch, text) + b" " + text for text in texts)]).ljust(ROOM_BYTES - 1, b"\0")
    )


def _removed(state: Path) -> None:
    for name in NAMES:
        (state / name).unlink()


def _directories(state: Path) -> None:
    _removed(state)
    for name in NAMES:
        (state / name).mkdir()


def _linked(state: Path) -> None:
    latest = _latest(state)
    latest.rename(state / "elsewhere")
    latest.symlink_to("elsewhere")


def _of_another_turn(state: Path) -> None:
    latest = _latest(state)
    latest.write_bytes(b"0000002a" + latest.read_bytes()[8:])


# What has become of a journal between two runs, and what is said of it.
GONE: dict[str, tuple[Callable[[Path], object], str]] = {
    "removed": (_removed, "cannot find all of the journal"),
    "the latest removed": (lambda state: os.unlink(_latest(state)), "cannot find all of the journal"),
    "emptied": (lambda state: _latest(state).write_bytes(b""), "cannot find all of the journal"),
    "cut behind its first line": (lambda state: os.truncate(_latest(state), 100), "its end is missing"),
    "directories": (_directories, "remove what is in its place"),
    "a link": (_linked, "remove what is in its place"),
    "others may write it": (lambda state: os.chmod(_latest(state), 0o620), "others may write it"),
    "another turn in its first line": (_of_another_turn, "begin as a journal"),
    "written by a newer version": (lambda state: _of_a_newer_version(_latest(state)), "the version that wrote it"),
}


@pytest.mark.parametrize("gone", GONE)
def test_no_number_is_given_again_for_a_journal_that_is_not_all_there(place: Path, llm: FakeCgroup, gone: str) -> None:
    """Whoever has removed, cut or replaced it since: it is missed, and said, and a server gets no number twice."""
    spoil, says = GONE[gone]

    async def scene() -> None:
        first = Run(place)
        first.join()
        told = {seq for seq, _, _ in first.told()}
        assert told
        first.die()
        spoil(place / "state")
        second = Run(place)
        assert any(says in sentence for sentence in second.said), second.said
        second.join(2)
        assert second.keeper.epoch == first.keeper.epoch
        assert second.told()
        assert not told & {seq for seq, _, again in second.told() if not again}
        second.end()

    played(scene)


def test_the_journal_may_be_gone_after_a_clean_end(place: Path, llm: FakeCgroup) -> None:
    """As a place in memory is, when the service was stopped: the records hold everything."""

    async def scene() -> None:
        first = Run(place)
        first.join()
        first.end()
        _removed(place / "state")
        second = Run(place)
        second.join(2)
        assert second.said == []
        assert [(seq, action) for seq, action, again in second.told() if again] == [
            (seq, action) for seq, action, _ in first.told()
        ]
        second.end()

    played(scene)


def test_a_journal_that_cannot_be_kept_is_no_health_and_is_tried_again(place: Path, llm: FakeCgroup) -> None:
    """What is in its place is named; once that is gone, what is told is written down again, and outlives a kill -9."""

    async def scene() -> None:
        first = Run(place)
        assert first.keeps()
        state = place / "state"
        _directories(state)
        first.join()
        await soon(lambda: first.keeper.settled)
        assert not first.keeps()
        assert "remove what is in its place; until then a restart may forget" in first.said[-1]
        for name in NAMES:
            (state / name).rmdir()
        first.join(2)
        await soon(lambda: first.keeper.settled)
        assert first.keeps()
        first.join(3)
        told = first.told()
        first.die()
        second = Run(place)
        assert second.said == []
        second.join(4)
        assert not {n for n, _, _ in told} & {n for n, _, again in second.told() if not again}
        second.end()

    played(scene)


def test_a_journal_that_could_not_be_opened_at_the_start_is_later(place: Path, llm: FakeCgroup) -> None:
    """Until then numbers are left out by the record alone."""

    async def scene() -> None:
        state = place / "state"
        for name in NAMES:
            (state / name).mkdir()
        first = Run(place)
        assert not first.keeps()
        first.join()
        await soon(lambda: first.keeper.settled)
        assert not first.keeps()
        for name in NAMES:
            (state / name).rmdir()
        first.join(2)
        await soon(lambda: first.keeper.settled)
        assert first.keeps()
        first.join(3)
        told = first.told()
        first.die()
        second = Run(place)
        second.join(4)
        assert second.said == []
        assert not {n for n, _, _ in told} & {n for n, _, again in second.told() if not again}
        second.end()

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
        for name in NAMES:
            (place / "state" / name).write_bytes(bytes(ROOM_BYTES))
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
    assert sorted(os.listdir(place / "run")) == sorted(NAMES)
    assert not set(NAMES) & set(os.listdir(place / "state"))
    monkeypatch.setenv(RUNTIME_VARIABLE, f"{place}/missing")
    played(scene)
    assert set(NAMES) <= set(os.listdir(place / "state"))


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

    def unseen(fd: int, path: str, *, follow: bool = True) -> bool:
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
