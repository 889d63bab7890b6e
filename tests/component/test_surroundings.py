"""The daemon in surroundings that somebody got wrong: streams, descriptors, variables, files, signals at a bad moment.

Each case ends in a daemon that works, or in one sentence and an exit status; never in a traceback, never in silence.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest

from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.wait import DEADLINE_S, eventually

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n'
HELLO = {"name": "test", "target": "llm"}
ARGV = [sys.executable, "-m", "edgeguardd", "run", "--config"]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon for one cgroup, not started yet, in a directory with a short path."""
    place = tempfile.mkdtemp(prefix="eg-", dir="/tmp")
    os.mkdir(f"{place}/tree")
    FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB).usage(100 * MIB)
    made = Daemon(place, TARGET, cgroup_root=f"{place}/tree", start=False)
    yield made
    made.stop()
    shutil.rmtree(place)


def start(daemon: Daemon, before: str = "", after: str = "") -> None:
    """Start it from a shell: `before` the command, and redirections `after` it; the log goes to its file."""
    program = " ".join([*ARGV, daemon.config_path])
    daemon.process = subprocess.Popen(
        ["/bin/sh", "-c", f'{before} exec {program} 2>>"{daemon.log_path}" {after}'],
        cwd=REPOSITORY,
        env={**os.environ, **daemon.environment},
    )


def started(daemon: Daemon) -> None:
    """Wait until it says that it has started."""
    assert daemon.process is not None
    process = daemon.process
    eventually(lambda: process.poll() is not None or daemon.facts("started"))
    assert process.poll() is None, daemon.log_text()


def works(daemon: Daemon) -> None:
    """A subscriber is asked when memory is short, and SIGTERM ends it well."""
    llm = FakeCgroup(f"{daemon.directory}/tree/llm", "/llm")
    with Subscriber(daemon.socket_path, HELLO) as server:
        server.wait_for("welcome")
        llm.usage(700 * MIB)
        server.wait_for("command", action="trim_kv_cache")
        assert daemon.stop() == 0
        server.wait_for("bye")
    assert "Traceback" not in daemon.log_text()
    assert not os.path.exists(daemon.socket_path)


# Streams and descriptors


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_change_nothing(daemon: Daemon, closed: str) -> None:
    """It works, ends with 0, and no socket of its own gets the number of standard output or error."""
    start(daemon, after=closed)
    eventually(daemon.listens)
    for fd in (0, 1, 2):
        assert not os.readlink(f"/proc/{daemon.pid}/fd/{fd}").startswith(("socket:", "anon_inode:"))
    works(daemon)


@pytest.mark.parametrize("limit", [7, 12, 16, 20, 24, 32])
def test_too_few_descriptors_are_one_sentence_with_the_remedy(daemon: Daemon, limit: int) -> None:
    """Wherever in the start they run out: exit status 1 and LimitNOFILE=, or it works with what there is."""

    def only() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    with open(daemon.log_path, "wb") as log:
        argv = [*ARGV, daemon.config_path]
        daemon.process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=log, stderr=log, preexec_fn=only)  # noqa: PLW1509
    process = daemon.process
    eventually(lambda: process.poll() is not None or daemon.facts("started"))
    if daemon.facts("started"):
        assert daemon.stop() == 0
        return
    assert process.returncode == 1
    (sentence,) = [line for line in daemon.log_text().splitlines() if line.startswith("edgeguardd: ")]
    assert "LimitNOFILE=" in sentence
    assert "Traceback" not in daemon.log_text()


def test_listen_variables_that_lie_cost_no_descriptor(daemon: Daemon) -> None:
    """LISTEN_FDS=20 with nothing handed over: the daemon makes its own socket and closes nothing by mistake."""
    start(daemon, before="LISTEN_PID=$$ LISTEN_FDS=20")
    started(daemon)
    daemon.hang_up()
    eventually(lambda: daemon.metric("edgeguardd_reloads_total", result="applied"))
    works(daemon)


def test_a_socket_that_systemd_hands_over_is_listened_on(daemon: Daemon) -> None:
    """It is found among what else is passed, and its file stays when the daemon stops."""
    program = (
        "import os, sys, socket\n"
        "ours = socket.socket(socket.AF_UNIX); ours.bind(sys.argv[1]); ours.listen()\n"
        "other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "a, b = os.dup(other.fileno()), os.dup(ours.fileno()); os.dup2(a, 3); os.dup2(b, 4)\n"
        "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')\n"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    passed = f"{daemon.directory}/passed"
    with open(daemon.log_path, "wb") as log:
        argv = [sys.executable, "-c", program, passed, *ARGV, daemon.config_path]
        daemon.process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=log, stderr=log)
    started(daemon)
    with Subscriber(passed, HELLO) as server:
        server.wait_for("welcome")
        assert not os.path.exists(daemon.socket_path)
        assert daemon.stop() == 0
    assert os.path.exists(passed)


# Variables


@pytest.mark.parametrize(
    "value", ["@", "/", "/dev/null", "@" + "x" * 300, "/" + "x" * 300, "\udcff", "vsock:1:2", "its own"]
)
def test_a_notify_socket_that_is_none_is_no_obstacle(daemon: Daemon, value: str) -> None:
    """Nothing can be told to systemd then, and everything else works."""
    daemon.environment = {"NOTIFY_SOCKET": daemon.socket_path if value == "its own" else value}
    daemon.start()
    works(daemon)


def test_a_notify_socket_that_nobody_reads_is_no_obstacle(daemon: Daemon) -> None:
    """A full queue costs a moment at the start and nothing afterwards."""
    path = f"{daemon.directory}/notify"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full,
    ):
        deaf.bind(path)
        full.setblocking(False)
        full.connect(path)
        with contextlib.suppress(BlockingIOError):
            while True:
                full.send(b"x")
        daemon.environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
        daemon.start()
        works(daemon)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1", "-5", "soon"])
