"""What the ledger says and remembers, where the scripts of test_engine look only at what it orders."""

import pytest

from edgeguardd.core.config import Policy
from edgeguardd.core.effects import CommandEnded, Deliver, Effect, Fact, Note, SetTimer
from edgeguardd.core.events import AckReceived, SampleFailed, TargetDropped, TimerFired
from edgeguardd.core.model import AckStatus, Action, Command, InForce, Level, Outcome, Parameters
from tests.support.script import EVERYTHING, MIB, Script, notes, of

RESTING = Policy(dwell_s=1, restore_dwell_s=1, lead_floor_s=0.01, lead_ceiling_s=0.01)


def answer(script: Script, action: Action, status: AckStatus, message: str | None = None) -> list[Effect]:
    """Every command of this action on its way to server 1 gets this answer."""
    seen = len(script.effects)
    for one in list(script.target.ledger.outstanding.values()):
        if one.command.action is action:
            script.do(AckReceived(1, one.command.seq, status, None, None, message))
    return script.effects[seen:]


# What status shows


def test_what_is_shown_as_obeyed_is_what_was_told_not_what_the_rung_says() -> None:
    """Nothing with nobody there; then the restrictions of the servers that were told, and are still there."""
    script = Script(RESTING)
    script.need(950)
    assert script.target.ledger.obeyed() == InForce(1.0, True, True)
    script.join(1, frozenset({Action.REDUCE_BATCH}))
    assert script.target.ledger.obeyed() == InForce(0.25, True, True)
    script.join(2, frozenset({Action.REJECT_REQUESTS}))
    assert script.target.ledger.obeyed() == InForce(0.25, False, True)
    script.leave(1)
    assert script.target.ledger.obeyed() == InForce(1.0, False, True)


def test_an_unloaded_model_is_shown_as_obeyed() -> None:
    """At emergency the model is out, and status says so as long as it is."""
    script = Script(RESTING)
    script.join()
    script.need(950)
    assert script.target.ledger.obeyed().model_loaded
    script.move(oom_kill=1)
    assert not script.target.ledger.obeyed().model_loaded


def test_the_tightest_of_several_ratios_is_shown() -> None:
    """One server still at the elevated rung's ratio, another at the critical one's: the smaller counts."""
    script = Script(RESTING)
    script.join(1)
    script.join(2)
    script.need(850)
    script.leave(2)
    script.need(950)
    script.join(2)
    assert script.target.ledger.obeyed().max_batch_ratio == 0.25


# What is said


@pytest.mark.parametrize(("mib", "severity", "level"), [(650, "warning", "elevated"), (950, "error", "critical")])
def test_nobody_to_ask_is_said_with_its_figures(mib: int, severity: str, level: str) -> None:
    """A warning, and from critical on an error."""
    (note,) = notes(Script().need(mib), "nobody_to_ask")
    assert note == Note(severity, "nobody_to_ask", {"target": "llm", "level": level, "subscribers": 0})


def test_the_last_server_leaving_under_pressure_is_said_and_one_leaving_in_peace_is_not() -> None:
    """Only what matters now is said."""
    script = Script()
    script.join(1)
    script.join(2)
    assert notes(script.leave(2), "nobody_to_ask") == []
    assert notes(script.leave(1), "nobody_to_ask") == []
    script.join(1)
    script.join(2)
    script.need(950)
    assert notes(script.leave(2), "nobody_to_ask") == []
    assert len(notes(script.leave(1), "nobody_to_ask")) == 1


def test_the_floor_is_said_with_its_figures() -> None:
    """Every rung answered and nothing left to give: one error that names target, level and bytes."""
    script = Script(RESTING)
    script.join(1, frozenset({Action.TRIM_KV_CACHE}))
    script.need(950)
    while answer(script, Action.TRIM_KV_CACHE, AckStatus.FAILED, "nothing to trim"):
        pass
    fields: dict[str, Fact] = {"target": "llm", "level": "critical", "needed_bytes": 950 * MIB}
    assert notes(script.effects, "ladder_exhausted") == [Note("error", "ladder_exhausted", fields)]


def test_an_escalation_is_said_with_its_figures() -> None:
    """What less did not help: target, level, the rung that is asked now, and the bytes that are needed still."""
    script = climbed(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600), 650)
    fields: dict[str, Fact] = {"target": "llm", "level": "elevated", "rung": "high", "needed_bytes": 650 * MIB}
    assert notes(script.effects, "escalated") == [Note("warning", "escalated", fields)]


def test_the_message_of_a_failure_goes_with_the_command() -> None:
    """What the server gave as the reason is in what is logged of the command's end."""
    script = Script()
    script.join(1, frozenset({Action.TRIM_KV_CACHE}))
    script.need(850)
    ended = of(answer(script, Action.TRIM_KV_CACHE, AckStatus.FAILED, "slots are busy"), CommandEnded)
    assert [(e.outcome, e.message) for e in ended] == [(Outcome.FAILED, "slots are busy")]


