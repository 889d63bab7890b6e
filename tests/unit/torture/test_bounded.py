"""Parts run beside each other or in turn, and none outlives its time, nor does what it has started."""

import contextlib
import sys
from pathlib import Path

import pytest

from tests.support.wait import eventually
from tests.torture import bounded
from tests.torture.__main__ import DEADLINE_MINUTES, STAGES, run
from tests.torture.parts import PARTS, parser

TELL = 'import json, sys; json.dump({"right": True, "section": "### Told"}, open(sys.argv[-1], "w"))'
# Starts a program in a session of its own, as guests are, which ignores whoever asks it to end; so does the part.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").write(f"{child.pid}\\n")
time.sleep(600)
"""


def part(code: str, *words: str, limit_s: float = 60.0) -> bounded.Running:
    """A part that is this program."""
    return bounded.Running("part", "Part", [sys.executable, "-I", "-S", "-c", code, *words], limit_s)


def test_parts_of_a_lane_run_in_turn_and_each_tells_its_section() -> None:
    """Lanes beside each other, whatever they hold."""
    begun = []

    def begin(name: str) -> bounded.Running:
        begun.append(name)
        return part(TELL)

    found = list(bounded.play([["a", "b"], [], ["c"]], begin))
    assert [one.right for one in found] == [True] * 3
    assert {one.section for one in found} == {"### Told"}
    assert begun[:2] == ["a", "c"]
    assert begun[2:] == ["b"]


def test_a_part_that_says_nothing_is_wrong() -> None:
    """Whatever its exit status."""
    (found,) = bounded.play([["silent"]], lambda _: part("raise SystemExit(0)"))
    assert not found.right
    assert found.section == "### Part\n\nIt ended with status 0, and has put nothing down."


def test_a_part_past_its_time_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what has a session of its own, and does not heed a request."""
    monkeypatch.setattr(bounded, "GRACE_S", 0.1)
    told = tmp_path / "pid"
    running = part(STUBBORN, str(told), limit_s=0.0)
    with contextlib.closing(running):
        eventually(lambda: told.exists() and told.read_text().endswith("\n"))
        child = int(told.read_text())
        found = running.done()
    assert found is not None
    assert not found.right
    assert found.section == "### Part\n\nIt was ended: it had not come to its end within 0.0 min."
    eventually(lambda: gone(child), what="what it has started is gone")


def gone(pid: int) -> bool:
    """It has ended; whoever adopted it may not have waited for it yet."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_deadline_that_has_passed_begins_nothing_that_lasts() -> None:
    """What would have been run is said, and wrong."""
    options = parser("")
    options.set_defaults(parts=["deaths"])
    (found,) = run(options.parse_args([]), until=0.0)
    assert (found.name, found.right) == ("deaths", False)
    assert found.limit_s == 0.0


def test_every_part_has_its_place_in_the_stages() -> None:
    """Once; and what each may take fits into the time for all of them, but for what a busy machine needs more."""
    placed = [name for stage in STAGES for lane in stage for name in lane]
    assert sorted(placed) == sorted(PARTS)
    defaults = parser("").parse_args([])
    minutes = [max(sum(PARTS[name].limit_minutes(defaults) for name in lane) for lane in stage) for stage in STAGES]
    assert DEADLINE_MINUTES + bounded.GRACE_S / 60 < 42
    assert sum(minutes) < 1.2 * DEADLINE_MINUTES
