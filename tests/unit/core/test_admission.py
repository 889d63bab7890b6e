"""Promises of memory: their sum, and that none outlives its time."""

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.core.admission import MAX_RESERVATIONS, RESERVATION_S, Admissions, Promise, Promises


def test_a_gates_promise_ends_after_its_time_a_subscribers_when_it_says_so() -> None:
    """Both count against the same room."""
    admissions = Admissions()
    assert admissions.let_through(60, 100, 5.0, 0.0) is None
    assert admissions.decide((1, "a"), 40, 100, 0.0) is None
    assert "do not fit" in (admissions.let_through(1, 100, 5.0, 4.9) or "")
    assert admissions.let_through(60, 100, 5.0, 5.0) is None
    admissions.finish(1, ("a", "unknown"))
    assert admissions.reserved_bytes(5.0) == 60
    assert admissions.reserved_bytes(10.0) == 0


def test_what_is_refused_is_not_typical() -> None:
    """One stranger's claim would else have everybody refused for long, at the first rung that rejects."""
    admissions = Admissions()
    assert admissions.decide((1, "a"), 100, 1000, 0.0) is None
    assert admissions.decide((1, "b"), 2**63 - 1, 1000, 0.0) is not None
    assert admissions.typical_bytes == 100


def test_the_gate_does_not_learn_what_is_typical() -> None:
    """A stranger's size must not close it for others."""
    admissions = Admissions()
    assert admissions.let_through(10**15, 100, 5.0, 0.0) is not None
    assert admissions.typical_bytes is None


def test_the_promises_of_a_gate_are_so_many_at_most() -> None:
    """And where nothing limits the target there are none."""
    admissions = Admissions()
    for _ in range(MAX_RESERVATIONS):
        assert admissions.let_through(0, 100, 5.0, 0.0) is None
    assert "promised memory already" in (admissions.let_through(0, 100, 5.0, 0.0) or "")
    assert admissions.decide((1, "a"), 1, 100, 0.0) is None
    assert admissions.let_through(0, 100, 5.0, 5.0) is None
    assert Admissions().let_through(10**15, None, 5.0, 0.0) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000), st.floats(0, 10)), max_size=50))
def test_the_sum_is_that_of_the_promises_that_stand(steps: list[tuple[int, int, float]]) -> None:
    """Whatever is put, replaced, forgotten or run out."""
    promises, now = Promises(), 0.0
    standing: dict[tuple[int, str], Promise] = {}
    for subscriber, size, pause_s in steps:
        now += pause_s
        key = (subscriber, str(size % 3))
        if size % 5 == 0:
            promises.forget(key)
            standing.pop(key, None)
        else:
            standing.pop(key, None)
            standing[key] = Promise(size, now + RESERVATION_S)
            promises.put(key, standing[key])
        standing = {key: promise for key, promise in standing.items() if promise.until > now}
        assert promises.sum_bytes(now) == sum(promise.bytes for promise in standing.values())
        assert len(promises) == len(standing)
