"""What documents say of the program and of each other: no page is lost, no name is wrong, no heading is left behind."""

import os
import re

import pytest

from edgeguardd.cli import httppage, logpage
from tests.support.documents.pages import links, pages, text_of
from tests.support.running import REPOSITORY

INDEX = "docs/README.md"
FAILURES = "docs/explanation/failure-modes.md"
# Pages that another index has: docs/adr/README.md, docs/zh-CN/README.md.
INDEXED_ELSEWHERE = ("docs/adr/0", "docs/zh-CN/")


def linked_from(page: str) -> set[str]:
    """The files that a page leads to, from the repository's top."""
    paths = [link.partition("#")[0] for link in links(text_of(page)) if "://" not in link]
    return {os.path.normpath(os.path.join(os.path.dirname(page), path)) for path in paths if path}


def test_every_page_is_in_the_index() -> None:
    """Who adds a page adds a row to docs/README.md; nobody finds it otherwise."""
    own = {page for page in pages() if page.startswith("docs/") and not page.startswith(INDEXED_ELSEWHERE)}
    assert own - linked_from(INDEX) == {INDEX}
    assert {page for page in pages() if page.startswith("docs/zh-CN/")} - linked_from("docs/zh-CN/README.md") <= {
        "docs/zh-CN/README.md"
    }


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith(("docs/explanation/", "docs/CONTR"))])
def test_what_a_page_says_of_the_code_is_there(page: str) -> None:
    """Packages and modules by their names: whoever moves one finds the pages that speak of it."""
    text = text_of(page)
    named = set(re.findall(r"`((?:core|kernel|serve|gate|recorder|client|isolate)\.[a-z_.]+)`", text))
    named |= set(re.findall(r"`edgeguardd\.((?!service|socket|toml)[a-z_.]+)`", text))
    gone = []
    for name in sorted(named):
        place = os.path.join(REPOSITORY, "edgeguardd", *name.split("."))
        # The last of several words may be one in the module.
        places = [place, os.path.dirname(place)] if "." in name else [place]
        if not any(os.path.isdir(found) or os.path.isfile(f"{found}.py") for found in places):
            gone.append(name)
    assert gone == []


def rows_of(page: str) -> list[list[str]]:
    """The cells of each row of a page's tables, without their heads."""
    lines = [line.strip() for line in text_of(page).splitlines() if line.startswith("|")]
    bodies = [line for line, after in zip(lines, [*lines[1:], ""], strict=True)
              if not line.startswith("|---") and not after.startswith("|---")]  # fmt: skip
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in bodies]


def test_every_failure_has_its_answer() -> None:
    """Nothing is left out of a row but by a dash."""
    rows = rows_of(FAILURES)
    assert len(rows) > 30
    assert [row[0] for row in rows if len(row) != 5 or not all(row)] == []


@pytest.mark.parametrize("name", sorted({n for row in rows_of(FAILURES) for n in re.findall(r"`(\w+)`", row[2])}))
def test_what_is_to_be_seen_of_a_failure_exists(name: str) -> None:
    """A metric, a line of the log or one of its fields, a field of /status, an outcome; no name that has gone."""
    if name.startswith("edgeguardd_"):
        assert f"| `{name}` |" in text_of("docs/reference/metrics.md")
        return
    protocol = re.findall(r"\| `(\w+)` \|", text_of("docs/reference/protocol.md"))
    words = {"absent", "poll", "changed", "high", "up", *protocol}
    fields = {path.rpartition(".")[2] for path in httppage.MEANINGS}
    assert name in words | fields | set(logpage.rows_by_event()) | set(logpage.FIELDS) | {"dropped_before"}


def test_the_changelog_says_everything_once() -> None:
    """Under one of its headings; merging branches makes two of a line more often than one thinks."""
    entries = [line[:60] for line in text_of("CHANGELOG.md").splitlines() if line.startswith("- ")]
    assert sorted({entry for entry in entries if entries.count(entry) > 1}) == []
