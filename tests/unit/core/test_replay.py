"""Replaying: as it was, and as it would have been."""

from collections.abc import Iterable

import msgspec
import pytest

from edgeguardd.core import checkpoint
from edgeguardd.core.config import Config, LastResorts, LastResortStep, Mark, Policy, TargetSpec
from edgeguardd.core.decisions import Kind, decisions
from edgeguardd.core.difference import difference
from edgeguardd.core.effects import AnnounceLevel, CommandEnded, Deliver, Effect, Note
from edgeguardd.core.events import LastResortEnded, TargetAdded, TimerFired
from edgeguardd.core.model import AckStatus, Action, LastResort, Level, Outcome
from edgeguardd.core.recording import RecordingError, Segment
from edgeguardd.core.replay import Changed, Opened, Step, recorded
from tests.support.recordings import Taped, incident
from tests.support.script import notes, of


def effects(steps: Iterable[Opened | Step]) -> list[Effect]:
    """What the engine ordered, in order."""
    return [effect for step in steps if isinstance(step, Step) for effect in step.effects]


def other(**policy: object) -> Config:
    """A configuration with another policy for llm."""
    return Config(targets=(TargetSpec("llm", path="/llm", policy=msgspec.structs.replace(Policy(), **policy)),))


EARLY = other(elevated=Mark(ratio=0.40))


def test_a_recording_replays_to_the_same_orders() -> None:
    """One file alone: each event has exactly the effects that it had."""
    script = incident(Taped())
    steps = [step for step in recorded(script.segments()) if isinstance(step, Step)]
    assert [(step.now, step.event, step.effects) for step in steps] == script.steps
    assert len(of(script.effects, Deliver)) > 3


def test_sizes_of_notes_are_told_in_mib() -> None:
    """Beside the figures of the orders, which are; the JSON keeps bytes."""
    engine = next(step for step in recorded(incident(Taped()).segments()) if isinstance(step, Step)).engine
    notes: list[Effect] = [
        Note("info", "limit_raised", {"target": "llm", "from": 80 << 20, "to": 94 << 20}),
        Note("warning", "escalated", {"target": "llm", "rung": "high", "needed_bytes": 3 << 19, "step": True}),
    ]
    told = [d.sentence for d in decisions([Step(0.0, 0.0, TimerFired("t"), notes, engine)])]
    assert told == ["limit raised: from 80.0 MiB, to 94.0 MiB", "escalated: rung high, needed 1.5 MiB, step True"]


def test_each_segment_replays_by_itself() -> None:
    """A ring that has lost its first segments loses only them: every later one begins where it has to."""
    script = Taped()
    script.join()
    script.need(300)
    for mib in range(300, 990, 10):
        script.cut()
        script.need(mib)
        script.pass_time(0.5)
    segments = script.segments()
    assert len(segments) > 60
    for number in range(len(segments)):
        steps = [step for step in recorded(script.segments()[number:]) if isinstance(step, Step)]
        assert [(step.now, step.event, step.effects) for step in steps] == script.steps[-len(steps) :]


def test_a_segment_that_follows_finds_the_engine_where_it_was() -> None:
    """The checkpoint of every later segment equals what the replay has come to."""
    script = Taped()
    script.join()
    for mib in range(300, 990, 10):
        script.cut()
        script.need(mib)
    opened = [item for item in recorded(script.segments()) if isinstance(item, Opened)]
    assert [item.exact for item in opened] == [None] + [True] * (len(opened) - 1)


def test_where_events_are_missing_the_checkpoint_is_taken_instead() -> None:
    """A segment that was not ended in order is not continued, and the replay is right again after it."""
    script = Taped()
    script.join()
    script.need(300)
    script.cut(complete=False)
    script.need(900)
    script.pass_time(5)
    segments = script.segments()
    _, second = [item for item in recorded(segments) if isinstance(item, Opened)]
    assert (second.continuous, second.exact) == (False, None)
    assert effects(recorded(script.segments())) == script.effects


def test_an_engine_that_stands_elsewhere_is_told_and_put_right() -> None:
    """A missing sample between segments that claim to be continuous: not exact, and the recorded state counts."""
    script = Taped()
    script.join()
    script.need(300)
    script.cut()
    script.need(500)
    script.cut()
    script.need(900)
    one, _, three = script.files
    # The second segment's place is taken by an empty one, of the same number.
    liar = Taped()
    liar.need(1)
    liar.cut()
    liar.need(2)
    liar.cut()
    segments = [Segment(one, "1"), Segment(liar.files[1], "2"), Segment(three, "3")]
    opened = [item.exact for item in recorded(segments) if isinstance(item, Opened)]
    assert opened == [None, False, False]


