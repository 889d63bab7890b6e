"""Regular looks fall on common beats, and never later than they should."""

import pytest

from edgeguardd.kernel.beats import BEAT_S, EARLY_S, LOOKS_A_BEAT, PHASES, due


@pytest.mark.parametrize("interval_s", [1.0, 1.5, 2.0, 60.0])
def test_looks_that_began_at_any_time_meet(interval_s: float) -> None:
    """Two that began apart are due at the same time from then on."""
    assert due(100.2, interval_s) % BEAT_S == due(107.9, interval_s) % BEAT_S == 0


@pytest.mark.parametrize("interval_s", [0.01, 0.1, 0.25, 0.99, 1.0, 1.5, 2.0, 5.0, 60.0])
@pytest.mark.parametrize("number", [0, 1, LOOKS_A_BEAT, LOOKS_A_BEAT * PHASES - 1, 10_000])
def test_no_look_is_late_and_none_is_at_once(interval_s: float, number: int) -> None:
    """From any moment, also a little before a beat: later than that moment, and within the interval."""
    for hundredths in range(200):
        last = 50 + hundredths / 100
        assert last < due(last, interval_s, number) <= last + interval_s + EARLY_S


def test_those_who_look_half_as_often_meet_on_every_second_beat() -> None:
    """Whenever they began: else they would wake the daemon once a second between them."""
    for tenths in range(40):
        assert due(100 + tenths / 10, 2.0) % (2 * BEAT_S) == 0


def test_a_timer_that_comes_a_little_early_does_not_come_twice() -> None:
    """The beat that it was for is over."""
    assert due(6.0 - 1e-9, 1.0) == 7.0


def test_many_have_several_beats() -> None:
    """No more than so many wait for the same one, as long as there are no more than all beats take."""
    beats = [due(3.3, 1.0, number) for number in range(LOOKS_A_BEAT * PHASES)]
    assert max(beats.count(beat) for beat in beats) == LOOKS_A_BEAT
