"""The client's small parts: back-off, handlers, answers, reports, waiting orders."""

import pytest

from edgeguardd.client.answers import (
    MAX_MESSAGE_CHARS,
    Admission,
    Answer,
    Logical,
    NoEffect,
    Released,
    Unsupported,
    answer_of,
    answer_of_failure,
)
from edgeguardd.client.backoff import FIRST_S, LONGEST_S, Backoff
from edgeguardd.client.handlers import Handlers
from edgeguardd.client.orders import Lane, Order, OrderQueue, lane_of
from edgeguardd.client.reporter import INTERVAL_S, Reporter
from edgeguardd.core.model import AckEffect, AckStatus, Action, Command, Level, Parameters
from edgeguardd.core.wire import MAX_FINISHED, ReportLine


def test_more_bytes_than_the_protocol_can_say_are_the_most_it_can() -> None:
    """A miscalculated figure would be refused as a faulty line, and the command would count as unanswered."""
    assert answer_of(Released(2**80)).released_bytes == 2**63 - 1


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_waits_double_up_to_the_longest(chance: float) -> None:
    """Each wait is within the bounds whatever chance says, and none is shorter than half of what it could be."""
    backoff = Backoff(lambda: chance)
    waits = [backoff.wait_s() for _ in range(20)]
    assert all(FIRST_S <= wait <= LONGEST_S for wait in waits)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(LONGEST_S * (0.5 + chance / 2))


def test_after_a_success_waits_are_short_again() -> None:
    """A daemon that was there a moment ago is tried again soon."""
    backoff = Backoff(lambda: 1.0)
    for _ in range(10):
        backoff.wait_s()
    backoff.reset()
    assert backoff.wait_s() == FIRST_S


def test_an_unknown_command_cannot_be_handled() -> None:
    """A typing error is found when the handler is registered, with the words that would do."""
    with pytest.raises(ValueError, match=r"cannot handle 'trim': .*trim_kv_cache"):
        Handlers({"trim": print})


def test_a_command_has_one_handler() -> None:
    """A second handler would silently win otherwise."""
    handlers = Handlers({"trim_kv_cache": print})
    with pytest.raises(ValueError, match="twice"):
        handlers.add("trim_kv_cache", repr)


def test_what_has_a_handler_is_supported() -> None:
    """hello says what the application can do."""
    handlers = Handlers({"restore": print, "reject_requests": print})
    handlers.check()
    assert handlers.supported() == (Action.REJECT_REQUESTS, Action.RESTORE)


@pytest.mark.parametrize("action", ["reduce_batch", "reject_requests", "unload_model"])
def test_what_can_be_restricted_can_be_restored(action: str) -> None:
    """A server that could be told to reject, but not to stop rejecting, does not start."""
    with pytest.raises(ValueError, match='"restore" has none'):
        Handlers({action: print}).check()


def test_a_trim_needs_no_restore() -> None:
    """Giving memory back once restricts nothing."""
    Handlers({"trim_kv_cache": print}).check()


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (None, Answer(AckStatus.DONE)),
        (Released(5), Answer(AckStatus.DONE, AckEffect.RELEASED, 5)),
        (Released(True), Answer(AckStatus.DONE, AckEffect.RELEASED, 1)),
        (Released(-5), Answer(AckStatus.DONE, AckEffect.RELEASED, 0)),
        (Logical(), Answer(AckStatus.DONE, AckEffect.LOGICAL)),
        (NoEffect(), Answer(AckStatus.DONE, AckEffect.NONE)),
        ("whatever", Answer(AckStatus.DONE)),
    ],
)
def test_what_a_handler_returns_says_what_became_of_the_memory(result: object, answer: Answer) -> None:
    """Each return value is one kind of ack."""
    assert answer_of(result) == answer


def test_released_bytes_are_a_whole_number() -> None:
    """A float would be refused by the daemon; it is refused where it is made."""
    with pytest.raises(TypeError):
        Released(1.5)  # type: ignore[arg-type]


