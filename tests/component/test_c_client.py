"""The C client: what the conformance suite does not see of it, with the sanitizers on."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgeguardd.core import wire
from edgeguardd.core.model import Action, Parameters
from edgeguardd.errors import ProtocolError
from tests.fuzz.mutate import TOKENS, Mutator
from tests.support import capi
from tests.support.children import ending
from tests.support.documents.pages import commands
from tests.support.faketree import FakeTree
from tests.support.running import REPOSITORY, Daemon
from tests.support.subscribers import short_dir
from tests.support.wait import DEADLINE_S, eventually

PROBE = os.path.join(REPOSITORY, "tests/support/capi_probe.c")
HOW_TO = Path(REPOSITORY, "docs/how-to/use-the-c-client.md")
MIB = 2**20

WELCOME = wire.WelcomeLine(1, "e", "llm", "normal", 1.0, True, True, 10.0)


@pytest.fixture(scope="module")
def built(c_example: str) -> Iterator[dict[str, str]]:
    """The probe and the example, with sanitizers on."""
    with tempfile.TemporaryDirectory() as directory:
        yield {"probe": capi.build(directory, PROBE, capi.SANITIZED), "example": c_example}


class Listener:
    """A listening socket, the program that connects to it, and the present connection."""

    def __init__(self, path: str, program: "subprocess.Popen[bytes]", listener: socket.socket) -> None:
        self.path = path
        self.program = program
        self._listener = listener
        self._socket: socket.socket | None = None
        self._reader: Any = None

    def accept(self, welcome: wire.WelcomeLine | wire.ErrorLine = WELCOME) -> dict[str, Any]:
        """The next connection, welcomed or refused; its hello."""
        self.close()
        self._listener.settimeout(DEADLINE_S)
        self._socket = self._listener.accept()[0]
        self._socket.settimeout(DEADLINE_S)
        self._reader = self._socket.makefile("rb")
        hello = self.line()
        self.say(welcome)
        return hello

    def say(self, *messages: wire.ServerMessage | bytes) -> None:
        """Lines, or bytes as they are."""
        assert self._socket is not None
        self._socket.sendall(b"".join(m if isinstance(m, bytes) else wire.encode(m) for m in messages))

    def line(self) -> dict[str, Any]:
        """The next line; it has to be one that a server takes."""
        line = self._reader.readline()
        wire.decode_client(line)
        said: dict[str, Any] = json.loads(line)
        return said

    def until_ended(self) -> None:
        """Read until the client ends the connection; raises TimeoutError when it does not."""
        while self._reader.readline():
            pass

    def until_printed(self, word: bytes) -> None:
        """Read what the program prints until a line begins so."""
        assert self.program.stdout is not None
        while not (line := self.program.stdout.readline()).startswith(word):
            assert line, "the program has ended"

    def until(self, kind: str) -> dict[str, Any]:
        """The next line of a type."""
        while (said := self.line())["type"] != kind:
            pass
        return said

    def seqs_until(self, last: int) -> list[int]:
        """Of the acks up to this one, or to the end of the connection, where a line may be cut off."""
        seqs: list[int] = []
        while last not in seqs and (line := self._reader.readline()).endswith(b"\n"):
            message = wire.decode_client(line)
            seqs += [message.seq] if isinstance(message, wire.Ack) else []
        return seqs

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._reader.close()
            self._socket.close()
            self._socket = None


@contextlib.contextmanager
def running(program: str, mode: str = "", **environment: str) -> Iterator[Listener]:
    """A program that was started, and the daemon that it looks for."""
    with tempfile.TemporaryDirectory(prefix="eg", dir="/tmp") as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/s")
        listener.listen()
        variables = {**os.environ, "EDGEGUARDD_SOCKET": f"{place}/s", **environment}
        started = subprocess.Popen([program, mode], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with ending(started) as process:
            daemon = Listener(f"{place}/s", process, listener)
            try:
                yield daemon
            finally:
                daemon.close()
            assert process.poll() in {None, 0}, process.communicate()


def command(seq: int, action: str = "trim_kv_cache", **parameters: Any) -> wire.CommandLine:
    """One command."""
    return wire.CommandLine(1, seq, "llm", action, Parameters(**parameters), "high", "because", 5.0)


@pytest.mark.parametrize("compiler", capi.compilers())
def test_it_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    """Optimized and pedantic, and whatever a strict project adds."""
    options = ("-O2", "-pedantic", "-Wshadow", "-Wconversion", "-Wstrict-prototypes")
    assert os.access(capi.build(str(tmp_path), "example.c", options, compiler), os.X_OK)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
def test_the_header_can_be_included_from_cpp(tmp_path: Path) -> None:
    """llama.cpp and most others are C++."""
    (tmp_path / "server.cpp").write_text(
        '#include "edgeguardd.h"\nint main() { eg_close(nullptr); return EG_RESTORE == 16 ? 0 : 1; }\n'
    )
    argv = ["g++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{capi.SOURCES}", str(tmp_path / "server.cpp")]
    subprocess.run(argv, check=True)


def test_options_that_cannot_be_are_refused(built: dict[str, str]) -> None:
    """With EINVAL, where they are made; the longest name is taken."""
    done = subprocess.run([built["probe"], "options"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_takes_long_is_accepted_first_and_finished_later(built: dict[str, str]) -> None:
    """Both acks have the command's number."""
    with running(built["probe"], "later") as daemon:
        daemon.accept()
        daemon.say(command(7, release_bytes=5))
        assert daemon.until("ack") == {"type": "ack", "seq": 7, "status": "accepted"}
        done = daemon.until("ack")
        assert (done["status"], done["effect"], done["released_bytes"]) == ("done", "released", 5)


