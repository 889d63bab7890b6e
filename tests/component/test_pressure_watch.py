"""Programs that heed systemd's memory-pressure protocol: a client as the protocol has it, and sd-event itself."""

import base64
import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import sdevent
from tests.support.children import ending
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import DEADLINE_S, eventually

QUICK = "[defaults]\ndwell = 0.05\nrestore_dwell = 0.05\nrepeat = 0.05\n[sampling]\nfast = 0.02\nslow = 0.05\n"
TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n'
# What systemd writes by default (systemd.resource-control(5), MemoryPressureThresholdSec=).
WRITE = base64.b64encode(b"some 100000 1000000\0").decode()


@pytest.fixture
def place() -> Iterator[str]:
    """A directory with a short path, and an empty tree in it, for a daemon of the test's own."""
    with new_place() as path:
        yield path


@pytest.fixture
def llm(place: str) -> FakeCgroup:
    return new_cgroup(place)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Daemon, FakeCgroup]]:
    """One daemon for all tests that do without a start or an end of their own."""
    with new_place() as path:
        cgroup = new_cgroup(path)
        with start(path) as running:
            yield running, cgroup


@pytest.fixture
def daemon(shared: tuple[Daemon, FakeCgroup]) -> Daemon:
    """The shared daemon at rest: memory is ample, nobody watches."""
    running, cgroup = shared
    cgroup.usage(100 * MIB)
    eventually(lambda: running.status()["targets"][0]["needed_bytes"] == 100 * MIB)
    eventually(lambda: running.status()["targets"][0]["level"] == "normal")
    eventually(lambda: watchers(running) == 0)
    return running


@pytest.fixture
def watched(shared: tuple[Daemon, FakeCgroup]) -> FakeCgroup:
    """The cgroup of the shared daemon's target."""
    return shared[1]


@contextlib.contextmanager
def new_place() -> Iterator[str]:
    path = tempfile.mkdtemp(prefix="eg-", dir="/tmp")
    os.mkdir(f"{path}/tree")
    yield path
    shutil.rmtree(path)


def new_cgroup(place: str) -> FakeCgroup:
    """A cgroup of 100 of 1000 MiB."""
    cgroup = FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB)
    cgroup.usage(100 * MIB)
    return cgroup


def start(place: str, *, watch: str = 'target = "llm"', repeat: str = "0.05", **options: Any) -> Daemon:
    body = QUICK.replace("repeat = 0.05", f"repeat = {repeat}") + TARGET
    body += f'[[pressure_watch]]\npath = "{place}/w"\n{watch}\n'
    return Daemon(place, body, cgroup_root=f"{place}/tree", **options)


