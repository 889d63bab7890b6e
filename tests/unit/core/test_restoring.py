"""Capacity that comes back, as scripts: when, how much of it, and to whom it is owed."""

from edgeguardd.core.config import Mark, Policy
from edgeguardd.core.effects import (
    AnnounceLevel,
)
from edgeguardd.core.events import (
    SampleFailed,
)
from edgeguardd.core.model import AckStatus, Action, InForce, Level
from tests.support.script import MIB, Script, actions, commands, notes, of, outcomes


def all_done(script: Script) -> None:
    for outstanding in list(script.target.ledger.outstanding.values()):
        if outstanding.command.seq in script.target.ledger.outstanding:
            script.ack(outstanding.command, subscriber=outstanding.subscriber)


def test_capacity_comes_back_rung_by_rung() -> None:
    """critical → normal restores in steps, each with absolute parameters, the last one everything."""
    script = Script(Policy(dwell_s=2, restore_dwell_s=2))
    script.join()
    script.need(950)
    script.need(300)
    all_done(script)
    restores = []
    for _ in range(40):
        effects = script.pass_time(0.5)
        restores += [c.parameters for c in commands(effects) if c.action is Action.RESTORE]
        all_done(script)
    assert [(p.max_batch_ratio, p.accept_requests) for p in restores] == [(0.5, True), (1.0, True)]
    assert len(notes(script.effects, "restored")) == 1
    assert script.target.ledger.in_force() == InForce()


def test_an_unanswered_restore_is_tried_again_for_as_long_as_it_is_owed() -> None:
    """A server that did not hear stays restricted: tried again at growing pauses, said once, and quiet when done."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1))
    script.join(supports=frozenset({Action.REJECT_REQUESTS}))
    (reject,) = commands(script.need(950))
    script.ack(reject)
    script.need(100)
    effects = script.pass_time(600, every=1)
    assert set(actions(effects)) == {"restore"}
    assert 4 <= len(actions(effects)) <= 15
    assert len(notes(effects, "restore_failed")) == 1
    while not script.target.ledger.outstanding:
        script.pass_time(1)
    (last,) = [o.command for o in script.target.ledger.outstanding.values()]
    script.ack(last)
    assert actions(script.pass_time(600, every=1)) == []


def test_a_server_that_fails_a_restore_for_a_moment_is_not_asked_thrice_within_it() -> None:
    """Each further try comes after a pause."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1))
    script.join(supports=frozenset({Action.REJECT_REQUESTS}))
    (reject,) = commands(script.need(950))
    script.ack(reject)
    script.need(100)
    restore = commands(script.pass_time(3))[-1]
    assert actions(script.ack(restore, AckStatus.FAILED)) == []
    (again,) = commands(script.pass_time(5))
    script.ack(again)
    assert script.target.ledger.subscribers[1].told == {}


def test_a_restore_that_is_owed_later_does_not_get_lost_over_one_that_is_owed_sooner() -> None:
    """Two servers fail it at different times: each is asked again after its own pause."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1))
    for subscriber in (1, 2):
        script.join(subscriber, supports=frozenset({Action.REJECT_REQUESTS}))
    for command in commands(script.need(950)):
        script.ack(command, subscriber=command.seq)
    script.need(100)
    script.pass_time(10)
    assert script.target.ledger.rung is Level.NORMAL
    first, second = (o.command for o in list(script.target.ledger.outstanding.values()))
    assert (first.action, second.action) == (Action.RESTORE, Action.RESTORE)
    script.ack(first, AckStatus.FAILED, subscriber=1)
    script.pass_time(0.5)
    script.ack(second, AckStatus.FAILED, subscriber=2)
    for _ in range(60):
        script.pass_time(1, every=0.1)
        all_done(script)
    assert {one.id: one.told for one in script.target.ledger.subscribers.values()} == {1: {}, 2: {}}


def test_who_obeys_after_the_deadline_is_restored_as_well() -> None:
    """A throttled server is the one that answers late: expired, obeyed all the same, and freed in the end."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1))
    script.join()
    trim, reduce = commands(script.need(850))
    script.need(400)
    script.ack(trim)
    script.pass_time(0.5)
    script.timers[f"deadline:{reduce.seq}:llm"] = script.now
    assert ("reduce_batch", "expired") in outcomes(script.pass_time(0.1))
    script.ack(reduce)
    restores = [c for c in commands(script.pass_time(10)) if c.action is Action.RESTORE]
    assert restores[-1].parameters.max_batch_ratio == 1.0


