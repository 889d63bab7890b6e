"""Counted kills and reported ones are the same, whichever comes first; what stays alone is told once."""

from edgeguardd.core.oomjoin import WAIT_S, Alone, OomJoin, containing


def test_a_count_and_then_its_report() -> None:
    """Both halves are there: nothing is left."""
    join = OomJoin()
    join.counted("llm", 1, now=10.0)
    assert join.reported(["llm"], 1, now=10.6) == 1
    assert join.next_due is None
    assert join.due(100.0) == []


def test_a_report_and_then_its_count() -> None:
    """The counters were read later."""
    join = OomJoin()
    assert join.reported(["llm"], 2, now=10.0) == 0
    join.counted("llm", 2, now=11.0)
    assert join.due(100.0) == []


def test_a_count_without_a_report_is_told_once_after_a_while() -> None:
    """The kernel's rate limit left the report out."""
    join = OomJoin()
    join.counted("llm", 2000, now=10.0)
    assert join.next_due == 10.0 + WAIT_S
    assert join.due(10.0 + WAIT_S - 0.1) == []
    assert join.due(10.0 + WAIT_S) == [Alone("llm", 2000)]
    assert join.due(100.0) == []


def test_more_kills_counted_than_named() -> None:
    """Only those beyond the report are alone; the rest has its half."""
    join = OomJoin()
    join.counted("llm", 3, now=10.0)
    assert join.reported(["llm"], 1, now=10.5) == 1
    assert join.due(100.0) == [Alone("llm", 2)]


def test_an_old_report_does_not_explain_a_new_kill() -> None:
    """What has waited too long for its count waits no more."""
    join = OomJoin()
    join.reported(["llm"], 1, now=10.0)
    join.counted("llm", 1, now=10.0 + WAIT_S)
    assert join.due(100.0) == [Alone("llm", 1)]


def test_a_kill_counts_in_every_target_above_it() -> None:
    """memory.events is hierarchical."""
    join = OomJoin()
    for target in ("slice", "service"):
        join.counted(target, 1, now=10.0)
    assert join.reported(["service", "slice"], 1, now=10.5) == 1
    assert join.due(100.0) == []


def test_the_targets_of_a_cgroup() -> None:
    """Its own and those above it, the nearest first; a name that begins alike is another cgroup."""
    paths = {"top": "/a", "deep": "/a/b", "alike": "/a/b2", "root": "/"}
    assert containing(paths, "/a/b/c") == ["deep", "top", "root"]
    assert containing(paths, "/a/b2") == ["alike", "top", "root"]
    assert containing(paths, "/x") == ["root"]
