"""check-config: every fault at once, the number of targets, and what is doubtful."""

import grp
import io
import os
import sys
from pathlib import Path

import pytest

from edgeguardd.cli import common
from edgeguardd.cli.edgeguardctl import main
from edgeguardd.core import configtext
from edgeguardd.core.configparse import read


def check(tmp_path: Path, text: str, *options: str) -> int:
    """Exit status for a file of this text."""
    (tmp_path / "f.toml").write_text(text)
    return main(["check-config", str(tmp_path / "f.toml"), *options])


def test_a_good_file_is_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, with how many targets it names."""
    assert check(tmp_path, "[[target]]\nname = 'a'\npath = '/a'\n") == 0
    assert capsys.readouterr().out == f"{tmp_path}/f.toml: ok, 1 target\n"


def test_the_file_may_be_named_as_other_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--config FILE; both at once are refused, with both."""
    path = str(tmp_path / "f.toml")
    Path(path).write_text("max_targets = 0\n")
    assert main(["check-config", "--config", path]) == 1
    assert capsys.readouterr().out.startswith(f"{path}: line 1: ")
    with pytest.raises(SystemExit) as caught:
        main(["check-config", path, "--config", "other.toml"])
    assert caught.value.code == 2
    assert f"write {path}, or --config other.toml" in capsys.readouterr().err


def test_a_bad_file_lists_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault a line, each with the file, the line and the remedy; exit status 1."""
    assert check(tmp_path, "max_targets = 0\nself_targets = 1\n") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{tmp_path}/f.toml: line 1: cannot use max_targets = 0: ")
    assert second.startswith(f"{tmp_path}/f.toml: line 2: cannot use self_targets = 1: ")


def test_what_is_doubtful_is_a_warning_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings leave the exit status at 0."""
    assert check(tmp_path, "self_targets = false\n") == 0
    assert "f.toml: warning: nothing is guarded" in capsys.readouterr().out


def test_the_configuration_in_force_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is a file that means the same."""
    assert check(tmp_path, "[defaults]\nelevated = '50%'\n", "--show") == 0
    shown = capsys.readouterr().out
    assert 'elevated = "50%"\nhigh = "80%"\n' in shown
    assert read(shown, "shown").defaults.elevated.ratio == 0.5


def test_the_example_needs_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    """It is there wherever the program is."""
    assert main(["check-config", "--example"]) == 0
    assert capsys.readouterr().out == configtext.example()


@pytest.mark.parametrize(("text", "says"), [("", "ok, 0 targets"), ("a = 1", "line 1: cannot use a: ")])
def test_standard_input_is_called_so_whatever_is_said_of_it(
    text: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not "-" in one case and "standard input" in the other."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    main(["check-config", "-"])
    assert capsys.readouterr().out.startswith(f"standard input: {says}")


def test_a_group_that_is_not_there_is_doubtful(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon would refuse to start here; the file may be meant for another machine."""
    assert check(tmp_path, "[socket]\ngroup = 'nosuchgroup'\n") == 0
    assert "warning: there is no group nosuchgroup here" in capsys.readouterr().out
    assert check(tmp_path, f"[socket]\ngroup = '{grp.getgrgid(os.getgid()).gr_name}'\n") == 0
    assert check(tmp_path, "[socket]\ngroup = '54321'\n") == 0
    assert "warning" not in capsys.readouterr().out


def test_a_missing_default_file_is_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is said to be missing, so that nobody takes it for checked."""
    monkeypatch.setattr(common, "DEFAULT_CONFIG", str(tmp_path / "none.toml"))
    assert main(["check-config"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/none.toml (missing, so the defaults): ok, 0 targets\n"


def test_a_named_file_must_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1 with one sentence."""
    assert main(["check-config", str(tmp_path / "no.toml")]) == 1
    assert "there is no such file" in capsys.readouterr().out
