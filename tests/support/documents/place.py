"""A place where a page's commands are run as printed: a home, the daemon of this checkout, its commands on PATH.

What a page names by a fixed path or address (its configuration, the socket, the HTTP port) is brought here by rewriting
the command, so that tests run side by side and leave the machine alone.

Must not: know a page or a table. Upstream: pages, tests.support.running. Downstream: test_documents and others.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from typing import IO

from tests.support.children import ending
from tests.support.faketree import MIB, FakeTree
from tests.support.running import REPOSITORY, Daemon
from tests.support.wait import eventually

CONFIG = '[[target]]\nname = "llm"\npath = "/llm"\n'
PROGRAMS = ("edgeguardd", "edgeguardctl")
ENDS_WITHIN_S = 60

# The commands, with other defaults for where things are; as PATH finds them.
_PROGRAM = """#!{python}
import sys
sys.path.insert(0, {repository!r})
from msgspec.structs import replace
from edgeguardd.cli import common, {program}
common.DEFAULT_CONFIG = {config!r}
read = common.read_config

def brought_here(path):
    found = read(path)
    if found.http.port == 9464:
        found = replace(found, http=replace(found.http, port={port}))
    if found.socket.path == "/run/edgeguardd/edgeguardd.sock":
        found = replace(found, socket=replace(found.socket, path={socket!r}))
    return found

common.read_config = brought_here
sys.exit({program}.main())
"""
_SUDO = '#!/bin/sh\nexec "$@"\n'
# netcat's `nc -U PATH`, which few machines have.
_NC = """#!{python}
import os, signal, socket, sys, threading
signal.signal(signal.SIGINT, signal.SIG_DFL)
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[2])
threading.Thread(target=lambda: [peer.sendall(line) for line in sys.stdin.buffer], daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


# As much of it as the pages use, on machines that have none: GET, its body or (-i) its head as well.
_CURL = """#!{python}
import http.client, sys, urllib.parse
where = urllib.parse.urlsplit(next(word for word in sys.argv if word.startswith("http")))
asked = http.client.HTTPConnection(where.netloc, timeout=20)
asked.request("GET", where.path + ("?" + where.query if where.query else ""))
answer = asked.getresponse()
if "-i" in sys.argv:
    print("HTTP/1.1", answer.status, answer.reason)
    print(answer.headers)
sys.stdout.write(answer.read().decode())
"""


class Place:
    """One page's reader: `home` is where the commands are typed, `root` stands for /."""

    def __init__(self, directory: str, config: str | None = CONFIG) -> None:
        """`directory`: empty, with a short path. The daemon guards /llm, 100 of 1000 MiB, in a tree of plain files.

        `config` None: the page's commands start their own.
        """
        self.root, self.home = directory, f"{directory}/home"
        os.makedirs(f"{directory}/tree")
        os.makedirs(f"{directory}/bin")
        os.makedirs(self.home)
        os.symlink(f"{REPOSITORY}/packaging", f"{self.home}/packaging")
        FakeTree(f"{directory}/tree").cgroup("/llm", max_bytes=1000 * MIB).usage(100 * MIB)
        self.daemon = Daemon(directory, config or "", cgroup_root=f"{directory}/tree", start=config is not None)
        self._port = free_port() if config is None else int(self.daemon.http.rpartition(":")[2])
        self._cwd = self.home
        self._staying: list[Staying] = []
        for program in PROGRAMS:
            self.script(program, self._program(program))
        self.script("sudo", _SUDO)
        self.script("nc", _NC.format(python=sys.executable))
        self.script("curl", _CURL.format(python=sys.executable))

    def __enter__(self) -> "Place":
        return self

    def __exit__(self, *_: object) -> None:
        for staying in reversed(self._staying):
            staying.end()
        self.daemon.stop()

    def write(self, path: str, text: str) -> None:
        """A file of the reader's: below the home, or where an absolute path means here."""
        full = self.here(path) if path.startswith("/") else os.path.join(self.home, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)

    def here(self, text: str) -> str:
        """The same, with what stands at a fixed place in this one."""
        text = text.replace("/run/edgeguardd/edgeguardd.sock", self.daemon.socket_path)
        text = re.sub(r"\b(127\.0\.0\.1|localhost):9464\b", f"127.0.0.1:{self._port}", text)
        return re.sub(r"(?<![\w/.])/(etc|run|srv|opt|usr/local|var/lib)/", rf"{self.root}/root/\1/", text)

    def run(self, command: str, *, forever: bool = False) -> "subprocess.CompletedProcess[str]":
        """Type it, in the directory where the last one has left the reader; output and errors are one.

        `forever`: it goes on until it is interrupted, which happens when it has printed its first line.
        """
        script = f'{self.here(command)}\nstatus=$?; pwd > "{self.root}/cwd"; exit $status'
        with ending(self._start(script, subprocess.PIPE)) as process:
            assert process.stdout is not None
            first = ""
            if forever:
                first = process.stdout.readline()
                os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to all that runs in it
            rest, _ = process.communicate(timeout=ENDS_WITHIN_S)
        if not forever:
            with open(f"{self.root}/cwd") as file:
                self._cwd = file.read().strip()
        # An interactive shell says only the word.
        printed = re.sub(r"^bash: line \d+: +\d+ Killed .*$", "Killed", first + rest, flags=re.MULTILINE)
        return subprocess.CompletedProcess(command, process.returncode, printed, "")

    def stay(self, command: str) -> "Staying":
        """Type it in a terminal of its own, where it stays until the reader leaves; returns when it says something."""
        path = f"{self.root}/terminal-{len(self._staying)}"
        with open(path, "wb") as terminal:
            staying = Staying(self._start(f"exec {self.here(command)}", terminal), path)
        self._staying.append(staying)
        eventually(lambda: staying.printed() or staying.has_ended(), ENDS_WITHIN_S, what=f"{command} says something")
        return staying

    def _start(self, script: str, output: int | IO[bytes]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "-c", script], cwd=self._cwd, env=self._environment(), start_new_session=True, text=True,
            encoding="utf-8", stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root}/bin:{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": self.home,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONPATH": REPOSITORY,
            "EDGEGUARDD_SOCKET": self.daemon.socket_path,
        }

    def _program(self, program: str) -> str:
        return _PROGRAM.format(
            python=sys.executable,
            repository=REPOSITORY,
            program=program,
            config=self.here("/etc/edgeguardd/edgeguardd.toml"),
            port=self._port,
            socket=self.daemon.socket_path,
        )

    def script(self, name: str, text: str) -> None:
        """A program that PATH finds first."""
        path = f"{self.root}/bin/{name}"
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o700)


