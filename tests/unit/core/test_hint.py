"""When programs that only heed memory pressure are told of it."""

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.core.hint import Hint
from edgeguardd.core.model import Level

REPEAT_S = 2.0


def test_it_is_told_at_once_when_it_gets_worse_and_again_after_a_while() -> None:
    """Not for every look at memory in between."""
    hint = Hint()
    looks = ((Level.ELEVATED, 0.0), (Level.ELEVATED, 1.9), (Level.HIGH, 1.95))
    assert [hint.due(level, REPEAT_S, now) for level, now in looks] == [True, False, True]
    assert [hint.due(Level.HIGH, REPEAT_S, now) for now in (2.0, 3.9, 3.95, 4.0)] == [False, False, True, False]


def test_pressure_that_comes_and_goes_is_one() -> None:
    """A level that flickers around its mark tells no oftener than one that stays; after a rest it is new."""
    hint = Hint()
    flicker = [Level.ELEVATED, Level.NORMAL] * 10
    assert sum(hint.due(level, REPEAT_S, number / 10) for number, level in enumerate(flicker)) == 1
    assert not hint.due(Level.NORMAL, REPEAT_S, 5.0)
    assert hint.due(Level.ELEVATED, REPEAT_S, 5.1)


@given(st.lists(st.tuples(st.sampled_from(Level), st.floats(0, 1)), max_size=60))
def test_it_is_never_told_without_reason(looks: list[tuple[Level, float]]) -> None:
    """Never at normal; within the time of a repeat only if it is worse than all that was told in it."""
    hint, now = Hint(), 100.0
    told: list[tuple[Level, float]] = []
    for level, pause_s in looks:
        now += pause_s
        if hint.due(level, REPEAT_S, now):
            assert level is not Level.NORMAL
            recent = [before for before, at in told if now < at + REPEAT_S]
            assert all(level > before for before in recent)
            told.append((level, now))