def test_an_absurd_watchdog_is_no_obstacle(daemon: Daemon, value: str) -> None:
    """A microsecond is bounded to a tenth of a second, and an endless time is no watchdog in practice."""
    daemon.environment = {"WATCHDOG_USEC": value}
    daemon.start()
    assert len(daemon.facts("watchdog_too_short")) == (value == "1")
    works(daemon)


def test_an_empty_environment_is_enough(daemon: Daemon) -> None:
    """No HOME, no PATH, no locale."""
    with open(daemon.log_path, "wb") as log:
        argv = [*ARGV, daemon.config_path]
        daemon.process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=log, stderr=log, env={})
    started(daemon)
    works(daemon)


# Files


@pytest.mark.timeout(60)
def test_a_configuration_that_has_become_a_fifo_does_not_stop_the_daemon(daemon: Daemon) -> None:
    """Nobody writes to it: the reload is refused at once, commands go out as before."""
    daemon.start()
    os.unlink(daemon.config_path)
    os.mkfifo(daemon.config_path)
    daemon.hang_up()
    (refused,) = eventually(lambda: daemon.facts("configuration_rejected"))
    assert "it is not a regular file" in refused["problems"][0]
    works(daemon)


def test_a_configuration_from_standard_input_survives_a_reload(daemon: Daemon) -> None:
    """It cannot be read again: that is said, and the targets stay."""
    with open(daemon.log_path, "wb") as log, open(daemon.config_path, "rb") as config:
        daemon.process = subprocess.Popen([*ARGV, "-"], cwd=REPOSITORY, stdin=config, stdout=log, stderr=log)
    started(daemon)
    daemon.hang_up()
    (refused,) = eventually(lambda: daemon.facts("configuration_rejected"))
    assert refused["problems"] == ["cannot reload standard input: it can be read once; restart, or name a file"]
    assert [target["name"] for target in daemon.status()["targets"]] == ["llm"]
    works(daemon)


@pytest.mark.parametrize("becomes", ["a file", "nothing"])
def test_a_socket_directory_that_is_no_more_does_not_stop_the_stop(daemon: Daemon, becomes: str) -> None:
    """Everybody gets a bye, everything is closed, exit status 0."""
    place = f"{daemon.directory}/run"
    os.mkdir(place)
    daemon.socket_path = f"{place}/s"
    daemon.write_config(TARGET)
    daemon.start()
    with Subscriber(daemon.socket_path, HELLO) as server:
        server.wait_for("welcome")
        shutil.rmtree(place)
        if becomes == "a file":
            with open(place, "w"):
                pass
        assert daemon.stop() == 0
        server.wait_for("bye")
    assert daemon.facts("stopped")
    assert "Traceback" not in daemon.log_text()


def test_a_machine_without_a_descriptor_more_is_said_once_and_is_no_defect(daemon: Daemon) -> None:
    """Peers wait until there is one again; who is there already is served, and nothing counts as a fault of its own."""
    daemon.start()
    with Subscriber(daemon.socket_path, HELLO) as there, contextlib.ExitStack() as waiting:
        there.wait_for("welcome")
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        taken = max(int(name) for name in os.listdir(f"/proc/{daemon.pid}/fd")) + 1
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (taken, before[1]))
        late = [waiting.enter_context(Subscriber(daemon.socket_path, HELLO)) for _ in range(3)]
        said = "cannot take a connection for now: Too many open files; raise LimitNOFILE= of the daemon"
        eventually(lambda: said in [fact["why"] for fact in daemon.facts("works_in_part")])
        there.send({"type": "ping", "id": "still there"})
        there.wait_for("pong", id="still there")
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        for one in late:
            one.wait_for("welcome")
    assert [fact["why"] for fact in daemon.facts("works_in_part")].count(said) == 1
    assert daemon.facts("defect") == []
    assert daemon.metric("edgeguardd_defects_total") == 0


# Signals at a bad moment


def test_hang_ups_during_the_start_wait_for_its_end(daemon: Daemon) -> None:
    """They neither end the process, as SIGHUP does by default, nor count as ready before it is."""
    hold = "import os, sys, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP]); os.kill(os.getpid(), 1)"
    program = f"{hold}\nfrom edgeguardd.cli.edgeguardd import main\nsys.exit(main(sys.argv[1:]))"
    path = f"{daemon.directory}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(DEADLINE_S)
        with open(daemon.log_path, "wb") as log:
            argv = [sys.executable, "-c", program, "run", "--config", daemon.config_path]
            environment = {**os.environ, "NOTIFY_SOCKET": path}
            daemon.process = subprocess.Popen(argv, cwd=REPOSITORY, stdout=log, stderr=log, env=environment)
        told = [systemd.recv(4096).decode().split("\n")[0] for _ in range(4)]
        assert [state for state in told if not state.startswith("STATUS")] == ["READY=1", "RELOADING=1", "READY=1"]
        assert daemon.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signals_during_the_stop_change_nothing(daemon: Daemon, number: signal.Signals) -> None:
    """Reloads and stops that keep coming until the process is gone: exit status 0, no reload after "stopped"."""
    daemon.start()
    process = daemon.process
    assert process is not None
    for _ in range(20):
        daemon.hang_up()
    process.terminate()
    eventually(lambda: daemon.facts("stopping"))
    while process.poll() is None:
        process.send_signal(number)
    assert process.returncode == 0
    events = [json.loads(line)["event"] for line in daemon.log_text().splitlines()]
    assert events[-1] == "stopped"
    assert not os.path.exists(daemon.socket_path)
