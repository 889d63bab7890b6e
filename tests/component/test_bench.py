"""The benchmarks' own code, tried small: figures mean nothing here, but each has to come out."""

import pytest

from tests.bench import parts, reaction, report
from tests.bench.__main__ import main
from tests.bench.probes import HERE, probe


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


def test_an_unknown_part_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in BENCH_OPTIONS costs no run."""
    with pytest.raises(SystemExit):
        main(["reacton"])
    assert "no part reacton; there are reaction" in capsys.readouterr().err
