"""The daemon's command: options over the file, at the start and at each reload."""

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import edgeguardd
from edgeguardd import __version__
from edgeguardd.cli import common
from edgeguardd.cli.edgeguardd import main, parser, with_options
from edgeguardd.core.config import Config
from edgeguardd.errors import ConfigError, KernelError


def test_options_go_over_the_file() -> None:
    """Each option replaces its key and leaves the others."""
    args = parser().parse_args(
        ["run", "--socket", "/run/x", "--http", "[::1]:1", "--log-format", "json", "--cgroup-root", "/cg"]
    )
    config = with_options(Config(max_targets=7), args)
    assert (config.socket.path, config.http.address, config.http.port) == ("/run/x", "::1", 1)
    assert (config.log.format, config.cgroup_root, config.max_targets) == ("json", "/cg", 7)
    assert config.log.level == "info"


def test_http_can_be_turned_off() -> None:
    """`--http off` needs no file."""
    assert not with_options(Config(), parser().parse_args(["run", "--http", "off"])).http.enabled


def test_without_options_nothing_changes() -> None:
    """The file alone decides."""
    config = Config(max_targets=7)
    assert with_options(config, parser().parse_args(["run"])) == config


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["walk"],
        ["run", "--socket", "x"],
        ["run", "--http", "80"],
        ["run", "--log-format", "xml"],
        ["run", "--cgroup-root", "."],
    ],
)
def test_wrong_usage_is_exit_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage and a sentence on standard error."""
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: edgeguardd" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output."""
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"edgeguardd {__version__}\n"


def test_check_only_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check starts nothing and tells every fault."""
    file = tmp_path / "f.toml"
    file.write_text("max_targets = 0\n[log]\nlevel = 'x'\n")
    assert main(["run", "--check", "--config", str(file)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": cannot")[0] for line in said] == [f"edgeguardd: {file}: line {number}" for number in (1, 3)]
    file.write_text("")
    assert main(["run", "--check", "--config", str(file)]) == 0


class FakeDaemon(ModuleType):
    """Stands for edgeguardd.daemon: remembers what it was started with."""

    def __init__(self) -> None:
        super().__init__("edgeguardd.daemon")
        self.started: list[tuple[Config, Callable[[], Config], str | None]] = []

    def run(self, config: Config, load: Callable[[], Config], config_path: str | None, _output: object) -> int:
        """Start, and end at once."""
        self.started.append((config, load, config_path))
        if config.max_targets == 13:
            raise KernelError("cannot guard anything: cgroup v1; boot with systemd.unified_cgroup_hierarchy=1")
        return 5


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """The daemon's place, taken."""
    fake = FakeDaemon()
    monkeypatch.setitem(sys.modules, "edgeguardd.daemon", fake)
    monkeypatch.setattr(edgeguardd, "daemon", fake, raising=False)
    monkeypatch.setattr("edgeguardd.logs.configure", lambda *_: None)
    return fake


def test_run_hands_over_the_configuration_and_the_way_to_load_it_again(daemon: FakeDaemon, tmp_path: Path) -> None:
    """A reload reads the file again, with the same options over it; a bad file raises and replaces nothing."""
    file = tmp_path / "f.toml"
    file.write_text("max_targets = 3\n")
    assert main(["run", "--config", str(file), "--http", "off"]) == 5
    ((config, load, path),) = daemon.started
    assert (config.max_targets, config.http.enabled, path) == (3, False, str(file))
    file.write_text("max_targets = 4\n")
    assert (load().max_targets, load().http.enabled) == (4, False)
    file.write_text("max_targets = no\n")
    with pytest.raises(ConfigError):
        load()


def test_a_configuration_from_standard_input_is_read_once(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end it would read as an empty file, and a reload would drop every target: it is refused instead."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"max_targets = 4\n")))
    assert main(["run", "--config", "-"]) == 5
    ((config, load, path),) = daemon.started
    assert (config.max_targets, path) == (4, "-")
    with pytest.raises(ConfigError, match=r"cannot reload standard input: .*; restart, or name a file"):
        load()


def test_the_metrics_are_not_kept_in_files_because_another_program_wants_its_own_so(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine-wide PROMETHEUS_MULTIPROC_DIR neither litters a directory nor stops the start if that is missing."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(common, "DEFAULT_CONFIG", str(tmp_path / "none.toml"))
    assert main(["run"]) == 5
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def test_without_a_file_the_defaults_run(daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edgeguardd run` alone is enough."""
    monkeypatch.setattr(common, "DEFAULT_CONFIG", str(tmp_path / "none.toml"))
    assert main(["run"]) == 5
    config, _, path = daemon.started[0]
    assert (config, path) == (Config(), None)


def test_a_daemon_that_cannot_start_says_why_in_a_sentence(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, exit status 1."""
    file = tmp_path / "f.toml"
    file.write_text("max_targets = 13\n")
    assert main(["run", "--config", str(file)]) == 1
    assert capsys.readouterr().err.startswith("edgeguardd: cannot guard anything: cgroup v1; boot with")
