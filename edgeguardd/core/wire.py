"""The subscriber protocol: one JSON object a line, both ways. Bytes <-> messages, nothing else.

Must not: know sockets, targets, policy. Upstream: model. Downstream: serve.subscribers, client.
Contract: docs/reference/protocol.md. Unknown fields are ignored, so that either side may be newer; a missing `v` is 1.
Sizes are bytes, times are seconds, counts are whole and not negative, ratios are 0…1; JSON knows no NaN.
"""

import enum
import re
from typing import Annotated, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from edgeguardd.core.model import AckEffect, AckStatus, Action, Level, Parameters, Role
from edgeguardd.core.text import printable
from edgeguardd.errors import ProtocolError

VERSION = 1
# The longest line without its newline. A report that ends 256 requests with ids of full length fits in.
MAX_LINE_BYTES = 64 * 1024
MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 4096
MAX_FINISHED = 256
MAX_SUPPORTS = 32
# The most of a faulty line that an error line repeats, so that a huge bad line is not answered by a huge error.
MAX_ECHO_CHARS = 200

# Names end up in logs and on terminals: no control characters, no line separators.
NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Finished = Annotated[tuple[Name, ...], Meta(max_length=MAX_FINISHED)]
Supports = Annotated[tuple[Name, ...], Meta(max_length=MAX_SUPPORTS)]


class Hello(Struct, frozen=True, tag="hello", tag_field="type", omit_defaults=True):
    """client → server, first: who I am and which target I serve. "self": the cgroup I live in."""

    name: Name
    v: Whole = VERSION
    role: Role = Role.INFERENCE
    target: Name | None = None
    supports: Supports = (Action.TRIM_KV_CACHE, Action.REDUCE_BATCH, Action.REJECT_REQUESTS)


class Ack(Struct, frozen=True, tag="ack", tag_field="type", omit_defaults=True):
    """client → server: the answer to the command `seq`."""

    seq: Whole
    status: AckStatus
    v: Whole = VERSION
    effect: AckEffect | None = None
    released_bytes: Whole | None = None
    message: Text | None = None


class ReportLine(Struct, frozen=True, tag="report", tag_field="type", omit_defaults=True):
    """client → server: my own figures; `finished` are the ids of admitted requests that are done."""

    v: Whole = VERSION
    static_bytes: Whole | None = None
    kv_bytes: Whole | None = None
    running: Whole | None = None
    waiting: Whole | None = None
    batch_limit: Whole | None = None
    bytes_per_token: Whole | None = None
    bytes_per_request: Whole | None = None
    finished: Finished = ()


class Admit(Struct, frozen=True, tag="admit", tag_field="type", omit_defaults=True):
    """client → server: may I take a request of so many bytes or tokens?"""

    id: Name
    v: Whole = VERSION
    bytes: Whole | None = None
    tokens: Whole | None = None


class Ping(Struct, frozen=True, tag="ping", tag_field="type", omit_defaults=True):
    """Either way: are you there? Answered with pong of the same id."""

    v: Whole = VERSION
    id: Name | None = None


class Pong(Struct, frozen=True, tag="pong", tag_field="type", omit_defaults=True):
    """Either way: the answer to ping."""

    v: Whole = VERSION
    id: Name | None = None


class WelcomeLine(Struct, frozen=True, tag="welcome", tag_field="type"):
    """server → client: let in; this is in force now. A new epoch means that sequence numbers began again."""

    v: Whole
    epoch: str
    target: str | None
    level: str
    max_batch_ratio: float
    accept_requests: bool
    model_loaded: bool
    heartbeat_s: float


class CommandLine(Struct, frozen=True, tag="command", tag_field="type"):
    """server → client: do this within deadline_s and ack it. Parameters are absolute: twice is harmless.

    An action that the client does not know (a newer server's) still decodes, so that it can be acked "unsupported".
    """

    v: Whole
    seq: int
    target: str
    action: str
    parameters: Parameters
    level: str
    reason: str
    deadline_s: float


class LevelLine(Struct, frozen=True, tag="level", tag_field="type"):
    """server → client: the target's level changed."""

    v: Whole
    target: str
    level: str
    was: str
    reason: str


class Admission(Struct, frozen=True, tag="admission", tag_field="type", omit_defaults=True):
    """server → client: the answer to admit."""

    id: str
    granted: bool
    reason: str
    v: Whole = VERSION
    retry_after_s: float | None = None


class ErrorLine(Struct, frozen=True, tag="error", tag_field="type"):
    """server → client: your line was not understood or not allowed. `code` is stable, `message` is for people."""

    v: Whole
    code: str
    message: str


class Bye(Struct, frozen=True, tag="bye", tag_field="type"):
    """server → client, last: the connection ends, and why."""

    v: Whole
    reason: str


ClientMessage = Hello | Ack | ReportLine | Admit | Ping | Pong
ServerMessage = WelcomeLine | CommandLine | LevelLine | Admission | Ping | Pong | ErrorLine | Bye