def test_an_exception_is_a_failure_with_its_text() -> None:
    """The daemon's log shows what went wrong in the server, briefly."""
    assert answer_of_failure(MemoryError("no")) == Answer(AckStatus.FAILED, message="MemoryError: no")
    assert answer_of_failure(Unsupported("no cache")).status is AckStatus.UNSUPPORTED
    message = answer_of_failure(ValueError("x" * 10_000)).message
    assert message is not None
    assert len(message) == MAX_MESSAGE_CHARS


def test_an_exception_that_cannot_say_its_text_is_still_a_failure() -> None:
    """Broken exceptions exist; they must not break the ack."""

    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("broken")

    answer = answer_of_failure(BrokenError())
    assert answer.status is AckStatus.FAILED
    assert answer.message == "BrokenError: (its text cannot be had: RuntimeError)"


def test_an_admission_is_true_when_granted() -> None:
    """`if guard.admit(…)` reads as it works."""
    assert Admission("a", True, "")
    assert not Admission("a", False, "")


def test_only_the_latest_figures_are_reported_and_not_too_often() -> None:
    """A hundred reports within the interval are one line; unchanged figures are none."""
    reporter = Reporter()
    reporter.report({"running": 1})
    assert reporter.take(100.0) == [ReportLine(running=1)]
    for number in range(100):
        reporter.report({"running": number, "waiting": None})
    assert reporter.take(100.0) == []
    assert reporter.due() == 100.0 + INTERVAL_S
    assert reporter.take(100.0 + INTERVAL_S) == [ReportLine(running=99)]
    reporter.report({"running": 99})
    assert reporter.due() is None


def test_a_new_connection_is_told_everything_again() -> None:
    """The daemon may have been restarted: the last word on each figure is repeated, old requests are not."""
    reporter = Reporter()
    reporter.report({"static_bytes": 10, "running": 1})
    reporter.take(0.0)
    reporter.finish("old")
    reporter.begin_again()
    assert reporter.take(0.0) == [ReportLine(static_bytes=10, running=1)]


def test_many_finished_requests_take_several_lines() -> None:
    """No line names more requests than the protocol allows, and none is lost."""
    reporter = Reporter()
    ids = [f"r{number}" for number in range(MAX_FINISHED * 2 + 1)]
    for request in ids:
        reporter.finish(request)
    lines = reporter.take(0.0)
    assert [len(line.finished) for line in lines] == [MAX_FINISHED, MAX_FINISHED, 1]
    assert [request for line in lines for request in line.finished] == ids


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1 << 63, ValueError), (1.5, TypeError)])
def test_a_figure_that_the_daemon_would_refuse_is_refused_at_once(value: int, error: type[Exception]) -> None:
    """The caller hears of it, instead of a log far away."""
    with pytest.raises(error):
        Reporter().report({"running": value})


def order(seq: int, action: Action) -> Order:
    return Order(Command(seq, "llm", action, Parameters(), Level.HIGH, "", 5.0), connection=1)


def test_of_waiting_orders_of_one_kind_the_newest_is_carried_out() -> None:
    """The older one is void; the newer one comes after what was asked in between."""
    queue = OrderQueue()
    for waiting in (order(1, Action.REJECT_REQUESTS), order(2, Action.RESTORE), order(3, Action.REJECT_REQUESTS)):
        queue.put(waiting)
    assert len(queue) == 2
    taken = [queue.take(), queue.take(), queue.take()]
    assert [None if found is None else found.command.seq for found in taken] == [2, 3, None]


def test_a_trim_does_not_hold_up_the_others() -> None:
    """Trimming has a lane of its own; what undoes each other shares one."""
    lanes = {action: lane_of(action) for action in Action}
    assert [action for action, lane in lanes.items() if lane is Lane.TRIM] == [Action.TRIM_KV_CACHE]
