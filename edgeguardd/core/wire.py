"""The subscriber protocol: one JSON object a line, both ways. Bytes <-> messages, nothing else.

Must not: know sockets, targets, policy. Upstream: model. Downstream: serve.subscribers, client.
Contract: docs/reference/protocol.md. Unknown fields are ignored, so that either side may be newer.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

from edgeguardd.core.model import AckEffect, AckStatus, Action, Level, Parameters, Role
from edgeguardd.errors import ProtocolError

VERSION = 1
MAX_LINE_BYTES = 64 * 1024
MAX_NAME_CHARS = 128


class Hello(Struct, frozen=True, tag="hello", tag_field="type", omit_defaults=True):
    """client → server, first: who I am and which target I serve. "self": the cgroup I live in."""

    name: str
    v: int = VERSION
    role: Role = Role.INFERENCE
    target: str | None = None
    supports: tuple[str, ...] = (Action.TRIM_KV_CACHE, Action.REDUCE_BATCH, Action.REJECT_REQUESTS)


class Ack(Struct, frozen=True, tag="ack", tag_field="type", omit_defaults=True):
    """client → server: the answer to the command `seq`."""

    seq: int
    status: AckStatus
    v: int = VERSION
    effect: AckEffect | None = None
    released_bytes: int | None = None
    message: str | None = None


class ReportLine(Struct, frozen=True, tag="report", tag_field="type", omit_defaults=True):
    """client → server: my own figures; `finished` are the ids of admitted requests that are done."""

    v: int = VERSION
    static_bytes: int | None = None
    kv_bytes: int | None = None
    running: int | None = None
    waiting: int | None = None
    batch_limit: int | None = None
    bytes_per_token: int | None = None
    finished: tuple[str, ...] = ()


class Admit(Struct, frozen=True, tag="admit", tag_field="type", omit_defaults=True):
    """client → server: may I take a request of so many bytes or tokens?"""

    id: str
    v: int = VERSION
    bytes: int | None = None
    tokens: int | None = None


class Ping(Struct, frozen=True, tag="ping", tag_field="type", omit_defaults=True):
    """Either way: are you there? Answered with pong of the same id."""

    v: int = VERSION
    id: str | None = None


class Pong(Struct, frozen=True, tag="pong", tag_field="type", omit_defaults=True):
    """Either way: the answer to ping."""

    v: int = VERSION
    id: str | None = None


class WelcomeLine(Struct, frozen=True, tag="welcome", tag_field="type"):
    """server → client: let in; this is in force now. A new epoch means that sequence numbers began again."""

    v: int
    epoch: str
    target: str | None
    level: str
    max_batch_ratio: float
    accept_requests: bool
    model_loaded: bool
    heartbeat_s: float


class CommandLine(Struct, frozen=True, tag="command", tag_field="type"):
    """server → client: do this within deadline_s and ack it. Parameters are absolute: twice is harmless."""

    v: int
    seq: int
    target: str
    action: Action
    parameters: Parameters
    level: str
    reason: str
    deadline_s: float


class LevelLine(Struct, frozen=True, tag="level", tag_field="type"):
    """server → client: the target's level changed."""

    v: int
    target: str
    level: str
    was: str
    reason: str


class Admission(Struct, frozen=True, tag="admission", tag_field="type", omit_defaults=True):
    """server → client: the answer to admit."""

    id: str
    granted: bool
    reason: str
    v: int = VERSION
    retry_after_s: float | None = None


class ErrorLine(Struct, frozen=True, tag="error", tag_field="type"):
    """server → client: your line was not understood or not allowed. `code` is stable, `message` is for people."""

    v: int
    code: str
    message: str


class Bye(Struct, frozen=True, tag="bye", tag_field="type"):
    """server → client, last: the connection ends, and why."""

    v: int
    reason: str


ClientMessage = Hello | Ack | ReportLine | Admit | Ping | Pong
ServerMessage = WelcomeLine | CommandLine | LevelLine | Admission | Ping | Pong | ErrorLine | Bye

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_client_decoder = msgspec.json.Decoder(ClientMessage)
_server_decoder = msgspec.json.Decoder(ServerMessage)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """One message as one line, newline included."""
    return _encoder.encode(message) + b"\n"


def decode_client(line: bytes) -> ClientMessage:
    """What a subscriber sent. Raises ProtocolError; never anything else, whatever the bytes."""
    return _decode(_client_decoder, line)


def decode_server(line: bytes) -> ServerMessage:
    """What the daemon sent. Raises ProtocolError; never anything else, whatever the bytes."""
    return _decode(_server_decoder, line)


def level_of(word: str) -> Level:
    """The level that a line spells. Raises ProtocolError for a word this version does not know."""
    try:
        return Level[word.upper()]
    except KeyError:
        raise ProtocolError("bad_message", f"cannot read level {word[:32]!r}: not a level of v{VERSION}") from None


def _decode(decoder: "msgspec.json.Decoder[T]", line: bytes) -> T:
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError("line_too_long", f"cannot read a line of over {MAX_LINE_BYTES} bytes: send shorter ones")
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        text = str(error)
        if text.endswith("`$.type`") and "Invalid value" in text:
            raise ProtocolError("unknown_type", f"cannot read the message: {text}") from None
        raise ProtocolError("bad_message", f"cannot read the message: {text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("bad_json", f"cannot read the line as JSON: {error}") from None
