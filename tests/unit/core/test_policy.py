"""The rules beyond the marks, as scripts: early, right, and sure."""

from edgeguardd.core.config import MachineConfig, Mark, Policy, SamplingConfig
from edgeguardd.core.effects import AnnounceLevel, Note
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AdmitAsked,
    CgroupAppeared,
    MachineSampled,
    ReportReceived,
    SampleTaken,
    SubscriberJoined,
    TargetAdded,
)
from edgeguardd.core.growth import Growth, Lead
from edgeguardd.core.model import AckStatus, Action, Level, MachineSample, Report, Role, Sample
from tests.support.script import EVERYTHING, MIB, Script, actions, commands, of, usage

GIB = 1 << 30


# Growth and time


def test_a_ramp_is_measured_and_a_burst_is_not_taken_for_one() -> None:
    """A ramp of 100 MiB/s reads as nearly that; one step of 100 MiB as a fraction of it, and not for long."""
    ramp, burst = Growth(), Growth()
    for tick in range(31):
        ramp.learn(tick * 10 * MIB, tick / 10)
        burst.learn(100 * MIB if tick >= 10 else 0, tick / 10)
        if tick == 11:
            assert burst.bytes_per_s < 40 * MIB
    assert 60 * MIB < ramp.bytes_per_s <= 100 * MIB
    assert burst.bytes_per_s < 5 * MIB


def test_a_gap_counts_as_the_rate_that_it_had() -> None:
    """An hour of suspend with 1 GiB more after it is no ramp."""
    growth = Growth()
    growth.learn(0, 0.0)
    growth.learn(GIB, 3600.0)
    assert growth.bytes_per_s < MIB


def test_the_lead_is_learned_from_slow_trims_and_forgotten_by_quick_ones() -> None:
    """Half as long again as the slowest lately, within floor and ceiling."""
    lead = Lead()
    assert lead.seconds(0.5, 30) == 0.5
    lead.learn(4.0)
    assert lead.seconds(0.5, 30) == 6.0
    for _ in range(30):
        lead.learn(0.1)
    assert lead.seconds(0.5, 30) == 0.5
    lead.learn(300)
    assert lead.seconds(0.5, 30) == 30


def test_a_command_goes_out_while_there_is_time_to_obey_it() -> None:
    """With marks far up, a learned lead of 3 s makes 100 MiB/s elevated 3 s before the limit, high 1.5 s before it."""
    far = Policy(elevated=Mark(ratio=0.90), high=Mark(ratio=0.95), critical=Mark(ratio=0.98))
    script = Script(far)
    script.join()
    script.target.gauge.lead.learn(2.0)
    effects = script.ramp(890, mib_per_s=100)
    first, second = of(effects, AnnounceLevel)[:2]
    assert (first.level, second.level) == (Level.ELEVATED, Level.HIGH)
    assert "a trim takes 3.00 s" in first.reason
    (trim, *_) = commands(effects)
    assert (trim.parameters.release_bytes or 0) > 0


def test_a_fast_ramp_is_told_well_before_the_limit() -> None:
    """200 MiB/s from nothing, sampled as the engine asks to be sampled: told while at least a quarter is left."""
    script = Script(sampling=SamplingConfig())
    script.join()
    script.need(10)
    needed, interval = 10.0, 1.0
    while script.level() is Level.NORMAL:
        needed += 200 * interval
        script.now += interval
        script.need(needed)
        interval = script.target.interval_s or 1.0
    assert needed < 750


def test_a_slow_leak_is_told_once_a_level() -> None:
    """1 MiB/s from 10 % to 95 %: three rises, no fall, and with trims that cannot help no storm of commands."""
    script = Script()
    script.need(100)
    effects = script.ramp(950, mib_per_s=1.5, every_s=1.0)
    assert [change.level for change in of(effects, AnnounceLevel)] == [Level.ELEVATED, Level.HIGH, Level.CRITICAL]


# A model that is loaded

FAR = Policy(elevated=Mark(ratio=0.90), high=Mark(ratio=0.95), critical=Mark(ratio=0.98))


