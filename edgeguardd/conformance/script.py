"""What a transcript is made of: steps, how each is written on the page, and the bytes that it stands for.

Must not: do I/O. Upstream: core.wire. Downstream: cases, peer, stage, the protocol's page.
"""

import enum
import json
import re
from typing import Any, assert_never

from msgspec import Struct

from edgeguardd.core import wire

# After how long a daemon counts as lost, unless the program is told otherwise (ADR 7).
LOST_AFTER_S = 30.0


class How(enum.Enum):
    """In how many writes a line leaves."""

    ALONE = "<"
    BYTE_BY_BYTE = "<."
    WITH_THE_NEXT = "<&"
    UNFINISHED = "<~"


class Give(Struct, frozen=True):
    """The daemon says a line. `text` may hold placeholders, see `bytes_of`."""

    text: str
    how: How = How.ALONE


class Want(Struct, frozen=True):
    """The client says a line that has these fields, among others; optional: it may."""

    fields: dict[str, Any]
    optional: bool = False


class Shows(Struct, frozen=True):
    """The program has printed a state that has these fields, among others."""

    fields: dict[str, Any]


class Close(Struct, frozen=True):
    """The daemon closes the connection."""


class Leave(Struct, frozen=True):
    """The daemon goes: no connection, no socket."""


class Return(Struct, frozen=True):
    """The daemon is back at the same path."""


class Pause(Struct, frozen=True):
    """Time passes, in which the client says nothing that it may not say."""

    pause_s: float


class TurnAway(Struct, frozen=True):
    """The daemon takes so many connections and refuses each; the client's pauses between them grow."""

    times: int
    text: str


class Survive(Struct, frozen=True):
    """The client answers a ping, or ends this connection and comes back."""


Step = Give | Want | Shows | Close | Leave | Return | Pause | TurnAway | Survive


class Case(Struct, frozen=True):
    """One transcript: its rule in a sentence, and the steps in order.

    lost_after_s  after how long without a daemon the program is to lift what was restricted
    """

    name: str
    rule: str
    steps: tuple[Step, ...]
    lost_after_s: float = LOST_AFTER_S

    @property
    def needs_contract(self) -> bool:
        """Whether it can only be played with a program that shows its state and fails or dawdles when told to."""
        return any(
            isinstance(step, Shows) or (isinstance(step, Give) and CONTRACT_REASON in step.text) for step in self.steps
        )

    @property
    def actions(self) -> set[str]:
        """The actions that its commands ask for."""
        return {
            action for step in self.steps if isinstance(step, Give) for action in _ACTION.findall(step.text) if action
        }


# With this a reason begins that asks the program under test for something: "conformance: fail".
CONTRACT_REASON = "conformance: "

_ACTION = re.compile(r'"action"\s*:\s*"(\w+)"')
_PLACEHOLDER = re.compile(r"@(fill|nest|byte):(\w+)@")


def say(message: wire.ServerMessage, how: How = How.ALONE) -> Give:
    """The step of a message as the daemon spells it."""
    return Give(wire.encode(message).decode().rstrip("\n"), how)


def lines_of(case: Case) -> list[str]:
    """The transcript as the page prints it."""
    return [line_of(step) for step in case.steps]


def line_of(step: Step) -> str:
    """One step as the page prints it."""
    match step:
        case Give():
            line = f"{step.how.value} {step.text}".rstrip()
        case Want():
            line = f"{'>?' if step.optional else '>'} {spelled(step.fields)}"
        case Shows():
            line = f"= {spelled(step.fields)}"
        case Close():
            line = "* the daemon closes the connection"
        case Leave():
            line = "* the daemon is gone: no connection, no socket"
        case Return():
            line = "* the daemon is back"
        case Pause():
            line = f"* {step.pause_s:g} s pass"
        case TurnAway():
            line = f"* {step.times} connections are closed after this line, after growing pauses: {step.text}"
        case Survive():
            line = "* the client answers a ping, or ends the connection and comes back"
        case _:
            assert_never(step)
    return line


def bytes_of(text: str) -> bytes:
    """The bytes that a line's text stands for, without a newline.

    @fill:65536@ are so many letters x that the line has 65536 bytes; @nest:1000@ are 1000 arrays, each in the other;
    @byte:ff@ is that byte.
    """
    parts = _PLACEHOLDER.split(text)
    # split() gives: text, word, value, text, word, value, …, text
    pieces = [parts[0].encode()]
    fill_at, whole_bytes = None, 0
    for word, value, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if word == "fill":
            fill_at, whole_bytes = len(pieces), int(value)
        pieces += [_placed(word, value), after.encode()]
    if fill_at is not None:
        pieces[fill_at] = b"x" * (whole_bytes - sum(map(len, pieces)))
    return b"".join(pieces)


def _placed(word: str, value: str) -> bytes:
    match word:
        case "byte":
            return bytes.fromhex(value)
        case "nest":
            return b"[" * int(value) + b"]" * int(value)
        case _:
            return b""


def spelled(fields: dict[str, Any]) -> str:
    """Fields as JSON, the way the protocol's own lines are written."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
