"""The Chinese pages say the same as the English ones: commands, files, sections and links, in the same order."""

import os
import re
import urllib.parse

import pytest

from tests.support.documents.pages import anchors, blocks, headings, links, pages, text_of

HOME = "docs/zh-CN/"
TRANSLATED = {page: page.replace(f"{HOME}README.md", "README.md").replace(HOME, "docs/")
              for page in pages() if page.startswith(HOME)}  # fmt: skip
BY_ORIGINAL = {original: page for page, original in TRANSLATED.items()}
# Sections that only the translation has, at its end.
GLOSSARY = {f"{HOME}README.md": "术语"}


def without_comments(text: str) -> list[str]:
    """What counts to a program; a comment is for its reader, and in their language."""
    return [re.sub(r"\s*(^|\s)#\s.*$", "", line) for line in text.splitlines()]


def test_the_first_pages_are_translated() -> None:
    """The front page, the tutorial and the page on isolation, each with its original."""
    assert set(TRANSLATED.values()) >= {
        "README.md",
        "docs/tutorial/first-pressure.md",
        "docs/how-to/isolate-a-server.md",
    }
    assert [original for original in TRANSLATED.values() if original not in pages()] == []


@pytest.mark.parametrize("page", TRANSLATED)
def test_blocks_are_the_same(page: str) -> None:
    """Comments excepted, each command, file and program is the original's, in its place."""
    translated, original = blocks(page), blocks(TRANSLATED[page])
    languages = [block.language for block in original]
    assert [block.language for block in translated] == languages, f"translate what is new in {TRANSLATED[page]}"
    for ours, theirs in zip(translated, original, strict=True):
        assert without_comments(ours.text) == without_comments(theirs.text), f"{page}:{ours.line}"


@pytest.mark.parametrize("page", TRANSLATED)
def test_headings_are_in_step(page: str) -> None:
    """As many, of the same levels; numbers at their beginning stay."""
    translated, original = headings(text_of(page)), headings(text_of(TRANSLATED[page]))
    if page in GLOSSARY:
        assert translated.pop() == (2, GLOSSARY[page])
    assert [level for level, _ in translated] == [level for level, _ in original]
    assert [re.match(r"\d*", text) is None for _, text in translated] == [
        re.match(r"\d*", text) is None for _, text in original
    ]


@pytest.mark.parametrize("page", TRANSLATED)
def test_links_lead_to_the_same_places(page: str) -> None:
    """In the same order; to the translation where there is one, and there to the same section."""
    counterpart = {page: TRANSLATED[page], TRANSLATED[page]: page}
    own, theirs = ([place(where, link) for link in links(text_of(where))] for where in (page, TRANSLATED[page]))
    # Each points to the other.
    own = [one for one in own if one[0] != counterpart[page]]
    theirs = [one for one in theirs if one[0] != page]
    wanted = [translated(*one) for one in theirs]
    missing = [one for one in wanted if one not in own]
    assert own == wanted, f"{page} has to lead where {TRANSLATED[page]} leads, in its order; it lacks {missing}"


def place(page: str, link: str) -> tuple[str, str]:
    """File and anchor of a link; another site's is left as it is."""
    address = urllib.parse.urlsplit(link)
    if address.scheme:
        return link, ""
    path = os.path.normpath(os.path.join(os.path.dirname(page), address.path)) if address.path else page
    return path, urllib.parse.unquote(address.fragment)


def translated(path: str, anchor: str) -> tuple[str, str]:
    """Where the translation has to lead."""
    if path not in BY_ORIGINAL:
        return path, anchor
    page = BY_ORIGINAL[path]
    if not anchor:
        return page, ""
    return page, anchors(text_of(page))[anchors(text_of(path)).index(anchor)]
