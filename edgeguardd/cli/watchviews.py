"""How `edgeguardctl watch` shows what it saw: drawn in place in a terminal, or one line a fact.

Must not: fetch. The only module that imports rich. Upstream: statusdoc, words. Downstream: watch.
Names come from peers: they are escaped, and never read as markup.
"""

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from edgeguardd.cli import words
from edgeguardd.cli.statusdoc import Status, TargetRow
from edgeguardd.core.wire import LevelLine

STYLES = {"normal": "green", "elevated": "yellow", "high": "dark_orange", "critical": "red", "emergency": "bold red"}
# The memory bar takes what the other columns leave of the line, within these.
BAR_CHARS = 32
LEAST_BAR_CHARS = 8
_GAP_CHARS = 2  # between two columns of a rich table without a box
SHOWN_COMMANDS = 8
SHOWN_LEVELS = 4


class Live:
    """The whole state, drawn over itself."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = RichLive(console=console or Console(), auto_refresh=False)
        self._last: Status | None = None
        self._levels: list[LevelLine] = []

    def __enter__(self) -> "Live":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, seen: Status | str, levels: Sequence[LevelLine]) -> None:
        """Draw what was seen; a sentence instead of a status stands above the last status."""
        self._levels = [*self._levels, *levels][-SHOWN_LEVELS:]
        parts: list[RenderableType] = []
        if isinstance(seen, str):
            parts.append(Text(words.name(seen, 200), style="bold red"))
        else:
            self._last = seen
        if self._last is not None:
            parts.append(_head(self._last))
            parts += [_targets(self._last, self._live.console.width), *_states(self._last)]
            parts += [_subscribers(self._last), _commands(self._last)]
        parts += [Text(_level(level), style=STYLES.get(level.level, "")) for level in self._levels]
        self._live.update(Group(*parts), refresh=True)


class Lines:
    """One line a target and look, one a level change, one a command that ended."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, int]] | None = None

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, seen: Status | str, levels: Sequence[LevelLine]) -> None:
        """Print what was seen."""
        now = datetime.now().astimezone().strftime("%H:%M:%S")
        lines = [_level(level) for level in levels]
        if isinstance(seen, str):
            lines.append(words.name(seen, 200))
        else:
            lines += [*self._ended(seen), *(_target_line(target) for target in seen.targets)]
            if not seen.targets:
                lines.append("no targets")
        for line in lines:
            print(f"{now} {line}", flush=True)

    def _ended(self, status: Status) -> list[str]:
        """The commands that have ended since the last look."""
        keys = {(status.epoch, command.target, command.seq): command for command in status.last_commands}
        fresh = [command for key, command in keys.items() if self._told is not None and key not in self._told]
        self._told = set(keys)
        return [
            f"command {command.seq} {words.name(command.action)} of {words.name(command.target)}: "
            f"{words.name(command.outcome)} after {words.span(command.took_s)}, "
            f"claimed {words.size(command.claimed_bytes)}, freed {words.size(command.freed_bytes)}"
            for command in fresh
        ]


def bar(target: TargetRow, width: int = BAR_CHARS) -> str:
    """Needed bytes against the limit, with the three marks: "████░░░|░░|░|░"."""
    limit, needed, marks = target.limit_bytes, target.needed_bytes, target.marks
    if not limit or needed is None:
        return " " * width
    filled = min(width, max(0, round(width * needed / limit)))
    cells = ["█"] * filled + ["░"] * (width - filled)
    for mark in () if marks is None else (marks.elevated_bytes, marks.high_bytes, marks.critical_bytes):
        cells[min(width - 1, max(0, int(width * mark / limit)))] = "|"
    return "".join(cells)


def _head(status: Status) -> Text:
    sample = status.machine.sample
    available = "" if sample is None else f"  {words.size(sample.available_bytes)} available"
    return Text(
        f"edgeguardd {words.name(status.version)}  up {words.span(status.uptime_s)}  worst level "
        f"{words.name(status.worst_level)}{available}{'' if status.ready else '  not ready'}"
    )


def _targets(status: Status, width: int) -> Table:
    """The figures; `width` is the terminal's."""
    headers = ("target", "level", "needed", "limit", "growth")
    rows = [
        (
            words.name(target.name),
            words.name(target.level),
            words.size(target.needed_bytes),
            words.limit(target),
            words.rate(target.growth_bytes_per_s),
        )
        for target in status.targets
    ]
    taken = sum(max(map(len, column)) + _GAP_CHARS for column in zip(headers, *rows, strict=True))
    chars = max(LEAST_BAR_CHARS, min(BAR_CHARS, width - taken))
    table = _table("target", "level", "memory", "needed", "limit", "growth")
    for target, (name, level, *figures) in zip(status.targets, rows, strict=True):
        style = STYLES.get(target.level, "")
        cells = (Text(name), Text(level, style=style), Text(bar(target, chars), style=style), *map(Text, figures))
        table.add_row(*cells)
    return table


def _states(status: Status) -> list[Text]:
    """A line for each target that is not simply at rest: beside the figures there is no room for it."""
    lines = []
    for target in status.targets:
        asked = " ".join(f"#{command.seq} {words.name(command.action)}" for command in target.outstanding)
        state = ", ".join(part for part in (words.state(target), asked and f"asked {asked}") if part)
        if state:
            style = STYLES.get(target.level, "")
            lines.append(Text(f"{words.name(target.name)}: {state}", style=style, no_wrap=True, overflow="ellipsis"))
    return lines


def _subscribers(status: Status) -> Table:
    table = _table("subscriber", "name", "role", "target", "pid", "connected", "unsent")
    for row in status.subscribers:
        cells = (
            str(row.subscriber),
            words.name(row.name),
            words.name(row.role),
            "all" if row.target is None else words.name(row.target),
            "-" if row.pid is None else str(row.pid),
            words.span(row.connected_s),
            str(row.outbox_lines),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _commands(status: Status) -> Table:
    table = _table(*(header.lower() for header in words.OUTCOME_HEADER))
    for command in status.last_commands[-SHOWN_COMMANDS:]:
        table.add_row(*(Text(cell) for cell in words.outcome(command)))
    return table


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=True, overflow="ellipsis")
    return table


def _level(line: LevelLine) -> str:
    steps = f"{words.name(line.was)} -> {words.name(line.level)}"
    return f"level of {words.name(line.target)}: {steps}: {words.name(line.reason, 200)}"


def _target_line(target: TargetRow) -> str:
    state = words.state(target)
    return (
        f"{words.name(target.name)} {words.name(target.level)}: needed {words.size(target.needed_bytes)}, limit "
        f"{words.limit(target)}, used {words.share(target.used_ratio)}{', ' + state if state else ''}"
    )
