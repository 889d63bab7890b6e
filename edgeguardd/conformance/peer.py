"""One connection of the client under test: what may never be said is noticed here, whatever the transcript wants.

Answers as a daemon does what may come at any time: pings, and requests for admission.
Must not: wait. Upstream: core.wire, core.lines, script. Downstream: stage.
"""

import socket
from typing import Any

import msgspec

from edgeguardd.conformance.script import How, bytes_of, spelled
from edgeguardd.core import wire
from edgeguardd.core.lines import LineBuffer
from edgeguardd.core.model import AckStatus
from edgeguardd.errors import ProtocolError

READ_BYTES = 64 * 1024
# How long the client may leave us waiting with a full socket.
SEND_S = 10.0
MAX_SHOWN_CHARS = 200

Said = dict[str, Any]


class Fault(Exception):  # noqa: N818 - the client's, not an error of ours
    """What the client did wrong, as a sentence without its full stop."""


class ClosedByClient(Fault):
    """The client has ended the connection."""


class Peer:
    """The daemon's end of one connection. `ended` is set when the client has closed its end.

    before  the connection before this one: acks of its commands may be handed in here, within one epoch
    """

    def __init__(self, sock: socket.socket, before: "Peer | None" = None) -> None:
        self.ended = False
        self.hello: wire.Hello | None = None
        self.welcomed = False
        self._socket = sock
        self._socket.settimeout(SEND_S)
        self._lines = LineBuffer()
        self._waiting = b""
        # Of each command: how many final acks are still due.
        self._open: dict[int, int] = {}
        self._epoch: str | None = None
        self._told_before: dict[str | None, set[int]] = {} if before is None else before.told()
        # Commands of connections before this one, in the same epoch, whose ack may be handed in once.
        self._owed: set[int] = set()

    def fileno(self) -> int:
        """For poll."""
        return self._socket.fileno()

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def told(self) -> dict[str | None, set[int]]:
        """The numbers of all commands so far, by epoch."""
        mine = self._told_before.get(self._epoch, set()) | set(self._open)
        return {**self._told_before, self._epoch: mine}

    def give(self, text: str, how: How) -> None:
        """Say a line. Raises Fault when the client does not take it."""
        self._note(bytes_of(text))
        match how:
            case How.WITH_THE_NEXT:
                self._waiting += bytes_of(text) + b"\n"
            case How.BYTE_BY_BYTE:
                for byte in bytes_of(text) + b"\n":
                    self._send(bytes((byte,)))
            case How.UNFINISHED:
                self._send(bytes_of(text))
            case How.ALONE:
                waiting, self._waiting = self._waiting, b""
                self._send(waiting + bytes_of(text) + b"\n")

    def read(self) -> list[Said]:
        """What the client has said, less what was answered here. Raises Fault for what may never be said."""
        try:
            chunk = self._socket.recv(READ_BYTES)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            self.ended = True
            return []
        self._lines.feed(chunk)
        found: list[Said] = []
        while True:
            try:
                line = self._lines.next_line()
            except ProtocolError as error:
                raise Fault(f"the client sent a line over {wire.MAX_LINE_BYTES} bytes ({error.code})") from None
            if line is None:
                return found
            if line.strip():
                found += self._heard(line)

    def _heard(self, line: bytes) -> list[Said]:
        try:
            message = wire.decode_client(line)
        except ProtocolError as error:
            shown = line[:MAX_SHOWN_CHARS].decode("utf-8", "backslashreplace")
            raise Fault(f"the client sent {shown}, which no server takes ({error.code}): {error}") from None
        self._check(message)
        match message:
            case wire.Ping():
                self._send(wire.encode(wire.Pong(id=message.id)))
            case wire.Admit():
                self._send(wire.encode(wire.Admission(message.id, True, "it fits")))
            case wire.Hello() | wire.Pong():
                return [said_of(message)]
            case wire.Ack() if message.status is not AckStatus.ACCEPTED:
                return [said_of(message)]
            case _:
                pass
        return []

    def _check(self, message: wire.ClientMessage) -> None:
        said = said_of(message)
        kind = said["type"]
        match message:
            case wire.Hello():
                if self.hello is not None:
                    raise Fault("the client said hello twice on one connection")
                self.hello = message
            case wire.Ping():
                pass
            case _ if self.hello is None:
                raise Fault(f"the client said {kind} before hello")
            case _ if not self.welcomed:
                raise Fault(f"the client said {kind} before it was welcome")
            case wire.Ack():
                self._check_ack(message)
            case _:
                pass

    def _check_ack(self, ack: wire.Ack) -> None:
        due = self._open.get(ack.seq)
        if not due and ack.seq in self._owed:
            if ack.status is not AckStatus.ACCEPTED:
                self._owed.discard(ack.seq)
            return
        if due is None:
            raise Fault(f"the client acked command {ack.seq}, which it was not sent on this connection")
        if due == 0:
            raise Fault(f'the client acked command {ack.seq} again ("{ack.status}") after its final ack')
        if ack.status is not AckStatus.ACCEPTED:
            self._open[ack.seq] = due - 1

    def _note(self, line: bytes) -> None:
        """Remember what a line of ours allows the client to say."""
        try:
            message = wire.decode_server(line)
        except ProtocolError:
            return
        if isinstance(message, wire.WelcomeLine):
            self.welcomed = True
            self._epoch = message.epoch
            self._owed = set(self._told_before.get(message.epoch, ()))
        elif isinstance(message, wire.CommandLine):
            self._open[message.seq] = self._open.get(message.seq, 0) + 1

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise Fault(f"the client did not read for {SEND_S:g} s") from None
        except OSError:
            self.ended = True
            raise ClosedByClient("the client closed the connection") from None


def said_of(message: wire.ClientMessage) -> Said:
    """A message with every field, those left out at their defaults."""
    fields: Said = msgspec.to_builtins(msgspec.structs.asdict(message))
    return {"type": message.__struct_config__.tag, **fields}


def shown(said: Said) -> str:
    """What was said, short enough for a sentence."""
    given = {key: value for key, value in said.items() if value is not None and key != "v"}
    text = spelled(given)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
