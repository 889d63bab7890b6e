"""A target goes on where it was: what is recalled, who is expected back, what is told again, and when that is over."""

import msgspec
import pytest

from edgeguardd.core import resume
from edgeguardd.core.config import Policy
from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Deliver, Note, RunLastResort, SetTimer, Welcome
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    CgroupAppeared,
    KillsWhileAway,
    StateRecalled,
    SubscriberJoined,
    TargetAdded,
)
from edgeguardd.core.kept import KeptMachine, KeptTarget
from edgeguardd.core.model import AckStatus, Action, Command, Level, Outcome, Role
from edgeguardd.core.policy import MAX_FLAPS, dwell
from tests.support.script import EVERYTHING, Script, commands, of

WAIT_S = 5.0


class Restarted(Script):
    """A script whose engine is that of the next run: it knows what was kept of `before`, `away_s` later."""

    def __init__(self, before: Script, away_s: float = 0.3, policy: Policy | None = None) -> None:
        kept = resume.keep(before.target)
        # As it was written and read.
        kept = msgspec.json.decode(msgspec.json.encode(kept), type=KeptTarget)
        machine = resume.keep_machine(before.engine.machine)
        self.engine = Engine()
        self.policy = policy or before.policy
        self.now = before.now + away_s
        self.effects = []
        self.timers = {}
        self.needed_mib = before.needed_mib
        self.do(StateRecalled((kept,), machine, before.engine.numbers.last, WAIT_S))
        self.do(TargetAdded("llm", "/llm", self.policy))
        self.do(CgroupAppeared("llm"))
        self.need(self.needed_mib)

    def back(self, subscriber: int, as_name: str = "server1", pid: int = 0) -> list:  # type: ignore[type-arg]
        return self.do(SubscriberJoined(subscriber, as_name, Role.INFERENCE, "llm", EVERYTHING, pid))


def at_critical() -> Script:
    """One server that has been asked for everything and has answered nothing."""
    script = Script()
    script.join(1)
    script.need(950)
    return script


def test_level_and_rung_go_on_and_fall_only_after_their_dwell() -> None:
    """Memory has fallen meanwhile; that the daemon was restarted is no reason to fall faster."""
    before = at_critical()
    before.needed_mib = 100
    after = Restarted(before)
    assert (after.level(), after.target.ledger.rung) == (Level.CRITICAL, Level.CRITICAL)
    assert of(after.effects, AnnounceLevel) == []
    after.pass_time(after.policy.dwell_s + 1)
    assert after.level() is Level.HIGH


def test_what_has_not_been_answered_is_told_again_as_it_was() -> None:
    """The same numbers, parameters and reasons, and the time that is left."""
    before = at_critical()
    sent = commands(before.effects)
    after = Restarted(before)
    again = of(after.back(7), Deliver)
    assert [order.again for order in again] == [True] * len(sent)
    assert [msgspec.structs.replace(o.command, deadline_s=0.0) for o in again] == [
        msgspec.structs.replace(command, deadline_s=0.0) for command in sent
    ]
    assert {order.subscriber for order in again} == {7}
    for order, command in zip(again, sent, strict=True):
        assert order.command.deadline_s == pytest.approx(command.deadline_s - (after.now - before.now))


def test_who_is_back_gets_no_more_time_however_often_the_daemon_is_restarted() -> None:
    """A daemon that dies again and again shall escalate all the same: the first deadline holds, over all restarts."""
    script: Script = at_critical()
    sent, began = commands(script.effects), script.now
    for run in range(4):
        after = Restarted(script, away_s=1.0)
        left = [order.command.deadline_s for order in of(after.back(10 + run), Deliver) if order.again]
        due = [max(resume.LEAST_LEFT_S, one.deadline_s - (after.now - began)) for one in sent]
        assert left == pytest.approx(due)
        script = after
    after.pass_time(max(due) + 0.01)
    ended = {one.seq: one.outcome for one in of(after.effects, CommandEnded)}
    assert {ended.get(one.seq) for one in sent} == {Outcome.EXPIRED}


