"""Enemies at the subscriber socket of the real daemon: crowds, hostile names, lines without end, other users."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import crowds, guarded
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.unprivileged import as_nobody
from tests.support.wait import DEADLINE_S, eventually

SERVER = {"name": "server", "target": "llm"}
CONFIG = guarded.TARGET.replace("[sampling]", '[[target]]\nname = "all"\nglob = "/odd/*"\n[sampling]')
# As peers and makers of cgroups may choose them. A tree of files takes whatever a kernel's takes.
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07",
    'x" 1\nedgeguardd_up 666\n{a="b',
    '{"event":"kill","level":"error"}\n{"event":"forged"}',
    "a\r\nb",
    "<script>alert(1)<br>",
    "%n%s%1000000d",
    "\u202egnp.exe",
    "-rf",
    "a\\..\\b",
    "$(reboot)`reboot`",
    "\udcff\udcfe",
    "n" * 250,
)


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[Daemon, FakeTree, FakeCgroup]]:
    """One daemon for all tests here, with a target and a glob."""
    with guarded.daemon(CONFIG) as running:
        daemon, tree, _ = running
        os.mkdir(tree.full("/odd"))
        # Watched from now on, so that no test takes the descriptor for one of its own connections.
        eventually(lambda: tree.full("/odd") in opened(daemon), what="the glob's directory is watched")
        yield running


def opened(daemon: Daemon) -> list[str]:
    """What the daemon's descriptors are of."""
    found = []
    for number in os.listdir(f"/proc/{daemon.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{daemon.pid}/fd/{number}"))
    return found


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connected(daemon: Daemon) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(daemon.socket_path)  # waits for room in the queue; with a time limit it would not
    connection.settimeout(DEADLINE_S)
    return connection


def answers(daemon: Daemon, *lines: bytes) -> list[dict[str, Any]]:
    """What is said to these lines until the daemon has no more to say, or ends the connection."""
    with connected(daemon) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"".join(line + b"\n" for line in lines) + b'{"type":"ping","id":"last"}\n')
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while b'"last"' not in found and (piece := connection.recv(65536)):
                found += piece
    return [json.loads(line) for line in found.splitlines()]


def test_a_crowd_of_connections_is_bounded_and_a_server_is_served(
    scene: tuple[Daemon, FakeTree, FakeCgroup],
) -> None:
    """Thousands at once, 10,000 in the torture, or as many as this machine lets us open: few are held, a server that
    was there goes on, another one gets in and is asked, and no descriptor stays."""
    daemon, _, llm = scene
    before, rss = daemon.descriptors(), resident_bytes(daemon.pid)
    with crowds.room_for() as many, contextlib.ExitStack() as open_now:
        early = open_now.enter_context(Subscriber(daemon.socket_path, SERVER))
        early.wait_for("welcome")
        for _ in range(many):
            open_now.enter_context(connected(daemon))
        eventually(lambda: daemon.descriptors() <= before + 256 + 64, what="few are held")
        assert resident_bytes(daemon.pid) - rss < 32 << 20
        late = open_now.enter_context(Subscriber(daemon.socket_path, SERVER))
        late.wait_for("welcome")
        llm.usage(700 * MIB)
        for subscriber in (early, late):
            subscriber.wait_for("command", action="trim_kv_cache")
        llm.usage(100 * MIB)
        print(f"{many} connections to the socket at once")
    eventually(lambda: daemon.descriptors() <= before, what="descriptors are closed")


@pytest.mark.parametrize(
    "target",
    [
        *("../llm", "/llm", "/llm/", "//llm", "llm/..", "./llm", "/", "..", ".", "%2e%2e", "llm%00", "LLM", "x" * 128),
        *("/proc/self/root", "/etc/passwd", "self/../llm"),
    ],
)
def test_a_targets_name_is_no_path(scene: tuple[Daemon, FakeTree, FakeCgroup], target: str) -> None:
    """It is looked up among those that there are, and nowhere else, whoever asks."""
    for role in ("inference", "observer"):
        hello = json.dumps({"type": "hello", "name": "n", "role": role, "target": target}).encode()
        assert [line.get("code") for line in answers(scene[0], hello)] == ["unknown_target"]


