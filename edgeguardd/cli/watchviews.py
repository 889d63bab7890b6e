"""How `edgeguardctl watch` shows what it saw: drawn in place in a terminal, or one line a fact.

Must not: fetch. The only module that imports rich. Upstream: statusdoc, words, remarks. Downstream: watch.
Names come from peers: they are escaped, and never read as markup.
"""

from collections.abc import Sequence
from datetime import datetime
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from edgeguardd.cli import remarks, words
from edgeguardd.cli.statusdoc import Status, TargetRow
from edgeguardd.core.wire import LevelLine

STYLES = {"normal": "green", "elevated": "yellow", "high": "dark_orange", "critical": "red", "emergency": "bold red"}
# The memory bar takes what the other columns leave of the line, within these.
BAR_CHARS = 32
LEAST_BAR_CHARS = 8
_GAP_CHARS = 2  # between two columns of a rich table without a box
SUPPORTS_FROM_CHARS = 120
SHOWN_COMMANDS = 8
SHOWN_LEVELS = 4


class Live:
    """The whole state, drawn over itself."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = RichLive(console=console or Console(), auto_refresh=False)
        self._last: Status | None = None
        self._seen_at = ""
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
            since = "" if self._last is None else f"; all below is as it was at {self._seen_at}"
            parts.append(Text(words.name(seen, 200) + since, style="bold red"))
        else:
            self._last, self._seen_at = seen, _clock()
        if self._last is not None:
            parts.append(_head(self._last))
            parts += [_targets(self._last, self._live.console.width), *_remarks(self._last)]
            parts += [_subscribers(self._last, self._live.console.width), _commands(self._last)]
        parts += [Text(_level(level), style=STYLES.get(level.level, "")) for level in self._levels]
        self._live.update(Group(*parts), refresh=True)


class Lines:
    """A line for the machine and each target at each look; one a level change, an ended command, a new peer."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, int]] | None = None
        self._peers: set[str] = set()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def show(self, seen: Status | str, levels: Sequence[LevelLine]) -> None:
        """Print what was seen."""
        lines = [_level(level) for level in levels]
        if isinstance(seen, str):
            lines.append(words.name(seen, 200))
        else:
            lines += [*remarks.daemon(seen), *self._come_and_gone(seen), *self._ended(seen)]
            lines += [*remarks.machine(seen.machine), *(_target_line(target, seen) for target in seen.targets)]
            if not seen.targets:
                lines.append("no targets")
        for line in lines:
            print(f"{_clock()} {line}", flush=True)

    def _ended(self, status: Status) -> list[str]:
        """The commands that have ended since the last look."""
        keys = {(status.epoch, command.target, command.seq): command for command in status.last_commands}
        fresh = [command for key, command in keys.items() if self._told is not None and key not in self._told]
        self._told = set(keys)
        return [
            f"command {command.seq} {words.name(command.action)} of {words.name(command.target)}: "
            f"{words.name(command.outcome)} after {words.span(command.took_s)}, "
            f"claimed {words.size(command.claimed_bytes)}, freed {words.size(command.freed_bytes)}, "
            f"asked of subscriber {'-' if command.subscriber is None else command.subscriber}"
            f"{'' if command.message is None else ': ' + words.name(command.message, 200)}"
            for command in fresh
        ]

    def _come_and_gone(self, status: Status) -> list[str]:
        """The subscribers that are new since the last look, and those that have left."""
        peers = {
            f"subscriber {row.subscriber} {words.name(row.name)} ({words.name(row.role)} of "
            f"{'all' if row.target is None else words.name(row.target)})"
            for row in status.subscribers
        }
        came, went = peers - self._peers, self._peers - peers
        self._peers = peers
        return [f"{peer} is connected" for peer in sorted(came)] + [f"{peer} has left" for peer in sorted(went)]


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


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")


def _head(status: Status) -> Text:
    head = (
        f"edgeguardd {words.name(status.version)}  up {words.span(status.uptime_s)}  worst level "
        f"{words.name(status.worst_level)}{'' if status.ready else '  not ready'}"
    )
    return Text("\n".join([head, *remarks.daemon(status), *remarks.machine(status.machine)]))


def _targets(status: Status, width: int) -> Table:
    """The figures; `width` is the terminal's."""
    headers = ("target", "level", "needed", "limit", "growth", "sampled")
    rows = [
        (
            words.name(target.name),
            words.name(target.level),
            words.size(target.needed_bytes),
            words.limit(target),
            words.rate(target.growth_bytes_per_s),
            words.ago(target.sample_age_s),
        )
        for target in status.targets
    ]
    taken = sum(max(map(len, column)) + _GAP_CHARS for column in zip(headers, *rows, strict=True))
    chars = max(LEAST_BAR_CHARS, min(BAR_CHARS, width - taken))
    table = _table("target", "level", "memory", "needed", "limit", "growth", "sampled")
    for target, (name, level, *figures) in zip(status.targets, rows, strict=True):
        style = STYLES.get(target.level, "")
        cells = (Text(name), Text(level, style=style), Text(bar(target, chars), style=style), *map(Text, figures))
        table.add_row(*cells)
    return table


def _remarks(status: Status) -> list[Text]:
    """A line for each target that is not simply at rest: beside the figures there is no room for it."""
    return [
        Text(f"{words.name(target.name)}: {'; '.join(said)}", style=STYLES.get(target.level, ""))
        for target in status.targets
        if (said := remarks.target(target, status))
    ]


def _subscribers(status: Status, width: int) -> Table:
    headers: tuple[str, ...] = (
        "subscriber",
        "name",
        "role",
        "target",
        "pid",
        "connected",
        "silent",
        "unsent",
        "supports",
    )
    # In a narrow terminal the last column would be a tower of syllables; `status` has it.
    headers = headers if width >= SUPPORTS_FROM_CHARS else headers[:-1]
    table = _table(*headers)
    for row in status.subscribers:
        cells: tuple[str, ...] = (
            str(row.subscriber),
            words.name(row.name),
            words.name(row.role),
            "all" if row.target is None else words.name(row.target),
            "-" if row.pid is None else str(row.pid),
            words.span(row.connected_s),
            words.span(row.silent_s),
            str(row.outbox_lines),
            words.name(" ".join(row.supports), 100) or "-",
        )
        table.add_row(*(Text(cell) for cell in cells[: len(headers)]))
    return table


def _commands(status: Status) -> Table:
    table = _table(*(header.lower() for header in words.OUTCOME_HEADER))
    for command in status.last_commands[-SHOWN_COMMANDS:]:
        table.add_row(*(Text(cell) for cell in words.outcome(command)))
    return table


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    for header in headers:
        # The last column holds what is long: it goes on in a second line before another one loses a letter.
        last = header == headers[-1]
        table.add_column(header, no_wrap=not last, overflow="fold" if last else "ellipsis")
    return table


def _level(line: LevelLine) -> str:
    steps = f"{words.name(line.was)} -> {words.name(line.level)}"
    return f"level of {words.name(line.target)}: {steps}: {words.name(line.reason, 200)}"


def _target_line(target: TargetRow, status: Status) -> str:
    figures = (
        f"{words.name(target.name)} {words.name(target.level)}: needed {words.size(target.needed_bytes)}, limit "
        f"{words.limit(target)}, used {words.limit_share(target)}, {words.share(target.used_ratio)} of what can grow, "
        f"sampled {words.ago(target.sample_age_s)}"
    )
    return "; ".join([figures, *remarks.target(target, status)])
