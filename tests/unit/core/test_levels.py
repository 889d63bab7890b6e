"""From memory and counters to a level, as scripts."""

from edgeguardd.core.config import Policy
from edgeguardd.core.effects import (
    AnnounceLevel,
)
from edgeguardd.core.events import (
    CountersMoved,
    ReportReceived,
    SampleFailed,
    SampleTaken,
)
from edgeguardd.core.model import Counters, Level, Report, Sample
from tests.support.script import MIB, Script, actions, notes, of, usage


def test_the_level_rises_at_once_by_needed_bytes_against_the_limit() -> None:
    """Each default mark, 60, 80 and 92 %, gives its level with the first sample at it."""
    script = Script()
    for mib, level in [(599, Level.NORMAL), (600, Level.ELEVATED), (800, Level.HIGH), (920, Level.CRITICAL)]:
        script.need(mib)
        assert script.level() is level, mib


def test_a_jump_over_several_marks_is_one_announcement() -> None:
    """From nothing to 95 % is critical at once, said once, with the figures."""
    script = Script()
    (said,) = of(script.need(950), AnnounceLevel)
    assert (said.was, said.level) == (Level.NORMAL, Level.CRITICAL)
    assert "950.0 MiB" in said.reason
    assert "memory.max 1000.0 MiB" in said.reason


def test_the_nearest_of_high_and_max_counts() -> None:
    """memory.high below memory.max is the limit that binds."""
    script = Script()
    script.need(480, high_mib=500, max_mib=1000)
    assert script.level() is Level.CRITICAL


def test_an_ancestor_whose_limit_is_nearer_counts() -> None:
    """A slice at 95 % of its limit makes the small target in it critical."""
    script = Script()
    own = usage("/a/llm", 100, max_mib=1000)
    above = usage("/a", 1900, max_mib=2000)
    script.do(SampleTaken(Sample("llm", (own, above))))
    assert script.level() is Level.CRITICAL
    assert "/a" in script.target.gauge.reason


def test_without_any_limit_nothing_is_called() -> None:
    """No limit on the way to the root: any size is normal, and nobody divides by anything."""
    script = Script()
    script.need(50_000, max_mib=None)
    assert script.level() is Level.NORMAL


def test_a_limit_of_zero_is_no_division_by_zero() -> None:
    """memory.max = 0 (a service being frozen out) is simply over its limit."""
    script = Script()
    script.need(1, max_mib=0)
    assert script.level() is Level.CRITICAL


def test_the_level_falls_one_step_at_a_time_after_the_dwell() -> None:
    """Far below every mark, each step down still takes one dwell time."""
    script = Script(Policy(dwell_s=5))
    script.need(950)
    script.need(100)
    assert script.level() is Level.CRITICAL
    script.pass_time(4.9)
    assert script.level() is Level.CRITICAL
    falls = of(script.pass_time(16), AnnounceLevel)
    assert [(f.was.word, f.level.word) for f in falls] == [
        ("critical", "high"),
        ("high", "elevated"),
        ("elevated", "normal"),
    ]


def test_within_the_hysteresis_the_level_stands() -> None:
    """Just below a mark is not below it: 58 % holds elevated (mark 60 %, hysteresis 5 points), 54 % does not."""
    script = Script(Policy(dwell_s=2))
    script.need(610)
    script.need(580)
    script.pass_time(30)
    assert script.level() is Level.ELEVATED
    script.need(540)
    script.pass_time(3)
    assert script.level() is Level.NORMAL


def test_the_dwell_begins_anew_when_the_mark_is_met_again() -> None:
    """An undercut shorter than the dwell, however often, never lowers the level."""
    script = Script(Policy(dwell_s=5))
    for _ in range(5):
        script.need(650)
        script.need(400)
        script.pass_time(4)
    assert script.level() is Level.ELEVATED


def test_static_bytes_are_left_in_peace() -> None:
    """A server that holds 900 of 1000 MiB at rest is normal at 940, elevated at 960."""
    script = Script(Policy(static_bytes=900 * MIB))
    script.need(940)
    assert script.level() is Level.NORMAL
    script.need(960)
    assert script.level() is Level.ELEVATED


def test_reported_static_bytes_take_effect_at_once() -> None:
    """The report re-judges the last sample: the same memory is no longer pressure after the dwell."""
    script = Script(Policy(dwell_s=1))
    script.join()
    script.need(700)
    assert script.level() is Level.ELEVATED
    script.do(ReportReceived(1, Report(static_bytes=650 * MIB)))
    script.pass_time(3)
    assert script.level() is Level.NORMAL


def test_static_bytes_over_the_limit_are_not_believed() -> None:
    """A server that reports more than its limit is judged by the plain share."""
    script = Script(Policy(static_bytes=5000 * MIB))
    script.need(950)
    assert script.level() is Level.CRITICAL


def test_counters_give_at_least_their_level_when_needed_bytes_are_near() -> None:
    """high: high; max: critical; oom and oom_kill: emergency."""
    for delta, level in [
        (Counters(high=3), Level.HIGH),
        (Counters(max=1), Level.CRITICAL),
        (Counters(oom=1), Level.EMERGENCY),
        (Counters(oom_kill=1), Level.EMERGENCY),
        (Counters(oom_group_kill=1), Level.EMERGENCY),
    ]:
        script = Script()
        script.need(650)
        script.do(CountersMoved("llm", "/llm", True, delta))
        assert script.level() is level, delta


def test_page_cache_recycling_raises_nothing_and_is_said_once() -> None:
    """high and max moving far from the limit is a file being read: one note, no level, no command."""
    script = Script()
    script.join()
    script.need(100)
    effects = [e for _ in range(50) for e in script.move(max=10, high=7)]
    assert script.level() is Level.NORMAL
    assert actions(effects) == []
    assert len(notes(effects, "counters_without_pressure")) == 1


def test_a_kill_is_an_emergency_even_when_memory_is_free_again() -> None:
    """After a kill needed bytes are low: the counter alone says what happened."""
    script = Script()
    script.need(50)
    script.move(oom_kill=1)
    assert script.level() is Level.EMERGENCY


def test_a_kill_counts_even_when_the_figures_cannot_be_read() -> None:
    """No sample was ever possible: the kill is an emergency all the same, a move of high is not."""
    script = Script()
    script.do(SampleFailed("llm", "cannot read memory.stat: EIO"))
    script.move(high=1)
    assert script.level() is Level.NORMAL
    script.move(oom_kill=1)
    assert script.level() is Level.EMERGENCY


def test_a_siblings_kill_in_the_ancestor_is_not_this_targets() -> None:
    """The ancestor's oom_kill may be anybody's below it: it raises nothing here."""
    script = Script()
    script.do(SampleTaken(Sample("llm", (usage("/a/llm", 100), usage("/a", 300)))))
    script.move(path="/a", oom_kill=1)
    assert script.level() is Level.NORMAL


def test_an_ancestor_at_its_limit_counts_for_the_target() -> None:
    """The slice's limit never shows in the service's own file."""
    script = Script()
    script.do(SampleTaken(Sample("llm", (usage("/a/llm", 100), usage("/a", 700)))))
    script.move(path="/a", max=1)
    assert script.level() is Level.CRITICAL
