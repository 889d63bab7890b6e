"""The journal's two files: what is read of them, whatever has become of them or of the disk."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeguardd import journal, journalfile
from tests.support.descriptors import none_left, open_now
from tests.torture import callsites
from tests.torture.afflictions import Afflictions, Gate


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    """In order, over two turns, and not the settled ones."""
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
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
    second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    found = second.read("e")
    second.close()
    assert (found.lines, found.alive_at, found.overflowed) == ((b"a", b"b", b"c"), 6.0, False)


def test_the_next_run_goes_on_behind_what_it_found(tmp_path: Path) -> None:
    """A run that dies before its first record leaves the lines of both."""
    for line in (b"one", b"two", b"three"):
        one = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
        one.read("e")
        one.own("e")
        one.write([line], 1.0)
        one.close()
    one = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert one.read("e").lines == (b"one", b"two", b"three")
    one.close()


@pytest.mark.parametrize("name", journal.NAMES)
def test_a_journal_cut_or_spoilt_anywhere_gives_what_is_before(tmp_path: Path, name: str) -> None:
    """No byte of it is fatal; what is read is a beginning of what was written."""
    one = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    one.read("e")
    one.own("e")
    one.turn(1.0)
    lines = [b'{"n":%d}' % n for n in range(5)]
    one.write(lines[:3], 1.0)
    one.turn(2.0)
    one.write(lines[3:], 2.0)
    one.close()
    whole = (tmp_path / name).read_bytes()
    used = len(whole.rstrip(b"\0"))
    for at in range(0, used, 3):
        for data in (whole[:at], whole[:at] + b"\xff" + whole[at + 1 :]):
            (tmp_path / name).write_bytes(data)
            said: list[str] = []
            again = journal.Journal(str(tmp_path), said.append, said.append)
            found = again.read("e")
            again.close()
            assert set(found.lines) <= set(lines)
            assert (found.overflowed, len(said)) in {(True, 1), (False, 0)}
    (tmp_path / name).write_bytes(whole)


def test_a_journal_that_is_full_says_so_and_the_next_run_knows(tmp_path: Path) -> None:
    """Nothing was settled for a megabyte of lines."""
    said: list[str] = []
    one = journal.Journal(str(tmp_path), said.append, said.append)
    one.read("e")
    one.own("e")
    for _ in range(70):
        one.write([b"x" * 16384], 1.0)
    one.close()
    assert len(said) == 1
    again = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
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
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    first.read("e")
    first.own("e")
    first.write([b"one", b"two", b"three"], 1.0)
    first.close()
    name = next(name for name in journal.NAMES if b"three" in (tmp_path / name).read_bytes())
    bad = DAMAGES[damage]((tmp_path / name).read_bytes())
    (tmp_path / name).write_bytes(bad)
    said: list[str] = []
    second = journal.Journal(str(tmp_path), said.append, said.append)
    found = second.read("e")
    assert (found.lines, found.overflowed) == ((b"one",) if damage == "a hole" else (), True)
    assert len(said) == 1
    assert said[0].startswith(f"cannot use {tmp_path}/{name}: ")
    assert f"{name}.damaged now" in said[0]
    assert (tmp_path / f"{name}.damaged").read_bytes().startswith(bad)
    second.own("e")
    second.write([b"four"], 2.0)
    second.close()
    third = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert third.read("e").lines == (b"four",)
    third.close()


def test_a_damaged_journal_that_cannot_be_put_aside_is_said_and_written_over(tmp_path: Path) -> None:
    """Something stands where it would be put."""
    for name in journal.NAMES:
        (tmp_path / name).write_bytes(b"something else")
        (tmp_path / f"{name}.damaged").mkdir()
    said: list[str] = []
    first = journal.Journal(str(tmp_path), said.append, said.append)
    first.read("e")
    assert ["cannot be put aside (Is a directory), so remove it" in sentence for sentence in said] == [True, True]
    first.own("e")
    first.write([b"one"], 1.0)
    first.close()
    second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert second.read("e").lines == (b"one",)
    second.close()


# All but one: behind the first half of a line's mark, an old line has the new turn.
@pytest.mark.parametrize("left", [*range(8), *range(9, 60)])
def test_a_journal_that_ends_in_the_middle_of_a_line_is_no_damage(tmp_path: Path, left: int) -> None:
    """kill -9 in a write: what is behind is as it was before, zeros of the room taken or lines of an older turn."""
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
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
    second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    found = second.read("e")
    second.close()
    assert found.lines == (b"one", b"another one")[: len(found.lines)]
    assert not found.overflowed


def test_a_journal_that_nobody_has_owned_yet_is_no_damage(tmp_path: Path) -> None:
    """kill -9 between the making of the files and the first line, in each place where that can be."""
    journal.Journal(str(tmp_path), pytest.fail, pytest.fail).close()
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert first.read("e") == journal.Found()
    first.close()
    for name in journal.NAMES:
        (tmp_path / name).write_bytes(b"")
        second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
        assert second.read("e") == journal.Found()
        second.close()


def test_zeros_in_place_of_a_journal_are_no_damage_where_no_run_goes_on(tmp_path: Path) -> None:
    """The machine went without power: room that was taken is there, and what was written is not."""
    for name in journal.NAMES:
        (tmp_path / name).write_bytes(bytes(journalfile.ROOM_BYTES))
    one = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert one.read("") == journal.Found()
    one.close()


@pytest.mark.parametrize("place", ["missing", "shared", "a file in the way"])
def test_a_place_that_will_not_do_is_an_error(tmp_path: Path, place: str) -> None:
    """Which the keeper survives."""
    directory = tmp_path / "d"
    if place != "missing":
        directory.mkdir()
    if place == "shared":
        directory.chmod(0o777)
    if place == "a file in the way":
        (directory / journal.NAMES[0]).mkdir()
    with pytest.raises(journal.JournalError, match=r"^cannot (use|write) "):
        journal.Journal(str(directory), pytest.fail, pytest.fail)


def test_lines_of_another_epoch_are_not_read_and_that_is_said(tmp_path: Path) -> None:
    """Nor is when it was alive. They may have replaced others, so numbers are left out; they never come back."""
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    first.read("one")
    first.own("one")
    first.write([b"a", b"b"], 1.0)
    first.alive(6.0)
    first.close()
    second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert second.read("two") == journal.Found(overflowed=True, strange=True)
    second.own("two")
    second.write([b"c"], 7.0)
    second.close()
    third = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert third.read("two").lines == (b"c",)
    third.close()


def test_a_file_that_cannot_be_looked_at_is_not_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, no journal, and no descriptor."""
    looks = [
        s for s in callsites.sites() if (s.module, s.function, s.call) == (journalfile.__name__, "__init__", "os.fstat")
    ]
    failing = Afflictions()
    failing.fail([site.key for site in looks if site.line == min(look.line for look in looks)], errno.EIO, 1.0, seed=0)
    monkeypatch.setattr(journalfile, "os", Gate(os, journalfile.__name__, failing, frozenset({"os.fstat"})))
    before = open_now()
    tmp_path.chmod(0o700)
    with pytest.raises(journal.JournalError, match="Input/output error"):
        journal.Journal(str(tmp_path), lambda _: None, lambda _: None)
    assert failing.hits
    none_left(before)