class ErrorCode(Struct, frozen=True):
    """One row of the table of errors: what the code says, and whether the connection ends with it."""

    meaning: str
    closes: bool


ERROR_CODES = {
    "bad_json": ErrorCode("The line is not one JSON value in UTF-8, or is nested too deeply.", closes=False),
    "bad_message": ErrorCode("A field is missing, of the wrong type or out of range.", closes=False),
    "unknown_type": ErrorCode("The server does not know this type of message.", closes=False),
    "hello_first": ErrorCode("Only hello and ping may come before the welcome.", closes=False),
    "hello_twice": ErrorCode("A connection says hello once.", closes=False),
    "wrong_role": ErrorCode("An observer may not ack, report or ask for admission.", closes=False),
    "unknown_seq": ErrorCode("No command of this number waits for this subscriber's ack.", closes=False),
    "line_too_long": ErrorCode(f"A line may have {MAX_LINE_BYTES} bytes.", closes=True),
    "unsupported_version": ErrorCode(f"The server speaks version {VERSION} only.", closes=True),
    "hello_timeout": ErrorCode("No hello came in time.", closes=True),
    "unknown_target": ErrorCode("No such target, or the peer's own cgroup cannot be guarded.", closes=True),
    "not_allowed": ErrorCode("The peer may not take this role for this target.", closes=True),
    "too_many_errors": ErrorCode("The connection made too many errors.", closes=True),
    "too_many_subscribers": ErrorCode("No more connections are taken.", closes=True),
}

# The words that a field of a closed set may hold, for the remedy; whose field it is makes no difference.
_FIELD_WORDS: dict[str, type[enum.Enum]] = {"role": Role, "status": AckStatus, "effect": AckEffect}
_NAME_PATTERN_SAID = re.compile(r"matching regex '.*'(?= - at `)")
_NO_SUCH_WORD = re.compile(r"Invalid enum value .* - at `\$\.(\w+)`", re.DOTALL)

_UNKNOWN_CODE = ErrorCode("", closes=False)


def closes(code: str) -> bool:
    """Whether the connection ends with an error of this code; codes of later versions do not."""
    return ERROR_CODES.get(code, _UNKNOWN_CODE).closes


T = TypeVar("T", bound=ClientMessage | ServerMessage)


class _AnyVersion(Struct, frozen=True):
    """The one field that every version has, to tell "a newer peer" from "a faulty line"."""

    v: Whole = VERSION


_encoder = msgspec.json.Encoder()
_client_decoder = msgspec.json.Decoder(ClientMessage)
_server_decoder = msgspec.json.Decoder(ServerMessage)
_version_decoder = msgspec.json.Decoder(_AnyVersion)


def encode(message: ClientMessage | ServerMessage) -> bytes:
    """One message as one line, newline included. Lone surrogates in a text, which UTF-8 cannot say, become "?"."""
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:
        return _encoder.encode(_speakable(msgspec.to_builtins(message))) + b"\n"


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


def too_long() -> ProtocolError:
    """The error of a line that is longer than either side may send."""
    return ProtocolError("line_too_long", f"cannot read a line of over {MAX_LINE_BYTES} bytes: send shorter ones")


def _decode(decoder: "msgspec.json.Decoder[T]", line: bytes) -> T:
    if len(line) > MAX_LINE_BYTES:
        raise too_long()
    try:
        message = decoder.decode(line)
    except msgspec.ValidationError as error:
        _check_version(_version_of(line))
        raise _not_read(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("bad_json", f"cannot read the line as JSON: {str(error)[:MAX_ECHO_CHARS]}") from None
    _check_version(message.v)
    return message


def _not_read(why: str) -> ProtocolError:
    """The error of a line that is JSON but no message; where a word was to be one of a few, they are told."""
    words: list[object] = []
    code = "bad_message"
    if "Invalid value" in why and why.endswith("`$.type`"):
        code = "unknown_type"
        words = [message.__struct_config__.tag for message in get_args(ClientMessage)]
    elif (found := _NO_SUCH_WORD.fullmatch(why)) and found[1] in _FIELD_WORDS:
        words = [word.value for word in _FIELD_WORDS[found[1]]]
    why = _NAME_PATTERN_SAID.sub("without control characters", why)
    remedy = f"; write one of {', '.join(map(str, words))}" if words else ""
    return ProtocolError(code, f"cannot read the message: {printable(why, MAX_ECHO_CHARS)}{remedy}")


def _version_of(line: bytes) -> int:
    """The version that a line which could not be read claims; ours when even that cannot be read."""
    try:
        return _version_decoder.decode(line).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return VERSION


def _check_version(version: int) -> None:
    if version != VERSION:
        raise ProtocolError("unsupported_version", f"cannot read version {version}: only {VERSION} is spoken here")


def _speakable(value: object) -> object:
    """The same JSON tree with every text sayable in UTF-8."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_speakable(key): _speakable(item) for key, item in value.items()}
        case list() | tuple():
            return [_speakable(item) for item in value]
        case _:
            return value
