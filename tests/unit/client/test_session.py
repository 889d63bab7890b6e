"""The client's side of the protocol, driven by hand: bytes in, events and bytes out, time as it is said."""

import json
from typing import Any

import pytest

from edgeguardd.client.answers import Answer
from edgeguardd.client.orders import Order
from edgeguardd.client.questions import MAX_ASKED
from edgeguardd.client.session import (
    LEAST_HEARTBEAT_S,
    LIFT_AGAIN_S,
    LOST_AFTER_S,
    MOST_HEARTBEAT_S,
    WELCOME_S,
    ClientSession,
)
from edgeguardd.core import wire
from edgeguardd.core.model import AckEffect, AckStatus, Action, InForce, Level, Parameters

EVERYTHING = tuple(Action)
DONE = Answer(AckStatus.DONE)


class Link:
    """A session and a daemon that is a list of lines."""

    def __init__(self, supports: tuple[Action, ...] = EVERYTHING, lost_after_s: float | None = LOST_AFTER_S) -> None:
        self.now = 0.0
        self.session = ClientSession("server", supports=supports, lost_after_s=lost_after_s, now=0.0)

    def connect(self, **state: Any) -> list[Order]:
        """Connect and be welcomed; the orders that follow from it."""
        self.session.connected(self.now)
        self.said()
        return self.hears(welcome(**state))

    def lose(self) -> None:
        self.session.disconnected(self.now)

    def hears(self, *lines: wire.ServerMessage | bytes) -> list[Order]:
        """The daemon says something; the orders that follow from it."""
        data = b"".join(line if isinstance(line, bytes) else wire.encode(line) for line in lines)
        return [event for event in self.session.receive(data, self.now) if isinstance(event, Order)]

    def said(self) -> list[dict[str, Any]]:
        """What the session sends now."""
        return [json.loads(line) for line in self.session.take_output(self.now).splitlines()]

    def passes(self, seconds: float) -> list[Order]:
        """Time passes, with a tick whenever one is due; the orders that follow from it."""
        until = self.now + seconds
        orders: list[Order] = []
        while True:
            due = self.session.due()
            self.now = until if due is None else min(until, max(due, self.now))
            orders += [event for event in self.session.tick(self.now) if isinstance(event, Order)]
            if self.now >= until or self.session.is_silent(self.now):
                return orders


def welcome(
    ratio: float = 1.0,
    accept: bool = True,
    loaded: bool = True,
    level: str = "normal",
    epoch: str = "e1",
    heartbeat_s: float = 10.0,
) -> wire.WelcomeLine:
    return wire.WelcomeLine(1, epoch, "llm", level, ratio, accept, loaded, heartbeat_s)


def command(seq: int, action: str, level: str = "high", **parameters: Any) -> wire.CommandLine:
    return wire.CommandLine(1, seq, "llm", action, Parameters(**parameters), level, "why", 5.0)


def shown(orders: list[Order]) -> list[tuple[Action, Parameters]]:
    return [(order.command.action, order.command.parameters) for order in orders]


def done(link: Link, orders: list[Order]) -> list[Order]:
    """The handlers carry out the orders; what follows from that."""
    further = []
    for order in orders:
        link.session.begin(order)
        further += link.session.complete(order, DONE)
    return further


def test_a_connection_begins_with_hello() -> None:
    """Name, target and what has a handler come first."""
    link = Link((Action.TRIM_KV_CACHE,))
    link.session.connected(0.0)
    assert link.said() == [{"type": "hello", "name": "server", "target": "self", "supports": ["trim_kv_cache"]}]


def test_the_welcome_tells_the_state() -> None:
    """Epoch, level and restrictions are those of the daemon."""
    link = Link()
    link.connect(level="high", ratio=0.5)
    session = link.session
    assert (session.welcomed, session.epoch, session.level) == (True, "e1", Level.HIGH)
    assert session.wanted == InForce(max_batch_ratio=0.5)


def test_a_ping_is_answered_with_its_id() -> None:
    """The application has nothing to do with heartbeats."""
    link = Link()
    link.connect()
    assert link.hears(wire.Ping(id="7")) == []
    assert link.said() == [{"type": "pong", "id": "7"}]


