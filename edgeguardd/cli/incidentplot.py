"""The picture of an incident as SVG: needed bytes against marks and limit, levels above, commands and acks below.

Must not: know files, need a script or anything from outside. Upstream: core.incidents. Downstream: incidentpage (which
holds the style; everything drawn here has a class). Every mark has a <title>, which browsers show as a hint.
"""

import html
from collections.abc import Callable, Iterator
from datetime import datetime

from msgspec import Struct

from edgeguardd.cli import words
from edgeguardd.cli.recordings import local
from edgeguardd.core.decisions import Decision
from edgeguardd.core.effects import CommandEnded, Deliver, PutBackLimit, RaiseLimit, RunLastResort
from edgeguardd.core.incidents import Incident, Moment, Point
from edgeguardd.core.model import Level

WIDTH, LEFT, RIGHT = 1000.0, 80.0, 124.0
BAND_TOP, BAND_HEIGHT = 8.0, 16.0
TOP, BOTTOM = 40.0, 320.0
ROW, MAX_ROWS = 18.0, 16
# The widest of the usual sans-serif fonts, at 12 units.
CHAR = 7.3
LANES_TOP = BOTTOM + 34.0

_STEPS_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_MIB = 1 << 20


class Bar(Struct):
    """One command from its delivery to its end, on one row below the plot."""

    seq: int
    label: str
    start_s: float
    end_s: float
    outcome: str
    hint: str
    row: int = 0
    labelled: bool = True

    @property
    def text(self) -> str:
        """What stands beside it: colour alone tells not everybody how it ended."""
        return self.label if self.outcome in {"done", "open"} else f"{self.label} {self.outcome}"


class Scale(Struct, frozen=True):
    """Seconds and bytes to places in the picture."""

    start_s: float
    end_s: float
    low_bytes: float
    high_bytes: float

    def x(self, wall_s: float) -> float:
        """The place of a time."""
        share = (wall_s - self.start_s) / (self.end_s - self.start_s)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def y(self, size_bytes: float) -> float:
        """The place of an amount."""
        share = (size_bytes - self.low_bytes) / (self.high_bytes - self.low_bytes)
        return BOTTOM - min(1.0, max(0.0, share)) * (BOTTOM - TOP)


def plot(incident: Incident) -> str:
    """The whole <svg>."""
    scale = _scale(incident)
    bars = _bars(incident, scale)
    height = LANES_TOP + ROW * (max((bar.row for bar in bars), default=0) + 1) + 8
    label = "needed bytes over time, with levels above and commands below"
    parts = [
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{label}">',
        *_band(incident, scale),
        *_time_axis(scale),
        *_bytes_axis(scale),
        *_curve(incident.curve, scale),
        *_limits(incident.curve, scale),
        *_moments(incident, scale),
        *_command_lanes(bars, incident, scale),
        "</svg>",
    ]
    return "\n".join(parts)


def _scale(incident: Incident) -> Scale:
    """All that was seen, with a little air; from zero, unless the whole story is in the upper part."""
    times = [incident.start_s, incident.end_s, *(point.wall_s for point in incident.curve)]
    times += [told.wall_s for told in incident.story]
    start_s, end_s = min(times), max(times)
    amounts = [a for p in incident.curve for a in (p.needed_bytes, p.limit_bytes, p.elevated_bytes) if a is not None]
    low, high = float(min(amounts, default=0)), float(max(amounts, default=_MIB))
    low = max(0.0, low - 0.25 * (high - low)) if low > 0.5 * high else 0.0
    air = 0.06 * (high - low) or 1.0
    return Scale(start_s, max(end_s, start_s + 0.1), low, high + air)


def _band(incident: Incident, scale: Scale) -> Iterator[str]:
    """The level at each time, as a coloured strip with words where there is room."""
    yield f'<text class="axis" x="{LEFT - 6:.0f}" y="{BAND_TOP + 12:.0f}" text-anchor="end">level</text>'
    changes = [(scale.start_s, Level.NORMAL), *incident.levels]
    if incident.began_before and incident.levels:
        changes[0] = (scale.start_s, incident.levels[0][1])
    for (at_s, level), (until_s, _) in zip(changes, [*changes[1:], (scale.end_s, Level.NORMAL)], strict=True):
        x, width = scale.x(at_s), max(0.5, scale.x(until_s) - scale.x(at_s))
        hint = f"{level.word} for {words.span(until_s - at_s)} from {_clock(at_s)}"
        yield (
            f'<rect class="level-{level.word}" x="{x:.1f}" y="{BAND_TOP}" width="{width:.1f}" height="{BAND_HEIGHT}">'
            f"<title>{hint}</title></rect>"
        )
        if width > CHAR * len(level.word) + 8:
            yield f'<text class="on-{level.word}" x="{x + 4:.1f}" y="{BAND_TOP + 12:.0f}">{level.word}</text>'


