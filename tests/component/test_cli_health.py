"""edgeguardctl health: one line and an exit status, of a daemon that runs, comes, is blind, or is not there."""

import os
import subprocess
import sys
import threading

import pytest

from tests.support.faketree import FakeCgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n[sampling]\nslow = 0.2\n'


def health(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "health", *options],
        cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def at(daemon: Daemon) -> str:
    return daemon.http.removeprefix("http://")


def test_a_daemon_that_sees(place: str, llm: FakeCgroup) -> None:
    """Ready and fresh: 0, and a line that says what is meant."""
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon:
        done = health("--http", at(daemon))
    assert (done.returncode, done.stdout, done.stderr) == (
        0, "ready: every target that exists is watched, the last samples are fresh\n", "",
    )  # fmt: skip


def test_a_daemon_that_has_gone_blind(place: str, llm: FakeCgroup) -> None:
    """Its samples are old: 1, with the daemon's own words, waited for or not."""
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon:
        llm.write("memory.current", "no figure\n")
        eventually(lambda: health("--http", at(daemon)).returncode == 1, what="its samples are old")
        done = health("--http", at(daemon), "--wait", "0.1")
    assert done.returncode == 1
    assert "/healthz says 503, the last sample is" in done.stderr
    assert "see its log, and edgeguardctl status" in done.stderr


def test_a_daemon_that_is_not_there_yet(place: str) -> None:
    """Nobody answers: 1 at once; with time to wait, 0 as soon as it does."""
    os.mkdir(f"{place}/tree")
    with open(f"{place}/tree/cgroup.controllers", "w") as file:
        file.write("memory\n")
    with Daemon(place, cgroup_root=f"{place}/tree") as daemon:
        address = at(daemon)
        daemon.stop()
        refused = health("--http", address)
        assert refused.returncode == 1
        assert refused.stderr.startswith(f"edgeguardctl: cannot reach edgeguardd at http://{address}/readyz")
        waiting: list[int] = []
        thread = threading.Thread(target=lambda: waiting.append(health("--http", address, "--wait", "60").returncode))
        thread.start()
        with open(daemon.config_path) as file:
            text = file.read().replace("port = 0", f"port = {address.rpartition(':')[2]}")
        with open(daemon.config_path, "w") as file:
            file.write(text)
        daemon.start()
        thread.join(60)
        assert waiting == [0]


@pytest.mark.parametrize("word", ["-1", "nan"])
def test_a_wait_that_is_none(word: str) -> None:
    """Wrong usage, said in one sentence."""
    done = health("--wait", word)
    assert done.returncode == 2
    assert "a number of seconds from 0 to 3600" in done.stderr