def test_a_command_is_accepted_and_then_acked_with_its_outcome() -> None:
    """ "accepted" goes out when the handler begins, the outcome when it ends."""
    link = Link()
    link.connect()
    (order,) = link.hears(command(3, "trim_kv_cache", release_bytes=9))
    assert order.command.parameters == Parameters(release_bytes=9)
    assert link.said() == []
    link.session.begin(order)
    assert link.said() == [{"type": "ack", "seq": 3, "status": "accepted"}]
    link.session.complete(order, Answer(AckStatus.DONE, AckEffect.RELEASED, 5))
    assert link.said() == [{"type": "ack", "seq": 3, "status": "done", "effect": "released", "released_bytes": 5}]


@pytest.mark.parametrize("action", ["trim_kv_cache", "move_to_disk"])
def test_what_has_no_handler_is_unsupported_at_once(action: str) -> None:
    """An action without a handler, or of a later version, is acked without the application."""
    link = Link((Action.REJECT_REQUESTS, Action.RESTORE))
    link.connect()
    assert link.hears(command(1, action)) == []
    assert [(ack["seq"], ack["status"]) for ack in link.said()] == [(1, "unsupported")]


def test_restoring_what_cannot_be_restricted_is_done_at_once() -> None:
    """A server that only trims need not know restore."""
    link = Link((Action.TRIM_KV_CACHE,))
    link.connect()
    assert link.hears(command(1, "restore", max_batch_ratio=1.0)) == []
    assert link.said() == [{"type": "ack", "seq": 1, "status": "done", "effect": "none"}]


def test_lines_that_make_no_sense_are_counted_and_passed_over() -> None:
    """Rubbish, unknown types and overlong lines between two good ones change nothing."""
    link = Link()
    link.connect()
    rubbish = [b"\n", b"\xff\x00\n", b'{"type":"weather"}\n', b'{"type":"command"}\n', b"z" * 100_000 + b"\n"]
    orders = link.hears(command(1, "trim_kv_cache"), *rubbish, command(2, "reject_requests"))
    assert [order.command.seq for order in orders] == [1, 2]
    assert link.session.bad_lines == 4


def test_a_level_of_a_later_version_changes_nothing() -> None:
    """The command counts all the same; its level is read as the last known one."""
    link = Link()
    link.connect(level="high")
    (order,) = link.hears(command(1, "trim_kv_cache", level="apocalyptic"))
    assert order.command.level is Level.HIGH
    link.hears(wire.LevelLine(1, "llm", "apocalyptic", "high", ""))
    assert link.session.level is Level.HIGH


def test_lines_may_be_cut_anywhere() -> None:
    """A command that arrives byte by byte is one command."""
    link = Link()
    link.connect()
    orders = [order for byte in wire.encode(command(1, "trim_kv_cache")) for order in link.hears(bytes([byte]))]
    assert len(orders) == 1


# What is in force across connections


def test_restrictions_in_force_at_the_welcome_are_carried_out() -> None:
    """Who connects under pressure rejects and reduces without waiting for a command."""
    orders = Link().connect(ratio=0.25, accept=False)
    assert shown(orders) == [
        (Action.REDUCE_BATCH, Parameters(max_batch_ratio=0.25)),
        (Action.REJECT_REQUESTS, Parameters(accept_requests=False)),
    ]
    assert not any(order.acked for order in orders)


def test_a_restarted_daemon_without_pressure_lifts_what_the_old_one_restricted() -> None:
    """The new daemon knows of no restriction, so the handlers' is lifted."""
    link = Link()
    link.connect()
    done(link, link.hears(command(1, "reject_requests", accept_requests=False)))
    link.lose()
    orders = link.connect(epoch="e2")
    assert shown(orders) == [(Action.RESTORE, Parameters(max_batch_ratio=1.0, accept_requests=True, model_loaded=True))]
    done(link, orders)
    assert link.session.applied == InForce()
    assert [line for line in link.said() if line["type"] == "ack" and line["seq"] == 0] == []


