"""The engine as scripts: memory, answers and time in; orders out."""

import msgspec

from edgeguardd.core.config import Policy, SamplingConfig
from edgeguardd.core.effects import (
    AnswerAdmit,
    CommandEnded,
    Disconnect,
    Refuse,
    SampleEvery,
    Welcome,
)
from edgeguardd.core.events import (
    AdmitAsked,
    CgroupVanished,
    ReportReceived,
    SampleFailed,
    SubscriberJoined,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.core.model import AckEffect, AckStatus, Action, InForce, Level, Outcome, Report, Role
from tests.support.script import MIB, Script, actions, commands, notes, of, outcomes

# Commands


def test_each_level_asks_for_its_rung() -> None:
    """elevated trims; high also halves the batch; critical also rejects."""
    script = Script()
    script.join()
    assert actions(script.need(650)) == ["trim_kv_cache"]
    assert actions(script.need(850)) == ["trim_kv_cache", "reduce_batch"]
    assert actions(script.need(950)) == ["trim_kv_cache", "reduce_batch", "reject_requests"]


def test_a_trim_asks_for_the_bytes_that_bring_it_below_the_mark() -> None:
    """700 of 1000 MiB with elevated at 60 % and 6 points to let the level fall: 160 MiB to go, to 540 MiB."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    assert trim.parameters.release_bytes == 160 * MIB
    assert trim.parameters.needed_target_bytes == 540 * MIB
    assert trim.level is Level.ELEVATED
    assert "70%" in trim.reason


def test_no_command_without_its_support() -> None:
    """What hello did not offer is not asked for."""
    script = Script()
    script.join(supports=frozenset({Action.REJECT_REQUESTS}))
    assert actions(script.need(850)) == []
    assert actions(script.need(950)) == ["reject_requests"]


def test_nobody_to_ask_is_said_loudly() -> None:
    """No subscriber at critical: an error in the log, not silence."""
    (note,) = notes(Script().need(950), "nobody_to_ask")
    assert note.severity == "error"


def test_a_helpful_trim_ends_done_and_is_not_repeated() -> None:
    """Memory fell below the mark: no further command, whatever time passes."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    script.need(500)
    assert outcomes(script.ack(trim)) == [("trim_kv_cache", "done")]
    assert actions(script.pass_time(60)) == []


def test_freed_bytes_are_measured_not_believed() -> None:
    """The server claims 160 MiB, 40 left: both are in the outcome."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    script.need(660)
    (ended,) = of(script.ack(trim), CommandEnded)
    assert (ended.claimed_bytes, ended.freed_bytes) == (160 * MIB, 40 * MIB)
    assert ended.outcome is Outcome.DONE


def test_done_without_effect_counts_as_failure_and_escalates_at_once() -> None:
    """A liar is not believed: half a second later the next rung is asked. `logical` is believed at once."""
    for effect, within_s in [(AckEffect.RELEASED, 0.6), (AckEffect.LOGICAL, 0.0), (AckEffect.NONE, 0.0)]:
        script = Script()
        script.join()
        (trim,) = commands(script.need(700))
        effects = script.ack(trim, effect=effect) + script.pass_time(within_s, every=0.1)
        assert outcomes(effects)[0] == ("trim_kv_cache", "ineffective"), effect
        assert actions(effects) == ["trim_kv_cache", "reduce_batch"], effect


def test_bytes_that_leave_a_moment_after_done_count() -> None:
    """Another thread of the server frees: the sample after the ack shows it, and the trim is done."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    assert outcomes(script.ack(trim)) == []
    script.now += 0.1
    assert outcomes(script.need(500)) == [("trim_kv_cache", "done")]


def test_no_answer_by_the_deadline_escalates() -> None:
    """Silence is a failure: expired, then the next rung."""
    script = Script()
    script.join()
    script.need(700)
    effects = script.pass_time(5.1)
    assert outcomes(effects) == [("trim_kv_cache", "expired")]
    assert actions(effects) == ["trim_kv_cache", "reduce_batch"]


def test_failed_and_unsupported_escalate() -> None:
    """A failure escalates; what turned out unsupported is not asked again."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    assert actions(script.ack(trim, AckStatus.FAILED)) == ["trim_kv_cache", "reduce_batch"]
    second = commands(script.effects)[-2]
    script.ack(second, AckStatus.UNSUPPORTED)
    assert "trim_kv_cache" not in actions(script.pass_time(30))


def test_accepted_alone_is_no_outcome() -> None:
    """accepted keeps the deadline running."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    assert script.ack(trim, AckStatus.ACCEPTED) == []
    assert outcomes(script.pass_time(5.1)) == [("trim_kv_cache", "expired")]


def test_escalation_stops_below_unloading_while_the_level_is_not_critical() -> None:
    """A server that fails everything at elevated is not made to unload its model; the end is said once, loudly."""
    script = Script()
    script.join()
    script.need(700)
    for _ in range(20):
        for command in [o.command for o in script.target.ledger.outstanding.values()]:
            if command.seq in script.target.ledger.outstanding:
                script.ack(command, AckStatus.FAILED)
        script.pass_time(1)
    assert "unload_model" not in actions(script.effects)
    assert len(notes(script.effects, "ladder_exhausted")) == 1


def test_at_the_floor_repeats_stop_until_memory_grows() -> None:
    """Nothing left to give: silence at the same size, a new try after growth."""
    script = Script()
    script.join()
    script.need(700)
    script.pass_time(120)
    assert script.target.ledger.exhausted
    assert set(actions(script.pass_time(60))) <= {"restore"}
    script.needed_mib = 730
    assert "trim_kv_cache" in actions(script.pass_time(1))


def test_repeats_within_a_level_obey_the_hold_off() -> None:
    """A trim that helped, but not enough, is repeated after repeat_s with the new amount."""
    script = Script(Policy(repeat_s=2))
    script.join()
    (trim,) = commands(script.need(780))
    script.need(700)
    script.ack(trim)
    assert actions(script.pass_time(1.5)) == []
    again = commands(script.pass_time(1))
    assert [c.parameters.release_bytes for c in again] == [160 * MIB]


def test_a_trim_obeyed_to_the_byte_lets_the_level_fall() -> None:
    """needed_target_bytes is low enough: back to normal after the dwell, and nothing more is asked."""
    script = Script(Policy(dwell_s=2))
    script.join()
    (trim,) = commands(script.need(700))
    script.need((trim.parameters.needed_target_bytes or 0) / MIB)
    script.ack(trim)
    assert actions(script.pass_time(10)) == []
    assert script.level() is Level.NORMAL


def test_freed_bytes_are_those_of_trims_only() -> None:
    """What a trim frees is not counted again for the reduce_batch beside it."""
    script = Script()
    script.join()
    trim, reduce = commands(script.need(850))
    script.need(500)
    ends = of(script.ack(trim) + script.ack(reduce), CommandEnded)
    assert [(e.action.value, e.freed_bytes) for e in ends] == [("trim_kv_cache", 350 * MIB), ("reduce_batch", None)]


def test_a_server_started_after_a_kill_is_not_told_to_unload() -> None:
    """The emergency still stands from the kill, memory is low: the fresh server gets restrictions, no unload."""
    script = Script()
    script.need(100)
    script.move(oom_kill=1)
    assert "unload_model" not in actions(script.join())


def test_each_reason_has_the_figures_of_its_moment() -> None:
    """A repeated trim speaks of what is needed now, not of what once raised the level."""
    script = Script()
    script.join()
    (first,) = commands(script.need(780))
    script.need(700)
    script.ack(first)
    (again,) = commands(script.pass_time(3))
    assert "780.0 MiB" in first.reason
    assert "700.0 MiB" in again.reason


def test_what_the_figures_do_not_allow_is_said_once() -> None:
    """No limit on the way to the root, or static bytes beyond it: one note each."""
    script = Script()
    unlimited = [e for _ in range(5) for e in script.need(50, max_mib=None)]
    assert len(notes(unlimited, "no_limit")) == 1
    script = Script(Policy(static_bytes=5000 * MIB))
    beyond = [e for _ in range(5) for e in script.need(50)]
    assert len(notes(beyond, "static_over_limit")) == 1


def test_a_newer_command_supersedes_an_unanswered_one() -> None:
    """The trim of elevated ends superseded when high asks anew; every command ends once."""
    script = Script()
    script.join()
    script.need(650)
    assert outcomes(script.need(850)) == [("trim_kv_cache", "superseded")]


def test_an_ack_for_somebody_elses_command_is_refused() -> None:
    """The command stays outstanding, and the liar gets an error."""
    script = Script()
    script.join(1)
    script.join(2, supports=frozenset())
    (trim,) = commands(script.need(700))
    (refusal,) = of(script.ack(trim, subscriber=2), Refuse)
    assert (refusal.subscriber, refusal.code) == (2, "unknown_seq")
    assert trim.seq in script.target.ledger.outstanding


def test_an_ack_after_the_deadline_is_noted_not_punished() -> None:
    """Late is not lying."""
    script = Script()
    script.join()
    (trim,) = commands(script.need(700))
    script.pass_time(5.1)
    effects = script.ack(trim)
    assert of(effects, Refuse) == []
    assert len(notes(effects, "late_ack")) == 1


def test_a_second_server_of_the_target_still_counts_when_the_first_fails() -> None:
    """The round is judged when all have answered; one helper is enough."""
    script = Script()
    script.join(1)
    script.join(2)
    first, second = commands(script.need(700))
    assert actions(script.ack(first, AckStatus.FAILED, 1)) == []
    script.need(640)
    assert actions(script.ack(second, AckStatus.DONE, 2)) == []


def test_a_subscriber_that_leaves_loses_its_commands_and_others_are_asked() -> None:
    """The command ends lost, once."""
    script = Script()
    script.join()
    script.need(700)
    effects = script.leave()
    assert outcomes(effects) == [("trim_kv_cache", "lost")]
    assert len(notes(effects, "nobody_to_ask")) == 1


def test_who_joins_late_gets_what_is_in_force() -> None:
    """State, not edges: welcome tells the level and the restrictions, the rung's commands follow."""
    script = Script()
    script.need(950)
    effects = script.join()
    (welcome,) = of(effects, Welcome)
    assert welcome.level is Level.CRITICAL
    assert welcome.in_force == InForce(0.25, False, True)
    assert actions(effects) == ["trim_kv_cache", "reduce_batch", "reject_requests"]


# Targets


def test_a_vanished_cgroup_drops_its_commands_and_frees_bridges() -> None:
    """The bridge outside the cgroup is told to restore; the level is normal again."""
    script = Script()
    script.join()
    script.need(950)
    effects = script.do(CgroupVanished("llm"))
    assert {outcome for _, outcome in outcomes(effects)} == {"dropped"}
    assert actions(effects) == ["restore"]
    assert script.level() is Level.NORMAL


def test_a_dropped_target_disconnects_its_subscribers() -> None:
    """Every command ends; nobody is left waiting on a target that is not guarded."""
    script = Script()
    script.join()
    script.need(950)
    effects = script.do(TargetDropped("llm"))
    assert [d.subscriber for d in of(effects, Disconnect)] == [1]
    assert "llm" not in script.engine.targets
    assert len(outcomes(effects)) == len(commands(script.effects))


def test_new_marks_apply_to_the_last_sample_at_once() -> None:
    """A reload with lower marks raises the level without waiting for a sample."""
    script = Script()
    script.need(500)
    policy = msgspec.structs.replace(script.policy, elevated=msgspec.structs.replace(script.policy.elevated, ratio=0.4))
    script.do(TargetAdded("llm", "/llm", policy))
    assert script.level() is Level.ELEVATED


def test_an_unreadable_target_is_degraded_once_and_comes_back() -> None:
    """One note when it begins, one when it ends, the level kept meanwhile."""
    script = Script()
    script.need(850)
    effects = [e for _ in range(10) for e in script.do(SampleFailed("llm", "cannot read memory.stat: EIO"))]
    assert len(notes(effects, "target_degraded")) == 1
    assert script.level() is Level.HIGH
    assert len(notes(script.need(850), "target_readable_again")) == 1


def test_an_observer_sees_and_is_asked_nothing() -> None:
    """An observer is welcomed with the worst level and gets no command."""
    script = Script()
    script.need(950)
    effects = script.do(SubscriberJoined(9, "top", Role.OBSERVER, None, frozenset()))
    assert of(effects, Welcome)[0].level is Level.CRITICAL
    assert actions(effects) == []


# Sampling


def test_sampling_is_slow_far_away_and_fast_near() -> None:
    """Twice slow_s at rest, faster as growth nears the mark, fast_s at a raised level."""
    script = Script(sampling=SamplingConfig(fast_s=0.1, slow_s=1.0))
    (rest,) = of(script.need(100), SampleEvery)
    assert rest.interval_s == 2.0
    script.now += 2
    (growing,) = of(script.need(400), SampleEvery)
    assert 0.1 <= growing.interval_s < 1.0
    script.now += 1
    (raised,) = of(script.need(700), SampleEvery)
    assert raised.interval_s == 0.1


def test_every_second_look_is_left_out_only_with_half_of_the_way_to_go() -> None:
    """From what is held at rest to the first mark: 400 to 760 of 1000 MiB here. Twice as far, half as often."""
    script = Script(sampling=SamplingConfig(fast_s=0.1, slow_s=1.0), policy=Policy(static_bytes=400 * MIB))
    (nearer,) = of(script.need(590), SampleEvery)
    assert nearer.interval_s == 1.0
    script.now += 1
    (farther,) = of(script.need(570), SampleEvery)
    assert farther.interval_s == 2.0


# Admission


def test_admit_promises_no_byte_twice() -> None:
    """420 MiB of room below critical: four of ten askers for 100 MiB get it."""
    script = Script()
    script.join()
    script.need(500)
    answers = [
        answer.granted
        for n in range(10)
        for answer in of(script.do(AdmitAsked(1, str(n), bytes=100 * MIB)), AnswerAdmit)
    ]
    assert answers == [True] * 4 + [False] * 6


def test_a_finished_request_gives_its_promise_back() -> None:
    """finished frees the room for the next one."""
    script = Script()
    script.join()
    script.need(500)
    script.do(AdmitAsked(1, "a", bytes=400 * MIB))
    (refused,) = of(script.do(AdmitAsked(1, "b", bytes=400 * MIB)), AnswerAdmit)
    script.do(ReportReceived(1, Report(), finished=("a",)))
    (granted,) = of(script.do(AdmitAsked(1, "b", bytes=400 * MIB)), AnswerAdmit)
    assert (refused.granted, granted.granted) == (False, True)
    assert refused.retry_after_s


def test_a_promise_runs_out() -> None:
    """A request never reported finished does not hold memory for ever."""
    script = Script()
    script.join()
    script.need(500)
    script.do(AdmitAsked(1, "a", bytes=400 * MIB))
    script.pass_time(31)
    (granted,) = of(script.do(AdmitAsked(1, "b", bytes=400 * MIB)), AnswerAdmit)
    assert granted.granted


def test_tokens_are_counted_with_the_reported_bytes_per_token() -> None:
    """1000 tokens of 1 MiB do not fit into 420 MiB; unknown sizes are granted."""
    script = Script()
    script.join()
    script.need(500)
    (unknown,) = of(script.do(AdmitAsked(1, "a", tokens=1000)), AnswerAdmit)
    script.do(ReportReceived(1, Report(bytes_per_token=MIB)))
    (known,) = of(script.do(AdmitAsked(1, "b", tokens=1000)), AnswerAdmit)
    assert (unknown.granted, known.granted) == (True, False)


def test_while_rejecting_nothing_is_admitted() -> None:
    """reject_requests in force answers every admit with no and a reason."""
    script = Script()
    script.join()
    script.need(950)
    (answer,) = of(script.do(AdmitAsked(1, "a", bytes=1)), AnswerAdmit)
    assert not answer.granted
    assert "rejected" in answer.reason
