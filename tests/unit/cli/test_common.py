"""Reading the configuration file, options, and errors that end as sentences."""

import argparse
import io
import sys
from pathlib import Path

import pytest

from edgeguardd.cli import common
from edgeguardd.core.config import Config
from edgeguardd.errors import ConfigError, ServeError


def test_a_missing_default_file_means_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration is needed; one that is there is read."""
    monkeypatch.setattr(common, "DEFAULT_CONFIG", str(tmp_path / "edgeguardd.toml"))
    assert common.read_config(None) == Config()
    (tmp_path / "edgeguardd.toml").write_text("max_targets = 3\n")
    assert common.read_config(None).max_targets == 3


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """A slip in a path never means the defaults."""
    with pytest.raises(ConfigError, match=r"cannot read .*/no.toml: there is no such file; name one"):
        common.read_config(str(tmp_path / "no.toml"))


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """A directory in its place is no traceback."""
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory; name a file"):
        common.read_config(str(tmp_path))


def test_standard_input_can_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated file need not be written first."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"max_targets = 4\n")))
    assert common.read_config("-").max_targets == 4


def test_an_endless_file_is_not_read_to_its_end() -> None:
    """A device named by mistake ends in a sentence, not in all of memory."""
    with pytest.raises(ConfigError, match="over 1048576 bytes"):
        common.read_config("/dev/zero")


@pytest.mark.parametrize(
    ("word", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:9464", ("::1", 9464)), ("localhost:0", ("localhost", 0))],
)
def test_an_http_address_is_read(word: str, address: tuple[str, int]) -> None:
    """IPv4, IPv6 in brackets, localhost."""
    assert common.http_address(word) == address


@pytest.mark.parametrize(
    "word", ["", "80", ":80", "127.0.0.1", "127.0.0.1:", "::1:80", "[::1]", "a.b:80", "127.0.0.1:99999", "[1.2.3.4]:x"]
)
def test_a_bad_http_address_is_refused(word: str) -> None:
    """With a sentence, at the command line."""
    with pytest.raises(argparse.ArgumentTypeError, match="cannot use "):
        common.http_address(word)


@pytest.mark.parametrize("word", ["0", "-1", "x", "", "1.5", "9" * 20])
def test_a_bad_count_is_refused(word: str) -> None:
    """Only whole numbers from 1 on."""
    with pytest.raises(argparse.ArgumentTypeError, match="cannot use "):
        common.count(word)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ConfigError(["line 1: a", "line 2: b"]), 2, "prog: line 1: a\nprog: line 2: b\n"),
        (ServeError("cannot listen: taken; stop it"), 1, "prog: cannot listen: taken; stop it\n"),
    ],
)
def test_errors_end_as_sentences_and_an_exit_status(
    error: Exception, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 for what was written wrongly, 1 for what did not work, a line a fault."""

    def fail() -> int:
        raise error

    assert common.guarded("prog", fail) == status
    assert capsys.readouterr().err == said


def test_a_defect_keeps_its_traceback() -> None:
    """What is no error on purpose is not hidden."""

    def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        common.guarded("prog", fail)