def test_one_grace_is_all_that_restarts_add_for_who_stays_away() -> None:
    """Each run waits for it, and together no longer than one would: then its commands have expired."""
    script: Script = at_critical()
    sent = commands(script.effects)
    ends_by = script.now + max(one.deadline_s for one in sent) + WAIT_S + resume.LEAST_LEFT_S
    ended: dict[int, Outcome] = {}
    while script.now <= ends_by:
        assert not ended or script.now > ends_by - resume.LEAST_LEFT_S - WAIT_S
        script = Restarted(script, away_s=0.0)
        script.pass_time(1.0)
        ended |= {one.seq: one.outcome for one in of(script.effects, CommandEnded)}
    assert {ended.get(one.seq) for one in sent} == {Outcome.EXPIRED}


def test_one_grace_is_all_that_restarts_add_for_who_is_back_each_time() -> None:
    """The little that is left at least is not left at least for ever; what has no time left is not told any more."""
    script: Script = at_critical()
    sent, told = commands(script.effects), []
    ends_by = script.now + max(one.deadline_s for one in sent) + WAIT_S + resume.LEAST_LEFT_S
    ended: dict[int, Outcome] = {}
    run = 10
    while script.now <= ends_by:
        run += 1
        script = Restarted(script, away_s=0.0)
        told += [order.command for order in of(script.back(run), Deliver)]
        script.pass_time(0.3)
        ended |= {one.seq: one.outcome for one in of(script.effects, CommandEnded)}
    assert {ended.get(one.seq) for one in sent} == {Outcome.EXPIRED}
    assert min(command.deadline_s for command in told) > 0


def test_who_has_not_had_its_grace_has_it_in_a_later_restart() -> None:
    """It was back in the first one, and is not yet in the second, in which its time runs out."""
    first = Restarted(at_critical())
    first.back(7)
    first.pass_time(4.0)
    second = Restarted(first)
    second.pass_time(WAIT_S - 0.1)
    assert of(second.effects, CommandEnded) == []


@pytest.mark.parametrize("back", [True, False])
def test_a_restore_that_is_owed_is_not_put_off_by_restarts(back: bool) -> None:
    """A daemon that dies again and again frees its servers all the same; who is away is told when it is back."""
    script: Script = at_critical()
    script.needed_mib = 100
    script.pass_time(120)
    owed_at = script.target.ledger.subscribers[1].restore_at
    assert owed_at is not None
    assert owed_at > script.now
    assert script.target.ledger.outstanding == {}
    restored: list[Command] = []
    for run in range(10, 16):
        script = Restarted(script, away_s=0.0)
        if back or script.now > owed_at:
            script.back(run)
        script.pass_time(1.0)
        restored += [o.command for o in of(script.effects, Deliver) if not o.again]
    assert [command.action for command in restored] == [Action.RESTORE]


def test_who_is_not_back_has_the_grace_for_it() -> None:
    """Its commands do not end while it cannot answer."""
    after = Restarted(at_critical(), away_s=10.0)
    after.pass_time(WAIT_S - 0.1)
    assert of(after.effects, CommandEnded) == []
    assert [order.command.deadline_s for order in of(after.back(7), Deliver)] == [resume.LEAST_LEFT_S] * 3


def test_the_welcome_comes_before_what_is_told_again() -> None:
    """With what is in force: the restrictions of the rung."""
    welcome, *_ = of(Restarted(at_critical()).back(7), Welcome)
    assert (welcome.level, welcome.in_force.max_batch_ratio, welcome.in_force.accept_requests) == (
        Level.CRITICAL,
        0.25,
        False,
    )


