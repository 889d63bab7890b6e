"""The commands against a real daemon on a tree of plain files: what one writes, the other reads."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgeguardd import __version__
from edgeguardd.cli import statusdoc
from edgeguardd.core.model import Counters, InForce, MachineSample
from tests.support.faketree import MIB, FakeTree
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

CTL = [sys.executable, "-c", "import sys; from edgeguardd.cli.edgeguardctl import main; sys.exit(main())"]
CONFIG = '[[target]]\nname = "llm"\npath = "/llm"\n'
DEVICE = '[[machine.device]]\nname = "npu"\nkind = "file"\npath = "/nonexistent"\n'


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that guards one cgroup at 90 % of its limit."""
    (tmp_path / "cgroup").mkdir()
    tree = FakeTree(tmp_path / "cgroup")
    tree.cgroup("/llm", max_bytes=100 * MIB).usage(90 * MIB)
    with Daemon(str(tmp_path), DEVICE + CONFIG, cgroup_root=tree.path) as running:
        yield running


def ctl(*words: str) -> str:
    """What a command prints; it must end well and complain about nothing."""
    done = subprocess.run([*CTL, *words], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def differing_fields(row: dict[str, Any], known: type[msgspec.Struct]) -> set[str]:
    """Fields of a JSON object that the struct has no place for, or the other way round."""
    return row.keys() ^ {field.name for field in msgspec.structs.fields(known)}


def test_status_knows_every_field_that_the_daemon_tells(daemon: Daemon) -> None:
    """None is added to /status without its place in edgeguardctl and docs/reference/http.md, nor taken away."""
    with Subscriber(daemon.socket_path, {"name": "slow", "target": "llm"}, ack=None) as server:
        server.wait_for("command")
        (told,) = daemon.status()["targets"]
        assert differing_fields(daemon.status(), statusdoc.Status) == set()
        assert differing_fields(told, statusdoc.TargetRow) == set()
        assert differing_fields(told["marks"], statusdoc.Marks) == set()
        assert differing_fields(told["in_force"], InForce) == set()
        assert differing_fields(told["counters"], Counters) == set()
        assert differing_fields(told["last_resort"], statusdoc.ResortRow) == set()
        assert differing_fields(told["outstanding"][0], statusdoc.Outstanding) == set()
        assert differing_fields(daemon.status()["machine"], statusdoc.MachineRow) == set()
        assert differing_fields(daemon.status()["machine"]["sample"], MachineSample) == set()
        assert differing_fields(daemon.status()["machine"]["devices"][0], statusdoc.DeviceRow) == set()
        assert differing_fields(daemon.status()["subscribers"][0], statusdoc.SubscriberRow) == set()
    eventually(lambda: daemon.status()["last_commands"])
    assert differing_fields(daemon.status()["last_commands"][0], statusdoc.EndedCommand) == set()
    assert "<script>" in daemon.get("/")


def test_what_became_of_a_last_resort_is_told(tmp_path: Path) -> None:
    """A tree of plain files cannot reclaim: that it was tried, and why it failed, stands in /status and in `status`."""
    (tmp_path / "cgroup").mkdir()
    tree = FakeTree(tmp_path / "cgroup")
    tree.cgroup("/llm", max_bytes=100 * MIB).usage(95 * MIB)
    config = CONFIG + '[target.last_resort]\ncritical = ["reclaim"]\n'
    with Daemon(str(tmp_path), config, cgroup_root=tree.path) as daemon:
        eventually(lambda: daemon.status()["targets"][0]["last_resort"]["last"])
        told = daemon.status()["targets"][0]["last_resort"]
        assert (told["configured"], told["running"]) == (True, False)
        assert differing_fields(told["last"], statusdoc.ResortOutcome) == set()
        assert (told["last"]["action"], told["last"]["outcome"]) == ("reclaim", "failed")
        assert "last resort reclaim failed" in ctl("status", "--http", daemon.http.removeprefix("http://"))


def test_what_is_subscribed_asked_and_acked_is_shown(daemon: Daemon) -> None:
    """subscribe plays a server, status and watch tell what became of it."""
    http = daemon.http.removeprefix("http://")
    printed = ctl("subscribe", "--socket", daemon.socket_path, "--target", "llm", "--ack", "done", "--count", "3")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["type"] for line in lines] == ["welcome", "command", "command"]
    eventually(lambda: len(daemon.status()["last_commands"]) == 2)
    page = ctl("status", "--http", http)
    assert "90.0M" in page
    assert "reduce_batch" in page
    looks = ctl("watch", "--http", http, "--socket", daemon.socket_path, "--count", "2", "--interval", "0.1")
    assert looks.count("llm high: needed 90.0M, limit 100.0M memory.max, used 90%, 90% of what can grow, sampled ") == 2


