"""The recorder in the running daemon, and the commands of docs/how-to/tune.md as a reader types them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents.pages import Command, blocks, commands, text_of
from tests.support.faketree import MIB, FakeCgroup
from tests.support.recordings import Taped, incident
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.wait import eventually

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n[sampling]\nfast = 0.05\nslow = 0.1\n'
HELLO = {"name": "test", "target": "llm"}
PAGE = "docs/how-to/tune.md"
# Commands for machines that a test does not have.
ELSEWHERE = ("scp ", "ssh ")


def ctl(*argv: str, cwd: str = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """edgeguardctl, in UTC."""
    return subprocess.run(
        [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *argv],
        cwd=cwd,
        env={**os.environ, "TZ": "UTC", "PYTHONPATH": REPOSITORY},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def listed(directory: str) -> list[dict[str, object]]:
    """The incidents there."""
    answer = ctl("incidents", "--directory", directory, "--json")
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, object]] = json.loads(answer.stdout)
    return found


def test_an_incident_that_a_kill_cuts_short_is_on_disk(place: str, llm: FakeCgroup) -> None:
    """kill -9 in the middle: what led to it and the orders are there; the next run goes on in a file of its own."""
    recordings = f"{place}/state/recordings"
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon, Subscriber(daemon.socket_path, HELLO) as server:
        llm.usage(950 * MIB)
        server.wait_for("command", action="reject_requests")
        eventually(lambda: [one for one in listed(recordings) if one["worst"] == "critical"], what="it is on disk")
        daemon.kill()
        (cut,) = listed(recordings)
        assert (cut["target"], cut["how_ended"]) == ("llm", "recording_ends")
        assert int(str(cut["commands"])) >= 3
        llm.usage(100 * MIB)
        daemon.start()
        llm.usage(700 * MIB)
        eventually(lambda: len(listed(recordings)) == 2, what="the second run's incident")
        assert sorted(os.listdir(recordings)) == [f"recording-0000000{number}.jsonl.gz" for number in (1, 2)]
        replayed = ctl("replay", recordings)
        assert replayed.stderr == ""
        assert replayed.stdout.count("edgeguardd ") == 2


def test_the_recorder_can_be_replayed_while_it_records(place: str, llm: FakeCgroup) -> None:
    """Nobody has to stop the daemon to see what it decided a moment ago."""
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon:
        llm.usage(700 * MIB)
        level = eventually(lambda: daemon.facts("level_changed"))[0]
        said = f"level normal -> {level['level']}: {level['why']}"
        eventually(lambda: said in ctl("replay", f"{place}/state").stdout, what="the decision is replayed")


def test_without_a_state_directory_the_daemon_guards_and_says_so(place: str, llm: FakeCgroup) -> None:
    """A file is in its place: one line, and commands go out all the same."""
    Path(f"{place}/state").write_text("")
    with Daemon(place, TARGET, cgroup_root=f"{place}/tree") as daemon, Subscriber(daemon.socket_path, HELLO) as server:
        llm.usage(950 * MIB)
        server.wait_for("command", action="reject_requests")
        eventually(lambda: [f for f in daemon.facts("works_in_part") if "cannot record events" in f["why"]])
        eventually(lambda: daemon.metric("edgeguardd_recorder_events_dropped_total"))


# The page


def masked(line: str) -> str:
    """The line with its figures left out: they change with the policy, what is shown does not."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", line)).strip()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a reader of the page sits: the recordings beside the configuration that the page shows."""
    directory = tmp_path_factory.mktemp("desk")
    incident(Taped()).write(directory / "recordings")
    (other,) = blocks(PAGE, "toml")
    (directory / "other.toml").write_text(other.text)
    return str(directory)


@pytest.mark.parametrize("typed", commands(PAGE), ids=lambda typed: typed.text)
def test_each_command_of_the_page_does_what_it_shows(typed: Command, desk: str) -> None:
    """Run as printed; every line of output that the page shows comes, but for the figures."""
    if typed.text.startswith(ELSEWHERE):
        assert typed.shown == ()
        return
    program, *argv = shlex.split(typed.text)
    assert program == "edgeguardctl"
    answer = ctl(*argv, cwd=desk)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {masked(line) for line in typed.shown} <= {masked(line) for line in answer.stdout.splitlines()}
    if "--html" in argv:
        assert (Path(desk) / argv[-1]).read_text().startswith("<!DOCTYPE html>")


def test_every_key_of_the_page_is_a_key() -> None:
    """What the table tells the reader to try can be written."""
    table = text_of(PAGE).partition("## 4.")[2].partition("## 5.")[0]
    keys = {word for row in table.splitlines() if row.startswith("| ") for word in re.findall(r"`([a-z_]+)`", row)}
    known = set(
        re.findall(r"^\| `([a-z_]+)` \|", Path(REPOSITORY, "docs/reference/config.md").read_text(), re.MULTILINE)
    )
    assert len(keys) > 8
    assert keys <= known
