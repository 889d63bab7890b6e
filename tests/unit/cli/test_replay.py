"""edgeguardctl replay."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.cli import common
from edgeguardd.cli.edgeguardctl import main
from edgeguardd.core.config import LastResorts, LastResortStep, Policy
from edgeguardd.core.events import LastResortEnded
from edgeguardd.core.model import LastResort
from tests.support.recordings import NOON_S, Taped, in_utc, incident

EARLY = '[[target]]\nname = "llm"\npath = "/llm"\nelevated = "40%"\n'


@pytest.fixture(autouse=True)
def _utc() -> Iterator[None]:
    """Times are printed as local ones."""
    with in_utc():
        yield


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Status, standard output, standard error."""
    status = main(["replay", *argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def objects(text: str, kind: str) -> list[dict[str, Any]]:
    """The JSON Lines of one type."""
    return [value for value in map(json.loads, text.splitlines()) if value["type"] == kind]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory with one incident."""
    return incident(Taped()).write(tmp_path / "recordings")


@pytest.fixture
def early(tmp_path: Path) -> str:
    """A configuration with a lower first mark."""
    path = tmp_path / "early.toml"
    path.write_text(EARLY)
    return str(path)


def test_the_decisions_are_told_with_time_target_and_figures(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Which run, then a line a decision, in order."""
    status, out, err = run(capsys, place)
    head, *lines = out.splitlines()
    assert (status, err) == (0, "")
    assert head.startswith("edgeguardd ")
    assert head.endswith(", run run, times in +0000")
    assert lines[0] == "2026-03-01 12:00:00.000  llm  cgroup appeared: path /llm"
    assert lines[1].startswith("2026-03-01 12:00:37.500  llm  level normal -> elevated: needed 720.0 MiB is 60%")
    assert lines[2].startswith("2026-03-01 12:00:37.500  llm  ask server1 for trim_kv_cache (#1, release ")
    assert lines[3].startswith("2026-03-01 12:00:37.5")
    assert " trim_kv_cache (#1) done after 0.02 s, claimed " in lines[3]


def test_the_same_in_json_has_every_figure(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Segments, decisions with all that the effect holds, and a summary at the end."""
    status, out, _ = run(capsys, place, "--json")
    assert status == 0
    (segment,) = objects(out, "segment")
    assert (segment["run"], segment["continuous"], segment["wall_s"]) == ("run", False, NOON_S)
    trim = next(value for value in objects(out, "decision") if value["kind"] == "command")
    assert trim["wall_s"] == NOON_S + 37.5
    assert trim["figures"]["command"]["seq"] == 1
    assert objects(out, "summary") == [{"type": "summary", "remarks": []}]


def test_one_target_of_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--target leaves the others out."""
    script = Taped()
    script.join()
    script.need(900)
    place = script.write(tmp_path / "r")
    assert "level normal -> " in run(capsys, place, "--target", "llm")[1]
    assert "level normal -> " not in run(capsys, place, "--target", "vlm")[1]


def test_another_configuration_is_told_by_what_it_changes(
    place: str, early: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """How much earlier the first of each thing comes, how often it does, and what is no more than recorded."""
    status, out, err = run(capsys, place, "--config", early)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("llm, 2026-03-01 12:00:32")
    trim = next(line.split() for line in lines if line.startswith("  command trim_kv_cache"))
    assert trim[2:4] == ["5.5s", "earlier"]
    assert trim[-3:] == ["12:00:37.500", "->", "12:00:32.000"]
    assert lines[-1].startswith("Memory stays as it was recorded")
    assert run(capsys, place, "--config", early, "--target", "vlm")[1].startswith(f"With {early} nothing would have")


def test_the_difference_in_json(place: str, early: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Episodes with changes in seconds, and what was left out."""
    _, out, _ = run(capsys, place, "--config", early, "--json", "--decisions")
    (episode,) = objects(out, "episode")
    trim = next(change for change in episode["changes"] if change["what"] == "trim_kv_cache")
    assert trim["earlier_s"] == 5.5
    (summary,) = objects(out, "summary")
    assert summary["config"] == early
    assert summary["episodes"] == 1
    first = next(value for value in objects(out, "decision") if value["kind"] == "command")
    assert first["wall_s"] == NOON_S + 32


def test_the_same_configuration_changes_nothing(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said in a sentence."""
    same = tmp_path / "same.toml"
    same.write_text('[[target]]\nname = "llm"\npath = "/llm"\n')
    out = run(capsys, place, "--config", str(same))[1]
    assert out == f"With {same} nothing would have been decided otherwise.\n"


def test_what_was_left_out_and_judged_by_the_defaults_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that the configuration does not know, and answers to orders that it would not have given."""
    steps = LastResorts(critical=(LastResortStep(LastResort.RECLAIM),))
    script = Taped(Policy(last_resort=steps))
    script.need(950)
    script.do(LastResortEnded("llm", LastResort.RECLAIM, "done"))
    place = script.write(tmp_path / "r")
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    out = run(capsys, place, "--config", str(empty))[1]
    assert f"with {empty} the orders that they answer had not been given: last resorts (reclaim) 1." in out
    assert f"Judged by the [defaults] of {empty}, which names no such target: llm." in out
    assert re.search(r"last resort reclaim +never", out)


def test_a_faulty_configuration_is_refused_before_anything_is_printed(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its line and exit status 2."""
    bad = tmp_path / "bad.toml"
    bad.write_text("\nelevate = 1\n")
    status, out, err = run(capsys, place, "--config", str(bad))
    assert (status, out) == (2, "")
    assert "line 2" in err


@pytest.mark.parametrize("made", [False, True])
def test_a_daemon_that_has_not_recorded_yet_is_no_missing_file(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has named a file: what is missing is the daemon's to write, with its state directory or without."""
    if made:
        (tmp_path / "state").mkdir()
    config = tmp_path / "edgeguardd.toml"
    config.write_text(f'state_directory = "{tmp_path}/state"\n')
    monkeypatch.setattr(common, "DEFAULT_CONFIG", str(config))
    status, out, err = run(capsys)
    assert (status, out) == (1, "")
    assert "the daemon has recorded nothing there yet; start it" in err


def test_a_name_that_looks_like_a_line_of_ours_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And one without any is shown as such."""
    for name in ("a\nedgeguardctl: all is well", ""):
        path = str(tmp_path / name) if name else ""
        status, out, err = run(capsys, path)
        assert (status, out, len(err.splitlines())) == (1, "", 1)
        assert "cannot read ''" in err or "\\n" in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "there is no such file; name a recording"),
        (b"", "it is cut before its first event"),
        (b"\x1f\x8b", "it is cut before its first event"),
        (b"hello", "it is damaged, or no gzip file"),
    ],
)
def test_what_is_no_recording_is_one_sentence(
    content: bytes | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, exit status 1."""
    path = tmp_path / "recording-00000001.jsonl.gz"
    if content is not None:
        path.write_bytes(content)
    status, out, err = run(capsys, str(path))
    assert (status, out) == (1, "")
    assert why in err
    assert len(err.splitlines()) == 1


def test_an_empty_directory_says_what_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recorder may be off."""
    status, _, err = run(capsys, str(tmp_path))
    assert status == 1
    assert "there is no recording in it; is the recorder on?" in err


def test_a_state_directory_is_as_good_as_its_recordings(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever copied all of it need not know the layout."""
    assert run(capsys, str(Path(place).parent)) == run(capsys, place)


def test_of_a_directory_all_that_can_be_read_is_replayed(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be is a remark on standard error."""
    expected = run(capsys, place)[1]
    (Path(place) / "recording-00000000.jsonl.gz").write_bytes(b"rubbish")
    status, out, err = run(capsys, place)
    assert (status, out) == (0, expected)
    assert "cannot read recording-00000000.jsonl.gz" in err
    for file in Path(place).iterdir():
        file.write_bytes(b"rubbish")
    status, _, err = run(capsys, place)
    assert status == 1
    assert "none of its files can be read: " in err


def test_a_damaged_file_is_replayed_up_to_the_damage(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And said to be."""
    whole = run(capsys, place)[1].splitlines()
    path = Path(place) / "recording-00000001.jsonl.gz"
    content = path.read_bytes()
    late = len(content) * 3 // 4
    path.write_bytes(content[:late] + b"\0" * 16 + content[late + 16 :])
    status, out, err = run(capsys, place)
    lines = out.splitlines()
    assert status == 0
    assert 1 < len(lines) < len(whole)
    assert lines == whole[: len(lines)]
    assert "is read up to its damage" in err


def test_a_recording_of_another_version_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is shown may not be what was decided then."""
    place = incident(Taped(version="0.0.1")).write(tmp_path / "r")
    assert "edgeguardd 0.0.1 made the decisions" in run(capsys, place)[2]


def test_names_from_peers_cannot_act_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, a target and a message are spelled out."""
    script = Taped(run="\x1b[2Jrun")
    script.need(990)
    place = script.write(tmp_path / "r")
    out = run(capsys, place)[1]
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.parametrize("command", ["replay", "incidents"])
def test_the_commands_explain_themselves(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help says what they do, their options and what the exit status means."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: edgeguardctl {command}" in text
    assert "Exit status: 0 ok" in text


def test_the_other_commands_start_without_the_engine() -> None:
    """Only who replays pays for it."""
    code = "import sys; from edgeguardd.cli import edgeguardctl; sys.exit('edgeguardd.core.engine' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
