"""The commands of edgeguardctl as a whole."""

import shlex
import subprocess
import sys

import pytest

from edgeguardd.bridges import catalog
from edgeguardd.cli import edgeguardctl, edgeguardd, examples
from edgeguardd.cli.edgeguardctl import main


@pytest.mark.parametrize("command", edgeguardctl.names())
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help says what it does, its options and what the exit status means."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert f"usage: edgeguardctl {command}" in told
    assert f"\nexamples:\n  {examples.of(f'edgeguardctl {command}')[0][0]}\n" in told
    assert "Exit status: 0 " in " ".join(told.split())
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize(
    ("argv", "usage", "sentence"),
    [
        (["status", "--htpp", "x"], "edgeguardctl status", "cannot use '--htpp': no such option; did you mean --http?"),
        (["status", "--jsn=1"], "edgeguardctl status", "cannot use '--jsn=1': no such option; did you mean --json?"),
        (["oom", "a", "b"], "edgeguardctl oom", "cannot use 'b': it is one argument too many; see edgeguardctl oom"),
        (["audit", "--qqqqqqq"], "edgeguardctl audit", "cannot use '--qqqqqqq': no such option; see --help"),
        (["bridge", "ollama", "--ulr", "x"], "edgeguardctl bridge ollama", "did you mean --url?"),
        ([], "edgeguardctl", "arguments are required: COMMAND; see edgeguardctl --help"),
        (["stauts"], "edgeguardctl", "cannot use 'stauts': no such command; did you mean status?"),
        (["bridge", "olama"], "edgeguardctl bridge", "cannot use 'olama': no such server; did you mean ollama?"),
        (["status", "\x1b[2J"], "edgeguardctl status", "cannot use '\\x1b[2J': it is one argument too many"),
    ],
)
def test_what_nobody_knows_is_told_by_its_command(
    argv: list[str], usage: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With that command's own usage, and what was probably meant."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: {usage} [")
    assert f"{usage}: error: {sentence}" in told or sentence in told.splitlines()[-1]


def test_every_example_is_one_that_its_command_takes() -> None:
    """And every command has one, in its help and in the reference."""
    parsers = {"edgeguardctl": edgeguardctl.parser(), "edgeguardd": edgeguardd.parser()}
    for line in examples.all_lines():
        command = next(part for part in line.split(" | ") if part.startswith("edgeguard"))
        program, *words = shlex.split(command)
        assert callable(parsers[program].parse_args(words).run), line
    for server in catalog.SERVERS:
        ((line, _),) = examples.of(f"edgeguardctl bridge {server}")
        assert callable(parsers["edgeguardctl"].parse_args(shlex.split(line)[1:]).run), line
    for name in edgeguardctl.names():
        assert examples.of(f"edgeguardctl {name}"), name


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
