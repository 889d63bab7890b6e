"""One case being played: every step of its transcript, and what the client says against what is due.

Must not: wait or read by itself (link does), know what a rule is for. Upstream: script, link. Downstream: play.
"""

import contextlib
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, assert_never

from edgeguardd.conformance.link import Link
from edgeguardd.conformance.peer import ClosedByClient, Fault, Said, shown
from edgeguardd.conformance.script import (
    Case,
    Close,
    Give,
    Leave,
    Pause,
    Return,
    Shows,
    Step,
    Survive,
    TurnAway,
    Want,
    line_of,
    say,
    spelled,
)
from edgeguardd.core import wire
from edgeguardd.core.model import Action
from edgeguardd.errors import ProtocolError

Fields = dict[str, Any]

# Every case ends with it: whatever was played, the client has to be there still.
LAST_PING = say(wire.Ping(id="at the end"))
LAST_PONG = Want({"type": "pong", "id": "at the end"})
_SURVIVED_PING = say(wire.Ping(id="still there"))
_SURVIVED_PONG: Fields = {"type": "pong", "id": "still there"}
_HELLO = Want({"type": "hello"})
_WELCOME = say(wire.WelcomeLine(1, "e1", "llm", "normal", 1.0, True, True, 10.0))


class NotApplicable(Exception):  # noqa: N818 - no error
    """The client does not claim what the case is about."""