def test_a_reconnect_that_changes_nothing_calls_nothing() -> None:
    """What is applied is what is in force: no handler is called."""
    link = Link()
    link.connect()
    done(link, link.hears(command(1, "reduce_batch", max_batch_ratio=0.5)))
    link.lose()
    assert link.connect(ratio=0.5) == []


def test_a_mixed_change_is_one_restore_to_the_whole_state() -> None:
    """One restriction lifted and another one new: restore sets all of them."""
    link = Link()
    done(link, link.connect(ratio=0.5, accept=False))
    link.lose()
    orders = link.connect(ratio=0.25, accept=True)
    assert shown(orders) == [
        (Action.RESTORE, Parameters(max_batch_ratio=0.25, accept_requests=True, model_loaded=True))
    ]


def test_a_restriction_whose_handler_failed_is_tried_again_at_the_welcome() -> None:
    """Only what was carried out counts as applied."""
    link = Link()
    link.connect()
    (order,) = link.hears(command(1, "reject_requests", accept_requests=False))
    link.session.complete(order, Answer(AckStatus.FAILED))
    assert not link.session.wanted.accept_requests
    link.lose()
    assert shown(link.connect(accept=False)) == [(Action.REJECT_REQUESTS, Parameters(accept_requests=False))]


def test_only_what_has_a_handler_is_bridged() -> None:
    """A server that only trims is not asked for more by a welcome."""
    assert Link((Action.TRIM_KV_CACHE,)).connect(ratio=0.25, accept=False) == []


def test_an_order_that_ends_after_a_reconnect_is_put_right() -> None:
    """A slow reject of the old connection ends under a new one that rejects nothing: it is acked, and lifted."""
    link = Link()
    link.connect()
    (slow,) = link.hears(command(1, "reject_requests", accept_requests=False))
    link.session.begin(slow)
    link.said()
    link.lose()
    assert link.connect() == []
    further = link.session.complete(slow, DONE)
    assert [action for action, _ in shown(further)] == [Action.RESTORE]
    assert link.said() == [{"type": "ack", "seq": 1, "status": "done"}]


def test_an_order_of_another_epoch_is_not_acked() -> None:
    """The daemon has lost its state, and the number with it: it may stand for something else by now."""
    link = Link()
    link.connect()
    (slow,) = link.hears(command(1, "trim_kv_cache"))
    link.session.begin(slow)
    link.lose()
    link.connect(epoch="e2")
    (again,) = link.hears(command(1, "trim_kv_cache"))
    link.session.begin(again)
    link.said()
    link.session.complete(slow, DONE)
    assert link.said() == []
    link.session.complete(again, DONE)
    assert link.said() == [{"type": "ack", "seq": 1, "status": "done"}]


def test_a_command_told_again_is_answered_again_and_not_carried_out_again() -> None:
    """The daemon was killed before it had written down the ack; on the same connection it may repeat itself as well."""
    link = Link()
    link.connect()
    (order,) = link.hears(command(3, "trim_kv_cache", release_bytes=9))
    link.session.begin(order)
    link.session.complete(order, Answer(AckStatus.DONE, AckEffect.RELEASED, 5))
    first = link.said()[-1]
    link.lose()
    link.connect()
    for _ in range(2):
        assert link.hears(command(3, "trim_kv_cache", release_bytes=9)) == []
        assert link.said() == [first]


def test_a_command_told_again_while_a_handler_is_at_it_is_answered_once() -> None:
    """The handler goes on; its ack goes out on the connection that there is then."""
    link = Link()
    link.connect()
    (order,) = link.hears(command(3, "trim_kv_cache"))
    link.session.begin(order)
    link.lose()
    link.connect()
    assert link.hears(command(3, "trim_kv_cache")) == []
    link.session.complete(order, DONE)
    assert link.said() == [{"type": "ack", "seq": 3, "status": "done"}]


