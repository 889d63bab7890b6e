"""Figures and names as people read them."""

import msgspec
import pytest

from edgeguardd.cli import words
from edgeguardd.cli.statusdoc import TargetRow
from edgeguardd.core.model import InForce


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [
        (None, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0K"),
        (-(2**20), "-1.0M"),
        (3 * 2**29, "1.5G"),
        (2**42, "4.0T"),
        (2**60, "1048576.0T"),
    ],
)
def test_sizes_have_a_unit(bytes_: int | None, text: str) -> None:
    """Base 1024, one decimal."""
    assert words.size(bytes_) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(None, "-"), (0, "0"), (-304, "0"), (4095, "0"), (4096, "4.0K/s"), (-(2**20), "-1.0M/s"), (1.5 * 2**30, "1.5G/s")],
)
def test_growth_that_is_only_noise_is_none(bytes_per_s: float | None, text: str) -> None:
    """A server at rest shows 0, not -304B/s."""
    assert words.rate(bytes_per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.05, "50ms"), (1.25, "1.2s"), (61, "61s"), (600, "10min"), (7200, "2h"), (864_000, "10d")],
)
def test_spans_have_a_unit(seconds: float | None, text: str) -> None:
    """The largest that says enough."""
    assert words.span(seconds) == text


def test_a_limit_names_its_file_and_the_ancestor_it_stands_in() -> None:
    """Whose limit binds is the first question when it is not the target's own."""
    own = TargetRow("a", path="/s/a", limit_bytes=2**30, limit_kind="memory.max", limit_path="/s/a")
    assert words.limit(own) == "1.0G memory.max"
    assert words.limit(msgspec.structs.replace(own, limit_path="/s")) == "1.0G memory.max of /s"
    assert words.limit(TargetRow("a")) == "none"


def test_the_state_tells_what_is_unusual() -> None:
    """Nothing for a target at rest, every restriction for one under pressure."""
    assert words.state(TargetRow("a", present=True)) == ""
    pressed = TargetRow("a", present=False, degraded="EIO\n", in_force=InForce(0.25, False, False), exhausted=True)
    assert words.state(pressed) == (
        "no such cgroup yet, cannot be read: EIO\\n, batch at most 25%, no new requests, model unloaded, "
        "nothing left to ask for"
    )


def test_tables_are_aligned() -> None:
    """Each column is as wide as its widest cell, without blanks at the ends of lines."""
    assert words.table(("A", "LONG"), [["xyz", "1"], ["x", ""]]) == ["A    LONG", "xyz  1", "x"]
