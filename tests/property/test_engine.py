"""Any sequence of facts: no command lost or ended twice, nothing below a mark, and replay gives the same."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeguardd.core import machine as machines
from edgeguardd.core.config import MachineConfig, Policy
from edgeguardd.core.effects import AnswerAdmit, CommandEnded, Deliver
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    AdmitAsked,
    CgroupVanished,
    CountersMoved,
    Event,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    MachineSampled,
    ReliefFailed,
    ReportReceived,
    SampleFailed,
    SampleTaken,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.core.model import AckStatus, Action, Counters, LastResort, Level, MachineSample, Report, Role, Sample
from edgeguardd.core.relief import Phase
from tests.support.script import EVERYTHING, Script, usage

SUBSCRIBERS = st.integers(1, 3)
FACTS = st.one_of(
    st.builds(
        lambda mib, high: SampleTaken(Sample("llm", (usage("/llm", mib, high),))),
        st.integers(0, 1100),
        st.none() | st.integers(100, 900),
    ),
    st.builds(
        lambda key: CountersMoved("llm", "/llm", True, Counters(**{key: 1})),
        st.sampled_from(["low", "high", "max", "oom", "oom_kill"]),
    ),
    st.builds(
        lambda s, a: SubscriberJoined(s, "s", Role.INFERENCE, "llm", a),
        SUBSCRIBERS,
        st.frozensets(st.sampled_from(sorted(EVERYTHING))),
    ),
    st.builds(lambda s: SubscriberLeft(s, "gone"), SUBSCRIBERS),
    st.builds(AckReceived, SUBSCRIBERS, st.integers(0, 30), st.sampled_from(list(AckStatus))),
    st.builds(lambda mib: LimitRaised("llm", 500 << 20, mib << 20), st.integers(501, 900)),
    st.builds(lambda outcome: LimitPutBack("llm", outcome), st.sampled_from(["restored", "changed", "failed"])),
    st.just(ReliefFailed("llm", "cannot")),
    st.builds(
        lambda a, o: LastResortEnded("llm", a, o), st.sampled_from(LastResort), st.sampled_from(["done", "failed"])
    ),
    st.builds(lambda mib: MachineSampled(MachineSample(8000 << 20, mib << 20)), st.integers(0, 8000)),
    st.builds(
        lambda s, static, each: ReportReceived(s, Report(static_bytes=static, bytes_per_request=each)),
        SUBSCRIBERS,
        st.none() | st.integers(0, 1200 << 20),
        st.none() | st.integers(0, 100 << 20),
    ),
    st.builds(lambda s, n: AdmitAsked(s, str(n), bytes=n << 20), SUBSCRIBERS, st.integers(0, 500)),
    st.just(SampleFailed("llm", "cannot read")),
    st.just(CgroupVanished("llm")),
    st.just(TargetDropped("llm")),
    st.just(TargetAdded("llm", "/llm", Policy())),
)
STEPS = st.lists(st.tuples(FACTS, st.floats(0, 3)), max_size=60)


class Shell:
    """What the daemon guarantees: one join and one leave a subscriber, ids never used twice."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.last = 0

    def translate(self, event: Event) -> Event | None:
        match event:
            case SubscriberJoined(subscriber, name, role, target, supports):
                if subscriber in self.ids:
                    return None
                self.last += 1
                self.ids[subscriber] = self.last
                return SubscriberJoined(self.last, name, role, target, supports)
            case SubscriberLeft(subscriber, reason):
                known = self.ids.pop(subscriber, None)
                return None if known is None else SubscriberLeft(known, reason)
            case AckReceived() | ReportReceived() | AdmitAsked():
                known = self.ids.get(event.subscriber)
                return None if known is None else msgspec.structs.replace(event, subscriber=known)
            case _:
                return event


def play(steps: list[tuple[Event, float]]) -> Script:
    script, shell = Script(), Shell()
    for fact, wait_s in steps:
        script.pass_time(wait_s, sample=False)
        event = shell.translate(fact)
        if event is not None:
            script.do(event)
    return script


@settings(max_examples=150)
@given(STEPS)
def test_every_delivery_ends_exactly_once_or_is_outstanding(steps: list[tuple[Event, float]]) -> None:
    """Delivered = ended + outstanding, as multisets of (subscriber, seq)."""
    script = play(steps)
    delivered = [(e.subscriber, e.command.seq) for e in script.effects if isinstance(e, Deliver)]
    ended = [(e.subscriber, e.seq) for e in script.effects if isinstance(e, CommandEnded)]
    waiting = [
        (o.subscriber, o.command.seq)
        for target in script.engine.targets.values()
        for o in target.ledger.outstanding.values()
    ]
    assert sorted(delivered) == sorted(ended + waiting)


