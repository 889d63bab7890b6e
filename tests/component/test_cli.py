"""edgeguardctl as people run it: a process, against sockets that are real."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.core import wire
from tests.support.children import ending
from tests.support.fakedaemon import COMMAND, STATUS, WELCOME, FakeDaemon
from tests.support.wait import eventually

CTL = [sys.executable, "-c", "import sys; from edgeguardd.cli.edgeguardctl import main; sys.exit(main())"]
TIMEOUT_S = 60


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    """Something to talk to."""
    with FakeDaemon(tmp_path) as fake:
        yield fake


def ctl(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run([*CTL, *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def objects(text: str) -> list[dict[str, Any]]:
    """JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_status_prints_the_page(daemon: FakeDaemon) -> None:
    """Exit status 0 and the tables."""
    done = ctl("status", "--http", daemon.http_address)
    assert (done.returncode, done.stderr) == (0, "")
    assert "850.0M" in done.stdout


def test_status_prints_the_daemons_own_json(daemon: FakeDaemon) -> None:
    """--json is for programs: everything the daemon said, in ASCII."""
    daemon.status = json.dumps({**STATUS, "new": "ü\x9b"}, ensure_ascii=False).encode()
    done = ctl("status", "--json", "--http", daemon.http_address)
    assert json.loads(done.stdout)["new"] == "ü\x9b"
    assert done.stdout.isascii()


def test_status_finds_the_daemon_through_its_configuration(daemon: FakeDaemon, tmp_path: Path) -> None:
    """An operator who moved the port need not repeat it."""
    address, port = daemon.http_address.split(":")
    (tmp_path / "f.toml").write_text(f"[http]\naddress = '0.0.0.0'\nport = {port}\n")
    assert address == "127.0.0.1"
    assert ctl("status", "--config", str(tmp_path / "f.toml")).returncode == 0
    (tmp_path / "f.toml").write_text("[http]\nenabled = false\n")
    done = ctl("status", "--config", str(tmp_path / "f.toml"))
    assert done.returncode == 1
    assert "http] enabled is false; turn it on, or give --http" in done.stderr


@pytest.mark.parametrize("command", [("status",), ("watch", "--socket", "/nonexistent")])
def test_without_a_daemon_one_sentence_says_what_to_do(command: tuple[str, ...]) -> None:
    """Exit status 1, the address that was tried, and the remedy; no traceback."""
    done = ctl(*command, "--http", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "edgeguardctl: cannot reach edgeguardd at http://127.0.0.1:1/status: connection refused; "
        "start it (`edgeguardd run`, or its service) or give --http ADDRESS:PORT\n"
    )


def test_another_program_on_the_port_is_one_sentence(daemon: FakeDaemon) -> None:
    """Neither a 404 nor a foreign page is taken for edgeguardd."""
    daemon.status_code = 404
    done = ctl("status", "--http", daemon.http_address)
    assert (done.returncode, "the answer is 404" in done.stderr) == (1, True)
    daemon.status_code, daemon.status = 200, b"<html>"
    done = ctl("status", "--http", daemon.http_address)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_subscribe_prints_the_lines_as_they_come(daemon: FakeDaemon) -> None:
    """An observer by default, which answers pings and nothing else."""
    daemon.lines.insert(1, wire.encode(wire.Ping(id="p1")))
    done = ctl("subscribe", "--socket", daemon.socket_path, "--count", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line["type"] for line in objects(done.stdout)] == ["welcome", "command", "level"]
    eventually(lambda: len(daemon.heard) == 2)
    assert daemon.heard[0]["role"] == "observer"
    assert daemon.heard[1] == {"type": "pong", "id": "p1"}


@pytest.mark.parametrize(("role", "told"), [("observer", True), ("inference", False)])
def test_an_observer_at_a_terminal_is_told_where_commands_are_shown(daemon: FakeDaemon, role: str, told: bool) -> None:
    """He gets levels only, and would wait for them; the lines themselves stay as they are."""
    parent, child = pty.openpty()
    words = ["subscribe", "--socket", daemon.socket_path, "--count", "3", "--role", role]
    done = subprocess.run([*CTL, *words], stdout=subprocess.PIPE, stderr=child, timeout=TIMEOUT_S, check=True)
    os.close(child)
    os.set_blocking(parent, False)
    try:
        said = os.read(parent, 4096)
    except OSError:  # EIO: the other side is closed, and nothing was said
        said = b""
    os.close(parent)
    assert (b"take `edgeguardctl watch`" in said) is told
    assert len(objects(done.stdout.decode())) == 3


