"""What a handler may say of its work, and what becomes of it in an ack.

Must not: know sockets or threads. Upstream: model. Downstream: handlers, applications.
"""

import operator
from typing import SupportsIndex

from msgspec import Struct

from edgeguardd.core.model import AckEffect, AckStatus

# Of an exception's text; wire.MAX_TEXT_CHARS is more, but a log line should stay one line.
MAX_MESSAGE_CHARS = 500
MAX_BYTES = 2**63 - 1  # the most that the protocol can say


class Released:
    """Done, and so many bytes went back to the kernel. A negative number (it grew meanwhile) counts as nothing."""

    __slots__ = ("bytes",)

    def __init__(self, bytes: SupportsIndex) -> None:  # noqa: A002 - reads as Released(bytes=…)
        self.bytes = min(max(0, operator.index(bytes)), MAX_BYTES)


class Logical:
    """Done in the server's own books; its pages stay with the process (a preallocated pool, say)."""

    __slots__ = ()


class NoEffect:
    """Done, and there was nothing to do: the state asked for held already."""

    __slots__ = ()


class Unsupported(Exception):  # noqa: N818 - raised as a statement, not as a fault
    """Raised by a handler that cannot do what was asked, now or later; the daemon does not ask for it again."""


class Answer(Struct, frozen=True):
    """The final ack of one command."""

    status: AckStatus
    effect: AckEffect | None = None
    released_bytes: int | None = None
    message: str | None = None


class Admission(Struct, frozen=True):
    """The daemon's answer to "may I take this request?". True in a boolean context when granted.

    Hand `id` to finished() when the request is done. asked=False: the daemon could not be asked, this is the default.
    """

    id: str
    granted: bool
    reason: str
    retry_after_s: float | None = None
    asked: bool = True

    def __bool__(self) -> bool:
        """Whether the request may be taken."""
        return self.granted


def answer_of(result: object) -> Answer:
    """What a handler's return value says. Anything unknown is a plain "done": no exception said otherwise."""
    match result:
        case Released():
            return Answer(AckStatus.DONE, AckEffect.RELEASED, result.bytes)
        case Logical():
            return Answer(AckStatus.DONE, AckEffect.LOGICAL)
        case NoEffect():
            return Answer(AckStatus.DONE, AckEffect.NONE)
        case _:
            return Answer(AckStatus.DONE)


def answer_of_failure(error: BaseException) -> Answer:
    """What an exception out of a handler says."""
    status = AckStatus.UNSUPPORTED if isinstance(error, Unsupported) else AckStatus.FAILED
    return Answer(status, message=_text_of(error))


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as worse:  # an application's own __str__ may fail as well
        text = f"(its text cannot be had: {type(worse).__name__})"
    return f"{type(error).__name__}: {text}"[:MAX_MESSAGE_CHARS]
