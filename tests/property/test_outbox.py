"""The outbox under any interleaving of putting and taking."""

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.serve.outbox import ANSWERS, Outbox

ACTIONS = ["trim_kv_cache", "reduce_batch", "reject_requests", "restore"]

operations = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.sampled_from(["a", "b"]), st.sampled_from(ACTIONS)),
        st.tuples(st.just("level"), st.sampled_from(["a", "b"]), st.just("")),
        st.tuples(st.just("answer"), st.just(""), st.just("")),
        st.tuples(st.just("take"), st.just(""), st.just("")),
    ),
    max_size=200,
)


@given(operations)
def test_the_newest_order_of_each_kind_is_sent_once_and_in_order(script: list[tuple[str, str, str]]) -> None:
    """No command is lost except to a newer one of its kind, and commands leave in the order of their numbers."""
    outbox = Outbox()
    pending: dict[tuple[str, str], int] = {}
    levels: dict[str, int] = {}
    answers: list[int] = []
    sent: list[bytes] = []
    for number, (what, target, action) in enumerate(script):
        match what:
            case "order":
                assert outbox.put_order((target, action), b"order %d" % number) == ((target, action) in pending)
                pending[(target, action)] = number
            case "level":
                outbox.put_level(target, b"level %d" % number)
                levels[target] = number
            case "answer":
                assert outbox.put_answer(b"answer %d" % number) == (len(answers) == ANSWERS)
                answers = [*answers, number][-ANSWERS:]
            case _:
                line = outbox.take()
                sent += [] if line is None else [line]
                expected = _next(pending, levels, answers)
                assert line == expected
        assert len(outbox) == len(pending) + len(levels) + len(answers)
        assert len(outbox) <= 2 * len(ACTIONS) + 2 + ANSWERS
    assert len(sent) == len(set(sent))


def _next(pending: dict[tuple[str, str], int], levels: dict[str, int], answers: list[int]) -> bytes | None:
    """What is to be sent next, by the rules: commands, then levels, then answers; each by age."""
    if pending:
        key = min(pending, key=lambda key: pending[key])
        return b"order %d" % pending.pop(key)
    if levels:
        target = min(levels, key=lambda target: levels[target])
        return b"level %d" % levels.pop(target)
    return b"answer %d" % answers.pop(0) if answers else None