def _time_axis(scale: Scale) -> Iterator[str]:
    """Ticks at round local times."""
    span_s = scale.end_s - scale.start_s
    step_s = next((step for step in _STEPS_S if span_s / step <= 8), _STEPS_S[-1])
    at_s = -(-scale.start_s // step_s) * step_s
    while at_s <= scale.end_s:
        x = scale.x(at_s)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>'
        label = _clock(at_s, fine=step_s < 1)
        yield f'<text class="axis" x="{x:.1f}" y="{BOTTOM + 16:.0f}" text-anchor="middle">{label}</text>'
        at_s += step_s


def _bytes_axis(scale: Scale) -> Iterator[str]:
    """Ticks at amounts that are round in base 1024."""
    step = 4096
    while (scale.high_bytes - scale.low_bytes) / step > 6:
        step *= 2
    at = -(-int(scale.low_bytes) // step) * step
    while at <= scale.high_bytes:
        y = scale.y(at)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield f'<text class="axis" x="{LEFT - 6:.0f}" y="{y + 4:.1f}" text-anchor="end">{_size(at)}</text>'
        at += step


def _curve(curve: list[Point], scale: Scale) -> Iterator[str]:
    """Needed bytes, and what of them is held at rest."""
    if not curve:
        yield f'<text class="axis" x="{WIDTH / 2:.0f}" y="{(TOP + BOTTOM) / 2:.0f}">no samples were recorded</text>'
        return
    line = " ".join(f"{scale.x(p.wall_s):.1f},{scale.y(p.needed_bytes):.1f}" for p in curve)
    first, last = scale.x(curve[0].wall_s), scale.x(curve[-1].wall_s)
    yield f'<polygon class="area" points="{first:.1f},{BOTTOM} {line} {last:.1f},{BOTTOM}"/>'
    if any(point.static_bytes for point in curve):
        yield from _steps(curve, lambda p: p.static_bytes, "static", "held at rest", scale)
    yield f'<polyline class="needed" points="{line}"><title>needed bytes</title></polyline>'


def _limits(curve: list[Point], scale: Scale) -> Iterator[str]:
    """The limit and the marks, which can move; each with its name at the right."""
    rows: tuple[tuple[str, Callable[[Point], int | None]], ...] = (
        ("elevated", lambda p: p.elevated_bytes),
        ("high", lambda p: p.high_bytes),
        ("critical", lambda p: p.critical_bytes),
        ("limit", lambda p: p.limit_bytes),
    )
    floor = BOTTOM + 14.0
    for name, amount in rows:
        yield from _steps(curve, amount, name, name, scale)
        last = next((a for p in reversed(curve) if (a := amount(p)) is not None), None)
        if last is not None:
            # Names that would overlap move up: marks rise from elevated to the limit.
            floor = min(scale.y(last) + 4, floor - 14)
            label = f"{name} {_size(last)}"
            yield f'<text class="name {name}" x="{WIDTH - RIGHT + 5:.0f}" y="{floor:.1f}">{label}</text>'


def _steps(
    curve: list[Point], amount: Callable[[Point], int | None], css: str, title: str, scale: Scale
) -> Iterator[str]:
    """One line that keeps its height until it changes; broken where there is none."""
    path: list[str] = []
    drawn: float | None = None
    for point in curve:
        size = amount(point)
        x = scale.x(point.wall_s)
        if size is None:
            if drawn is not None:
                path.append(f"H{x:.1f}")
            drawn = None
            continue
        y = scale.y(size)
        if drawn is None:
            path.append(f"M{x:.1f},{y:.1f}")
        elif y != drawn:
            path.append(f"H{x:.1f}V{y:.1f}")
        drawn = y
    if drawn is not None:
        path.append(f"H{scale.x(curve[-1].wall_s):.1f}")
    if path:
        yield f'<path class="mark {css}" d="{"".join(path)}"><title>{title}</title></path>'


def _moments(incident: Incident, scale: Scale) -> Iterator[str]:
    """Kernel counters, limits lifted and put back, last resorts: signs on the axis."""
    for told in incident.story:
        css = _sign(told)
        if css:
            x = scale.x(told.wall_s)
            hint = _escaped(f"{_clock(told.wall_s, fine=True)} {told.sentence}")
            yield (
                f'<path class="{css}" d="M{x:.1f},{BOTTOM - 9:.0f}l4.5,9h-9z"><title>{hint}</title></path>'
                f'<line class="{css}" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>'
            )


def _sign(told: Decision | Moment) -> str:
    if isinstance(told, Moment):
        return "sign-kernel" if told.what in {"counters", "kills"} else ""
    match told.effect:
        case RaiseLimit() | PutBackLimit():
            return "sign-relief"
        case RunLastResort():
            return "sign-resort"
        case _:
            return ""


def _bars(incident: Incident, scale: Scale) -> list[Bar]:
    """The commands, each on the first row where it and its name do not touch another."""
    bars: dict[int, Bar] = {}
    for told in incident.story:
        if not isinstance(told, Decision):
            continue
        if isinstance(told.effect, Deliver):
            command = told.effect.command
            label = f"#{command.seq} {command.action}"
            bars[command.seq] = Bar(command.seq, label, told.wall_s, scale.end_s, "open", told.sentence)
        elif isinstance(told.effect, CommandEnded) and told.effect.seq in bars:
            bar = bars[told.effect.seq]
            bar.end_s, bar.outcome = told.wall_s, told.effect.outcome.value
            bar.hint = f"{bar.hint}; {told.sentence}"
    taken: list[float] = []
    for bar in bars.values():
        start = scale.x(bar.start_s)
        end = max(scale.x(bar.end_s), start + 4)
        right = end + CHAR * len(bar.text) + 14
        bar.row = next((row for row, until in enumerate(taken) if until <= start), len(taken))
        if bar.row >= MAX_ROWS:
            bar.row, bar.labelled = MAX_ROWS - 1, False
        taken[bar.row : bar.row + 1] = [max(right, taken[bar.row]) if bar.row < len(taken) else right]
    return list(bars.values())


def _command_lanes(bars: list[Bar], incident: Incident, scale: Scale) -> Iterator[str]:
    """A bar a command, coloured by its outcome, with a line up to where it went out and the acks on it."""
    yield f'<text class="axis" x="{LEFT - 6:.0f}" y="{LANES_TOP + 12:.0f}" text-anchor="end">commands</text>'
    rows = {bar.seq: bar.row for bar in bars}
    for bar in bars:
        x, y = scale.x(bar.start_s), LANES_TOP + ROW * bar.row
        width = max(4.0, scale.x(bar.end_s) - x)
        hint = _escaped(f"{_clock(bar.start_s, fine=True)} {bar.hint}")
        yield f'<line class="asked" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>'
        yield (
            f'<rect class="bar outcome-{bar.outcome}" x="{x:.1f}" y="{y + 3:.1f}" width="{width:.1f}" height="11" '
            f'rx="2"><title>{hint}</title></rect>'
        )
        if bar.labelled:
            flip = x + width + CHAR * len(bar.text) + 8 > WIDTH
            at, anchor = (x - 6, "end") if flip else (x + width + 6, "start")
            yield f'<text class="axis" x="{at:.1f}" y="{y + 12:.1f}" text-anchor="{anchor}">{_escaped(bar.text)}</text>'
    for told in incident.story:
        if isinstance(told, Moment) and told.what == "ack" and told.seq in rows:
            x, y = scale.x(told.wall_s), LANES_TOP + ROW * rows[told.seq] + 8.5
            hint = _escaped(f"{_clock(told.wall_s, fine=True)} {told.sentence}")
            yield f'<circle class="ack" cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{hint}</title></circle>'


def _clock(wall_s: float, *, fine: bool = False) -> str:
    time: datetime = local(wall_s)
    return time.strftime("%H:%M:%S") + (f".{int(wall_s % 1 * 1000):03}" if fine else "")


def _size(size_bytes: int) -> str:
    return words.size(size_bytes).replace(".0", "")


def _escaped(text: str) -> str:
    """Text from peers: no markup, nothing that acts."""
    return html.escape(words.name(text, 400))