def test_the_state_keeps_what_two_hold_together() -> None:
    """What a trim took is learned by the gauge and used by the ledger: one object before and after."""
    script = incident(Taped())
    copy = checkpoint.decode(msgspec.json.decode(msgspec.json.encode(checkpoint.encode(script.engine))))
    target = copy.targets["llm"]
    assert target.gauge.lead is target.ledger._lead
    assert target.gauge.lead.learned_s is not None
    assert target.gauge.lead is not script.target.gauge.lead


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        ["x"],
        ["o"],
        ["o", "engine.Engine", "targets"],
        ["o", "os.System"],
        ["o", "engine.share_of"],
        ["o", "target.Target", "name", "llm"],
        ["o", "model.Level", "value", 1],
        ["e", "model.Level", 99],
        ["e", "target.Target", 1],
        ["r", 5],
        ["l", 1],
        ["q", "x"],
        ["d", 1],
        ["s", ["l"]],
    ],
)
def test_a_checkpoint_that_is_none_is_refused(state: object) -> None:
    """Whatever a file says, only constructors of core run, and the error is one sentence."""
    with pytest.raises(checkpoint.CheckpointError, match="cannot read a checkpoint"):
        checkpoint.decode(state)


def test_what_cannot_be_carried_over_is_a_defect() -> None:
    """A function or a foreign object in the engine's state fails at once, not at the next replay."""
    script = Taped()
    for thing in (print, object(), Segment, open):
        script.target.reason = thing  # type: ignore[assignment]
        with pytest.raises(TypeError, match="cannot carry over"):
            checkpoint.encode(script.engine)


def test_a_defect_of_the_engine_is_survived_as_the_daemon_survives_it() -> None:
    """The step says what was raised, and the replay goes on."""
    script = Taped()
    script.join()
    script.need(300)
    script.need(900)
    segment = script.segments()[0]
    engine = segment.engine()
    engine.targets = None  # type: ignore[assignment]
    segment.engine = lambda: engine  # type: ignore[method-assign]
    steps = [step for step in recorded([segment]) if isinstance(step, Step)]
    assert len(steps) == len(script.steps)
    assert steps[0].defect == "AttributeError: 'NoneType' object has no attribute 'get'"


def test_a_segment_that_the_ring_has_dropped_is_a_gap() -> None:
    """The one after it begins anew, though both were ended in order."""
    script = Taped()
    script.need(300)
    script.cut()
    script.need(700)
    script.cut()
    script.need(800)
    script.cut()
    one, _, three = script.segments()
    opened = [item.continuous for item in recorded([one, three]) if isinstance(item, Opened)]
    assert opened == [False, False]


OLDER = b'{"type":"checkpoint","state":["o","target.Target","name","llm"]}'


def test_a_recording_of_another_version_names_it() -> None:
    """A state that does not fit says which version can replay it, and others are still replayed."""
    script = Taped(version="0.0.9")
    script.need(300)
    script.cut(complete=False)
    script.need(400)
    script.cut(complete=False)
    script.need(500)
    segments = script.segments()
    segments[1]._checkpoint = OLDER
    with pytest.raises(RecordingError, match=r"segment 1.*edgeguardd 0\.0\.9, which wrote it"):
        list(recorded(segments))
    told: list[RecordingError] = []
    steps = [step for step in recorded(segments, told.append) if isinstance(step, Step)]
    assert [step.event for step in steps] == [event for _, event, _ in [*script.steps[:3], *script.steps[4:]]]
    assert len(told) == 1


def test_a_run_of_another_version_replays_from_its_start() -> None:
    """Nothing had happened before its first segment, and the later ones follow: only exactness is lost, and said."""
    script = Taped(version="0.0.9")
    script.join()
    script.need(300)
    script.cut()
    script.need(650)
    segments = script.segments()
    for segment in segments:
        segment._checkpoint = OLDER
    assert effects(recorded(segments)) == script.effects
    assert [item.exact for item in recorded(segments) if isinstance(item, Opened)] == [False, False]