def loading(script: Script, to_mib: float) -> list[Level]:
    """Needed bytes run up by 400 MiB/s and stop there; the levels told meanwhile."""
    effects = script.ramp(to_mib, mib_per_s=400, every_s=0.1) + script.pass_time(3, every=0.1)
    return [change.level for change in of(effects, AnnounceLevel)]


def test_a_model_that_is_loaded_again_is_no_ramp() -> None:
    """Up to what the server holds at rest, as it has reported, nothing is in a hurry; above that it is as ever."""
    script = Script(FAR)
    script.join()
    script.target.gauge.lead.learn(2.0)
    script.do(ReportReceived(1, Report(static_bytes=700 * MIB)))
    script.need(50)
    script.pass_time(5)
    assert loading(script, 700) == []
    assert script.target.gauge.growth.bytes_per_s == 0
    assert Level.ELEVATED in loading(script, 960)


def test_without_a_report_it_is_a_ramp_until_the_report_says_otherwise() -> None:
    """What was learned while a model came in is void from the moment that the server says what it holds."""
    script = Script(FAR)
    script.join()
    script.target.gauge.lead.learn(2.0)
    script.need(50)
    script.ramp(450, mib_per_s=100)
    assert script.target.gauge.growth.bytes_per_s > 60 * MIB
    script.do(ReportReceived(1, Report(static_bytes=700 * MIB)))
    script.need(450)
    assert script.target.gauge.growth.bytes_per_s == 0
    # Measured anew, a little more or less of it changes nothing.
    script.ramp(800, mib_per_s=100)
    before = script.target.gauge.growth.bytes_per_s
    script.do(ReportReceived(1, Report(static_bytes=705 * MIB)))
    assert script.target.gauge.growth.bytes_per_s == before > 0


def test_what_is_needed_without_the_model_is_not_what_is_held_at_rest() -> None:
    """Learned with the model in, kept while it is out and comes back, and followed from then on as before."""
    script = Script(Policy(settle_s=10, lead_floor_s=0.1))
    script.join()
    script.need(500)
    script.pass_time(30, every=1.0)
    assert script.target.static_bytes == 500 * MIB
    script.move(oom_kill=1)
    (unload,) = [c for c in commands(script.effects) if c.action is Action.UNLOAD_MODEL]
    script.need(40)
    for command in [waiting.command for waiting in script.target.ledger.outstanding.values()]:
        script.ack(command)
    assert unload.seq not in script.target.ledger.outstanding
    assert not script.target.ledger.obeyed().model_loaded
    assert script.target.static_bytes == 500 * MIB
    while not script.target.ledger.obeyed().model_loaded:
        for command in commands(script.pass_time(1, every=0.5)):
            script.ack(command)
    before = len(script.effects)
    assert loading(script, 500) == []
    assert script.target.static_bytes >= 450 * MIB
    assert not [c for c in commands(script.effects[before:]) if c.action is Action.TRIM_KV_CACHE]
    script.need(440)
    assert script.target.static_bytes == 440 * MIB


# What is held at rest


def test_ninety_percent_static_is_left_in_peace_for_ten_minutes() -> None:
    """Reported or configured: no command, no level."""
    for policy, report in [(Policy(), Report(static_bytes=900 * MIB)), (Policy(static_bytes=900 * MIB), None)]:
        script = Script(policy)
        script.join()
        if report is not None:
            script.do(ReportReceived(1, report))
        script.need(905)
        effects = script.pass_time(600, every=1.0)
        assert actions(script.effects) == []
        assert of(effects, AnnounceLevel) == []


def test_what_stands_still_at_a_normal_level_is_learned_as_static() -> None:
    """500 MiB at rest for a while: from then on 60 % of the other 500 is elevated, not 600."""
    script = Script(Policy(settle_s=10))
    script.need(500)
    script.pass_time(30, every=1.0)
    script.ramp(780, mib_per_s=5)
    assert script.level() is Level.NORMAL
    script.ramp(810, mib_per_s=5)
    assert script.level() is Level.ELEVATED


