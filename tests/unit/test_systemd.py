"""The notify protocol against a real datagram socket, the watchdog's variables, and sockets handed over."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeguardd import logs
from edgeguardd.core.config import LogConfig
from edgeguardd.systemd import Notifier, listen_sockets
from tests.support.descriptors import none_left, open_now


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The other end of NOTIFY_SOCKET."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield receiver


def told(receiver: socket.socket) -> str:
    """The next message."""
    return receiver.recv(4096).decode()


def test_each_state_is_told_in_systemds_words(systemd: socket.socket) -> None:
    """READY, STATUS, RELOADING with its time, WATCHDOG and STOPPING arrive as sd_notify(3) spells them."""
    notifier = Notifier()
    notifier.ready()
    assert told(systemd) == "READY=1"
    notifier.ready("3 targets")
    assert told(systemd) == "READY=1\nSTATUS=3 targets"
    notifier.status("normal")
    assert told(systemd) == "STATUS=normal"
    notifier.reloading()
    state, time = told(systemd).split("\n")
    assert state == "RELOADING=1"
    assert time.removeprefix("MONOTONIC_USEC=").isdigit()
    notifier.watchdog()
    assert told(systemd) == "WATCHDOG=1"
    notifier.stopping()
    assert told(systemd) == "STOPPING=1"
    assert notifier.lost_messages == 0
    notifier.close()


def test_a_status_is_one_line_of_utf8(systemd: socket.socket) -> None:
    """A target's name cannot smuggle in another assignment, and is not lost for its umlauts."""
    notifier = Notifier()
    notifier.status("höher 模型\nMAINPID=1" + "x" * 500)
    message = told(systemd)
    assert message.startswith("STATUS=höher 模型\\nMAINPID=1xxx")
    assert "\n" not in message
    assert len(message) < 300
    notifier.close()


def test_an_abstract_socket_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with "@" is in the abstract namespace."""
    name = f"edgeguardd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        notifier = Notifier()
        notifier.ready()
        assert told(receiver) == "READY=1"
        notifier.close()


def test_a_full_queue_loses_messages_but_never_waits(systemd: socket.socket) -> None:
    """systemd that does not read cannot stop the daemon; what it missed is counted."""
    notifier = Notifier()
    for _ in range(2000):
        notifier.watchdog()
    assert notifier.lost_messages > 0
    notifier.close()


def test_a_socket_that_vanishes_costs_only_the_messages(systemd: socket.socket, tmp_path: Path) -> None:
    """systemd re-executes itself: sending fails for a moment, and the daemon goes on."""
    notifier = Notifier()
    systemd.close()
    notifier.status("unheard")
    assert notifier.lost_messages == 1
    notifier.close()
    notifier.status("after close")
    assert notifier.lost_messages == 1


@pytest.mark.parametrize("value", [None, "", "vsock:2:1234", "relative", "/nonexistent/notify", "@no-such-edgeguardd"])
def test_outside_a_unit_everything_does_nothing(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by hand or with a socket that is gone, the daemon runs just the same and leaks no descriptor."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if value is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", value)
    before = open_now()
    notifier = Notifier()
    notifier.ready("x")
    notifier.watchdog()
    notifier.close()
    none_left(before)


@pytest.mark.parametrize(
    ("usec", "pid", "interval_s"),
    [
        ("30000000", None, 30.0),
        ("30000000", "self", 30.0),
        ("30000000", "1", None),
        ("0", None, None),
        ("-5", None, None),
        ("soon", None, None),
        ("30000000", "me", None),
        (None, "self", None),
        ("1" + "0" * 400, None, 86_400.0),
        ("9" * 5000, None, None),
        ("100000", None, 0.1),
    ],
)
def test_the_watchdog_is_fed_when_it_was_asked_of_this_process(
    usec: str | None, pid: str | None, interval_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WATCHDOG_USEC counts only for the process in WATCHDOG_PID, and nonsense means no watchdog."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", str(os.getpid()) if pid == "self" else pid)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert Notifier().watchdog_interval_s == interval_s


def test_a_watchdog_that_would_keep_the_daemon_busy_is_bounded_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A microsecond would be a loop that does nothing else: one warning, and ten times a second it is."""
    logs.configure(LogConfig(format="json"), sys.stderr)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.setenv("WATCHDOG_USEC", "1")
    assert Notifier().watchdog_interval_s == 0.1
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "watchdog_too_short"