class Watcher:
    """A program that does what the protocol says: connect, write what it is told to, then wait, read and discard."""

    def __init__(self, path: str, write: str | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.socket.connect(path)
        if write is not None:
            self.socket.sendall(base64.b64decode(write))

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def told(self, within_s: float = DEADLINE_S) -> bool:
        """Whether it is readable in time; what is there is read, which must not be the end."""
        readable, _, _ = select.select([self.socket], [], [], within_s)
        if readable:
            assert self.socket.recv(4096), "the connection was ended"
        return bool(readable)


def watchers(daemon: Daemon) -> float | None:
    return daemon.metric("edgeguardd_pressure_watchers")


def path_of(daemon: Daemon) -> str:
    """Where its pressure socket is."""
    return f"{daemon.directory}/w"


def ready(daemon: Daemon, count: int) -> None:
    """So many watchers are known, and memory has been looked at."""
    eventually(lambda: watchers(daemon) == count)
    eventually(lambda: daemon.status()["targets"][0]["needed_bytes"])


def test_pressure_is_told_when_it_comes_and_again_while_it_lasts(daemon: Daemon, watched: FakeCgroup) -> None:
    """Nothing while memory is ample; a byte at the elevated mark, further ones as a trim is repeated; then rest."""
    with Watcher(path_of(daemon), WRITE) as program, Watcher(path_of(daemon)) as other:
        ready(daemon, 2)
        assert daemon.status()["targets"][0]["watchers"] == 2
        assert not program.told(0.0)
        watched.usage(700 * MIB)
        for _ in range(3):
            assert program.told()
            assert other.told()
        watched.usage(100 * MIB)
        eventually(lambda: daemon.status()["targets"][0]["level"] == "normal")
        program.told(0.0)
        assert not program.told(0.0)
        assert (daemon.metric("edgeguardd_pressure_signals_total") or 0) >= 6
        assert {fact["target"] for fact in daemon.facts("watcher_joined")} == {"llm"}


def test_it_is_told_no_oftener_than_a_trim_is_repeated_but_worse_is_told_at_once(place: str, llm: FakeCgroup) -> None:
    """With an hour between repeats: once for elevated, once more for high, however long it lasts."""
    with start(place, repeat='"1h"') as daemon, Watcher(f"{place}/w") as program:
        ready(daemon, 1)
        llm.usage(700 * MIB)
        assert program.told()
        samples = [700 * MIB + number for number in range(20)]
        for size in samples:
            llm.usage(size)
            eventually(lambda size=size: daemon.status()["targets"][0]["needed_bytes"] == size)  # type: ignore[misc]
        assert not program.told(0.0)
        llm.usage(850 * MIB)
        assert program.told()
        assert daemon.metric("edgeguardd_pressure_signals_total") == 2


def test_without_a_target_the_program_is_told_of_its_own_cgroup(place: str, llm: FakeCgroup) -> None:
    """Which may be guarded already, or begins to be, for as long as it watches; one that is in none hears of the
    machine."""
    with open("/proc/self/cgroup") as file:
        own = [line.rstrip("\n").partition("::")[2] for line in file if line.startswith("0::")]
    with start(place, watch="") as daemon:
        if own and own[0] != "/":
            os.makedirs(os.path.dirname(f"{place}/tree{own[0]}"), exist_ok=True)
            mine = FakeTree(f"{place}/tree").cgroup(own[0], max_bytes=1000 * MIB)
            with Watcher(f"{place}/w") as program:
                (joined,) = eventually(lambda: daemon.facts("watcher_joined"))
                mine.usage(700 * MIB)
                assert program.told()
            eventually(lambda: len(daemon.status()["targets"]) == 1)
            assert joined["target"] == own[0]
        else:
            with Watcher(f"{place}/w"):
                (joined,) = eventually(lambda: daemon.facts("watcher_joined"))
                assert joined["target"] is None


def test_one_that_does_not_read_costs_little_and_delays_nobody(daemon: Daemon, watched: FakeCgroup) -> None:
    """What it leaves unread is bounded, and it is not disconnected: the end of the connection would do it harm."""
    with Watcher(path_of(daemon)) as deaf, Watcher(path_of(daemon)) as program:
        ready(daemon, 2)
        watched.usage(700 * MIB)
        eventually(lambda: program.told(0.0) and daemon.metric("edgeguardd_pressure_signals_unread_total"))
        assert program.told()
        assert watchers(daemon) == 2
        assert deaf.told()


def test_what_programs_write_is_always_read(place: str, llm: FakeCgroup) -> None:
    """Unread bytes would make the end of the daemon a reset, which ends an sd-event loop with an error."""
    with start(place) as daemon:
        with Watcher(f"{place}/w") as program:
            ready(daemon, 1)
            program.socket.sendall(b"x" * 4000)
            program.socket.setblocking(True)
            program.socket.sendall(b"y" * 150_000)
            daemon.stop()
            program.socket.settimeout(DEADLINE_S)
            assert program.socket.recv(1) == b""
        assert not os.path.exists(f"{place}/w")


def test_one_that_writes_without_end_is_ended(daemon: Daemon, watched: FakeCgroup) -> None:
    """No protocol asks for that; nobody else notices."""
    with Watcher(path_of(daemon)) as program, Watcher(path_of(daemon)) as flood:
        ready(daemon, 2)
        flood.socket.settimeout(DEADLINE_S)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            flood.socket.sendall(b"x" * (64 << 20))
        eventually(lambda: watchers(daemon) == 1)
        watched.usage(700 * MIB)
        assert program.told()


def test_more_than_there_is_room_for_wait_unharmed(daemon: Daemon, watched: FakeCgroup) -> None:
    """They are connected and hear nothing until others leave: turning them away would send them into a spin."""
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(Watcher(path_of(daemon))) for _ in range(520)]
        ready(daemon, 512)
        watched.usage(700 * MIB)
        eventually(lambda: sum(one.told(0.0) for one in crowd[:100]) == 100)
        assert not any(one.told(0.0) for one in crowd[512:])
        for one in crowd[:10]:
            one.socket.close()
        eventually(lambda: watchers(daemon) == 510)
        assert all(one.told() for one in crowd[512:])


