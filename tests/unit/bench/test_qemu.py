"""What a guest says over its serial port, put together again."""

import subprocess
from pathlib import Path

import pytest

from tests.bench import qemu


def guest() -> "subprocess.Popen[bytes]":
    """One that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process


def test_whole_lines_come_as_they_are_said(tmp_path: Path) -> None:
    """Carriage returns go; of a line without an end nothing is taken, as its rest was never said."""
    path = tmp_path / "lines"
    path.write_bytes(b"boot\r\nfound: {}\r\nhal")
    assert list(qemu._lines(guest(), str(path))) == ["boot", "found: {}"]


def test_a_guest_that_never_opened_its_port_is_no_endless_wait(tmp_path: Path) -> None:
    """QEMU did not start: nothing was said."""
    assert list(qemu._lines(guest(), str(tmp_path / "none"))) == []


def test_a_silent_guest_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it goes on."""
    monkeypatch.setattr(qemu, "SILENT_S", 0.1)
    path = tmp_path / "lines"
    path.write_bytes(b"")
    with subprocess.Popen(["sleep", "infinity"]) as silent:
        assert list(qemu._lines(silent, str(path))) == []
        silent.kill()
