"""The demonstration's lines and its table, as text. Pure.

Must not: measure or print. Upstream: run, __main__. Downstream: whoever reads the terminal.
"""

import dataclasses
from collections.abc import Sequence

from tests.demo.load import Tally

MIB = 1024 * 1024
BAR_CHARS = 44


@dataclasses.dataclass(frozen=True)
class Limits:
    """The marks of the bar, in bytes."""

    high_bytes: int
    max_bytes: int


# Of the demonstration's server. Weights and interpreter at rest take about half of it.
LIMITS = Limits(high_bytes=80 * MIB, max_bytes=96 * MIB)


@dataclasses.dataclass(frozen=True)
class Look:
    """The server's memory at one moment: what it needs, what is page cache besides, and how often `high` counted."""

    needed_bytes: int
    current_bytes: int
    high_count: int


def bar(look: Look, limits: Limits) -> str:
    """Needed bytes as #, droppable page cache as :, the memory.high mark as |, up to memory.max."""

    def place(size: int) -> int:
        return min(BAR_CHARS, round(BAR_CHARS * size / limits.max_bytes))

    needed, current, high = place(look.needed_bytes), place(look.current_bytes), place(limits.high_bytes)
    cells = ["#" if at < needed else ":" if at < current else "." for at in range(BAR_CHARS)]
    cells.insert(high, "|")
    return f"[{''.join(cells)}]"


def state_line(at_s: float, look: Look, limits: Limits, level: str, tally: Tally) -> str:
    """One look at a run."""
    counts = (
        f"served {tally.served:3d}  timed out {tally.timed_out:3d}  rejected {tally.rejected:2d}  lost {tally.lost:2d}"
    )
    needed = f"{look.needed_bytes / MIB:4.0f} MiB"
    return f"{at_s:5.1f} s {bar(look, limits)} {needed}  {level:<9} {counts}  high {look.high_count}"


def event_line(at_s: float, text: str) -> str:
    """Something that happened between two looks."""
    return f"{at_s:5.1f} s     {text}"


def table(columns: Sequence[tuple[str, Sequence[str]]], rows: Sequence[str]) -> str:
    """Right-aligned columns under their names, a row a figure."""
    width = max(map(len, rows))
    widths = [max(len(name), *map(len, values)) for name, values in columns]
    lines = ["  ".join([" " * width, *(name.rjust(size) for (name, _), size in zip(columns, widths, strict=True))])]
    for number, row in enumerate(rows):
        cells = [values[number].rjust(size) for (_, values), size in zip(columns, widths, strict=True)]
        lines.append("  ".join([row.ljust(width), *cells]))
    return "\n".join(lines)
