"""What `edgeguardctl watch` draws in a terminal, and prints elsewhere."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from edgeguardd.cli import daemonlink
from edgeguardd.cli.statusdoc import Marks, Status, TargetRow
from edgeguardd.cli.watchviews import Lines, Live, bar
from edgeguardd.core.wire import LevelLine
from tests.support.fakedaemon import LEVEL, STATUS


def status(**changes: Any) -> Status:
    """The usual answer with some parts changed."""
    return daemonlink.decoded(json.dumps({**STATUS, **changes}).encode())


@pytest.mark.parametrize(
    ("needed", "limit", "expected"),
    [
        (0, 100, "░░░░░░|░||"),
        (50, 100, "█████░|░||"),
        (200, 100, "██████|█||"),
        (None, 100, " " * 10),
        (5, None, " " * 10),
    ],
)
def test_the_bar_shows_memory_against_the_marks(needed: int | None, limit: int | None, expected: str) -> None:
    """Filled up to the needed bytes, with a stroke where each level begins."""
    target = TargetRow("a", needed_bytes=needed, limit_bytes=limit, marks=Marks(60, 80, 99))
    assert bar(target, 10) == expected


def test_lines_tell_each_target_each_level_and_each_outcome_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Outcomes from before the first look are history and not told; who is connected is told when it changes."""
    view = Lines()
    view.show(status(), [LEVEL])
    view.show(status(), [])
    newer = {**STATUS["last_commands"][0], "seq": 8, "outcome": "expired"}
    view.show(status(last_commands=[*STATUS["last_commands"], newer], subscribers=[], stale_s=30.0), [])
    view.show("cannot reach edgeguardd at x: refused; start it", [])
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    machine = "machine normal: 5.0G of 8.0G available, gpu 1.0G of 4.0G in use"
    target = (
        "llm high: needed 850.0M, limit 1.0G memory.high, used 83%, 83% of what can grow, sampled 50ms ago; "
        "batch at most 50%; high since 12s ago: needed 850.0 MiB is 83% of the range; now: needed 849.0 MiB is 83% of "
        "the range; {}2 processes killed by the kernel so far; waiting 200ms for #7 "
        "trim_kv_cache (accepted by subscriber 1); memory.high is lifted for a trim; last resort freeze thawed 9.0s "
        "ago: 2 processes"
    )
    ended = "command 8 trim_kv_cache of llm: expired after 50ms, claimed 1.0M, freed 512.0K, asked of subscriber 1: "
    assert lines == [
        "level of llm: normal -> high: because",
        "subscriber 1 server (inference of llm) is connected",
        machine,
        target.format(""),
        machine,
        target.format(""),
        "the last sample is 30s old: the daemon sees nothing any more",
        "subscriber 1 server (inference of llm) has left",
        ended + "dropped 3 slots",
        machine,
        target.format("nobody subscribed: nobody can be asked; "),
        "cannot reach edgeguardd at x: refused; start it",
    ]


def drawn(*seen: Status | str, levels: tuple[LevelLine, ...] = (), width: int = 160) -> str:
    """The terminal's bytes after these looks."""
    stream = io.StringIO()
    with Live(Console(file=stream, force_terminal=True, width=width, height=60, color_system=None)) as view:
        for one in seen:
            view.show(one, levels)
    return stream.getvalue()


def test_the_live_view_shows_everything_at_once() -> None:
    """Memory bar, level, what is asked, subscribers, outcomes and level changes on one screen."""
    text = drawn(status(), levels=(LEVEL,))
    for part in (
        "850.0M",
        "1.0G memory.high",
        "batch at most 50%; high since 12s ago: needed 850.0 MiB",
        "server",
        "512.0K",
        "█",
    ):
        assert part in text
    for part in ("#7 trim_kv_cache", "memory.high is lifted", "last resort freeze", "50ms ago", "12s", "gpu 1.0G"):
        assert part in text
    assert "level of llm: normal -> high: because" in text


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_live_view_cuts_nothing_in_a_usual_terminal(width: int) -> None:
    """At 80 columns the bar is shorter, and what is asked stands whole on lines of its own."""
    lines = drawn(status(), width=width).replace("\x1b[2K\x1b[1A", "\n").splitlines()
    assert "waiting 200ms for #7 trim_kv_cache (accepted by subscriber 1)" in " ".join(" ".join(lines).split())
    (row,) = {line.rstrip() for line in lines if line.startswith("llm ")}
    assert len(row) <= width
    assert " ".join(row.split()[:2] + row.split()[3:]) == "llm high 850.0M 1.0G memory.high 5.0M/s 50ms ago"
    assert "6    llm     trim_kv_cache  done     50ms  1.0M     512.0K  12s  1   dropped" in "\n".join(lines)
    assert len(row.split()[2]) == (21 if width == 80 else 32)
    assert not any("…" in line for line in lines)


def test_the_live_view_of_a_target_at_rest_has_no_line_for_its_state() -> None:
    """What is as it should be needs no words."""
    quiet = {"name": "llm", "present": True, "needed_bytes": 5, "limit_bytes": 10, "limit_kind": "memory.max"}
    assert "llm:" not in drawn(status(targets=[quiet]))


def test_the_live_view_keeps_the_last_state_while_the_daemon_is_away() -> None:
    """A restart of the daemon does not end the watch."""
    text = drawn(status(), "cannot reach edgeguardd: refused").rsplit("cannot reach", 1)[1]
    assert text.startswith(" edgeguardd: refused; all below is as it was at ")
    assert "850.0M" in text


def test_names_from_peers_are_neither_escapes_nor_markup() -> None:
    """A subscriber called "[bold]" or ESC is shown as exactly that."""
    row = {**STATUS["subscribers"][0], "name": "[bold]\x1b]0;x\x07[/bold]"}
    assert "[bold]\\x1b]0;x\\x07[/bold]" in drawn(status(subscribers=[row]))