def test_what_is_finished_after_its_connection_is_acked_on_the_next(built: dict[str, str]) -> None:
    """Within an epoch a number is one command: told again it is answered again, and is not carried out again."""
    with running(built["probe"], "later") as daemon:
        daemon.accept()
        daemon.say(command(7))
        assert daemon.until("ack")["status"] == "accepted"
        daemon.accept()
        daemon.until_printed(b"finished")
        assert (answer := daemon.line())["status"] == "done"
        daemon.accept()
        daemon.say(command(7), wire.Ping(id="p"))
        assert [daemon.line(), daemon.line()] == [answer, {"type": "pong", "id": "p"}]


def test_what_is_finished_in_another_epoch_is_not_acked(built: dict[str, str]) -> None:
    """The number means nothing to a daemon that has forgotten it."""
    with running(built["probe"], "later") as daemon:
        daemon.accept()
        daemon.say(command(7))
        assert daemon.until("ack")["status"] == "accepted"
        daemon.accept(msgspec.structs.replace(WELCOME, epoch="another"))
        daemon.until_printed(b"finished")
        daemon.say(wire.Ping(id="p"))
        assert daemon.line() == {"type": "pong", "id": "p"}


def test_what_a_handler_finishes_meanwhile_is_said_whole_or_not_at_all(built: dict[str, str]) -> None:
    """A daemon that does not read is left sooner or later; until then it gets no half of a line."""
    with running(built["probe"], "within") as daemon:
        # The kernel takes some 2900 of them unread (net.core.wmem_default).
        for answers in range(2880, 20_000, 5):
            daemon.accept(msgspec.structs.replace(WELCOME, epoch=str(answers)))
            daemon.say(command(1), command(2, release_bytes=answers))
            daemon.until_printed(b"within")
            seen = daemon.seqs_until(2)
            if 2 not in seen:
                break
            assert seen == [1] * (answers + 1) + [2]
        assert 2 not in seen


def test_what_is_answered_after_the_connections_end_goes_nowhere(built: dict[str, str]) -> None:
    """The next connection begins with a hello."""
    with running(built["probe"], "within") as daemon:
        daemon.accept()
        daemon.program.send_signal(signal.SIGSTOP)
        daemon.say(command(1), command(2, release_bytes=1000))
        daemon.close()
        daemon.program.send_signal(signal.SIGCONT)
        assert daemon.accept()["type"] == "hello"


def test_figures_are_merged_and_told_again(built: dict[str, str]) -> None:
    """A thousand a round make ten lines a second at most, the latest of each; a new connection hears what counts."""
    with running(built["probe"], "report") as daemon:
        daemon.accept()
        began = time.monotonic()
        told = [daemon.until("report")["kv_bytes"] for _ in range(4)]
        assert time.monotonic() - began > 0.25
        assert told == sorted(told)
        assert told[-1] % 1000 == 998
        daemon.accept()
        assert daemon.until("report")["kv_bytes"] >= told[-1]


