"""The oracle of the load program finds what it is there to find."""

import pytest

from tests.support.subscriberload import Line, longest_gap_s, problems

ON = {"max_batch_ratio": 1.0, "accept_requests": True}
OFF = {"max_batch_ratio": 1.0, "accept_requests": False}


def told(what: str, seq: int = 1, **fields: object) -> Line:
    order = {"epoch": "e", "seq": seq, "action": "reject_requests"} if what in ("begin", "end") else {}
    return {"at": 0.0, "name": "a", "what": what, **order, **fields}


REJECT = [told("begin", parameters={"accept_requests": False}), told("end")]


def test_a_journal_in_order_has_no_problems() -> None:
    """A command told, carried out, and in force at the end."""
    lines = [told("welcome", level="critical"), *REJECT, told("state", in_force=OFF)]
    assert problems(lines, gap_s=1.0, least_level="critical") == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*REJECT, *REJECT], "twice"),
        ([*REJECT[:1], told("begin", parameters={"accept_requests": True})], "two commands as 1"),
        ([*REJECT, told("state", in_force=ON)], "stands at"),
        ([told("state", in_force=OFF)], "stands at"),
        ([told("welcome", level="critical"), told("welcome", level="high")], "at least critical holds"),
        ([{"at": at, "name": "probe", "what": "pong"} for at in (1.0, 1.1, 3.2, 3.3)], "for 2.10 s"),
    ],
)
def test_each_fault_is_found(lines: list[Line], words: str) -> None:
    """Done twice, one number for two commands, forgotten restrictions and levels, a gap in service."""
    assert [words in problem for problem in problems(lines, gap_s=1.0, least_level="critical")] == [True]


def test_the_gap_is_between_two_answers() -> None:
    """The longest of them."""
    answers: list[Line] = [{"at": at, "name": "probe", "what": "pong"} for at in (1.0, 1.5, 1.6)]
    assert longest_gap_s([*answers, told("welcome")]) == 0.5