def test_an_object_that_has_learned_a_field_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the class does not declare its fields: what an older version wrote would lack some."""
    state = checkpoint.encode(Taped().engine)
    monkeypatch.setitem(checkpoint._shapes(), type(Taped().target.ledger), {"target", "policy"})
    with pytest.raises(checkpoint.CheckpointError, match=r"ledger\.Ledger has other fields in this version"):
        checkpoint.decode(state)


# Under another configuration


def test_the_same_configuration_changes_nothing() -> None:
    """Its own timers, matched acks and all: each order goes out when it did."""
    script = incident(Taped())
    changed = Changed(script.segments(), script.config)
    assert effects(changed.steps()) == script.effects
    assert not changed.left_out
    assert difference(decisions(recorded(script.segments())), decisions(changed.steps())) == []


def test_the_same_configuration_changes_nothing_from_the_middle_on() -> None:
    """A later segment by itself: what is in force already is not put in force again."""
    script = Taped()
    script.join()
    script.ramp(700, 20)
    script.cut()
    script.ramp(990, 20)
    script.pass_time(30)
    later = script.segments()[1:]
    assert effects(Changed(later, script.config).steps()) == effects(recorded(later))


def test_timers_ring_when_they_rang() -> None:
    """A daemon's timer is late by a little; one that both have rings at that time, not at the time it was set for."""
    script = Taped()
    script.join()
    script.need(650)
    (key,) = [key for key in script.timers if key.startswith("deadline:")]
    script.now = script.timers[key] + 0.015
    script.need(660)
    script.do(TimerFired(key))
    script.need(670)
    changed = Changed(script.segments(), script.config)
    assert effects(changed.steps()) == script.effects


def test_lower_marks_ask_earlier_by_the_time_it_took() -> None:
    """40 % instead of 60 % of the 700 MiB beyond what is held at rest: 140 MiB, which take 6 s at 24 MiB/s."""
    script = incident(Taped())
    found = difference(decisions(recorded(script.segments())), decisions(Changed(script.segments(), EARLY).steps()))
    changes = {(change.kind, change.what): change for change in found[0].changes}
    level = changes[Kind.LEVEL, "elevated"]
    trim = changes[Kind.COMMAND, "trim_kv_cache"]
    assert level.earlier_s == pytest.approx(6, abs=0.6)
    assert trim.earlier_s == pytest.approx(level.earlier_s)
    assert found[0].target == "llm"


def test_what_follows_an_order_without_an_answer_is_a_guess() -> None:
    """The first trim is sure, since only memory calls for it. What its deadline brings is not, and says so."""
    script = incident(Taped())
    found = difference(decisions(recorded(script.segments())), decisions(Changed(script.segments(), EARLY).steps()))
    changes = {(change.kind, change.what): change for change in found[0].changes}
    assert not changes[Kind.COMMAND, "trim_kv_cache"].guess
    assert not changes[Kind.LEVEL, "elevated"].guess
    assert changes[Kind.COMMAND, "reduce_batch"].guess


def test_a_jump_reaches_every_level_on_its_way() -> None:
    """From normal to critical at once is elevated and high as well; a fall reaches nothing but normal."""
    script = Taped()
    script.need(10)
    script.need(950)
    script.need(10)
    script.pass_time(60)
    lazy = other(high=Mark(ratio=0.98), critical=Mark(ratio=0.99))
    (episode,) = difference(decisions(recorded(script.segments())), decisions(Changed(script.segments(), lazy).steps()))
    levels = {change.what: change for change in episode.changes if change.kind is Kind.LEVEL}
    assert set(levels) == {"high", "critical", "normal"}
    assert (levels["high"].changed_s, levels["critical"].changed_s) == (None, None)
    assert levels["normal"].earlier_s is not None
    assert levels["normal"].earlier_s > 0


def test_marks_that_are_never_reached_say_never() -> None:
    """With marks above all that was needed nothing goes out."""
    script = Taped()
    script.join()
    script.need(300)
    script.ramp(700, 10)
    script.need(100)
    script.pass_time(60)
    high = other(elevated=Mark(ratio=0.9), high=Mark(ratio=0.95), critical=Mark(ratio=0.98))
    (episode,) = difference(decisions(recorded(script.segments())), decisions(Changed(script.segments(), high).steps()))
    trim = next(change for change in episode.changes if change.what == "trim_kv_cache")
    assert trim.recorded_s is not None
    assert (trim.changed_s, trim.earlier_s, trim.changed_times) == (None, None, 0)


def test_acks_go_to_the_command_of_the_same_action() -> None:
    """The recorded answer to the trim answers the other engine's trim, whatever number it has."""
    script = Taped()
    script.join()
    script.need(450)
    script.pass_time(8)
    script.need(650)
    (trim,) = [order.command for order in of(script.effects, Deliver)]
    script.now += 0.1
    script.need(300)
    script.ack(trim)
    script.pass_time(1)
    changed = Changed(script.segments(), EARLY)
    ended = of(effects(changed.steps()), CommandEnded)
    (done,) = [end for end in ended if end.outcome is Outcome.DONE]
    assert (done.action, done.claimed_bytes) == (trim.action, trim.parameters.release_bytes)
    assert done.seq > trim.seq
    assert not changed.left_out


