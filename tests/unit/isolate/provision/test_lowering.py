"""Limits below what is in use are prepared by steps of memory.high, and nothing else is."""

import pytest

from edgeguardd.isolate.provision.lowering import Patience, in_steps
from edgeguardd.isolate.provision.model import Change, Kind, ProvisionError

PAGE = 4096
USED = {"/a": 16 * PAGE}


def change(key: str, before: str, after: str, place: str = "/a") -> Change:
    """Of a kernel file."""
    return Change(Kind.FILE, place, key, before, after)


def lines(changes: list[Change]) -> list[str]:
    """In pages."""

    def pages(text: str | None) -> str:
        return "max" if text in (None, "max") else str(int(text or "0") // PAGE)

    return [f"{one.key} {pages(one.before)} -> {pages(one.after)}" for one in changes]


def test_memory_high_goes_down_first_and_comes_back_after_memory_max() -> None:
    """Where it is not to change itself."""
    found = in_steps([change("memory.max", "max", str(8 * PAGE))], USED, {"/a": "max"}, PAGE)
    assert lines(found) == [
        "memory.high max -> 15",
        *(f"memory.high {pages} -> {pages - 1}" for pages in range(15, 8, -1)),
        "memory.max max -> 8",
        "memory.high 8 -> max",
    ]


def test_where_memory_high_is_to_change_the_last_step_is_its_value() -> None:
    """And it stays there."""
    both = [change("memory.high", "max", str(4 * PAGE)), change("memory.max", "max", str(8 * PAGE))]
    found = in_steps(both, USED, {"/a": "max"}, PAGE)
    assert lines(found)[-2:] == ["memory.high 5 -> 4", "memory.max max -> 8"]


def test_a_step_above_the_limit_there_is_is_left_out() -> None:
    """Raising it on the way down would help nobody."""
    found = in_steps([change("memory.max", "max", str(8 * PAGE))], USED, {"/a": str(10 * PAGE)}, PAGE)
    assert lines(found) == ["memory.high 10 -> 9", "memory.high 9 -> 8", "memory.max max -> 8", "memory.high 8 -> 10"]


@pytest.mark.parametrize(
    "harmless",
    [
        change("memory.max", "max", str(32 * PAGE)),
        change("memory.max", str(PAGE), "max"),
        change("memory.min", "0", str(PAGE)),
        change("memory.max", "max", str(PAGE), place="/b"),
    ],
)
def test_what_cannot_hurt_is_left_as_it_is(harmless: Change) -> None:
    """Limits above what is in use, other files, other places."""
    assert in_steps([harmless], USED, {}, PAGE) == [harmless]


def test_patience_ends() -> None:
    """For all steps together."""
    patience = Patience(0.01)
    patience.wait("/a", 8, lambda: 8)
    with pytest.raises(ProvisionError, match="cannot bring /a below 8 bytes"):
        patience.wait("/a", 8, lambda: 9)