def test_an_ack_that_found_no_connection_is_handed_in_once() -> None:
    """Right after the welcome; the command that is told again behind it has its answer by then."""
    link = Link()
    link.connect()
    (order,) = link.hears(command(3, "trim_kv_cache"))
    link.session.begin(order)
    link.lose()
    link.session.complete(order, DONE)
    link.session.connected(link.now)
    link.said()
    assert link.hears(welcome(), command(3, "trim_kv_cache")) == []
    assert link.said() == [{"type": "ack", "seq": 3, "status": "done"}]
    link.lose()
    link.session.connected(link.now)
    link.said()
    assert (link.hears(welcome()), link.said()) == ([], [])


def test_an_order_that_waited_in_two_queues_is_carried_out_once() -> None:
    """It was taken from a queue just before the welcome emptied it, and the daemon told it again."""
    link = Link()
    link.connect()
    (order,) = link.hears(command(3, "trim_kv_cache"))
    link.lose()
    link.connect()
    (again,) = link.hears(command(3, "trim_kv_cache"))
    assert link.session.begin(order)
    link.session.complete(order, DONE)
    assert [line["status"] for line in link.said()] == ["accepted", "done"]
    assert not link.session.begin(again)
    assert [line["status"] for line in link.said()] == ["done"]


def test_an_order_that_ends_while_the_daemon_is_away_waits_for_the_welcome() -> None:
    """Without a daemon nobody knows what is wanted."""
    link = Link()
    link.connect()
    (slow,) = link.hears(command(1, "reject_requests", accept_requests=False))
    link.lose()
    assert link.session.complete(slow, DONE) == []
    assert [action for action, _ in shown(link.connect())] == [Action.RESTORE]


def test_a_daemon_that_stays_away_has_its_restrictions_lifted() -> None:
    """A guard that died must not leave the server refusing for ever."""
    link = Link()
    link.connect(level="critical")
    done(link, link.hears(command(1, "reject_requests", accept_requests=False)))
    link.lose()
    assert link.passes(LOST_AFTER_S - 1) == []
    assert not link.session.wanted.accept_requests
    orders = link.passes(2)
    assert shown(orders) == [(Action.RESTORE, Parameters(max_batch_ratio=1.0, accept_requests=True, model_loaded=True))]
    assert (link.session.wanted, link.session.level) == (InForce(), Level.NORMAL)


def test_lifting_is_tried_again_until_it_works() -> None:
    """A restore handler that fails is called again; one that worked is not."""
    link = Link(lost_after_s=1.0)
    done(link, link.connect(accept=False))
    link.lose()
    (first,) = link.passes(1)
    link.session.complete(first, Answer(AckStatus.FAILED))
    (second,) = link.passes(LIFT_AGAIN_S)
    link.session.complete(second, DONE)
    assert link.passes(100) == []


def test_lifting_can_be_turned_off() -> None:
    """lost_after_s=None: what was restricted stays until the daemon says otherwise."""
    link = Link(lost_after_s=None)
    done(link, link.connect(accept=False))
    link.lose()
    assert link.passes(1_000_000) == []
    assert not link.session.wanted.accept_requests


def test_a_short_absence_lifts_nothing() -> None:
    """The time begins again with each loss."""
    link = Link()
    done(link, link.connect(accept=False))
    for _ in range(5):
        link.lose()
        assert link.passes(LOST_AFTER_S - 1) == []
        assert link.connect(accept=False) == []


def test_failed_attempts_to_connect_do_not_prolong_the_absence() -> None:
    """A daemon that takes connections and says nothing is away."""
    link = Link()
    done(link, link.connect(accept=False))
    link.lose()
    orders = []
    for _ in range(40):
        link.session.connected(link.now)
        orders += link.passes(1)
        link.lose()
    assert [action for action, _ in shown(orders)] == [Action.RESTORE]


# Silence


def test_a_daemon_that_says_nothing_is_pinged_and_then_given_up() -> None:
    """A hung daemon keeps its socket; three heartbeats of silence end the connection."""
    link = Link()
    link.connect()
    link.passes(10)
    assert link.said() == [{"type": "ping"}]
    link.passes(19)
    assert not link.session.is_silent(link.now)
    link.passes(2)
    assert link.session.is_silent(link.now)


