"""The parts of `make bench`, one row each: what is run where, and what becomes a section of which page.

Must not: measure. Upstream: probes. Downstream: __main__.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

from tests.bench import grounds, reaction, soak
from tests.bench.probes import GUEST, HERE, Found, Tell, kernel_of_memory, probe
from tests.bench.report import Section

PERFORMANCE, RELIABILITY = "docs/explanation/performance.md", "docs/explanation/reliability.md"
SOAK_TEMPO = 10.0


class Size(NamedTuple):
    """How much of everything: enough for the figures, or so little that only the code is tried."""

    crossings: int
    soak_s: float


FULL = Size(crossings=300, soak_s=3600.0)
QUICK = Size(crossings=3, soak_s=3.0)


class Part(NamedTuple):
    """One part: its page, whether it belongs to a run without options, and what it does."""

    page: str
    usual: bool
    run: Callable[[Size, Tell], Section]


def _reaction(size: Size, tell: Tell) -> Section:
    reaction.built_loop()
    where = kernel_of_memory()
    found = [probe("reaction", where, "memory", str(size.crossings))]
    if where == GUEST and os.geteuid() == 0 and grounds.huge_root() is not None:
        # The figures of a real processor, by a counter of another controller.
        found.insert(0, probe("reaction", HERE, "huge", str(size.crossings)))
    return _section("reaction", "Reaction", found)


def _soak(size: Size, tell: Tell) -> Section:
    seconds = float(os.environ.get("SOAK_SECONDS", size.soak_s))
    return soak.run(seconds, SOAK_TEMPO, 1, tell)


def _section(part: str, title: str, found: list[Found]) -> Section:
    """All tables; budgets are judged by the first that measured a figure: the one on the best ground."""
    measured: dict[str, float] = {}
    for each in reversed(found):
        measured |= each.measured
    tables = [table for each in found for table in each.tables]
    return Section(part, title, tables, measured)


PARTS = {
    "reaction": Part(PERFORMANCE, True, _reaction),
    "soak": Part(PERFORMANCE, False, _soak),
}