def test_a_message_is_always_utf_8_and_json(built: dict[str, str]) -> None:
    """Whatever a handler hands over: quotes, control characters, half a character; cut where it is too long."""
    with running(built["probe"], "message") as daemon:
        daemon.accept()
        daemon.say(command(1))
        ack = daemon.until("ack")
        assert (ack["status"], ack["message"]) == ("failed", 'say "no" \\ \x01\n?? café 🧠')
    with running(built["probe"], "long-message") as daemon:
        daemon.accept()
        daemon.say(command(1), command(2))
        assert [len(daemon.until("ack")["message"]) for _ in range(2)] == [256, 256]


def test_an_answer_out_of_range_is_a_failure(built: dict[str, str]) -> None:
    """A handler that returns rubbish does not make the client read beyond its tables."""
    with running(built["probe"], "nonsense") as daemon:
        daemon.accept()
        daemon.say(command(1))
        assert daemon.until("ack") == {"type": "ack", "seq": 1, "status": "failed"}


def test_a_program_can_leave_at_once(built: dict[str, str]) -> None:
    """The ack leaves before it; nothing is leaked, which the sanitizer would turn into an exit status."""
    with running(built["probe"], "leave") as daemon:
        daemon.accept()
        daemon.say(command(1))
        assert daemon.until("ack")["status"] == "done"
        assert daemon.program.wait(DEADLINE_S) == 0


def test_a_daemon_that_hangs_is_pinged_and_left(built: dict[str, str]) -> None:
    """One that stopped without closing its sockets would keep the server restricted for ever."""
    with running(built["probe"]) as daemon:
        daemon.accept(msgspec.structs.replace(WELCOME, heartbeat_s=0.1))
        assert daemon.line() == {"type": "ping"}
        daemon.until_ended()
        assert daemon.accept()["name"] == "probe"
        eventually(lambda: daemon.program.poll() is None)


def test_a_lost_daemon_is_told_once_and_its_restrictions_are_lifted(built: dict[str, str]) -> None:
    """One sentence for all attempts, one for the connection; and one restore."""
    with running(built["probe"], LOST_AFTER_S="0.5") as daemon:
        daemon.accept(msgspec.structs.replace(WELCOME, max_batch_ratio=0.5, accept_requests=False))
        os.unlink(daemon.path)
        daemon.close()
        assert daemon.program.stdout is not None
        told = [daemon.program.stdout.readline().decode().split(maxsplit=6) for _ in range(3)]
        assert [line[:6] for line in told] == [
            ["2", "0", "-1", "0.5", "-1", "-1"],
            ["4", "0", "-1", "-1", "0", "-1"],
            ["16", "0", "-1", "1", "1", "1"],
        ]
        daemon.program.send_signal(signal.SIGTERM)
        _, errors = daemon.program.communicate()
        daemon.program.returncode = 0
    assert [line.split(":")[0] for line in errors.decode().splitlines()] == [
        "connected to edgeguardd",
        f"no connection to edgeguardd at {daemon.path}, trying again until it is there",
    ]


def test_a_refusal_is_told_once_for_all_attempts(built: dict[str, str]) -> None:
    """Each attempt gets the same answer; another answer is told again."""
    with running(built["probe"]) as daemon:
        for why in ("no such target", "no such target", "not your cgroup"):
            daemon.accept(wire.ErrorLine(1, "unknown_target", why))
        daemon.accept(msgspec.structs.replace(WELCOME, max_batch_ratio=0.5))
        assert daemon.program.stdout is not None
        assert daemon.program.stdout.readline()  # it has taken the welcome
        daemon.program.send_signal(signal.SIGTERM)
        _, errors = daemon.program.communicate()
        daemon.program.returncode = 0
    told = [line for line in errors.decode().splitlines() if not line.startswith("no connection")]
    assert told == ["edgeguardd says: no such target", "edgeguardd says: not your cgroup", "connected to edgeguardd"]


