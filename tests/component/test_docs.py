"""What the documents promise is run: each command that a reader is told to type, and the ten lines of a server."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.children import ending
from tests.support.faketree import MIB, FakeCgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually

# Commands that are whole test suites of their own: `make test` runs this file, the others run for minutes.
ELSEWHERE = {
    "make demo": "run on its own; tests/demo is the program",
    "make test": "this very run",
    "python3 -m venv /opt/edgeguardd && /opt/edgeguardd/bin/pip install .": "setup.sh does it for .venv",
    "ln -s /opt/edgeguardd/bin/edgeguard* /usr/local/bin/": "of commands that test_package.py runs",
    "pipx install .": "as above; tests/component/test_package.py runs the wheel",
    "uv tool install --python 3.12 .": "as above",
}


def text_of(page: str) -> str:
    with open(os.path.join(REPOSITORY, page)) as file:
        return file.read()


def shell_lines(page: str) -> list[str]:
    """The commands of the indented blocks outside Python ones, without their comments."""
    text = re.sub(r"```python\n.*?```", "", text_of(page), flags=re.DOTALL)
    return [line.split(" #")[0].strip() for line in text.splitlines() if re.match(r" {4,}[a-z][\w-]*( |$)", line)]


def python_block(page: str) -> str:
    """The first Python block."""
    found = re.search(r"```python\n(.*?)```", text_of(page), re.DOTALL)
    assert found
    return found.group(1)


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
    source = python_block("README.md").replace('Subscriber("my-server")', 'Subscriber("my-server", target="llm")')
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


@pytest.mark.parametrize("command", [line for line in shell_lines("README.md") if line.startswith("edgeguardctl")])
def test_each_look_of_the_readme_works(daemon: Daemon, command: str) -> None:
    """status ends by itself; watch and subscribe go on until interrupted, and have printed something by then."""
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", *shlex.split(command)[1:]]
    http, socket = ["--http", daemon.http.removeprefix("http://")], ["--socket", daemon.socket_path]
    options = {"status": http, "watch": http + socket, "subscribe": socket}[argv[3]]
    started = subprocess.Popen(
        [*argv, *options], cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with ending(started) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        if argv[3] != "status":
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert first, errors
    assert b"Traceback" not in errors


@pytest.mark.parametrize(
    "command", [line for line in shell_lines("docs/how-to/check-a-machine.md") if line.startswith("edgeguardctl")]
)
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


def test_every_command_of_the_readme_is_run_somewhere() -> None:
    """A command that no test runs may not stand in the README."""
    known = {*ELSEWHERE, "edgeguardd run"}
    unknown = [line for line in shell_lines("README.md") if line not in known and not line.startswith("edgeguardctl")]
    assert unknown == []


def test_the_readme_stays_on_one_screen() -> None:
    """Whoever comes for the first time reads that much; the rest has its pages, each linked from here."""
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 80
    pages = {f"docs/reference/{name}" for name in os.listdir(os.path.join(REPOSITORY, "docs/reference"))}
    assert [page for page in sorted(pages) if f"({page})" not in text_of("README.md")] == []


def test_the_units_are_placed_as_printed(place: str) -> None:
    """Below a directory instead of /: each unit is there, and starts the program where the page has put it."""
    lines = shell_lines("docs/how-to/run-as-a-service.md")
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


def test_links_of_the_documents_lead_somewhere() -> None:
    """Every relative link in README and docs/ names a file that is there."""
    pages = ["README.md", "CHANGELOG.md"]
    for directory, _, names in os.walk(os.path.join(REPOSITORY, "docs")):
        pages += [os.path.relpath(os.path.join(directory, n), REPOSITORY) for n in names if n.endswith(".md")]
    broken = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page))
        if not os.path.exists(os.path.join(REPOSITORY, os.path.dirname(page), link))
    ]
    assert broken == []
