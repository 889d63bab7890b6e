"""The page on reliability names each kind of fault, and for each defect that was found a test that is there."""

import os
import re

import pytest

from tests.support.running import REPOSITORY

with open(f"{REPOSITORY}/docs/explanation/reliability.md") as page:
    SECTION = page.read().split("\n## What the enemies found\n")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in SECTION.splitlines() if line[:2] == "| "][
    1:
]


def test_the_enemies_were_not_too_weak() -> None:
    """They found something."""
    assert len(ROWS) >= 20


@pytest.mark.parametrize("row", ROWS, ids=[str(number) for number in range(len(ROWS))])
def test_what_was_found_has_a_test(row: list[str]) -> None:
    """Of that name, in that file."""
    found, by, shown_by = row
    named = re.fullmatch(r"`(tests/[\w/]+\.py)`: `(test_\w+)`", shown_by)
    assert found
    assert by
    assert named is not None, shown_by
    path = os.path.join(REPOSITORY, named[1])
    with open(path) as file:
        assert f"\ndef {named[2]}(" in file.read(), shown_by