def test_a_leak_is_not_learned_as_static() -> None:
    """What grows does not stand still: the marks stay where they were."""
    script = Script(Policy(settle_s=10))
    script.need(300)
    script.ramp(650, mib_per_s=3, every_s=1.0)
    assert script.level() is Level.ELEVATED


def test_a_server_at_its_floor_is_believed_and_left_alone() -> None:
    """It answered every rung and nothing came: what is left is its rest, and 10 minutes pass in silence."""
    script = Script()
    script.join()
    script.need(700)
    for _ in range(20):
        for waiting in list(script.target.ledger.outstanding.values()):
            if waiting.command.seq in script.target.ledger.outstanding:
                script.ack(waiting.command, AckStatus.FAILED)
        script.pass_time(1, every=0.5)
    for waiting in list(script.target.ledger.outstanding.values()):
        script.ack(waiting.command)
    script.pass_time(30, every=0.5)
    for waiting in list(script.target.ledger.outstanding.values()):
        script.ack(waiting.command)
    assert script.target.static_bytes == 700 * MIB
    assert script.level() is Level.NORMAL
    assert actions(script.pass_time(600, every=1.0)) == []


# Thrash, PSI, livelock


def thrash(script: Script, mapped_mib: float, anon_mib: float, refaults: int, seconds: float) -> None:
    """The target's limit is full; so many pages are refaulted a second."""
    for _ in range(int(seconds * 10)):
        script.now += 0.1
        refaulted_bytes = script.target.gauge.refaulted_bytes or 0
        own = usage(
            "/llm",
            mapped_mib + anon_mib,
            current_bytes=990 * MIB,
            refaulted_bytes=refaulted_bytes + refaults // 10 * 4096,
            mapped_bytes=int(mapped_mib * MIB),
        )
        script.do(SampleTaken(Sample("llm", (own,))))


def test_mapped_weights_being_evicted_raise_before_any_oom() -> None:
    """Needed bytes stand at 55 %, but 150 MiB of weights are gone and read again at 40 MiB/s: high."""
    script = Script()
    script.join()
    thrash(script, 400, 200, refaults=0, seconds=2)
    assert script.level() >= Level.ELEVATED
    script = Script()
    script.join()
    thrash(script, 400, 150, refaults=0, seconds=2)
    assert script.level() is Level.NORMAL
    thrash(script, 250, 300, refaults=10_000, seconds=2)
    assert script.level() is Level.HIGH
    assert "read again" in script.target.reason or "range" in script.target.reason
    assert "trim_kv_cache" in actions(script.effects)


def test_weights_given_up_are_not_missed() -> None:
    """The model is unloaded: mapped falls, nothing is read again, and nothing is called for."""
    script = Script()
    thrash(script, 500, 50, refaults=0, seconds=2)
    thrash(script, 0, 50, refaults=0, seconds=20)
    assert script.level() is Level.NORMAL
    assert script.target.gauge.evicted_bytes == 0


def test_a_file_read_over_and_over_is_no_thrash() -> None:
    """Refaults without a mapped page lost are cache recycled."""
    script = Script()
    thrash(script, 100, 100, refaults=20_000, seconds=5)
    assert script.level() is Level.NORMAL


def psi(script: Script, needed_mib: float, stall_ratio: float, seconds: float) -> None:
    """Tasks of the target wait for this share of the time."""
    for _ in range(int(seconds * 10)):
        script.now += 0.1
        script.stalled = getattr(script, "stalled", 0) + int(stall_ratio * 100_000)  # type: ignore[attr-defined]
        own = usage("/llm", needed_mib, psi_some_us=script.stalled)  # type: ignore[attr-defined]
        script.do(SampleTaken(Sample("llm", (own,))))


def test_psi_counts_only_with_little_headroom() -> None:
    """Half of the time stalled: nothing at 30 % of the range, high at 65 %."""
    script = Script()
    psi(script, 300, 0.5, 3)
    assert script.level() is Level.NORMAL
    psi(script, 650, 0.5, 1)
    assert script.level() is Level.HIGH


