"""edgeguardctl health: one line and an exit status, of a daemon that runs, comes, is blind, or is not there."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faketree import FakeCgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually

OK = b"HTTP/1.1 200 OK\r\n"
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


@contextlib.contextmanager
def stranger(answer: bytes, *, then_drips: bool = False) -> Iterator[str]:
    """Somebody else's port: the same answer to every request, at once, or with a byte more now and then, or none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError), server.accept()[0] as peer:
                    peer.recv(65536)
                    peer.sendall(answer)
                    while then_drips and not over.wait(0.05):
                        peer.sendall(b"x")

        thread = threading.Thread(target=serve)
        thread.start()
        address, port = server.getsockname()
        try:
            yield f"{address}:{port}"
        finally:
            over.set()
            with contextlib.suppress(OSError):
                socket.create_connection((address, port), 5).close()
            thread.join(60)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (OK + b"Content-Length: 0\r\n\r\n", "/readyz of"),
        (OK + b"\r\n<html>welcome</html>", "says 200, <html>welcome</html>, which is not edgeguardd's answer"),
        (OK + b"\r\nready, or so\n", "which is not edgeguardd's answer"),
        (OK + b"\r\nready\n", "/healthz of"),
        (OK + b"\r\n\x1b[2Jready\x07", "says 200, \\x1b[2Jready\\x07, which"),
        (b"HTTP/1.1 503 No\r\n\r\n\x1b]0;x\x07", "/readyz says 503, \\x1b]0;x\\x07;"),
        (b"\x1b[2J no http\r\n\r\n", "\\x1b[2j no http"),
    ],
)
def test_what_answers_is_not_the_daemon(answer: bytes, says: str) -> None:
    """Whatever it says, it is not taken for ready; nothing of it reaches the terminal as it is."""
    with stranger(answer) as address:
        done = health("--http", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize("wait", ["0", "1"])
@pytest.mark.parametrize("answer", [b"", OK + b"\r\n"])
def test_a_peer_that_never_ends_its_answer(wait: str, answer: bytes) -> None:
    """The time is kept, and a second for the answer; the bound here leaves room for a slow machine."""
    with stranger(answer, then_drips=True) as address:
        begin = time.monotonic()
        done = health("--http", address, "--wait", wait)
        took_s = time.monotonic() - begin
    assert done.returncode == 1
    assert "timed out" in done.stderr
    assert took_s < float(wait) + 30


def test_a_peer_that_hangs() -> None:
    """It takes the connection and says nothing: the command ends all the same, and says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = health("--http", "{}:{}".format(*server.getsockname()), "--wait", "1")
    assert done.returncode == 1
    assert "timed out" in done.stderr