def test_a_reload_finds_new_homes(place: str, llm: FakeCgroup) -> None:
    """The target is gone: the program hears of the machine alone; it is back: it hears of it again."""
    with start(place) as daemon, Watcher(f"{place}/w") as program:
        ready(daemon, 1)
        with open(daemon.config_path) as file:
            whole = file.read()
        daemon.write_config(QUICK + f'[[pressure_watch]]\npath = "{place}/w"\n')
        daemon.hang_up()
        eventually(lambda: not daemon.status()["targets"])
        assert daemon.facts("restart_needed")[-1]["settings"] == ["pressure_watch"]
        llm.usage(700 * MIB)
        with open(daemon.config_path, "w") as file:
            file.write(whole)
        daemon.hang_up()
        assert program.told()


def test_a_socket_that_cannot_be_made_is_said_with_its_remedy(place: str, llm: FakeCgroup) -> None:
    """And the daemon does not start half."""
    with open(f"{place}/w", "w"):
        pass
    with start(place, start=False) as daemon:
        daemon.start(wait=False)
        assert daemon.process is not None
        assert daemon.process.wait(DEADLINE_S) == 1
        assert f"cannot listen on {place}/w: it exists and is not a socket" in daemon.log_text()
        assert "set [[pressure_watch]] path" in daemon.log_text()
        daemon.killed = True


class Systemd:
    """systemd's side of Type=notify with FileDescriptorStoreMax=: keeps connections, and passes them on at a start."""

    def __init__(self, place: str) -> None:
        self.kept: list[int] = []
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"{place}/notify")
        self.socket.settimeout(DEADLINE_S)

    def wait_for_kept(self, count: int) -> None:
        """Until so many connections have been handed over."""
        while len(self.kept) < count:
            message, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
            if fds:
                assert message == b"FDSTORE=1\nFDNAME=pressure-watcher"
                self.kept += fds

    def close(self) -> None:
        """Let go of what is kept, as when the unit is stopped for good."""
        for fd in self.kept:
            os.close(fd)
        self.socket.close()


def test_connections_outlive_a_daemon_that_is_killed(place: str, llm: FakeCgroup) -> None:
    """Kept by systemd, they neither end nor fall silent: the next run goes on with them."""
    systemd = Systemd(place)
    with start(place, start=False) as daemon:
        daemon.environment = {"NOTIFY_SOCKET": f"{place}/notify"}
        daemon.start()
        with Watcher(f"{place}/w") as program:
            ready(daemon, 1)
            systemd.wait_for_kept(1)
            daemon.kill()
            assert not program.told(0.0)
            # As systemd does it: the descriptor is the third, and the process's own number is in the environment.
            script = "import os,sys;os.dup2(int(sys.argv[1]),3);os.environ['LISTEN_PID']=str(os.getpid());"
            script += "os.execv(sys.executable,[sys.executable,'-m','edgeguardd','run','--config',sys.argv[2]])"
            environment = {**os.environ, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "pressure-watcher"}
            with open(daemon.log_path, "ab") as log:
                argv = [sys.executable, "-c", script, str(systemd.kept[0]), daemon.config_path]
                daemon.process = subprocess.Popen(
                    argv, cwd=REPOSITORY, env=environment, stdout=log, stderr=log, pass_fds=systemd.kept
                )
            eventually(lambda: len(daemon.facts("started")) == 2)
            ready(daemon, 1)
            llm.usage(700 * MIB)
            assert program.told()
            daemon.stop()
            program.told(0.0)
            assert not program.told(0.0)
    systemd.close()


@pytest.mark.skipif(sdevent.library() is None, reason=sdevent.MISSING)
def test_an_unmodified_sd_event_program_reacts(place: str, daemon: Daemon, watched: FakeCgroup) -> None:
    """Linked to libsystemd, it trims when memory is short and rests otherwise; with what systemd has it write, too."""
    program = sdevent.built(place)
    environment = {**os.environ, **sdevent.environment(), "MEMORY_PRESSURE_WATCH": path_of(daemon)}
    for more in ({}, {"MEMORY_PRESSURE_WRITE": WRITE}):
        watched.usage(100 * MIB)
        eventually(lambda: daemon.status()["targets"][0]["level"] == "normal")
        before = daemon.metric("edgeguardd_pressure_signals_total") or 0
        with ending(
            subprocess.Popen([program], env={**environment, **more}, stdout=subprocess.PIPE, text=True)
        ) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "watching\n"
            ready(daemon, 1)
            watched.usage(700 * MIB)
            assert running.stdout.readline() == "pressure\n"
            watched.usage(100 * MIB)
            eventually(lambda: daemon.status()["targets"][0]["level"] == "normal")
            told = daemon.metric("edgeguardd_pressure_signals_total") or 0
            running.send_signal(2)
            rest, _ = running.communicate(timeout=DEADLINE_S)
            assert rest.count("pressure\n") < told - before
            assert running.returncode == 0