ACTIVATED = """
import gc, os, socket, tempfile
from edgeguardd.systemd import listen_sockets
def listening(family):
    sock = socket.socket(family)
    sock.bind("" if family == socket.AF_UNIX else ("127.0.0.1", 0))
    sock.listen()
    return sock
given = [listening(socket.AF_UNIX), tempfile.TemporaryFile(), listening(socket.AF_INET), socket.socket(socket.AF_UNIX),
    *socket.socketpair(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), listening(socket.AF_UNIX)]
for number, one in enumerate(given):
    os.dup2(one.fileno(), 50 + number)
    one.close()
for number in range(len(given)):
    os.dup2(50 + number, 3 + number)
    os.close(50 + number)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "40", "LISTEN_FDNAMES": "a:b:c"}
sockets = listen_sockets()
print([sock.fileno() for sock in sockets], [os.get_inheritable(sock.fileno()) for sock in sockets])
print([name for name in os.environ if name.startswith("LISTEN_")], listen_sockets())
[sock.close() for sock in sockets]
del sockets
gc.collect()
print([fd for fd in range(3, 11) if os.path.exists(f"/proc/self/fd/{fd}")])
"""


def test_sockets_handed_over_are_taken_once() -> None:
    """Listening Unix sockets come in order, closed on exec, and the variables are used up.

    Whatever else has a number that the variables name, files, pipes and other sockets, is not ours and stays open.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ACTIVATED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[3, 10] [False, False]", "[] []", "[4, 5, 6, 7, 8, 9]"]


KEPT = """
import os, socket
from edgeguardd.systemd import KEPT_NAME, listen_sockets

ours, theirs = socket.socketpair()
named, _ = socket.socketpair()
listener = socket.socket(socket.AF_UNIX)
listener.bind("")
listener.listen()
os.dup2(listener.fileno(), 50); os.dup2(named.fileno(), 51); os.dup2(ours.fileno(), 52); os.dup2(listener.fileno(), 53)
for sock in (ours, theirs, named, _, listener):
    sock.detach()
for number in range(4):
    os.dup2(50 + number, 3 + number)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "4", "LISTEN_FDNAMES": f"x:{KEPT_NAME}:y:{KEPT_NAME}"}
print([sock.detach() for sock in listen_sockets()])
"""


def test_connections_that_were_kept_come_back_under_their_name() -> None:
    """A connection of another name is somebody else's, and so is a listening socket of that name."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", KEPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout) == ("", "[3, 4]\n")


def test_a_connection_is_handed_over_to_be_kept(systemd: socket.socket) -> None:
    """With its descriptor and its name; where nobody takes it, that is said."""
    notifier = Notifier()
    with socket.socket(socket.AF_UNIX) as connection:
        assert notifier.keep(connection)
        message, fds, _, _ = socket.recv_fds(systemd, 4096, 2)
        assert message == b"FDSTORE=1\nFDNAME=pressure-watcher"
        with socket.socket(fileno=fds[0]) as kept:
            assert os.path.sameopenfile(kept.fileno(), connection.fileno())
        notifier.close()
        assert not notifier.keep(connection)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": "self", "LISTEN_FDS": "0"},
        {"LISTEN_PID": "self", "LISTEN_FDS": "-1"},
        {"LISTEN_PID": "self", "LISTEN_FDS": "1000000"},
        {"LISTEN_PID": "self", "LISTEN_FDS": "many"},
        {"LISTEN_PID": "", "LISTEN_FDS": ""},
    ],
)
def test_variables_that_are_not_for_us_hand_over_nothing(words: dict[str, str]) -> None:
    """Another process's sockets, none at all or nonsense: nothing is touched, and the variables go."""
    environ = {name: str(os.getpid()) if word == "self" else word for name, word in words.items()}
    assert listen_sockets(environ) == []
    assert environ == {}
