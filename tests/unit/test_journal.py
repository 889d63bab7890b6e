"""The journal's files, where the disk or the machine does not do its part."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from edgeguardd import journal
from tests.support.descriptors import none_left, open_now
from tests.torture import callsites
from tests.torture.afflictions import Afflictions, Gate


def test_a_file_that_cannot_be_looked_at_is_not_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, no journal, and no descriptor."""
    looks = [
        s for s in callsites.sites() if (s.module, s.function, s.call) == (journal.__name__, "__init__", "os.fstat")
    ]
    failing = Afflictions()
    failing.fail([site.key for site in looks if site.line == min(look.line for look in looks)], errno.EIO, 1.0, seed=0)
    monkeypatch.setattr(journal, "os", Gate(os, journal.__name__, failing, frozenset({"os.fstat"})))
    before = open_now()
    tmp_path.chmod(0o700)
    with pytest.raises(journal.JournalError, match="Input/output error"):
        journal.Journal(str(tmp_path), lambda _: None)
    assert failing.hits
    none_left(before)


def test_files_that_were_removed_are_made_again(tmp_path: Path) -> None:
    """What is written from then on is found, and nothing is left open."""
    tmp_path.chmod(0o700)
    before = open_now()
    first = journal.Journal(str(tmp_path), pytest.fail)
    first.read("e")
    first.own("e")
    assert not first.renew()
    for name in journal.NAMES:
        (tmp_path / name).unlink()
    assert first.renew()
    assert not first.renew()
    first.write([b"one"], 1.0)
    first.close()
    second = journal.Journal(str(tmp_path), pytest.fail)
    assert second.read("e").lines == (b"one",)
    second.close()
    none_left(before)


def test_without_their_directory_they_are_said_once_and_tried_again(tmp_path: Path) -> None:
    """A journal that is not kept marks itself as incomplete."""
    place = tmp_path / "d"
    said: list[str] = []
    place.mkdir(mode=0o700)
    one = journal.Journal(str(place), said.append)
    one.read("e")
    one.own("e")
    shutil.rmtree(place)
    assert one.renew()
    assert one.renew()
    assert len(said) == 1
    assert one.overflowed
    place.mkdir(mode=0o700)
    assert one.renew()
    assert not one.renew()
    one.close()