class Stage:
    """Plays one case. `heard` is the transcript as it really went.

    timeout_s  how long the client may take for a thing that has no deadline of its own
    strict     the program keeps the test contract: it supports every action that a case needs
    """

    def __init__(
        self, case: Case, argv: Sequence[str], timeout_s: float, *, strict: bool, stop: threading.Event
    ) -> None:
        """Listen and start the program. Raises EdgeguardError."""
        self._case = case
        self._timeout_s = timeout_s
        self._strict = strict
        self._allowed: list[Fields] = []
        # Of each command: by when it is to be acked, and how long that was when it was sent.
        self._deadlines: dict[int, tuple[float, float]] = {}
        self._link = Link(argv, case.lost_after_s, timeout_s, stop)
        self.heard = self._link.heard

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._link.close()

    def play(self) -> None:
        """Every step in order, and a ping at the end. Raises Fault, NotApplicable, EdgeguardError."""
        wants: list[Want] = []
        for step in (*self._case.steps, LAST_PING, LAST_PONG):
            if isinstance(step, Want):
                wants.append(step)
            else:
                self._expect(wants)
                wants = []
                self._take(step)
        self._expect(wants)

    def _take(self, step: Step) -> None:
        if not isinstance(step, Give):
            self._link.note(line_of(step))
        match step:
            case Give():
                self._give(step)
            case Want():
                self._expect([step])
            case Shows():
                self._expect_state(step.fields)
            case Close():
                self._link.hang_up()
            case Leave():
                self._link.unlisten()
            case Return():
                self._link.listen()
            case Pause():
                self._link.wait(self._nothing_unexpected_until_the_end, step.pause_s)
            case TurnAway():
                self._link.turn_away(step)
            case Survive():
                self._expect_survival()
            case _:
                assert_never(step)

    def _give(self, step: Give) -> None:
        self._link.note(line_of(step))
        with contextlib.suppress(ProtocolError):
            message = wire.decode_server(step.text.encode())
            if isinstance(message, wire.CommandLine):
                self._deadlines[message.seq] = (time.monotonic() + message.deadline_s, message.deadline_s)
        try:
            self._link.give(step.text, step.how)
        except ClosedByClient:
            if Survive() not in self._case.steps:
                raise Fault(self._link.closed_by_client()) from None

    # Expecting

    def _expect(self, wants: list[Want]) -> None:
        """Wait for all that are not optional, in any order."""
        self._allowed += [want.fields for want in wants if want.optional]
        due = [want.fields for want in wants if not want.optional]
        while due:
            if due[0]["type"] == "hello":
                self._link.accept()
                self._deadlines.clear()
            self._expect_one(due)

    def _expect_one(self, due: list[Fields]) -> None:
        """Wait for a line, and take what it fits from what is due."""
        if not self._link.wait(lambda: self._link.inbox, self._limit_s(due)):
            raise Fault(self._nothing_came(due[0]))
        said = self._link.inbox.pop(0)
        fitting = next((fields for fields in due if _fits(said, fields)), None)
        if fitting is not None:
            due.remove(fitting)
            if fitting["type"] == "hello":
                self._check_supports(said)
        elif not self._is_allowed(said):
            raise Fault(_difference(said, due))

    def _limit_s(self, due: list[Fields]) -> float:
        """How long to wait: to the nearest deadline of the commands that are due; else as long as anything may take."""
        until = [self._deadlines[fields["seq"]][0] for fields in due if fields.get("seq") in self._deadlines]
        return max(0.0, min(until) - time.monotonic()) if until else self._timeout_s

    def _nothing_came(self, fields: Fields) -> str:
        if not self._link.is_linked:
            return f"{self._link.closed_by_client()} where {spelled(fields)} was due"
        if fields.get("seq") in self._deadlines:
            _, deadline_s = self._deadlines[fields["seq"]]
            return f"command {fields['seq']} got no final ack within its deadline of {deadline_s:g} s"
        return f"the client did not say {spelled(fields)} within {self._timeout_s:g} s"

    def _expect_state(self, fields: Fields) -> None:
        def is_shown() -> bool:
            return self._nothing_unexpected() and _fits(self._link.program.state, fields)

        if not self._link.wait(is_shown, self._timeout_s):
            state = {key: value for key, value in self._link.program.state.items() if key in fields}
            printed = f"the program printed the state {spelled(state)}" if state else "the program printed no state"
            raise Fault(f"{printed} where {spelled(fields)} was due")

    def _expect_survival(self) -> None:
        self._give(_SURVIVED_PING)
        self._link.wait(lambda: self._link.inbox or not self._link.is_linked, self._timeout_s)
        if self._link.inbox:
            said = self._link.inbox.pop(0)
            if not _fits(said, _SURVIVED_PONG):
                raise Fault(_difference(said, [_SURVIVED_PONG]))
        elif self._link.is_linked:
            raise Fault(f"the client neither answered a ping nor ended the connection within {self._timeout_s:g} s")
        else:
            self._link.hang_up()
            self._expect([_HELLO])
            self._give(_WELCOME)

    def _nothing_unexpected(self) -> bool:
        """True. Nothing is due: what is said now has to be allowed."""
        while self._link.inbox:
            said = self._link.inbox.pop(0)
            if not self._is_allowed(said):
                raise Fault(f"the client said {shown(said)} where nothing was due")
        return True

    def _nothing_unexpected_until_the_end(self) -> bool:
        return not self._nothing_unexpected()

    def _is_allowed(self, said: Said) -> bool:
        return any(_fits(said, fields) for fields in self._allowed)

    def _check_supports(self, hello: Said) -> None:
        known = self._case.actions & set(Action)
        missing = ", ".join(sorted(known - {*hello["supports"], Action.RESTORE}))
        if missing and self._strict:
            raise Fault(f"hello does not list {missing} in supports, which the test contract asks for")
        if missing:
            raise NotApplicable(f"it does not support {missing}")


def _fits(said: Fields, wanted: Fields) -> bool:
    """Whether all that is wanted is there."""
    return all(key in said and said[key] == value for key, value in wanted.items())


def _difference(said: Said, due: list[Fields]) -> str:
    """Why what was said is none of what was due: the field that differs where the rest fits, else both lines."""
    for wanted in due:
        wrong = [key for key, value in wanted.items() if said.get(key) != value]
        if wrong == ["status"]:
            return f"command {said['seq']} was acked {said['status']} where {wanted['status']} was due"
        if len(wrong) == 1 and wrong != ["type"]:
            key = wrong[0]
            got, want = (spelled({key: fields.get(key)}) for fields in (said, wanted))
            return f"the client's {said['type']} says {got} where {want} was due"
    return f"the client said {shown(said)} where {spelled(due[0])} was due"