def test_a_flood_is_answered_as_fast_as_the_answers_are_read(built: dict[str, str]) -> None:
    """Ten thousand pings before the first pong is read: none is lost, and no more is kept than there is room for."""
    with running(built["example"]) as daemon:
        daemon.accept()
        sock = daemon._socket
        assert sock is not None
        pings = b"".join(b'{"type":"ping","id":"%d"}\n' % number for number in range(10_000))
        sent, heard = 0, b""
        sock.setblocking(False)
        while sent < len(pings):
            try:
                sent += sock.send(pings[sent:])
            except BlockingIOError:  # the client waits for its answers to be read
                with contextlib.suppress(BlockingIOError):
                    heard += sock.recv(65536)
        sock.settimeout(DEADLINE_S)
        while b'"id":"9999"' not in heard:
            heard += sock.recv(65536)
        pongs = [json.loads(line)["id"] for line in heard.splitlines() if b"pong" in line]
        assert pongs == [str(number) for number in range(10_000)]


def test_its_json_reader_takes_what_the_python_clients_takes(built: dict[str, str]) -> None:
    """What parsers trip over, and damaged values, as an unknown field: both read the line, or neither does."""
    values = [
        b'{"a":[1,-2.5e3,"x\\u00fc\\ud83e\\udde0"],"b":{"c":null,"d":[true,false]}}',
        b'["\xc3\xbc\\n",[],{},0.1]',
    ]
    mutator = Mutator(values, seed=4)
    differ, counts = [], {True: 0, False: 0}
    with running(built["example"]) as daemon:
        daemon.accept()
        chosen = [
            form.replace(b"?", token) for token in TOKENS for form in (b"?", b"[?,?]", b'{"a":?}', b'"?"', b"-?.5e?")
        ]
        for number, value in enumerate([*chosen, *(mutator.line() for _ in range(3000))]):
            line = b'{"type":"ping","id":"v%d","x":%s}' % (number, value)
            daemon.say(line + b"\n", wire.Ping(id="next"))
            answered = daemon.until("pong")["id"]
            if answered != "next":
                assert daemon.until("pong")["id"] == "next"
            try:
                # Python's reader does not look into the strings of fields that it skips.
                readable = isinstance(wire.decode_server(line), wire.Ping) and bool(line.decode())
            except (ProtocolError, UnicodeDecodeError):
                readable = False
            counts[readable] += 1
            if readable != (answered != "next"):
                differ.append(value)
    assert differ == [], len(differ)
    assert min(counts.values()) > 200


def test_the_example_works_as_its_page_shows(tmp_path: Path) -> None:
    """The commands of the page on using it, one after another, in a copy of the directory."""
    shutil.copytree(capi.SOURCES, tmp_path / "c")
    compiling, starting = (command.text.split() for command in commands("docs/how-to/use-the-c-client.md"))
    assert (compiling[0], starting[0]) == ("cc", "./example")
    subprocess.run(compiling, cwd=tmp_path / "c", check=True)
    with running(str(tmp_path / "c/example"), starting[1]) as daemon:
        hello = daemon.accept()
        assert hello["supports"] == [action for action in Action if action is not Action.RESTORE]
        daemon.say(command(1, release_bytes=MIB))
        assert daemon.until("ack")["status"] == "done"


def test_a_real_daemon_asks_and_takes_the_answers(built: dict[str, str]) -> None:
    """From a pressed cgroup to the handler in C and back, and restored when the pressure is over."""
    with short_dir() as place:
        os.mkdir(f"{place}/tree")
        llm = FakeTree(f"{place}/tree").cgroup("/llm", max_bytes=1000 * MIB)
        llm.usage(100 * MIB)
        config = '[[target]]\nname = "llm"\npath = "/llm"\ndwell = "100ms"\nrestore_dwell = "100ms"\n'
        with Daemon(place, config, cgroup_root=f"{place}/tree") as daemon:
            variables = {**os.environ, "EDGEGUARDD_SOCKET": daemon.socket_path, "TARGET": "llm"}
            started = subprocess.Popen([built["probe"], ""], env=variables, stdout=subprocess.PIPE, text=True)
            with ending(started):
                eventually(lambda: daemon.status()["subscribers"])
                llm.usage(950 * MIB)
                asked = eventually(lambda: daemon.facts("command_ended"))
                assert {fact["outcome"] for fact in asked} <= {"done", "ineffective"}
                eventually(lambda: [f for f in daemon.facts("command_ended") if f["action"] == "reject_requests"])
                llm.usage(100 * MIB)
                eventually(lambda: [f for f in daemon.facts("command_ended") if f["action"] == "restore"])
