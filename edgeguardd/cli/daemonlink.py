"""The ways from edgeguardctl to a running daemon: /status over HTTP, and the subscriber socket.

Must not: print, or decide what an answer means. Upstream: core.wire, core.config. Downstream: status, watch, doctor …
Blocking, with time limits: a command line has nothing else to do.
"""

import argparse
import contextlib
import http.client
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from edgeguardd.cli import common
from edgeguardd.cli.statusdoc import Status
from edgeguardd.core import wire
from edgeguardd.core.config import Config
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError, EdgeguardError, ProtocolError

ANSWER_S = 5.0
# 256 targets and 1,024 subscribers make about half a megabyte.
MAX_STATUS_BYTES = 16 * 1024 * 1024
MAX_WHY_CHARS = 200

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask a daemon that listens everywhere


def options(*, http: bool = False, socket: bool = False) -> argparse.ArgumentParser:
    """The options by which commands find the daemon, as a parent parser."""
    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("where the daemon is")
    if socket:
        group.add_argument("--socket", metavar="PATH", type=common.socket_path, help="the daemon's subscriber socket")
    if http:
        group.add_argument("--http", metavar="ADDRESS:PORT", type=common.http_address, help="the daemon's HTTP address")
    group.add_argument(
        "--config",
        metavar="FILE",
        help=f"the configuration that tells what is not given (default: {common.DEFAULT_CONFIG})",
    )
    return parent


def config(args: argparse.Namespace) -> Config:
    """The daemon's configuration, as far as it can be read here: without --config, the defaults will have to do."""
    try:
        return common.read_config(args.config)
    except ConfigError:
        if args.config is not None:
            raise
        return Config()


def socket_path(args: argparse.Namespace) -> str:
    """The subscriber socket's path: the option, else as configured."""
    path: str | None = args.socket
    return config(args).socket.path if path is None else path


def http_address(args: argparse.Namespace) -> tuple[str, int]:
    """The HTTP address: the option, else as configured. Raises EdgeguardError where HTTP is off."""
    given: tuple[str, int] | None = args.http
    if given is not None:
        return given
    http_config = config(args).http
    if not http_config.enabled:
        raise EdgeguardError("cannot ask the daemon: [http] enabled is false; turn it on, or give --http ADDRESS:PORT")
    return _WILDCARDS.get(http_config.address, http_config.address), http_config.port


def host(address: str) -> str:
    """An address as URLs have it."""
    return f"[{address}]" if ":" in address else address


def fetch(address: str, port: int) -> bytes:
    """The JSON of GET /status. Raises EdgeguardError."""
    status, body = get(address, port, "/status")
    if status != http.client.OK:
        raise EdgeguardError(
            f"cannot read http://{host(address)}:{port}/status: the answer is {status}; is that edgeguardd's port?"
        )
    return body


def get(address: str, port: int, path: str, limit_s: float = ANSWER_S) -> tuple[int, bytes]:
    """Status code and body of one page, whatever the code, within limit_s in all. Raises EdgeguardError."""
    where = f"http://{host(address)}:{port}{path}"
    until = time.monotonic() + limit_s
    connection = http.client.HTTPConnection(address, port, timeout=limit_s)
    try:
        connection.connect()
        with _ended_at(connection.sock, until):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read(MAX_STATUS_BYTES)
    except (OSError, http.client.HTTPException) as error:
        why = TimeoutError("timed out") if time.monotonic() >= until else error
        raise _unreachable(where, why, "--http ADDRESS:PORT") from None
    finally:
        connection.close()


@contextlib.contextmanager
def _ended_at(sock: socket.socket, until: float) -> Iterator[None]:
    """Shut the socket at a time: its own limit is for each read, and a peer that drips meets it for ever."""

    def shut() -> None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
    if time.monotonic() >= until:  # then the body may be cut short
        raise TimeoutError("timed out")


def decoded(body: bytes) -> Status:
    """The answer as values. Raises EdgeguardError when it is none of edgeguardd's."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EdgeguardError(
            f"cannot read the daemon's status: {error}; is it edgeguardd, and of this version?"
        ) from None


def tree(body: bytes) -> Any:
    """The answer as a JSON tree, whatever its version. Raises EdgeguardError."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EdgeguardError(f"cannot read the daemon's status: {error}; is it edgeguardd?") from None


class Link:
    """One connection to the subscriber socket. Pings are answered here and never seen."""

    def __init__(self, path: str, hello: wire.Hello) -> None:
        """Connect and say hello. Raises EdgeguardError."""
        self.closed = False
        self._path = path
        self._lines = LineBuffer()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S)
        try:
            self._socket.connect(path)
            self.send(hello)
        except OSError as error:
            self._socket.close()
            raise _unreachable(path, error, "--socket PATH") from None

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, message: wire.ClientMessage) -> None:
        """Send one line. A connection that has ended shows at the next receive()."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(wire.encode(message))

    def receive(self, timeout_s: float | None = None) -> list[bytes]:
        """The lines that came, [] when the time is over. `closed` is set when there will be no more."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.closed:
            left_s = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self], [], [], left_s)[0]:
                break
            if lines := self._read():
                return lines
        return []

    def close(self) -> None:
        """Leave."""
        self._socket.close()

    def _read(self) -> list[bytes]:
        try:
            chunk = self._socket.recv(wire.MAX_LINE_BYTES)
        except ConnectionResetError:
            chunk = b""
        if chunk:
            self._lines.feed(chunk)
        else:
            self.closed = True
            self._lines.end()
        found = []
        try:
            while (line := self._lines.next_line()) is not None:
                if not self._is_heartbeat(line):
                    found.append(line)
        except ProtocolError:
            raise EdgeguardError(
                f"cannot read {self._path}: the peer speaks no JSON lines; is it edgeguardd?"
            ) from None
        return found

    def _is_heartbeat(self, line: bytes) -> bool:
        try:
            message = wire.decode_server(line)
        except ProtocolError:
            return False  # a newer daemon's, perhaps: still worth printing
        if isinstance(message, wire.Ping):
            self.send(wire.Pong(id=message.id))
        return isinstance(message, wire.Ping | wire.Pong)


def _unreachable(where: str, error: Exception, option: str) -> EdgeguardError:
    if isinstance(error, PermissionError):
        return EdgeguardError(f"cannot reach edgeguardd at {where}: permission denied; run as root or join its group")
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error) or "no answer"
    why = printable(why, MAX_WHY_CHARS)  # http.client repeats what the peer said
    return EdgeguardError(
        f"cannot reach edgeguardd at {where}: {why.lower()}; "
        f"start it (`edgeguardd run`, or its service) or give {option}"
    )