def test_a_daemon_that_pings_is_not_silent() -> None:
    """Whatever it says counts."""
    link = Link()
    link.connect()
    for _ in range(20):
        link.passes(9)
        link.hears(wire.Ping())
        assert not link.session.is_silent(link.now)


@pytest.mark.parametrize(
    ("heartbeat_s", "taken_s"),
    [(1e300, MOST_HEARTBEAT_S), (1e9, MOST_HEARTBEAT_S), (0.0, LEAST_HEARTBEAT_S), (-1e300, LEAST_HEARTBEAT_S)],
)
def test_an_odd_heartbeat_is_taken_for_the_nearest_that_can_be_meant(heartbeat_s: float, taken_s: float) -> None:
    """Neither a wait without end nor one without a pause comes of a welcome."""
    link = Link(lost_after_s=None)
    link.connect(heartbeat_s=heartbeat_s)
    assert link.session.due() == taken_s


def test_a_daemon_that_does_not_welcome_is_given_up() -> None:
    """connect(2) succeeds with a stopped daemon as well."""
    link = Link()
    link.session.connected(0.0)
    link.passes(WELCOME_S)
    assert link.session.is_silent(link.now)


# What the application says


def test_nothing_is_said_before_the_welcome() -> None:
    """Reports, questions and acks wait for the welcome or are void."""
    link = Link()
    link.session.report({"running": 1})
    link.session.finish("r1")
    link.session.connected(0.0)
    link.session.ask("r2", None, 5)
    assert [line["type"] for line in link.said()] == ["hello"]
    link.hears(welcome())
    assert link.said() == [{"type": "report", "running": 1}]


def test_a_question_and_its_answer() -> None:
    """admit goes out with bytes or tokens; the admission comes back as it is."""
    link = Link()
    link.connect()
    link.session.ask("r1", None, 100)
    assert link.said() == [{"type": "admit", "id": "r1", "tokens": 100}]
    answer = wire.Admission(id="r1", granted=False, reason="full", retry_after_s=1.0)
    assert link.session.receive(wire.encode(answer), 0.0) == [answer]


def test_an_ack_does_not_wait_behind_questions() -> None:
    """However many ask, few questions are on the wire, and what the daemon waits for goes out before them."""
    link = Link()
    link.connect()
    for number in range(1000):
        link.session.ask(f"r{number}", None, 1)
    (order,) = link.hears(command(1, "trim_kv_cache"))
    link.session.complete(order, DONE)
    link.session.report({"running": 1})
    sent = [line["type"] for line in link.said()]
    assert sent == ["ack", "report", *["admit"] * MAX_ASKED]


def test_answers_let_the_next_questions_go_and_a_reconnect_forgets_them() -> None:
    """A question that was withdrawn, or asked of a daemon that is gone, never goes out."""
    link = Link()
    link.connect()
    for number in range(MAX_ASKED + 2):
        link.session.ask(f"r{number}", None, 1)
    link.said()
    link.session.withdraw("r1")
    assert link.said() == []
    link.session.receive(wire.encode(wire.Admission(id="r9", granted=True, reason="")), link.now)
    assert [line["id"] for line in link.said()] == ["r0"]
    link.session.ask("last", None, 1)
    link.lose()
    link.connect()
    assert link.said() == []


def test_nothing_is_due_for_a_socket_that_takes_nothing() -> None:
    """Figures and questions wait for room; a client that looked again at once would spin."""
    link = Link(lost_after_s=None)
    link.connect()
    link.session.report({"running": 1})
    link.session.ask("r1", None, 1)
    assert link.session.due() == 0.0
    assert link.session.due(blocked=True) == 10.0


def test_an_error_of_the_daemons_is_kept_for_people() -> None:
    """Why a hello was refused can be looked up."""
    link = Link()
    link.session.connected(0.0)
    link.hears(wire.ErrorLine(1, "not_allowed", "cannot serve llm"))
    assert link.session.last_error == wire.ErrorLine(1, "not_allowed", "cannot serve llm")