def test_a_peers_name_forges_nothing(scene: tuple[Daemon, FakeTree, FakeCgroup]) -> None:
    """As a subscriber's name or in an ack, what acts on terminals, logs, metrics or pages is refused, or stays text."""
    daemon = scene[0]
    for name in HOSTILE:
        hello = json.dumps({"type": "hello", "name": name, "target": "llm"}).encode()
        ack = json.dumps({"type": "ack", "seq": 10**6, "status": "failed", "message": name}).encode()
        report = json.dumps({"type": "report", "finished": [name]}).encode()
        found = answers(daemon, hello, ack, report)
        assert {line["type"] for line in found} <= {"welcome", "error", "pong", "command", "level"}
    innocent(daemon)


def test_a_cgroups_name_forges_nothing(scene: tuple[Daemon, FakeTree, FakeCgroup]) -> None:
    """Whoever may make cgroups may name them: they are guarded, and what is told of them stays text."""
    daemon, tree, _ = scene
    before = len(daemon.status()["targets"])
    for name in HOSTILE:
        tree.cgroup(f"/odd/{name}", max_bytes=1000 * MIB).usage(950 * MIB)
    eventually(lambda: len(daemon.status()["targets"]) == before + len(HOSTILE), what="each is guarded")
    eventually(lambda: [row["level"] for row in daemon.status()["targets"]].count("critical") >= len(HOSTILE))
    innocent(daemon)
    for name in HOSTILE:
        tree.remove(f"/odd/{name}")
    eventually(lambda: len(daemon.status()["targets"]) == before, what="they are guarded no longer")
    innocent(daemon)


def innocent(daemon: Daemon) -> None:
    """Log, metrics, status and page say nothing that was put into them."""
    for line in daemon.log_text().splitlines():
        assert line.isprintable(), line
        assert json.loads(line)["event"] not in {"kill", "forged"}
    text = daemon.get("/metrics")
    families = list(text_string_to_metric_families(text))
    assert not [family for family in families if family.name == "edgeguardd_up"]
    for family in families:
        for sample in family.samples:
            assert all(value.isprintable() for value in sample.labels.values())
    assert daemon.get("/status").isascii() or daemon.get("/status").isprintable()
    for command in ("status", "incidents"):
        said = ctl(daemon, command)
        assert all(line.isprintable() for line in said.splitlines()), said


def ctl(daemon: Daemon, command: str) -> str:
    """What edgeguardctl prints."""
    options = {
        "status": ["--http", daemon.http.removeprefix("http://")],
        "incidents": ["--directory", daemon.state_directory],
    }[command]
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", command, *options]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    return ended.stdout + ended.stderr


def test_lines_without_end_cost_their_own_connection(scene: tuple[Daemon, FakeTree, FakeCgroup]) -> None:
    """Fifty peers with eight megabytes and no newline: each is told so and put out, and memory stays."""
    daemon = scene[0]
    rss = resident_bytes(daemon.pid)
    for _ in range(50):
        found = answers(daemon, b"x" * (8 << 20))
        assert found == [] or found[-1]["code"] == "line_too_long"
    assert resident_bytes(daemon.pid) - rss < 16 << 20
    assert answers(daemon)[-1]["type"] == "pong"


def test_another_user_may_connect_only_where_the_mode_says_so(scene: tuple[Daemon, FakeTree, FakeCgroup]) -> None:
    """As shipped, nobody but the group may; whoever may, may look, and serve what it lives in alone."""
    daemon = scene[0]
    if os.geteuid() != 0:
        pytest.skip("another user can only be played by root")

    def refused() -> None:
        with pytest.raises(PermissionError):
            connected(daemon).close()

    def looks_only() -> None:
        looks, serves = (
            {"type": "hello", "name": "n", "role": role, "target": "llm"} for role in ("observer", "inference")
        )
        assert answers(daemon, json.dumps(looks).encode())[0]["type"] == "welcome"
        assert answers(daemon, json.dumps(serves).encode())[0]["code"] in {"not_allowed", "unknown_target"}

    os.chmod(daemon.directory, 0o755)  # noqa: S103  the socket alone is to decide
    as_nobody(refused)
    mode = os.stat(daemon.socket_path).st_mode
    os.chmod(daemon.socket_path, 0o666)  # noqa: S103
    try:
        as_nobody(looks_only)
    finally:
        os.chmod(daemon.socket_path, mode & 0o777)
