"""Figures, tables and pages of the benchmarks: what is printed is what was measured."""

import math
import os
import re

from tests.bench import figures, report
from tests.bench.budgets import BUDGETS
from tests.bench.parts import PARTS
from tests.bench.report import Circumstances, Section, Table
from tests.support.running import REPOSITORY

ABOUT = Circumstances("2026-01-02", "Linux 6.1", "2 processors", "0.1", "make bench")


def section(part: str = "reaction", cell: str = "1") -> Section:
    """One with a table and a figure."""
    return Section(part, "Title", [Table("T", ["who", "count"], [["me", cell]])], {"ready": 0.5}, ABOUT)


def test_percentiles_are_values_that_were_measured() -> None:
    """The nearest rank: of 100 values the 99th percentile is the 99th, the median the 50th; of none there is none."""
    values = [float(number) for number in range(1, 101)]
    assert figures.percentile(values, 0.99) == 99.0
    assert figures.median(values) == 50.0
    assert figures.spread(values) == 50.0
    assert math.isnan(figures.median([]))


def test_the_slope_is_that_of_the_line_that_fits() -> None:
    """Two more a step, whatever it begins with; nothing for what stands still."""
    assert figures.slope([(x, 5 + 2.0 * x) for x in range(10)]) == 2.0
    assert figures.slope([(1.0, 3.0), (1.0, 5.0)]) == 0.0


def test_a_budget_is_met_or_missed_and_no_figure_is_missed() -> None:
    """At the budget is met, above it is not, and what could not be measured is not."""
    assert report.verdict("ready", BUDGETS["ready"].most) == "met"
    assert report.verdict("ready", BUDGETS["ready"].most + 0.1) == "MISSED"
    assert report.verdict("ready", math.nan) == "MISSED"


def test_a_section_takes_the_place_of_the_one_before_it() -> None:
    """Other sections and the prose stay; a part that is new comes last."""
    page = report.put(report.put("# Page\n\nProse.\n", section("reaction", "1")), section("soak", "2"))
    page = report.put(page, section("reaction", "3"))
    assert page.startswith("# Page\n\nProse.\n")
    assert page.count("bench reaction begin") == page.count("bench soak begin") == 1
    assert "| me  |     3 |" in page
    assert "| me  |     1 |" not in page
    assert page.index("bench reaction") < page.index("bench soak")


def test_each_section_of_the_pages_says_when_where_and_how() -> None:
    """Every section that `make bench` wrote has a known part, its circumstances, and whole tables."""
    for path in sorted({part.page for part in PARTS.values()}):
        with open(os.path.join(REPOSITORY, path)) as file:
            page = file.read()
        for part, text in re.findall(r"<!-- bench (\S+) begin -->\n(.*?)<!-- bench \1 end -->", page, re.DOTALL):
            assert PARTS[part].page == path
            assert re.search(r"^\*\d{4}-\d\d-\d\d, Linux .* load average .*`make (bench|soak)", text, re.MULTILINE), (
                part
            )
            tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
            assert tables, part
            for table in tables:
                assert len({row.count("|") for row in table.splitlines()}) == 1, table