def test_an_ack_after_the_restart_ends_the_command_and_no_new_number_is_an_old_one() -> None:
    """It took as long as it took, the absence included; the next command has the next number."""
    before = at_critical()
    sent = {command.action: command for command in commands(before.effects)}
    after = Restarted(before, away_s=1.0)
    after.back(7)
    after.do(AckReceived(7, sent[Action.REJECT_REQUESTS].seq, AckStatus.DONE))
    (ended,) = of(after.effects, CommandEnded)
    assert (ended.seq, ended.outcome, ended.took_s) == (sent[Action.REJECT_REQUESTS].seq, Outcome.DONE, 1.0)
    after.pass_time(after.policy.repeat_s + WAIT_S)
    new = [order.command.seq for order in of(after.effects, Deliver) if not order.again]
    assert new
    assert min(new) > max(command.seq for command in sent.values())


def test_an_ack_of_a_command_that_had_ended_is_late_and_no_error() -> None:
    """The server could not know that it had been taken."""
    before = at_critical()
    trim = commands(before.effects)[0]
    before.ack(trim)
    before.pass_time(1.0)
    after = Restarted(before)
    after.back(7)
    seen = len(after.effects)
    after.do(AckReceived(7, trim.seq, AckStatus.DONE))
    assert [note.event for note in of(after.effects[seen:], Note)] == ["late_ack"]


def test_a_server_that_is_not_back_is_neither_missed_nor_replaced_during_the_grace() -> None:
    """No last resort, no escalation; when the grace is over it has left, its commands are lost, and it is said."""
    after = Restarted(at_critical())
    after.pass_time(WAIT_S - 0.5)
    assert of(after.effects, CommandEnded) == []
    assert of(after.effects, RunLastResort) == []
    assert "nobody_to_ask" not in [note.event for note in of(after.effects, Note)]
    after.pass_time(1.0)
    assert {end.outcome for end in of(after.effects, CommandEnded)} <= {Outcome.LOST, Outcome.EXPIRED}
    events = [note.event for note in of(after.effects, Note)]
    assert events.index("subscriber_missing") < events.index("nobody_to_ask")
    assert after.target.ledger.subscribers == {}


def test_another_process_of_the_same_name_is_somebody_new() -> None:
    """It holds nothing back and knows no number: it gets the rung, not what the other had been told."""
    before = at_critical()
    after = Restarted(before)
    got = commands(after.back(7, pid=99), 7)
    assert {command.action for command in got} >= {Action.REDUCE_BATCH, Action.REJECT_REQUESTS}
    assert min(command.seq for command in got) > before.engine.numbers.last


def test_what_comes_up_during_the_absence_is_told_at_the_return() -> None:
    """A rung reached meanwhile: its commands wait, and the superseded ones are not told."""
    script = Script()
    script.join(1)
    script.need(850)
    after = Restarted(script)
    after.need(950)
    again = [order.command for order in of(after.back(7), Deliver)]
    ratios = [c.parameters.max_batch_ratio for c in again if c.action is Action.REDUCE_BATCH]
    assert (ratios, Action.REJECT_REQUESTS in {c.action for c in again}) == ([0.25], True)


def test_another_path_under_the_same_name_takes_over_what_was_learned_only() -> None:
    """The unit has moved: other processes, nothing restricted there; how long trims take is the server's."""
    before = at_critical()
    before.target.gauge.lead.learned_s = 1.5
    kept = resume.keep(before.target)
    engine = Engine()
    engine.handle(StateRecalled((kept,), KeptMachine(), 9, WAIT_S), 0.0)
    effects = engine.handle(TargetAdded("llm", "/other", Policy()), 0.0)
    target = engine.targets["llm"]
    assert (target.level, target.ledger.rung, target.gauge.lead.learned_s, target.ledger.outstanding) == (
        Level.NORMAL,
        Level.NORMAL,
        1.5,
        {},
    )
    assert of(effects, SetTimer) == []


def test_the_machines_level_goes_on_as_well() -> None:
    """Else what it asks of the targets would fall with each restart."""
    engine = Engine()
    engine.handle(StateRecalled((), KeptMachine(Level.HIGH, "little is available"), 0, WAIT_S), 0.0)
    assert (engine.machine.level, engine.guard.worst_level()) == (Level.HIGH, Level.HIGH)