def test_high_without_progress_is_a_livelock() -> None:
    """memory.high counts every 200 ms for 3 s and needed bytes stay: critical. If they fall, it is not."""
    for falls, level in [(0.0, Level.CRITICAL), (2.0, Level.HIGH)]:
        script = Script()
        needed = 750.0
        script.need(needed)
        for _ in range(25):
            script.now += 0.2
            needed -= falls
            script.need(needed)
            script.move(high=100)
        assert script.level() is level, falls


# Flapping and restoring


def test_flapping_lengthens_the_dwell() -> None:
    """Up and down again and again: each time the level stays up twice as long, at most eight times as long."""
    script = Script(Policy(dwell_s=1))
    stays = []
    for _ in range(5):
        script.need(650)
        up = script.now
        script.need(100)
        while script.level() is not Level.NORMAL:
            script.pass_time(0.25, every=0.25)
        stays.append(round(script.now - up))
    assert stays == [1, 2, 4, 8, 8]


# The gate


def test_rejecting_follows_what_a_request_needs() -> None:
    """At critical with room for a request nobody is rejected; without it they are, until there is room for two."""
    script = Script(Policy(elevated=Policy().elevated))
    script.join()
    script.do(ReportReceived(1, Report(bytes_per_request=10 * MIB)))
    assert "reject_requests" not in actions(script.need(800))
    effects = script.need(915) + script.need(925)
    assert "reject_requests" in actions(effects)
    assert not script.target.ledger.in_force().accept_requests
    script.need(912)
    assert not script.target.ledger.in_force().accept_requests
    restored = commands(script.need(895))
    assert [c.parameters.accept_requests for c in restored if c.action is Action.RESTORE] == [True]
    assert script.target.ledger.in_force().accept_requests


def test_a_request_size_is_learned_from_admissions() -> None:
    """Nobody reports it: the typical admitted request counts."""
    script = Script()
    script.join()
    script.need(100)
    for number in range(50):
        script.do(AdmitAsked(1, str(number), bytes=8 * MIB))
    assert script.target.request_bytes == 8 * MIB


# Several targets, one slice, one machine


def several(engine: Engine, **priorities: int) -> None:
    """Targets of these names and priorities, each with one server of its number."""
    for number, (name, priority) in enumerate(priorities.items(), 1):
        engine.handle(TargetAdded(name, f"/s/{name}", Policy(priority=priority)), 1.0)
        engine.handle(CgroupAppeared(name), 1.0)
        engine.handle(SubscriberJoined(number, name, Role.INFERENCE, name, EVERYTHING), 1.0)


def sample(engine: Engine, name: str, own_mib: float, slice_mib: float, now: float) -> list[str]:
    """One sample of a target below /s, whose memory.max is 1000 MiB; the actions ordered."""
    usages = (usage(f"/s/{name}", own_mib, max_mib=None), usage("/s", slice_mib))
    return [f"{c.target}:{c.action}" for c in commands(engine.handle(SampleTaken(Sample(name, usages)), now))]


def test_under_one_slice_the_lowest_priority_gives_first() -> None:
    """The slice is at 70 %: only the less important server is asked, for what the slice wants."""
    engine = Engine()
    several(engine, control=10, llm=0)
    sample(engine, "control", 200, 500, 2.0)
    sample(engine, "llm", 300, 500, 2.0)
    asked = sample(engine, "control", 200, 700, 3.0) + sample(engine, "llm", 500, 700, 3.0)
    assert asked == ["llm:trim_kv_cache"]


def test_when_the_first_has_nothing_left_the_next_is_asked() -> None:
    """The less important server is at its floor: the other one is asked."""
    engine = Engine()
    several(engine, control=10, llm=0)
    engine.handle(TargetAdded("llm", "/s/llm", Policy(priority=0, floor_bytes=500 * MIB)), 1.5)
    sample(engine, "llm", 500, 500, 2.0)
    sample(engine, "control", 200, 500, 2.0)
    asked = sample(engine, "llm", 500, 700, 3.0) + sample(engine, "control", 200, 700, 3.0)
    assert asked == ["control:trim_kv_cache"]