def test_files_that_were_removed_are_made_again(tmp_path: Path) -> None:
    """What is written from then on is found, and nothing is left open."""
    tmp_path.chmod(0o700)
    before = open_now()
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    first.read("e")
    first.own("e")
    assert not first.renew()
    for name in journal.NAMES:
        (tmp_path / name).unlink()
    assert first.renew()
    assert not first.renew()
    first.write([b"one"], 1.0)
    first.close()
    second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert second.read("e").lines == (b"one",)
    second.close()
    none_left(before)


def test_without_their_directory_they_are_said_once_and_tried_again(tmp_path: Path) -> None:
    """A journal that is not kept marks itself as incomplete."""
    place = tmp_path / "d"
    said: list[str] = []
    place.mkdir(mode=0o700)
    one = journal.Journal(str(place), said.append, said.append)
    one.read("e")
    one.own("e")
    shutil.rmtree(place)
    assert not one.renew()
    assert not one.renew()
    assert len(said) == 1
    assert not whole(one)
    place.mkdir(mode=0o700)
    assert one.renew()
    assert not one.renew()
    assert whole(one)
    one.close()


def test_lines_are_kept_while_no_record_can_be_written(tmp_path: Path) -> None:
    """One attempt after the other: what came before the first is still there."""
    tmp_path.chmod(0o700)
    first = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    first.read("e")
    first.own("e")
    for number in range(4):
        first.write([b"%d" % number], 1.0)
        first.turn(1.0)
    latest = first.latest_turn
    first.close()
    second = journal.Journal(str(tmp_path), pytest.fail, pytest.fail)
    assert second.read("e", latest) == journal.Found((b"0", b"1", b"2", b"3"), 1.0)
    second.close()


def test_a_directory_that_was_away_comes_back_with_no_old_lines(tmp_path: Path) -> None:
    """What it held before is of another turn than what is written from then on."""
    tmp_path.chmod(0o700)
    place, away = tmp_path / "d", tmp_path / "away"
    place.mkdir(mode=0o700)
    one = journal.Journal(str(place), pytest.fail, pytest.fail)
    one.read("e")
    one.own("e")
    one.write([b"a long line that was told before the directory went away", b"another", b"a third"], 1.0)
    place.rename(away)
    place.mkdir(mode=0o700)
    assert one.renew()
    shutil.rmtree(place)
    away.rename(place)
    assert one.renew()
    one.write([b"new"], 2.0)
    latest = one.latest_turn
    one.close()
    two = journal.Journal(str(place), pytest.fail, pytest.fail)
    assert two.read("e", latest).lines == (b"new",)
    assert two.complete
    two.close()


def whole(one: journal.Journal) -> bool:
    """Whether it says that what is told is written down."""
    return one.complete