class Staying:
    """A command that stays, and what it has printed so far."""

    def __init__(self, process: "subprocess.Popen[str]", path: str) -> None:
        self._process = process
        self._path = path

    def printed(self) -> str:
        """All of it."""
        with open(self._path, encoding="utf-8") as file:
            return file.read()

    def has_ended(self) -> bool:
        """Of itself."""
        return self._process.poll() is not None

    def end(self) -> int:
        """Ctrl-C; the exit status."""
        with ending(self._process):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGINT)
            return self._process.wait(ENDS_WITHIN_S)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def has_the_shape(printed: str, shown: tuple[str, ...]) -> str | None:
    """None where the output looks as the page shows it, else the first line that does not appear, in order.

    An ellipsis stands for anything, a whole line of it for any lines; figures and the width of columns may differ.
    """
    rest = printed.splitlines()
    for line in shown:
        if line.strip() in {"", "…"}:
            continue
        pattern = "".join(_loose(piece) for piece in re.split(r"(…|\d+(?:\.\d+)?|\s+)", line.strip()))
        for number, candidate in enumerate(rest):
            if re.fullmatch(pattern, candidate.strip()):
                del rest[: number + 1]
                break
        else:
            return line
    return None


def _loose(piece: str) -> str:
    if piece == "…":
        return ".*"
    if re.fullmatch(r"\d+(?:\.\d+)?", piece):
        return r"\d+(?:\.\d+)?"
    return r"\s+" if piece and piece.isspace() else re.escape(piece)