def test_doctor_asks_the_daemon(daemon: Daemon) -> None:
    """Its health, readiness and socket; and with the daemon gone, what to do about that."""
    options = ["--config", daemon.config_path, "--http", daemon.http.removeprefix("http://"), "--json"]

    def daemons() -> dict[str, tuple[str, str]]:
        done = subprocess.run([*CTL, "doctor", *options], capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return {row["check"]: (row["verdict"], row["says"]) for row in json.loads(done.stdout)["findings"]}

    found = daemons()
    assert found["daemon health"] == ("OK", f"edgeguardd {__version__} on {daemon.http}/: healthy and ready")
    assert found["daemon socket"] == ("OK", f"{daemon.socket_path} takes subscribers")
    assert found["may write the state directory"] == ("OK", daemon.state_directory)
    daemon.stop()
    found = daemons()
    assert found["daemon health"] == ("WARN", f"no answer from {daemon.http}/: connection refused")
    assert found["daemon socket"] == ("WARN", f"{daemon.socket_path}: no such file or directory")


def test_doctor_refuses_a_root_that_is_none() -> None:
    """One sentence, and no verdict on nothing."""
    done = subprocess.run([*CTL, "doctor", "--root", "/nonexistent"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "edgeguardctl: cannot examine /nonexistent: it is no directory; name one with proc, sys and etc in it\n"
    )


def test_a_bad_reload_tells_every_fault_and_changes_nothing(daemon: Daemon) -> None:
    """SIGHUP with a faulty file: each fault with its line in the log, and the old configuration stays."""
    daemon.write_config(CONFIG + 'elevated = "190%"\nhi = 1\n')
    daemon.hang_up()
    (rejected,) = eventually(lambda: daemon.facts("configuration_rejected"))
    assert [problem.split(":")[1].strip() for problem in rejected["problems"]] == ["line 6", "line 7"]
    assert [target["name"] for target in daemon.status()["targets"]] == ["llm"]
    daemon.write_config(CONFIG.replace("llm", "other"))
    daemon.hang_up()
    eventually(lambda: [target["name"] for target in daemon.status()["targets"]] == ["other"])


def test_two_daemons_cannot_have_one_socket(daemon: Daemon) -> None:
    """The second ends with one sentence and exit status 1, and the first goes on."""
    done = subprocess.run(
        [sys.executable, "-m", "edgeguardd", "run", "--config", daemon.config_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert len(said) == 1
    assert said[0].startswith(f"edgeguardd: cannot listen on {daemon.socket_path}: ")
    assert os.path.exists(daemon.socket_path)
    assert daemon.status()["ready"]


def test_the_running_daemon_imports_nothing_that_only_the_terminal_uses(daemon: Daemon) -> None:
    """Started, subscribed to and asked for its status, it has loaded neither rich nor pyroute2."""
    daemon.stop()
    daemon.environment = {"PYTHONPROFILEIMPORTTIME": "1"}
    daemon.start()
    daemon.status()
    daemon.stop()
    imported = {
        line.rsplit("|", 1)[1].strip() for line in daemon.log_text().splitlines() if line.startswith("import time:")
    }
    assert "edgeguardd.daemon" in imported
    assert not {name for name in imported if name.split(".")[0] in {"rich", "pyroute2", "pygments"}}
