"""Dealing test files out to guests."""

from tests.support.uml.shards import deal


def test_no_file_is_split_or_lost() -> None:
    """Each file lands in exactly one hand, whatever its number of tests."""
    hands = deal([("a", 1.0), ("b", 1.0), ("a", 1.0), ("c", 5.0)], 2)
    assert sorted(name for hand in hands for name in hand) == ["a", "b", "c"]


def test_the_dearest_file_gets_a_guest_of_its_own() -> None:
    """Cost counts, not the number of tests."""
    assert deal([("a", 1.0), ("b", 1.0), ("c", 30.0)], 2) == [["c"], ["a", "b"]]


def test_no_guest_is_started_for_nothing() -> None:
    """Fewer files than guests: fewer hands; no test at all: none."""
    assert deal([("a", 1.0)], 3) == [["a"]]
    assert deal([], 2) == []


def test_files_keep_their_order_within_a_guest() -> None:
    """Results then come in the order in which pytest collected the tests."""
    assert deal([("a", 1.0), ("b", 2.0), ("c", 3.0)], 1) == [["a", "b", "c"]]