def test_kills_while_nobody_looked_are_said_and_raise_nothing() -> None:
    """They say nothing of memory as it is now."""
    script = Script()
    effects = script.do(KillsWhileAway("llm", 3))
    assert [(note.event, note.fields["kills"]) for note in of(effects, Note)] == [("kills_while_away", 3)]
    assert script.level() is Level.NORMAL


def test_what_its_server_cannot_do_any_more_ends_and_is_not_told_again() -> None:
    """It came back with another hello: those commands end as unsupported, the others are told as they were."""
    before = at_critical()
    sent = commands(before.effects)
    after = Restarted(before)
    fewer = frozenset({Action.REJECT_REQUESTS})
    effects = after.do(SubscriberJoined(7, "server1", Role.INFERENCE, "llm", fewer, 0))
    kept = [command.seq for command in sent if command.action in fewer]
    assert kept
    assert [order.command.seq for order in of(effects, Deliver)] == kept
    ended = {effect.seq: effect.outcome for effect in of(effects, CommandEnded)}
    assert ended == {command.seq: Outcome.UNSUPPORTED for command in sent if command.action not in fewer}
    assert {one.command.action for one in after.target.ledger.outstanding.values()} <= fewer


@pytest.mark.parametrize("flaps", [-1, 10**6, 2**63 - 1, 10**40])
def test_no_count_of_flaps_in_a_record_makes_a_level_stay_for_ever(flaps: int) -> None:
    """It is as long as the most that a target can flap, and computed at once."""
    before = at_critical()
    before.target.gauge.flaps = flaps
    before.needed_mib = 100
    after = Restarted(before)
    assert 0 <= after.target.gauge.flaps <= MAX_FLAPS
    assert dwell(after.target.gauge, after.policy) <= after.policy.dwell_s * 2**MAX_FLAPS
    after.pass_time(after.policy.dwell_s * 2**MAX_FLAPS + 1)
    assert after.level() < Level.CRITICAL


def test_two_of_one_name_and_process_do_not_get_each_others_commands() -> None:
    """Their commands are lost, once each, and both are asked anew under numbers of their own."""
    before = Script()
    for subscriber in (1, 2):
        before.do(SubscriberJoined(subscriber, "twin", Role.INFERENCE, "llm", EVERYTHING, 9))
    before.need(950)
    sent = {command.seq for command in commands(before.effects)}
    assert sent
    after = Restarted(before)
    lost = [(effect.seq, effect.outcome) for effect in of(after.effects, CommandEnded)]
    assert sorted(lost) == [(seq, Outcome.LOST) for seq in sorted(sent)]
    for subscriber in (7, 8):
        orders = of(after.back(subscriber, "twin", 9), Deliver)
        assert {order.command.action for order in orders} >= {Action.REDUCE_BATCH, Action.REJECT_REQUESTS}
        assert {(order.subscriber, order.again) for order in orders} == {(subscriber, False)}
        assert not {order.command.seq for order in orders} & sent
    assert all(one.id > 0 for one in after.target.ledger.subscribers.values())


def test_a_restore_that_one_of_two_alike_is_owed_both_get() -> None:
    """Nobody knows whose restriction it lifts."""
    before = Script()
    for subscriber in (1, 2):
        before.do(SubscriberJoined(subscriber, "twin", Role.INFERENCE, "llm", EVERYTHING, 9))
    before.need(950)
    before.needed_mib = 100
    before.pass_time(120)
    assert before.target.ledger.rung is Level.NORMAL
    after = Restarted(before)
    after.back(7, "twin", 9)
    after.back(8, "twin", 9)
    after.effects.clear()
    after.pass_time(WAIT_S + 2)
    restored = {o.subscriber for o in of(after.effects, Deliver) if o.command.action is Action.RESTORE}
    assert restored == {7, 8}
