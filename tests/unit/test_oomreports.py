"""OOM reports in the daemon: one line each, with its target, counts and remedy; figures for metrics and status."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from edgeguardd.core.events import CountersMoved
from edgeguardd.core.model import Counters
from edgeguardd.core.oomjoin import WAIT_S
from edgeguardd.kernel import oomwatch
from edgeguardd.kernel.kmsg import Kmsg
from edgeguardd.oomreports import OomCollector, OomReports
from edgeguardd.state import StateDirectory
from tests.support.fakekmsg import FakeKmsg
from tests.support.oomlogs import MODERN, reports

PATHS = {"llm": "/egtest/x", "slice": "/egtest", "other": "/elsewhere"}


class HandLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test sets."""

    now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def lines() -> Any:
    """The log's lines."""
    with structlog.testing.capture_logs() as captured:
        yield captured


def made(loop: asyncio.AbstractEventLoop, directory: str, *, enabled: bool = False) -> OomReports:
    """Reports without a watch, unless enabled."""
    state = StateDirectory(os.path.join(directory, "state"), lambda _: None)
    return OomReports(loop, state, lambda: PATHS, lambda _: None, enabled=enabled)


def with_loop(story: Callable[[HandLoop], None]) -> None:
    """Run with a loop of which nothing is left."""
    loop = HandLoop()
    try:
        story(loop)
    finally:
        loop.close()


def test_a_report_is_one_line_with_all_that_it_says(lines: list[dict[str, Any]], tmp_path: Any) -> None:
    """The nearest target above the victim's cgroup, the figures in bytes, and the verdict."""

    def story(loop: HandLoop) -> None:
        (report,) = reports("\n".join(f"[ 1503.009765] {message}" for message in MODERN))
        made(loop, tmp_path).report(report)

    with_loop(story)
    (line,) = lines
    assert (line["event"], line["log_level"], line["target"], line["pid"]) == ("oom_report", "warning", "llm", 7055)
    assert (line["comm"], line["kills"], line["victims"]) == ("a b(7", 1, ["a b(7 (7055)"])
    assert (line["limit_cgroup"], line["victim_cgroup"], line["limit_bytes"]) == ("/egtest", "/egtest/x", 40960 * 1024)
    assert "/egtest" in line["why"]
    assert "Raise the limit of /egtest" in line["remedy"]


def test_metrics_and_status_count_reports(lines: list[dict[str, Any]], tmp_path: Any) -> None:
    """By whose limit it was."""

    def story(loop: HandLoop) -> None:
        oom = made(loop, tmp_path)
        for report in reports("\n".join(MODERN)):
            oom.report(report)
        stats = oom.stats()
        assert (stats.reports, stats.victims, stats.readable) == ({"memcg": 1}, 1, False)
        assert stats.last is not None
        assert stats.last["pid"] == 7055
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in OomCollector(oom.stats).collect()
            for sample in family.samples
        }
        assert samples[("edgeguardd_oom_reports_total", "memcg")] == 1
        assert samples[("edgeguardd_oom_victims_total",)] == 1

    with_loop(story)


def test_a_counted_kill_without_a_report_is_told(
    lines: list[dict[str, Any]], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, once, with their number; an ancestor's counts and other counters are not the target's kills."""

    def story(loop: HandLoop) -> None:
        device = FakeKmsg()
        device.write("booted")
        monkeypatch.setattr(Kmsg, "open", device.open)
        oom = made(loop, tmp_path, enabled=True)
        watch = oom._watch
        assert isinstance(watch, oomwatch.OomWatch)
        watch._open_log = device.open
        oom.start()
        oom.counted(CountersMoved("llm", "/egtest/x", local=True, delta=Counters(oom_kill=3)))
        oom.counted(CountersMoved("llm", "/egtest", local=False, delta=Counters(oom_kill=5)))
        oom.counted(CountersMoved("llm", "/egtest/x", local=True, delta=Counters(high=7)))
        loop.now += WAIT_S
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert oom.stats().unexplained == {"llm": 3}
        oom.forget("llm")
        oom.forget("never counted")
        assert oom.stats().unexplained == {}
        oom.close()
        device.close()

    with_loop(story)
    assert [(line["event"], line["target"], line["kills"]) for line in lines] == [("oom_kills_unexplained", "llm", 3)]


def test_without_a_log_counts_are_not_waited_for(lines: list[dict[str, Any]], tmp_path: Any) -> None:
    """There would never be a report."""

    def story(loop: HandLoop) -> None:
        oom = made(loop, tmp_path)
        oom.counted(CountersMoved("llm", "/egtest/x", local=True, delta=Counters(oom_kill=3)))
        assert oom._join.next_due is None
        oom.close()

    with_loop(story)
    assert lines == []