def test_one_silent_server_does_not_stop_the_trims_of_the_others() -> None:
    """A ignores its restore; B goes on being asked every repeat."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=2))
    script.join(1, supports=frozenset({Action.REDUCE_BATCH}))
    script.join(2, supports=frozenset({Action.TRIM_KV_CACHE}))
    for command in commands(script.need(850)):
        if command.action is Action.REDUCE_BATCH:
            script.ack(command, subscriber=1)
    script.need(650)
    trims = 0
    for _ in range(20):
        script.needed_mib += 1
        for command in commands(script.pass_time(1), subscriber=2):
            trims += 1
            script.needed_mib -= 1
            script.need(script.needed_mib - 20)
            script.ack(command, subscriber=2)
            script.need(script.needed_mib + 20)
    assert trims >= 5


def test_headroom_marks_beyond_what_there_is_are_held_above_rest() -> None:
    """256 MiB of headroom asked of 250 that there are: said once, normal at rest, and still critical when it grows."""
    policy = Policy(elevated=Mark(ratio=0.5), critical=Mark(headroom_bytes=256 * MIB), static_bytes=150 * MIB)
    script = Script(policy)
    script.join()
    effects = [e for _ in range(20) for e in script.need(150, max_mib=400)]
    assert script.level() is Level.NORMAL
    assert actions(effects) == []
    assert len(notes(effects, "marks_below_rest")) == 1
    (first, *_) = commands(script.need(200, max_mib=400))
    assert script.level() is Level.CRITICAL
    assert (first.parameters.release_bytes or 0) > 0


def test_a_level_from_a_kill_ages_while_nothing_can_be_read() -> None:
    """Emergency by a kill, figures unreadable: it falls, a step a dwell, to what was last seen."""
    script = Script(Policy(dwell_s=1))
    script.need(100)
    script.do(SampleFailed("llm", "cannot read memory.high: EIO"))
    script.move(oom_kill=1)
    assert script.level() is Level.EMERGENCY
    falls = of(script.pass_time(6, sample=False), AnnounceLevel)
    assert [f.level for f in falls] == [Level.CRITICAL, Level.HIGH, Level.ELEVATED, Level.NORMAL]


def test_a_short_restore_dwell_does_not_flap_with_the_rounds() -> None:
    """Steady at 65 %, done without effect, restore_dwell below repeat: a few rounds, then left alone."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=1, repeat_s=2))
    script.join()
    script.need(650)
    for _ in range(60):
        all_done(script)
        script.pass_time(0.5)
    late = []
    for _ in range(60):
        all_done(script)
        late += actions(script.pass_time(0.5))
    assert late == []


def test_a_level_that_rises_again_cancels_restoring() -> None:
    """No restore while the level is up."""
    script = Script(Policy(dwell_s=1, restore_dwell_s=10))
    script.join()
    script.need(950)
    script.need(100)
    all_done(script)
    script.pass_time(3)
    script.need(950)
    all_done(script)
    assert "restore" not in actions(script.pass_time(30))


def test_a_restore_voids_restrictions_still_on_their_way() -> None:
    """An unanswered reject ends superseded when the restore goes out, so that it cannot count later."""
    policy = Policy(dwell_s=0.5, restore_dwell_s=0.5)
    script = Script(policy)
    script.join(supports=frozenset({Action.REJECT_REQUESTS}))
    script.need(950)
    script.need(100)
    assert ("reject_requests", "superseded") in outcomes(script.pass_time(3))