def test_accepted_is_no_end() -> None:
    """The command stays outstanding until `done`, and then ends once."""
    script = Script()
    script.join(1, frozenset({Action.REDUCE_BATCH}))
    script.need(850)
    assert of(answer(script, Action.REDUCE_BATCH, AckStatus.ACCEPTED), CommandEnded) == []
    assert [one.accepted for one in script.target.ledger.outstanding.values()] == [True]
    ended = of(answer(script, Action.REDUCE_BATCH, AckStatus.DONE), CommandEnded)
    assert [e.outcome for e in ended] == [Outcome.DONE]


def test_a_restore_that_keeps_failing_is_said_once_and_tried_ever_more_rarely() -> None:
    """After 2, 4, 8 … s, never more than a minute apart; said at the third time, with target, server and outcome."""
    script = Script(RESTING)
    script.join(1, frozenset({Action.REDUCE_BATCH}))
    script.need(850)
    answer(script, Action.REDUCE_BATCH, AckStatus.DONE)
    script.need(100)
    while not script.target.ledger.outstanding:
        script.pass_time(0.5)
    pauses = []
    for _ in range(8):
        for timer in of(answer(script, Action.RESTORE, AckStatus.FAILED), SetTimer):
            if timer.key.startswith("owed:"):
                pauses.append(timer.at - script.now)
                script.now = timer.at
                del script.timers[timer.key]
                script.do(TimerFired(timer.key))
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    fields = {"target": "llm", "subscriber": "server1", "outcome": "failed"}
    assert notes(script.effects, "restore_failed") == [Note("error", "restore_failed", fields)]


# What holds a rung above the level


def trim_of(script: Script) -> Command:
    """The trim that is on its way."""
    asked = script.target.ledger.outstanding.values()
    return next(one.command for one in asked if one.command.action is Action.TRIM_KV_CACHE)


def climbed(policy: Policy, needed_mib: int) -> Script:
    """A target at `elevated` with the rung one above, because its trim freed nothing."""
    script = Script(policy)
    script.join()
    script.need(needed_mib)
    answer(script, Action.TRIM_KV_CACHE, AckStatus.FAILED)
    assert (script.level(), script.target.ledger.rung) == (Level.ELEVATED, Level.HIGH)
    return script


def test_a_rung_that_less_did_not_help_stays_until_something_is_freed() -> None:
    """At the same needed bytes and level the higher rung holds for as long as its commands have no answer."""
    script = climbed(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600), 650)
    script.pass_time(1.9)
    assert script.target.ledger.outstanding
    assert script.target.ledger.rung is Level.HIGH


def test_a_rung_above_the_level_falls_once_a_trim_has_freed_something() -> None:
    """Memory is still at elevated, but what was asked has worked: capacity comes back to what the level calls for."""
    script = climbed(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600), 700)
    trim = next(
        o.command for o in script.target.ledger.outstanding.values() if o.command.action is Action.TRIM_KV_CACHE
    )
    script.need(650)
    script.ack(trim)
    script.pass_time(3)
    assert (script.level(), script.target.ledger.rung) == (Level.ELEVATED, Level.ELEVATED)


def test_growth_since_the_climb_holds_the_rung_although_a_trim_freed_something() -> None:
    """More than 2 % of the limit above where it stood at the climb is growth, exactly 2 % is not."""
    for grown_mib, rung in [(20, Level.ELEVATED), (21, Level.HIGH)]:
        script = climbed(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600, lead_floor_s=0, lead_ceiling_s=0), 700)
        script.need(600)
        script.ack(trim_of(script))
        script.need(700 + grown_mib)
        script.pass_time(1.9)
        assert (script.level(), script.target.ledger.rung) == (Level.ELEVATED, rung), grown_mib


@pytest.mark.parametrize(
    "supports",
    [
        EVERYTHING,
        frozenset({Action.REDUCE_BATCH, Action.REJECT_REQUESTS}),
        frozenset({Action.REJECT_REQUESTS}),
        frozenset(),
    ],
    ids=["everything", "restrictions", "rejecting", "nothing"],
)
def test_what_was_restricted_at_critical_is_given_back_at_elevated(supports: frozenset[Action]) -> None:
    """Memory stays between two marks for good: no server is held to what a higher level asked for, kill or none."""
    for needed_mib, kills in [(950, 0), (50, 1)]:
        script = Script()
        script.join(1, supports)
        script.need(needed_mib)
        script.move(oom_kill=kills)
        for _ in range(120):
            for one in list(script.target.ledger.outstanding.values()):
                if one.command.seq in script.target.ledger.outstanding:
                    script.ack(one.command)
            script.needed_mib = 650
            script.pass_time(1)
        assert script.level() is Level.ELEVATED
        assert script.target.ledger.rung is Level.ELEVATED, kills
        assert script.target.ledger.obeyed() == InForce(1.0, True, True)


def test_a_restriction_that_is_obeyed_frees_nothing_and_the_rung_stays() -> None:
    """Only a trim that gave what it was asked for says that memory has come back."""
    script = climbed(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600), 650)
    answer(script, Action.REDUCE_BATCH, AckStatus.DONE)
    script.pass_time(1.9)
    assert (script.level(), script.target.ledger.rung) == (Level.ELEVATED, Level.HIGH)