def machine(available_mib: int, total_mib: int = 8000) -> MachineSampled:
    return MachineSampled(MachineSample(total_mib * MIB, available_mib * MIB))


def test_the_machine_asks_the_lowest_priority_for_what_it_wants() -> None:
    """10 % available: the less important server is asked for the missing bytes, the other one is not."""
    engine = Engine(machine=MachineConfig())
    several(engine, control=10, llm=0)
    for name, mib in [("control", 200.0), ("llm", 3000.0)]:
        own = usage(f"/s/{name}", mib, max_mib=None)
        engine.handle(SampleTaken(Sample(name, (own,))), 2.0)
    effects = engine.handle(machine(800), 3.0)
    (trim,) = commands(effects)
    assert trim.target == "llm"
    assert (trim.parameters.release_bytes or 0) // MIB == 1360 - 800 - 1
    assert engine.guard.worst_level() is Level.ELEVATED
    assert [n.event for n in of(effects, Note)] == ["machine_level_changed"]


def test_the_machine_comes_back_slowly_and_restores() -> None:
    """Available again: after the dwell its level falls, and with it what was asked for it."""
    engine = Engine()
    several(engine, llm=0)
    engine.handle(SampleTaken(Sample("llm", (usage("/s/llm", 3000, max_mib=None),))), 2.0)
    engine.handle(machine(600), 3.0)
    levels = [engine.targets["llm"].level]
    for second in range(4, 30):
        engine.handle(machine(6000), float(second))
        levels.append(engine.targets["llm"].level)
    assert list(dict.fromkeys(levels)) == [Level.HIGH, Level.ELEVATED, Level.NORMAL]


def test_a_level_that_falls_with_the_machines_says_what_the_machine_has_now() -> None:
    """A target without a limit was never judged by itself: "not sampled yet" would be untrue, an old reason as well."""
    engine = Engine()
    several(engine, llm=0)
    engine.handle(SampleTaken(Sample("llm", (usage("/s/llm", 3000, max_mib=None),))), 2.0)
    engine.handle(machine(600), 3.0)
    fallen = []
    for second in range(4, 30):
        effects = engine.handle(machine(6000), float(second))
        fallen += [(line.level, line.reason) for line in of(effects, AnnounceLevel)]
    machines = "machine: above the mark for 5 s: 6000 of 8000 MiB (75%) are available"
    assert fallen == [
        (Level.ELEVATED, machines),
        (Level.NORMAL, f"{machines}; no limit on the way to the root"),
    ]


def test_a_level_that_falls_because_others_are_asked_says_so() -> None:
    """The machine wants as much as before; a server of less importance has come, and gives it."""
    engine = Engine()
    several(engine, control=10, llm=0)
    engine.handle(SampleTaken(Sample("control", (usage("/s/control", 500, max_mib=None),))), 2.0)
    engine.handle(machine(800), 3.0)
    assert engine.targets["control"].level is Level.ELEVATED
    engine.handle(SampleTaken(Sample("llm", (usage("/s/llm", 3000, max_mib=None),))), 4.0)
    lines = [line for line in of(engine.handle(machine(800), 5.0), AnnounceLevel) if line.target == "control"]
    assert [(line.level, line.reason) for line in lines] == [
        (Level.NORMAL, "machine: others are asked to give; no limit on the way to the root")
    ]


def test_full_swap_makes_it_worse_by_one() -> None:
    """Without swap the marks count alone; with swap that is nearly full one level more."""
    for total, free, level in [(0, 0, Level.ELEVATED), (4000, 3000, Level.ELEVATED), (4000, 100, Level.HIGH)]:
        engine = Engine()
        figures = MachineSample(8000 * MIB, 1000 * MIB, total * MIB, free * MIB)
        engine.handle(MachineSampled(figures), 3.0)
        assert engine.machine.level is level, (total, free)