@pytest.mark.parametrize("ack", ["done", "failed", "unsupported", "accepted"])
def test_subscribe_acks_as_it_is_told(daemon: FakeDaemon, ack: str) -> None:
    """--ack makes it a server that answers each command."""
    done = ctl("subscribe", "--socket", daemon.socket_path, "--count", "2", "--ack", ack, "--supports", "trim_kv_cache")
    assert done.returncode == 0
    eventually(lambda: len(daemon.heard) == 2)
    hello, answer = daemon.heard
    assert (hello.get("role", "inference"), hello["target"], hello["supports"]) == (
        "inference",
        "self",
        ["trim_kv_cache"],
    )
    assert (answer["seq"], answer["status"]) == (COMMAND.seq, ack)


def test_subscribe_says_when_it_is_refused(daemon: FakeDaemon) -> None:
    """The error line is printed, and the exit status is 1."""
    daemon.lines = [wire.encode(wire.ErrorLine(1, "not_allowed", "cannot serve llm"))]
    done = ctl("subscribe", "--socket", daemon.socket_path)
    assert done.returncode == 1
    assert objects(done.stdout)[0]["message"] == "cannot serve llm"
    assert "refused (not_allowed)" in done.stderr


def test_subscribe_ends_well_with_a_bye_and_badly_without(daemon: FakeDaemon) -> None:
    """A stopping daemon says bye; a killed one does not."""
    daemon.hang_up = True
    daemon.lines = [wire.encode(WELCOME), wire.encode(wire.Bye(1, "the daemon stops"))]
    assert ctl("subscribe", "--socket", daemon.socket_path).returncode == 0
    daemon.lines = [wire.encode(WELCOME), b'{"type":"lev']
    done = ctl("subscribe", "--socket", daemon.socket_path)
    assert (done.returncode, len(objects(done.stdout))) == (1, 2)
    assert "closed the connection" in done.stderr


def test_subscribe_prints_anything_safely(daemon: FakeDaemon) -> None:
    """Lines that are no JSON, or hold control characters, come out as ASCII JSON."""
    daemon.lines = [b"\xff\x1b[2J\n", '{"type":"level","reason":"\x9b\u202e"}\n'.encode()]
    done = ctl("subscribe", "--socket", daemon.socket_path, "--count", "2")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert objects(done.stdout)[1]["reason"] == "\x9b\u202e"


def test_subscribe_refuses_a_peer_that_speaks_no_lines(daemon: FakeDaemon) -> None:
    """An endless line is not collected for ever."""
    daemon.lines = [b"x" * (2 * wire.MAX_LINE_BYTES)]
    done = ctl("subscribe", "--socket", daemon.socket_path)
    assert (done.returncode, "speaks no JSON lines" in done.stderr) == (1, True)


