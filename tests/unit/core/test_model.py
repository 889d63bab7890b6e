"""The nouns, where they do more than hold a value."""

import msgspec

from edgeguardd.core.model import Level


def test_a_level_compares_as_a_number_and_prints_as_a_word() -> None:
    """What `print(guard.level)` shows is what protocol, log and status call it."""
    assert Level.HIGH > Level.ELEVATED
    assert (str(Level.HIGH), f"{Level.HIGH}", f"{Level.HIGH:<5}|", "%s" % Level.HIGH) == (  # noqa: UP031 - all ways
        *("high", "high", "high |", "high"),
    )
    assert msgspec.json.encode(Level.HIGH) == b"2"
    assert float(Level.HIGH) == 2.0
