"""What a part hands back, as values, as text for the terminal, and as a section of a page. Pure but for `write`.

Must not: measure. Upstream: the parts. Downstream: __main__. A section on a page lies between two comments that name
its part, so that a run of one part leaves the others' figures as they are.
"""

import os
import re
from collections.abc import Iterable

from msgspec import Struct

from tests.bench.budgets import BUDGETS

MARK = "<!-- bench {part} {edge} -->"


class Table(Struct):
    """A table: its title, the names of its columns, its rows, and what is to be known about it."""

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = []


class Circumstances(Struct):
    """When, where and by which command."""

    date: str
    kernel: str
    machine: str
    load: str
    command: str


class Section(Struct):
    """All that one part found; `measured` by the names of BUDGETS; `missing`: why something was not measured."""

    part: str
    title: str
    tables: list[Table]
    measured: dict[str, float] = {}
    circumstances: Circumstances | None = None
    missing: list[str] = []


def markdown(section: Section) -> str:
    """The section as it stands on the page, marks included."""
    about = section.circumstances
    lines = [MARK.format(part=section.part, edge="begin"), f"## {section.title}", ""]
    if about is not None:
        began = f"load average {about.load} when it began"
        lines += [f"*{about.date}, {about.kernel}, {about.machine}, {began}; `{about.command}`*", ""]
    for table in [*section.tables, *judged(section.measured)]:
        lines += [f"### {table.title}", "", *rows(table), ""]
        for note in table.notes:
            lines += [note, ""]
    for sentence in section.missing:
        lines += [f"Not measured: {sentence}", ""]
    return "\n".join([*lines, MARK.format(part=section.part, edge="end"), ""])


def judged(measured: dict[str, float]) -> list[Table]:
    """The budgets that were measured, each with whether it is met."""
    if not measured:
        return []
    found = [(name, BUDGETS[name], value) for name, value in measured.items()]
    cells = [
        [budget.what, f"≤ {budget.most:g} {budget.unit}", f"{value:.3g} {budget.unit}", verdict(name, value)]
        for name, budget, value in found
    ]
    return [Table("Against the budget", ["what", "budget", "measured", ""], cells)]


def verdict(name: str, value: float) -> str:
    """met or missed; not a number is missed."""
    return "met" if value <= BUDGETS[name].most else "MISSED"


def rows(table: Table) -> list[str]:
    """A Markdown table, its columns aligned so that it can be read as it stands."""
    lines = [table.head, *table.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.head))]

    def line(cells: Iterable[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [line(table.head), line(rule), *(line(row) for row in table.rows)]


def put(page: str, section: Section) -> str:
    """The page with this section in place of the one before it, or at its end."""
    begin, end = (re.escape(MARK.format(part=section.part, edge=edge)) for edge in ("begin", "end"))
    text = markdown(section)
    found = re.search(f"{begin}.*?{end}\n", page, re.DOTALL)
    if found is None:
        return page.rstrip("\n") + "\n\n" + text
    return page[: found.start()] + text + page[found.end() :]


def write(path: str, section: Section) -> None:
    """As put, on the file; as a whole or not at all."""
    with open(path) as file:
        page = put(file.read(), section)
    with open(f"{path}.new", "w") as file:
        file.write(page)
    os.replace(f"{path}.new", path)
