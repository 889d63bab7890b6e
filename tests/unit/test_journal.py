"""The journal's files, where the disk or the machine does not do its part."""

import errno
import os
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
