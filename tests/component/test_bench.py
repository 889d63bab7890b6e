"""The benchmarks' own code, tried small: figures mean nothing here, but each has to come out."""

import contextlib
import os
import subprocess
from collections.abc import Callable

import pytest

from tests.bench import parts, probes, reaction, report
from tests.bench.__main__ import main
from tests.bench.deadline import TimeUpError, within
from tests.bench.parts import Part
from tests.bench.probes import HERE, Found, ProbeError, Tell, probe
from tests.bench.report import Section, Table
from tests.support.wait import eventually


def tell(_: str) -> None:
    """Nobody looks at it."""


def test_a_soak_of_moments_gives_all_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load on a daemon, looks at it, and no defect, and at rest as many descriptors as before."""
    monkeypatch.setenv("SOAK_SECONDS", "1")
    section = parts.PARTS["soak"].run(parts.QUICK, tell)
    assert set(section.measured) == {"resident", "resident_slope", "descriptors_left"}
    assert section.measured["descriptors_left"] == 0
    assert " 0 defects" in section.tables[0].notes[0]
    assert len(report.rows(section.tables[0])) > 3


@pytest.mark.skipif(not parts.has_huge(), reason="needs root and hugetlb on cgroup v2")
def test_a_few_reactions_by_a_huge_page_counter() -> None:
    """The C loop and the daemon each tell of each crossing, and every stage has its time."""
    reaction.built_loop()
    found = probe("reaction", HERE, "huge", "2")
    assert set(found.measured) == {"reaction_p50", "reaction_p99", "reaction_ratio"}
    assert [row[1] for row in found.tables[0].rows] == ["2"] * 3
    assert "-" not in [cell for row in found.tables[1].rows for cell in row], found.tables[1].rows


@pytest.mark.skipif(not parts.has_huge(), reason="needs root and hugetlb on cgroup v2")
@pytest.mark.parametrize("part", ["subscribers", "storm"])
def test_a_small_crowd_and_a_small_storm(part: str) -> None:
    """Every count is seen, and whoever subscribes is told."""
    section = parts.PARTS[part].run(parts.QUICK, tell)
    assert section.tables[0].rows
    assert section.measured.get("storm_lost", 0.0) == 0.0


def test_cost_and_start() -> None:
    """Each figure of the budgets comes out."""
    section = parts.PARTS["cost"].run(parts.QUICK, tell)
    assert set(section.measured) == {"ready", "idle_wakeups", "idle_cpu", "metrics_page"}


def test_a_restart_and_a_kill_lose_nothing() -> None:
    """The gap comes out, and what the oracle says of ten servers' commands: nothing."""
    section = parts.PARTS["restart"].run(parts.QUICK, tell)
    assert set(section.measured) == {"restart_gap", "restart_wrong"}
    assert section.measured["restart_wrong"] == 0, section.tables[0].notes
    assert [row[:2] for row in section.tables[0].rows] == [["restart", "1"], ["kill -9", "1"]]


def test_an_unknown_part_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in BENCH_OPTIONS costs no run."""
    with pytest.raises(SystemExit):
        main(["reacton"])
    assert "no part reacton; there are reaction" in capsys.readouterr().err


def part(run: Callable[[parts.Size, Tell], Section], minutes: float = 1.0) -> Part:
    """One that nobody asked for, and that stands on no page."""
    return Part("nowhere.md", usual=False, most_minutes=minutes, run=run)


def unmeasurable(*_: object) -> Section:
    """What it needs is not here."""
    raise ProbeError("there is no moon")


def endless(*_: object) -> Section:
    """A program that never ends."""
    subprocess.run(["sleep", "infinity"], check=True)
    raise AssertionError


def partly(*_: object) -> Section:
    """One table, and one that could not be had."""
    table = Table("T", ["who"], [["me"]])
    return parts._section("partly", "Partly", [lambda: Found([table]), unmeasurable])  # type: ignore[list-item]


def test_what_cannot_be_measured_is_said_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part without what it needs, one that hangs, one of which half comes out: a line each, and exit status 1."""
    made = {"moon": part(unmeasurable), "endless": part(endless, 0.001), "partly": part(partly)}
    monkeypatch.setattr(parts, "PARTS", made)
    assert main([*made, "--no-write"]) == 1
    said = capsys.readouterr().out
    assert "moon: NOT measured: there is no moon\n" in said
    assert "endless: NOT measured: given up after 0.0 min\n" in said
    assert "min, but NOT all: there is no moon" in said
    assert "Not measured: there is no moon\n" in said
    assert "| me  |" in said


def test_when_the_time_for_all_is_over_no_part_is_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And each is named."""
    monkeypatch.setattr(parts, "PARTS", {"endless": part(endless)})
    assert main(["endless", "--no-write", "--minutes", "0"]) == 1
    assert "endless: NOT measured: no time is left" in capsys.readouterr().out


def test_what_is_given_up_leaves_nothing_running() -> None:
    """Neither the measurement nor what it has started, each known by a number that nobody else sleeps for."""
    seconds = f"1000.{os.getpid()}"
    with pytest.raises(TimeUpError), within(0.01):
        probes._here(["sh", "-c", f"sleep {seconds} & sleep {seconds}; true"])
    eventually(lambda: not sleeping(seconds), what="both have ended")


def sleeping(seconds: str) -> list[str]:
    """The processes that sleep for so long."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline") as file:
            if seconds in file.read().split("\0"):
                found.append(name)
    return found
