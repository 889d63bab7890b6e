"""Logs to reports: as files piece by piece, and as the running kernel's log while it is written."""

import contextlib

from edgeguardd.core.oomlog.collector import Collector
from edgeguardd.isolate import oomlog
from tests.support.fakekmsg import FakeKmsg
from tests.support.oomlogs import MODERN


def test_following_tells_each_report_when_the_log_rests() -> None:
    """Nothing is told twice, and what is written later is told later."""
    with contextlib.closing(FakeKmsg()) as device:
        device.kill(501)
        with contextlib.closing(device.open()) as log:
            told = oomlog.follow(Collector(), log, wait_s=0.0)
            assert [victim.pid for victim in next(told).victims] == [501]
            device.write("eth0: link up")
            device.kill(502)
            assert [victim.pid for victim in next(told).victims] == [502]
            assert list(told) == []


def test_lines_over_any_chunks_are_the_same_lines() -> None:
    """Where a chunk ends is nobody's line."""
    log = "\n".join(MODERN).encode()
    for size in (1, 7, 100, len(log)):
        chunks = (log[at : at + size] for at in range(0, len(log), size))
        assert list(oomlog._lines(chunks)) == log.split(b"\n")


def test_a_line_that_never_ends_is_cut() -> None:
    """And the next one is whole again."""
    long = b"x" * (oomlog.MAX_CARRIED_BYTES + 10)
    chunks = iter([long, long, b"y\nnext\n"])
    first, second = oomlog._lines(chunks)
    assert len(first) <= len(long)
    assert second == b"next"
