"""Figures and names as people read them in a terminal.

Must not: know a command. Upstream: core.text. Downstream: status, watch.
"""

from collections.abc import Sequence

from edgeguardd.cli.statusdoc import EndedCommand, TargetRow
from edgeguardd.core.text import printable

MAX_CELL_CHARS = 60
LEAST_RATE_BYTES_PER_S = 4096


def name(text: str | None, max_chars: int = MAX_CELL_CHARS) -> str:
    """A name or reason that somebody else chose, safe and short; "-" for none."""
    return "-" if text is None else printable(text, max_chars)


def size(size_bytes: float | None) -> str:
    """Bytes with a unit of base 1024, three figures or so."""
    if size_bytes is None:
        return "-"
    sign, rest = ("-" if size_bytes < 0 else ""), abs(size_bytes)
    for unit in ("B", "K", "M", "G"):
        if rest < 1024:
            return f"{sign}{rest:.0f}{unit}" if unit == "B" else f"{sign}{rest:.1f}{unit}"
        rest /= 1024
    return f"{sign}{rest:.1f}T"


def rate(bytes_per_s: float | None) -> str:
    """Growth, with its sign; less than a page or so a second is a smoothed average coming to rest, and no growth."""
    if bytes_per_s is None:
        return "-"
    return "0" if abs(bytes_per_s) < LEAST_RATE_BYTES_PER_S else f"{size(bytes_per_s)}/s"


def span(seconds: float | None) -> str:
    """A time span in its largest unit that says enough."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f}s" if unit == "s" and seconds < 10 else f"{seconds / divisor:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def ago(seconds: float | None) -> str:
    """How long since something happened."""
    return "-" if seconds is None else f"{span(seconds)} ago"


def share(ratio: float | None) -> str:
    """A ratio as percent."""
    return "-" if ratio is None else f"{ratio * 100:.0f}%"


def limit(target: TargetRow) -> str:
    """The limit that binds, with the file it stands in, and whose when it is an ancestor's."""
    if target.limit_bytes is None:
        return "none"
    whose = f" of {name(target.limit_path)}" if target.limit_path not in {None, target.path} else ""
    return f"{size(target.limit_bytes)} {name(target.limit_kind)}{whose}"


def short_limit(target: TargetRow) -> str:
    """The limit that binds, with the file it stands in less its "memory."."""
    if target.limit_bytes is None:
        return "none"
    return f"{size(target.limit_bytes)} {name(target.limit_kind).removeprefix('memory.')}"


def limit_share(target: TargetRow) -> str:
    """Needed bytes as percent of the limit that binds."""
    if not target.limit_bytes or target.needed_bytes is None:
        return "-"
    return share(target.needed_bytes / target.limit_bytes)


def state(target: TargetRow, max_chars: int = MAX_CELL_CHARS) -> str:
    """What is unusual about a target besides its level; "" when nothing is. A reason takes at most max_chars."""
    found = []
    if not target.present:
        found.append("no such cgroup yet")
    if target.degraded is not None:
        found.append(f"cannot be read: {name(target.degraded, max_chars)}")
    if target.in_force.max_batch_ratio < 1:
        found.append(f"batch at most {share(target.in_force.max_batch_ratio)}")
    if not target.in_force.accept_requests:
        found.append("no new requests")
    if not target.in_force.model_loaded:
        found.append("model unloaded")
    if target.exhausted:
        found.append("nothing left to ask for")
    return ", ".join(found)


def outcome(command: EndedCommand) -> list[str]:
    """A command that has ended as cells, as OUTCOME_HEADER names them."""
    return [
        str(command.seq),
        name(command.target),
        name(command.action),
        name(command.outcome),
        span(command.took_s),
        size(command.claimed_bytes),
        size(command.freed_bytes),
        span(command.age_s),
        "-" if command.subscriber is None else str(command.subscriber),
        "" if command.message is None else name(command.message),
    ]


OUTCOME_HEADER = ("SEQ", "TARGET", "ACTION", "OUTCOME", "TOOK", "CLAIMED", "FREED", "AGO", "BY", "SAID")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
