"""What the documents promise beyond their commands: the ten lines of a server, verdicts, units in their places."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.documents.pages import blocks, commands, text_of
from tests.support.faketree import MIB, FakeCgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually


@pytest.fixture
def daemon(place: str, llm: FakeCgroup) -> Iterator[Daemon]:
    """A daemon that guards it."""
    with Daemon(place, '[[target]]\nname = "llm"\npath = "/llm"\n', cgroup_root=f"{place}/tree") as running:
        yield running


def test_the_ten_lines_of_the_readme_subscribe_a_server(
    daemon: Daemon, llm: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed, with a cache and a server of the reader's: the trim frees, rejecting is obeyed and lifted."""

    class Cache:
        def drop(self, size: int) -> int:
            llm.usage(100 * MIB)
            return size

    class Server:
        accepting = True

    monkeypatch.setenv("EDGEGUARDD_SOCKET", daemon.socket_path)
    # The reader's server lives in its own cgroup; here the target is named, since a fake tree holds no process.
    source = blocks("README.md", "python")[0].text.replace(
        'Subscriber("my-server")', 'Subscriber("my-server", target="llm")'
    )
    names: dict[str, Any] = {"cache": Cache(), "server": Server()}
    exec(compile(source, "README.md", "exec"), names)  # noqa: S102  the reader's own code
    guard = names["guard"]
    with contextlib.closing(guard):
        eventually(lambda: guard.connected)
        llm.usage(950 * MIB)
        eventually(lambda: [f for f in daemon.facts("command_ended") if f["action"] == "reject_requests"])
        assert names["server"].accepting is False
        trimmed = eventually(lambda: [f for f in daemon.facts("command_ended") if f["action"] == "trim_kv_cache"])
        assert trimmed[0]["outcome"] == "done"
        eventually(lambda: names["server"].accepting, 60, what="restored")


@pytest.mark.parametrize("command", [command.text for command in commands("docs/how-to/check-a-machine.md")])
def test_each_command_for_checking_a_machine_works(place: str, command: str) -> None:
    """Whatever this machine is: a verdict, a status that fits it, and no traceback."""
    words = shlex.split(command.replace(" DIR", f" {place}"))[1:]
    done = subprocess.run(
        [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *words],
        cwd=REPOSITORY, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    if "--json" in words:
        verdicts = [row["verdict"] for row in json.loads(done.stdout)["findings"]]
        assert json.loads(done.stdout)["counts"] == {word: verdicts.count(word) for word in ("OK", "WARN", "FAIL")}
    else:
        verdicts = re.findall(r"^(OK|WARN|FAIL)\b", done.stdout, re.MULTILINE)
    bad = {"FAIL", "WARN"} if "--strict" in words else {"FAIL"}
    assert verdicts
    assert done.returncode == (not bad.isdisjoint(verdicts))


def test_the_readme_stays_on_one_screen() -> None:
    """Whoever comes for the first time reads that much; the rest has its pages, each linked from here."""
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 80
    pages = {f"docs/reference/{name}" for name in os.listdir(os.path.join(REPOSITORY, "docs/reference"))}
    assert [page for page in sorted(pages) if f"({page})" not in text_of("README.md")] == []


def test_the_units_are_placed_as_printed(place: str) -> None:
    """Below a directory instead of /: each unit is there, and starts the program where the page has put it."""
    lines = [command.text for command in commands("docs/how-to/run-as-a-service.md")]
    placing = [line for line in lines if line.startswith(("install ", "sed "))]
    script = "\n".join(re.sub(r" /etc/", f" {place}/etc/", line) for line in placing)
    subprocess.run(["bash", "-euc", script], cwd=REPOSITORY, check=True, timeout=60, stdin=subprocess.DEVNULL)
    systemd = os.path.join(REPOSITORY, "systemd")
    given = {name for name in os.listdir(systemd) if os.path.isfile(os.path.join(systemd, name))}
    assert set(os.listdir(f"{place}/etc/systemd/system")) == given
    starts = []
    for name in sorted(given):
        with open(f"{place}/etc/systemd/system/{name}") as file:
            starts += re.findall(r"^ExecStart=(\S+)", file.read(), re.MULTILINE)
    assert starts == ["/opt/edgeguardd/bin/edgeguardctl", "/opt/edgeguardd/bin/edgeguardd"]
    assert os.listdir(f"{place}/etc/sysusers.d") == os.listdir(f"{place}/etc/tmpfiles.d") == ["edgeguardd.conf"]


def test_the_package_brings_every_unit() -> None:
    """A page that tells to enable a unit is right for whoever installed the package."""
    rules = text_of("packaging/debian/rules")
    systemd = os.path.join(REPOSITORY, "systemd")
    units = [name for name in sorted(os.listdir(systemd)) if os.path.isfile(os.path.join(systemd, name))]
    assert [name for name in units if f" {name}" not in rules] == []