def test_what_is_restored_says_all_that_is_free_again() -> None:
    """After an emergency: batch, requests and model."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1))
    script.join()
    script.need(500)
    script.move(oom_kill=1)
    for one in list(script.target.ledger.outstanding.values()):
        script.ack(one.command)
    script.need(50)
    seen = len(script.effects)
    for _ in range(20):
        script.pass_time(1)
        for one in list(script.target.ledger.outstanding.values()):
            script.ack(one.command)
    restores = [e.command for e in of(script.effects[seen:], Deliver) if e.command.action is Action.RESTORE]
    free = Parameters(max_batch_ratio=1.0, accept_requests=True, model_loaded=True)
    assert restores[-1].parameters == free


def test_what_a_server_cannot_do_is_not_shown_as_obeyed() -> None:
    """It said so: nothing of it is in force there."""
    script = Script()
    script.join(1, frozenset({Action.REDUCE_BATCH}))
    script.need(850)
    assert script.target.ledger.obeyed().max_batch_ratio == 0.5
    answer(script, Action.REDUCE_BATCH, AckStatus.UNSUPPORTED)
    assert script.target.ledger.obeyed() == InForce(1.0, True, True)


def test_what_has_failed_is_asked_again_in_the_next_round() -> None:
    """At the same rung; what was done is not."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=2))
    script.join(1, frozenset({Action.REDUCE_BATCH, Action.REJECT_REQUESTS}))
    script.need(950)
    answer(script, Action.REDUCE_BATCH, AckStatus.FAILED)
    answer(script, Action.REJECT_REQUESTS, AckStatus.DONE)
    seen = len(script.effects)
    script.pass_time(3)
    assert {e.command.action for e in of(script.effects[seen:], Deliver)} == {Action.REDUCE_BATCH}


def test_when_the_last_one_that_was_waited_for_leaves_the_round_is_judged() -> None:
    """What the others could not give is asked for at the next rung at once."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600))
    script.join(1)
    script.join(2)
    script.need(650)
    trims = list(script.target.ledger.outstanding.values())
    script.ack(next(one.command for one in trims if one.subscriber == 1), AckStatus.FAILED)
    before = script.target.ledger.rung
    asked = of(script.leave(2), Deliver)
    assert (before, script.target.ledger.rung) == (Level.ELEVATED, Level.HIGH)
    assert {e.subscriber for e in asked} == {1}


def test_a_critical_level_holds_whatever_was_freed() -> None:
    """At emergency's rung over a critical level nothing is given back while memory presses."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600))
    script.join()
    script.need(960)
    script.move(oom_kill=1)
    for one in list(script.target.ledger.outstanding.values()):
        script.ack(one.command)
    script.need(930)
    script.pass_time(10)
    assert (script.level(), script.target.ledger.rung) == (Level.CRITICAL, Level.EMERGENCY)


def test_with_nobody_left_the_rung_follows_the_level() -> None:
    """There is nobody to hold anything for."""
    script = climbed(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=3600), 650)
    script.leave(1)
    script.pass_time(3)
    assert script.target.ledger.rung is Level.ELEVATED


def test_a_vanished_target_in_peace_is_not_restored_and_one_under_pressure_is_once() -> None:
    """`restored` is said only where something was in force."""
    script = Script()
    script.join()
    assert notes(script.do(TargetDropped("llm")), "restored") == []
    script = Script()
    script.join()
    script.need(950)
    assert len(notes(script.do(TargetDropped("llm")), "restored")) == 1


# What policy says


def test_the_reason_of_a_counter_names_it_its_cgroup_and_by_how_much() -> None:
    """The level's reason is what status and the log show."""
    script = Script()
    script.need(650)
    script.move(max=3)
    assert script.target.gauge.reason == "max of /llm counted up by 3"
    assert script.target.gauge.changed_at == script.now


def test_counters_are_judged_by_the_elastic_range() -> None:
    """A server whose static bytes are most of its limit is far from it: its `high` counts are the page cache's."""
    script = Script(Policy(static_bytes=600 * MIB))
    script.need(650)
    assert len(notes(script.move(high=1), "counters_without_pressure")) == 1
    assert script.level() is Level.NORMAL


def test_a_level_without_figures_ages_and_says_why() -> None:
    """Nothing can be read any more: one step down a dwell, with the reason."""
    script = Script(Policy(dwell_s=2))
    script.do(SampleFailed("llm", "cannot read memory.stat: EIO"))
    script.move(oom_kill=1)
    script.pass_time(3, sample=False)
    assert script.level() is Level.CRITICAL
    assert script.target.gauge.reason == "nothing was counted for the dwell time, and nothing can be read"


def test_the_same_counter_again_does_not_raise_the_level_again() -> None:
    """A level that stands keeps its reason and the time of its change."""
    script = Script()
    script.need(650)
    script.move(high=1)
    then, reason = script.target.gauge.changed_at, script.target.gauge.reason
    script.now += 1
    script.move(high=5)
    assert (script.target.gauge.changed_at, script.target.gauge.reason) == (then, reason)
