"""Lifting memory.high and the last resort, as scripts: when, how far, and back."""

from edgeguardd.core.config import LastResorts, LastResortStep, Policy
from edgeguardd.core.effects import PutBackLimit, RaiseLimit, RunLastResort, Thaw
from edgeguardd.core.events import (
    CgroupVanished,
    LastResortEnded,
    LimitPutBack,
    LimitRaised,
    ReliefFailed,
    SampleTaken,
    TargetDropped,
)
from edgeguardd.core.model import LastResort, Level, Sample
from tests.support.script import MIB, Script, commands, of, usage


def over_high(script: Script, mib: float = 510, high: float = 500, limit: float | None = 1000) -> list[RaiseLimit]:
    return of(script.need(mib, high_mib=high, max_mib=limit), RaiseLimit)


def test_the_limit_is_lifted_while_a_trim_is_on_its_way_and_put_back_after() -> None:
    """Crossed and a trim asked: lifted by the allowance, ahead of the command; put back with the ack."""
    script = Script()
    script.join()
    effects = script.need(510, high_mib=500)
    assert isinstance(effects[0], RaiseLimit)
    assert (effects[0].from_bytes, effects[0].to_bytes) == (500 * MIB, 625 * MIB)
    assert of(script.do(LimitRaised("llm", 500 * MIB, 625 * MIB)), PutBackLimit) == []
    script.need(200, high_mib=625)
    trim = commands(script.effects)[0]
    assert len(of(script.ack(trim), PutBackLimit)) == 1
    script.do(LimitPutBack("llm", "restored"))
    assert script.target.relief.phase == "resting"


def test_it_is_put_back_when_the_deadline_passes_or_the_server_leaves() -> None:
    """Whatever ends the last trim ends the relief."""
    for ends in ("deadline", "leaves", "vanishes", "dropped"):
        script = Script(Policy(repeat_s=1000))
        script.join()
        over_high(script)
        script.do(LimitRaised("llm", 500 * MIB, 625 * MIB))
        script.needed_mib = 100
        match ends:
            case "deadline":
                effects = script.pass_time(6)
            case "leaves":
                effects = script.leave()
            case "vanishes":
                effects = script.do(CgroupVanished("llm"))
            case _:
                effects = script.do(TargetDropped("llm"))
        assert len(of(effects, PutBackLimit)) == 1, ends


def test_while_lifted_the_level_is_judged_against_the_old_limit() -> None:
    """A lifted limit is no headroom: at 510 of 500 MiB the level stays critical."""
    script = Script(Policy(dwell_s=1))
    script.join()
    over_high(script)
    script.do(LimitRaised("llm", 500 * MIB, 625 * MIB))
    for _ in range(20):
        script.now += 0.2
        script.need(510, high_mib=625)
    assert script.level() is Level.CRITICAL
    assert script.target.gauge.pressure is not None
    assert script.target.gauge.pressure.limit_bytes == 500 * MIB


def test_never_without_a_finite_bound_nor_over_it() -> None:
    """memory.max = max: not lifted at all. A memory.max close by bounds it, less the reserve."""
    script = Script()
    script.join()
    assert over_high(script, limit=None) == []
    script = Script()
    script.join()
    (lifted,) = over_high(script, limit=520)
    assert lifted.to_bytes == 520 * MIB - int(0.02 * 520 * MIB)
    script = Script()
    script.join()
    assert over_high(script, limit=501) == []


def test_not_lifted_far_below_the_limit_nor_when_switched_off_nor_after_a_failure() -> None:
    """60 % is no crossing; off is off; what could not be written is not tried again and again."""
    script = Script()
    script.join()
    assert over_high(script, mib=310) == []
    script = Script(Policy(relief=False))
    script.join()
    assert over_high(script) == []
    script = Script()
    script.join()
    over_high(script)
    script.do(ReliefFailed("llm", "cannot write memory.high: EROFS"))
    assert of(script.pass_time(60), RaiseLimit) == []


def test_what_could_not_be_put_back_or_lifted_is_tried_again_later() -> None:
    """A failed return after 5 s, a failed lift after a minute."""
    script = Script()
    script.join()
    over_high(script)
    script.do(LimitRaised("llm", 500 * MIB, 625 * MIB))
    trim = commands(script.effects)[0]
    script.need(200, high_mib=625)
    script.ack(trim)
    script.do(LimitPutBack("llm", "failed", "EIO"))
    assert len(of(script.pass_time(6, sample=False), PutBackLimit)) == 1
    script = Script()
    script.join()
    over_high(script)
    script.do(ReliefFailed("llm", "the limit has moved"))
    script.pass_time(61, sample=False)
    assert script.target.relief.phase == "resting"


def resorts(*steps: LastResortStep) -> Policy:
    return Policy(last_resort=LastResorts(critical=steps), restore_dwell_s=1000)


RECLAIM = LastResortStep(LastResort.RECLAIM, hold_off_s=30)
FREEZE = LastResortStep(LastResort.FREEZE, hold_off_s=60, max_freeze_s=5)


def test_nobody_to_ask_runs_the_last_resort_of_that_level_once_a_hold_off() -> None:
    """No subscriber at critical: reclaim for the bytes wanted, awaited, and again only after its hold-off."""
    script = Script(resorts(RECLAIM))
    (first,) = of(script.need(950), RunLastResort)
    assert first.step.action is LastResort.RECLAIM
    assert (first.reclaim_bytes or 0) > 300 * MIB
    assert of(script.pass_time(60), RunLastResort) == []
    script.do(LastResortEnded("llm", LastResort.RECLAIM, "failed", "nothing came"))
    (again,) = of(script.pass_time(1), RunLastResort)
    assert again.step == RECLAIM


def test_steps_follow_one_another_in_order() -> None:
    """What failed is followed by the next step; its hold-off is its own."""
    script = Script(resorts(RECLAIM, FREEZE))
    script.need(950)
    script.do(LastResortEnded("llm", LastResort.RECLAIM, "failed", "nothing came"))
    (second,) = of(script.pass_time(0.5), RunLastResort)
    assert second.step.action is LastResort.FREEZE


def test_a_freeze_is_ended_after_its_longest_time() -> None:
    """Thaw comes by a timer, whatever memory does."""
    script = Script(resorts(FREEZE))
    script.need(950)
    script.do(LastResortEnded("llm", LastResort.FREEZE, "done"))
    assert of(script.pass_time(4.5), Thaw) == []
    assert len(of(script.pass_time(1), Thaw)) == 1


def test_no_last_resort_while_somebody_can_still_give() -> None:
    """A subscriber with a rung left is asked, not frozen; nor is anything run below its level."""
    script = Script(resorts(FREEZE))
    script.join()
    assert of(script.need(950), RunLastResort) == []
    script = Script(resorts(FREEZE))
    assert of(script.need(850), RunLastResort) == []
    script.do(SampleTaken(Sample("llm", (usage("/llm", 100),))))
