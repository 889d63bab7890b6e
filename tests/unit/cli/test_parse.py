"""edgeguardctl parse: JSON on standard output, one sentence on standard error, an exit status that tells which."""

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from edgeguardd.cli import parse


def run(*words: str) -> int:
    """The command as the command line runs it."""
    parser = argparse.ArgumentParser(prog="edgeguardctl")
    parse.add(parser.add_subparsers(required=True))
    args = parser.parse_args(["parse", *words])
    status = args.run(args)
    assert isinstance(status, int)
    return status


def test_a_file_comes_out_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shape is that of the kind."""
    file = tmp_path / "max"
    file.write_text("max 100000\n")
    assert run("cpu.max", str(file)) == 0
    assert json.loads(capsys.readouterr().out) == {"quota": None, "period": 100000}


@pytest.mark.parametrize("words", [("memory.current",), ("memory.current", "-")])
def test_standard_input_is_read_when_no_file_is_named(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that `cat file | edgeguardctl parse KIND` works."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"4096\n")))
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out) == {"value": 4096}


def test_what_cannot_be_understood_is_said_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs on standard output, for people on standard error; the exit status is 1."""
    file = tmp_path / "empty"
    file.touch()
    assert run("memory.max", str(file)) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == {"error": True, "message": said.err.strip()}
    assert said.err.startswith("cannot use memory.max: it is empty")


def test_a_missing_file_is_a_missing_feature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the daemon takes it; a person still sees that nothing was read."""
    assert run("memory.peak", str(tmp_path / "none")) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == {"value": None, "feature_missing": True}
    assert "No such file" in said.err


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory, for instance."""
    assert run("memory.max", str(tmp_path)) == 1
    assert json.loads(capsys.readouterr().out)["error"] is True


@pytest.mark.parametrize(
    ("kind", "word", "expected"),
    [
        ("memory.pressure", "EOPNOTSUPP", {"psi_available": False, "log_once": True, "other_metrics_unaffected": True}),
        ("memory.pressure", "ENODEV (19) on read", {"cgroup_removed": True, "drop_watch": True}),
        ("/proc/self/cgroup", "3", {"process_gone": True}),
    ],
)
def test_a_read_error_can_be_asked_about(
    kind: str, word: str, expected: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, by number, or as strace prints it."""
    assert run(kind, "--read-error", word) == 1
    assert json.loads(capsys.readouterr().out) == expected


def test_names_that_are_not_utf_8_print_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON is plain ASCII."""
    file = tmp_path / "cgroup"
    file.write_bytes(b"0::/caf\xe9/\xc3\xa9\n")
    assert run("/proc/PID/cgroup", str(file)) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)["v2_path"].endswith("/é")


def test_all_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, each of which is accepted."""
    assert run("--list") == 0
    listed = capsys.readouterr().out.split("\n")
    assert {"memory.events", "/proc/PID/cgroup", "/proc/pressure/io", "memory.swap.max"} <= set(listed)


@pytest.mark.parametrize("words", [(), ("memory.nothing",), ("memory.max", "--read-error", "EWHAT")])
def test_wrong_usage_is_status_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """And says what would be right."""
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2
    assert "edgeguardctl parse: error: cannot" in capsys.readouterr().err