def test_a_late_ack_is_not_taken_for_the_answer_to_the_next_command() -> None:
    """A server that answers a trim that ran out, when another is on its way, has not answered that other one."""
    script = Taped()
    script.join()
    script.need(650)
    script.pass_time(8)
    trims = [order.command for order in of(script.effects, Deliver) if order.command.action is Action.TRIM_KV_CACHE]
    assert len(trims) > 1
    script.ack(trims[0])
    assert notes(script.effects, "late_ack")
    changed = Changed(script.segments(), script.config)
    assert effects(changed.steps()) == script.effects
    assert not changed.left_out
    earlier = effects(Changed(script.segments(), EARLY).steps())
    assert Outcome.DONE not in {end.outcome for end in of(earlier, CommandEnded)}


def test_acks_to_orders_that_were_not_given_are_left_out_and_counted() -> None:
    """A server cannot answer what it was not asked."""
    script = Taped()
    script.join()
    script.need(650)
    for order in of(script.effects, Deliver):
        script.ack(order.command)
    high = other(elevated=Mark(ratio=0.9), high=Mark(ratio=0.95), critical=Mark(ratio=0.98))
    changed = Changed(script.segments(), high)
    assert of(effects(changed.steps()), CommandEnded) == []
    assert changed.left_out == {"acks": 1}


def test_a_last_resort_that_was_not_ordered_does_not_end() -> None:
    """What the daemon did itself happened only under the configuration that ordered it."""
    steps = LastResorts(critical=(LastResortStep(LastResort.RECLAIM),))
    script = Taped(Policy(last_resort=steps))
    script.need(950)
    assert any(effect.__class__.__name__ == "RunLastResort" for effect in script.effects)
    script.do(LastResortEnded("llm", LastResort.RECLAIM, "done"))
    changed = Changed(script.segments(), Config(targets=(TargetSpec("llm", path="/llm"),)))
    told = [d.what for d in decisions(changed.steps())]
    assert "last_resort_ended" not in told
    assert changed.left_out == {"last resorts (reclaim)": 1}
    same = Changed(script.segments(), script.config)
    assert "last_resort_ended" in [d.what for d in decisions(same.steps())]


def test_a_recording_that_begins_in_the_middle_takes_the_other_marks_from_there() -> None:
    """The checkpoint's engine is reconfigured as by a reload; its commands still get their answers."""
    script = Taped()
    script.join()
    script.need(650)
    (trim,) = [order.command for order in of(script.effects, Deliver)]
    script.cut()
    script.need(640)
    script.need(300)
    script.ack(trim)
    later = script.segments()[1:]
    changed = Changed(later, other(high=Mark(ratio=0.64)))
    orders = effects(changed.steps())
    assert of(orders, AnnounceLevel)[0].level is Level.HIGH
    assert [end.outcome for end in of(orders, CommandEnded) if end.seq == trim.seq][-1] in {
        Outcome.DONE,
        Outcome.SUPERSEDED,
    }


def test_deadlines_run_out_by_themselves_under_the_other_configuration() -> None:
    """Nobody answered a trim that was not sent then; in the replay it expires at its deadline."""
    script = Taped()
    script.join()
    script.need(450)
    script.pass_time(10)
    changed = Changed(script.segments(), EARLY)
    ended = of(effects(changed.steps()), CommandEnded)
    assert ended[0].outcome is Outcome.EXPIRED
    assert ended[0].took_s == pytest.approx(5.0)


def test_targets_that_are_not_named_are_judged_by_the_defaults() -> None:
    """And said, so that a misspelt name is noticed; a glob's targets are found by the glob's name."""
    script = Taped()
    script.do(TargetAdded("pods:/kube/a", "/kube/a", Policy()))
    script.do(TargetAdded("/self/b", "/self/b", Policy()))
    strict = Policy(elevated=Mark(ratio=0.1))
    config = Config(targets=(TargetSpec("pods", glob="/kube/*", policy=strict),))
    changed = Changed(script.segments(), config)
    *_, last = changed.steps()
    assert isinstance(last, Step)
    assert last.engine.targets["pods:/kube/a"].policy == strict
    assert changed.by_defaults == {"llm", "/self/b"}


def test_an_unanswered_ack_status_is_kept() -> None:
    """`accepted` and `failed` reach the other engine as they were said."""
    script = Taped()
    script.join()
    script.need(650)
    (trim,) = [order.command for order in of(script.effects, Deliver)]
    script.ack(trim, AckStatus.ACCEPTED)
    script.ack(trim, AckStatus.FAILED)
    changed = Changed(script.segments(), other(dwell_s=99.0))
    assert [end.outcome for end in of(effects(changed.steps()), CommandEnded)] == [Outcome.FAILED]