@settings(max_examples=150)
@given(STEPS)
def test_no_degradation_below_the_marks(steps: list[tuple[Event, float]]) -> None:
    """A restriction is only ever ordered while the target's level is raised."""
    script = play(steps)
    for effect in script.effects:
        if isinstance(effect, Deliver) and effect.command.action is not Action.RESTORE:
            assert effect.command.level > Level.NORMAL


@settings(max_examples=150)
@given(STEPS)
def test_every_outstanding_command_has_its_deadline_timer(steps: list[tuple[Event, float]]) -> None:
    """No command can wait for ever, and no timer outlives its command."""
    script = play(steps)
    due = {key for key in script.timers if key.startswith("deadline:")}
    waiting = {
        f"deadline:{o.command.seq}:llm"
        for target in script.engine.targets.values()
        for o in target.ledger.outstanding.values()
    }
    assert due == waiting


@settings(max_examples=150)
@given(STEPS)
def test_back_to_rest_everything_is_restored(steps: list[tuple[Event, float]]) -> None:
    """Whatever happened, low memory and answering servers end at normal with nothing in force."""
    script = play(steps)
    script.do(MachineSampled(MachineSample(8000 << 20, 7000 << 20)))
    script.needed_mib = 10
    for _ in range(150):
        script.pass_time(1.0, every=1.0)
        script.do(MachineSampled(MachineSample(8000 << 20, 7000 << 20)))
        for target in script.engine.targets.values():
            for o in list(target.ledger.outstanding.values()):
                if o.command.seq in target.ledger.outstanding:
                    script.do(AckReceived(o.subscriber, o.command.seq, AckStatus.DONE))
    for target in script.engine.targets.values():
        assert target.gauge.level is Level.NORMAL
        assert target.ledger.rung is Level.NORMAL
        assert all(not s.applied for s in target.ledger.subscribers.values())


@settings(max_examples=150)
@given(STEPS)
def test_replay_gives_the_same_orders(steps: list[tuple[Event, float]]) -> None:
    """The engine has no hidden input: the same facts at the same times give equal effects."""
    first = play(steps)
    second = play(steps)
    assert first.effects == second.effects


@settings(max_examples=150)
@given(STEPS)
def test_a_lifted_limit_is_put_back_when_no_trim_is_on_its_way(steps: list[tuple[Event, float]]) -> None:
    """Whatever happened: no trim outstanding, no limit that stays lifted without its return being ordered."""
    script = play(steps)
    for target in script.engine.targets.values():
        if target.relief.phase is Phase.LIFTED:
            assert target.ledger.commands.trimming


@settings(max_examples=150)
@given(STEPS)
def test_what_is_granted_fits(steps: list[tuple[Event, float]]) -> None:
    """Promises never exceed the room that there was when the last one was given."""
    script, shell = Script(), Shell()
    for fact, wait_s in steps:
        script.pass_time(wait_s, sample=False)
        event = shell.translate(fact)
        if event is None:
            continue
        granted = any(isinstance(e, AnswerAdmit) and e.granted for e in script.do(event))
        target = script.engine.targets.get("llm")
        room = None if target is None else target.room_bytes()
        if granted and target is not None and room is not None:
            assert target.admissions.reserved_bytes(script.now) <= max(0, room)


def test_an_engine_without_targets_ignores_everything() -> None:
    """Facts about targets that are not (any more) guarded are harmless."""
    engine = Engine()
    assert engine.handle(SampleTaken(Sample("llm", (usage(),))), 1.0) == []
    assert engine.handle(CgroupVanished("llm"), 2.0) == []


@given(st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 10**7), st.floats(0, 8)), max_size=30))
def test_a_rise_of_the_machine_is_foreseen(looks: list[tuple[int, int, float]]) -> None:
    """Exactly where the same sample then raises the level, and foreseeing changes nothing."""
    gauge, config, now, stalled_us = machines.MachineGauge(), MachineConfig(), 0.0, 0
    for available_mib, some_us, wait_s in looks:
        now, stalled_us = now + wait_s, stalled_us + some_us
        sample = MachineSample(8000 << 20, available_mib << 20, psi_some_us=stalled_us)
        before, was = msgspec.json.encode(gauge), gauge.level
        foreseen = machines.rises(gauge, config, sample, now)
        assert msgspec.json.encode(gauge) == before
        machines.observe(gauge, config, sample, now)
        assert foreseen == (gauge.level > was)
