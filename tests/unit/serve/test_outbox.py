"""What waits for a subscriber that does not read."""

from edgeguardd.serve.outbox import ANSWERS, Outbox


def everything(outbox: Outbox) -> list[bytes]:
    found = []
    while (line := outbox.take()) is not None:
        found.append(line)
    return found


def test_a_newer_reject_is_obeyed_after_the_restore_between() -> None:
    """Of "reject, restore, reject" the last word that the subscriber hears is reject."""
    outbox = Outbox()
    outbox.put_order(("llm", "reject_requests"), b"reject 1")
    outbox.put_order(("llm", "restore"), b"restore 2")
    assert outbox.put_order(("llm", "reject_requests"), b"reject 3")
    assert everything(outbox) == [b"restore 2", b"reject 3"]


def test_commands_for_different_targets_do_not_replace_each_other() -> None:
    """The key is target and action."""
    outbox = Outbox()
    outbox.put_order(("a", "trim_kv_cache"), b"a")
    assert not outbox.put_order(("b", "trim_kv_cache"), b"b")
    assert everything(outbox) == [b"a", b"b"]


def test_commands_go_before_levels_and_levels_before_answers() -> None:
    """What makes memory free is not held up by what only informs."""
    outbox = Outbox()
    outbox.put_answer(b"pong")
    outbox.put_level("llm", b"level")
    outbox.put_order("welcome", b"welcome")
    assert everything(outbox) == [b"welcome", b"level", b"pong"]


def test_ten_thousand_levels_wait_as_one() -> None:
    """Levels are latest-wins for each target."""
    outbox = Outbox()
    for number in range(10_000):
        outbox.put_level("llm", b"%d" % number)
    assert everything(outbox) == [b"9999"]


def test_of_many_answers_the_newest_are_kept() -> None:
    """Answers beyond the bound push the oldest out."""
    outbox = Outbox()
    dropped = [outbox.put_answer(b"%d" % number) for number in range(ANSWERS + 10)]
    assert sum(dropped) == 10
    assert everything(outbox) == [b"%d" % number for number in range(10, ANSWERS + 10)]