@pytest.mark.parametrize("words", [("--name", "x\x1b"), ("--name", ""), ("--target", "y" * 200)])
def test_subscribe_refuses_a_hello_that_the_daemon_would_refuse(tmp_path: Path, words: tuple[str, str]) -> None:
    """Before it connects to anything."""
    done = ctl("subscribe", "--socket", str(tmp_path / "none"), *words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot read the message" in done.stderr


def test_subscribe_without_a_daemon_says_what_to_do(tmp_path: Path) -> None:
    """Exit status 1, one sentence."""
    done = ctl("subscribe", "--socket", str(tmp_path / "none"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no such file or directory; start it" in done.stderr


def test_a_reader_that_has_seen_enough_ends_it_quietly(daemon: FakeDaemon) -> None:
    """`edgeguardctl subscribe | head -1` leaves no complaint."""
    daemon.lines += [wire.encode(COMMAND)] * 2000
    argv = [*CTL, "subscribe", "--socket", daemon.socket_path]
    with ending(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == 0


def shell(daemon: FakeDaemon, command: str, redirection: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run one of the commands from a shell that redirects its streams."""
    places = {
        "status": ["--http", daemon.http_address],
        "watch": [*daemon.options(), "--count", "1"],
        "subscribe": ["--socket", daemon.socket_path, "--count", "1"],
        "check-config": ["/dev/null/none"],
    }
    words = shlex.join([*CTL, command, *places[command]])
    argv = ["/bin/sh", "-c", f"exec {words} {redirection}"]
    env = {**os.environ, **environment}
    return subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False)


@pytest.mark.parametrize("command", ["status", "watch", "subscribe"])
@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_output_is_output_that_nobody_wants(daemon: FakeDaemon, command: str, redirection: str) -> None:
    """`>&-` is like `>/dev/null`: exit status 0, and no traceback about a stream that is not there."""
    done = shell(daemon, command, redirection)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["status", "watch", "subscribe", "check-config"])
def test_output_that_cannot_be_written_is_one_sentence(daemon: FakeDaemon, command: str) -> None:
    """A full disk is said, with exit status 1; a script that reads an empty file would not know otherwise."""
    done = shell(daemon, command, ">/dev/full")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "edgeguardctl: cannot go on: No space left on device; make room where the output goes\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_name_that_the_terminal_cannot_show_is_shown_escaped(daemon: FakeDaemon, encoding: str) -> None:
    """A subscriber's name in another script does not end the command of whoever looks."""
    subscriber = {**STATUS["subscribers"][0], "name": "模型"}
    daemon.status = json.dumps({**STATUS, "subscribers": [subscriber]}).encode()
    done = shell(daemon, "status", "", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u6a21\\u578b" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["watch", "subscribe"])
def test_an_interrupt_is_the_normal_end(daemon: FakeDaemon, command: str, number: signal.Signals) -> None:
    """No traceback and exit status 0; subscribe leaves SIGTERM to the system."""
    words = [command, *(daemon.options() if command == "watch" else ["--socket", daemon.socket_path])]
    started = subprocess.Popen([*CTL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with ending(started) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=TIMEOUT_S)
    assert said == ""
    assert process.returncode in ({0} if command == "watch" or number == signal.SIGINT else {-number})


def test_watch_prints_lines_where_there_is_no_terminal(daemon: FakeDaemon) -> None:
    """A level change is told, and calls for the next look before the interval is over."""
    done = ctl("watch", *daemon.options(), "--count", "2", "--interval", "3600")
    assert (done.returncode, done.stderr) == (0, "")
    assert "level of llm: normal -> high: because" in done.stdout
    assert done.stdout.count("llm high: needed 850.0M") == 2


def test_watch_works_without_the_socket(daemon: FakeDaemon, tmp_path: Path) -> None:
    """Who may not use the socket still sees /status."""
    done = ctl(
        "watch", "--http", daemon.http_address, "--socket", str(tmp_path / "no"), "--count", "2", "--interval", "0.1"
    )
    assert (done.returncode, done.stdout.count("llm high")) == (0, 2)


def test_watch_draws_in_a_terminal_and_leaves_it_as_it_was(daemon: FakeDaemon) -> None:
    """The table is drawn in place, and the cursor is back after Ctrl-C."""
    parent, child = pty.openpty()
    with open(parent, "rb", buffering=0) as screen:
        started = subprocess.Popen(
            [*CTL, "watch", *daemon.options(), "--interval", "0.1"],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            start_new_session=True,
        )
        os.close(child)
        with ending(started) as process:
            drawn = b""
            while drawn.count(b"850.0M") < 3:
                drawn += screen.read(4096)
            process.send_signal(signal.SIGINT)
            try:
                while chunk := screen.read(4096):
                    drawn += chunk
            except OSError:  # EIO: the other side is closed
                pass
            assert process.wait(TIMEOUT_S) == 0
    assert drawn.count(b"\x1b[?25l") == drawn.count(b"\x1b[?25h") == 1
    assert b"Traceback" not in drawn
