"""Reading the configuration file, options, and errors that end as sentences."""

import argparse
import errno
import io
import os
import socket
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


def test_closed_standard_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """`<&-` is neither an empty configuration nor a traceback."""
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="cannot read standard input: it is closed"):
        common.read_config("-")


def test_a_file_that_never_ends_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A file named by mistake ends in a sentence, not in all of memory."""
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match="over 1048576 bytes"):
        common.read_config(str(tmp_path / "large"))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["fifo", "device", "terminal", "socket"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, what: str) -> None:
    """Nobody writes to the FIFO: whoever waited for it, a daemon at its reload, would wait for ever."""
    path = str(tmp_path / "f.toml")
    match what:
        case "fifo":
            os.mkfifo(path)
        case "device":
            path = "/dev/zero"
        case "terminal":
            path = "/dev/ptmx"
        case "socket":
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(path)
    with pytest.raises(ConfigError, match=r"cannot read .*: (it is not a regular file|No such device or address); "):
        common.read_config(path)


def test_a_files_name_does_not_act_on_the_terminal(tmp_path: Path) -> None:
    """What a wildcard finds may be called anything."""
    with pytest.raises(ConfigError) as missing:
        common.read_config(str(tmp_path / "a\x1b[2J\nb"))
    assert "a\\x1b[2J\\nb: there is no such file" in str(missing.value)
    (tmp_path / "\x9b").write_text("x = 1\n")
    with pytest.raises(ConfigError) as faulty:
        common.read_config(str(tmp_path / "\x9b"))
    assert str(faulty.value).isprintable()


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
    with pytest.raises(argparse.ArgumentTypeError, match=r"cannot use .* write a number from 1 to 2147483647"):
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


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EBADF])
def test_an_error_of_the_system_that_nobody_expected_is_a_defect(number: int) -> None:
    """Only what the surroundings lack, descriptors or room, ends as a sentence."""

    def fail() -> int:
        raise OSError(number, "x")

    with pytest.raises(OSError, match="x"):
        common.guarded("prog", fail)
