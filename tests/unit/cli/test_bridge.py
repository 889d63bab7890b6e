"""The command line of a bridge, and the settings file that says the same."""

import subprocess
import sys
from pathlib import Path

import pytest

from edgeguardd.bridges import catalog
from edgeguardd.cli.bridge import read_settings
from edgeguardd.cli.edgeguardctl import main, parser
from edgeguardd.errors import ConfigError

SETTINGS = """\
server = "llama-server"
target = "llm"
url = "http://127.0.0.1:8081"
listen = "http://127.0.0.1:8080"
unit = "llama.service"
places = 2
drain = "90s"
within = 30
release-from = "critical"
worth = "64M"
model = ["a", "-b"]
"""


@pytest.mark.parametrize("server", catalog.SERVERS)
def test_every_server_explains_itself(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the address that it has by itself."""
    with pytest.raises(SystemExit) as caught:
        main(["bridge", server, "--help"])
    assert caught.value.code == 0
    assert "--listen" in capsys.readouterr().out


def test_a_settings_file_says_what_the_command_line_says(tmp_path: Path) -> None:
    """One key an option; a list gives it many times."""
    file = tmp_path / "llama.toml"
    file.write_text(SETTINGS)
    args = read_settings(str(file))
    line = "--target llm --url http://127.0.0.1:8081 --listen http://127.0.0.1:8080 --unit llama.service --places 2"
    line += " --drain 90s --within 30 --release-from critical --worth 64M --model a --model=-b"
    given = parser().parse_args(["bridge", "llama-server", *line.split()])
    for name, value in vars(args).items():
        assert getattr(given, name) == value, name
    assert (args.drain, args.within, args.worth, args.model) == (90.0, 30.0, 64 * 2**20, ["a", "-b"])


def test_a_command_in_a_settings_file_is_taken_as_it_is(tmp_path: Path) -> None:
    """Its options are the server's."""
    file = tmp_path / "llama.toml"
    file.write_text('server = "llama-server"\ntarget = "llm"\ncommand = ["llama-server", "--url", "-m", "a b"]\n')
    assert read_settings(str(file)).command == ["llama-server", "--url", "-m", "a b"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "server is none of llama-server, "),
        ("server = 1", "server is none of"),
        ("server = ", "it is no TOML"),
        ('server = "ollama"\ntarget = "llm"\nlisten = "8080"', "--listen: cannot use '8080': it is no plain URL"),
        ('server = "ollama"\ntarget = "llm"\nspeed = 9', "unrecognized arguments: --speed=9"),
        ('server = "ollama"\ntarget = "llm"\ndrain = true', "drain is neither text nor a number"),
        ('server = "ollama"\ntarget = "llm"\ndrain = "ages"', "--drain: cannot use 'ages': a duration is"),
        ('server = "ollama"\ntarget = "llm"\nunit = "../x"', "--unit: cannot use '../x'"),
        ('server = "ollama"\ntarget = "llm"\ncgroup = "/a/../b"', "--cgroup: cannot use '/a/../b'"),
        (
            'server = "llama-server"\nstop = "docker \\"stop"\nstart = "x"',
            "--stop: cannot use 'docker \"stop': No closing",
        ),
        ('server = "llama-server"\nstop = ""\nstart = "x"', "--stop: cannot use an empty command"),
        ('server = "llama-server"\ntarget = "llm"\ncommand = "llama-server"', "command is no array of texts"),
    ],
)
def test_a_faulty_settings_file_is_named_with_its_key(tmp_path: Path, text: str, named: str) -> None:
    """And no traceback."""
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(str(file))
    assert str(file) in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either --settings FILE, or the server's name: llama-server, "),
        (["--settings", "/absent.toml"], "cannot read /absent.toml: no such file or directory"),
        (["ollama", "--listen", "unix:/g", "--gate", "external"], "give it or --gate external, not both"),
    ],
)
def test_a_bridge_that_cannot_start_says_why(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, one sentence."""
    assert main(["bridge", *words]) == 2
    assert said in capsys.readouterr().err


def test_other_commands_do_not_wait_for_what_only_bridges_need() -> None:
    """asyncio and h11 cost as much as a whole `edgeguardctl status`."""
    code = "import sys, edgeguardd.cli.edgeguardctl as c; c.parser(); print({'asyncio', 'h11'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
