"""The commands of edgeguardctl as a whole."""

import subprocess
import sys

import pytest

from edgeguardd.cli import edgeguardctl
from edgeguardd.cli.edgeguardctl import main


@pytest.mark.parametrize("command", edgeguardctl.names())
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help says what it does, its options and what the exit status means."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: edgeguardctl {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["dance"],
        ["watch", "--interval", "0"],
        ["watch", "--interval", "nan"],
        ["watch", "--count", "0"],
        ["subscribe", "--ack", "maybe"],
        ["subscribe", "--supports", "fly"],
        ["subscribe", "--supports", "restore"],
        ["subscribe", "--socket", "relative"],
        ["status", "--http", "nowhere"],
    ],
)
def test_wrong_usage_is_exit_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage and a sentence on standard error."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: edgeguardctl" in capsys.readouterr().err


def test_only_watch_imports_rich() -> None:
    """The other commands start without it."""
    code = "import sys; from edgeguardd.cli import edgeguardctl; sys.exit('rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
