"""What the documents print is run, read or checked: every command block, every file, every program, every link.

A new command fails here until tests/support/documents/table.py says where it is run.
"""

import json
import os
import re
import urllib.parse
from pathlib import Path

import pytest
import yaml

from edgeguardd.cli import bridge
from edgeguardd.core.configparse import read
from edgeguardd.isolate import ownrules, rules, unit, unitfiles
from tests.support.documents.pages import (
    LANGUAGES,
    Block,
    anchors,
    blocks,
    commands,
    links,
    pages,
    text_of,
    where,
)
from tests.support.documents.reading import file_name, follow, runs_here
from tests.support.documents.table import ANYWHERE, FILES, OWN_DAEMON, PAGES, ByTest, row_of
from tests.support.running import REPOSITORY

ALL = pages()
# A translation has the same commands, as tests/unit/test_translations.py sees to.
RUN = [page for page in ALL if runs_here(page) and not page.startswith("docs/zh-CN/")]
# The unit that the page on the audit shows because it is wrong.
WRONG_ON_PURPOSE = {"docs/how-to/audit-units.md": "MemoryMax=6G   # of 8"}
SAY_WHERE = (
    "no test runs it. Add it to tests/support/documents/table.py: Here() has it run by this test, "
    'ByTest("FILE::FUNCTION") names the test that runs it, Untestable("…") says why none can'
)


@pytest.mark.parametrize("page", ALL)
def test_each_command_is_run_somewhere(page: str) -> None:
    """By this file, or by a test that is named and there; those that cannot be tested say why."""
    unknown = [f"{where(one)}: {one.text!r}: {SAY_WHERE}" for one in commands(page) if row_of(page, one.text) is None]
    assert unknown == [], "\n".join(unknown)


def test_the_table_has_no_row_too_many() -> None:
    """What has left the pages leaves the table."""
    typed = {page: {one.text for one in commands(page)} for page in ALL}
    stale = [(page, command) for page, rows in PAGES.items() for command in rows.keys() - typed.get(page, set())]
    everything = {command for there in typed.values() for command in there}
    assert stale == []
    assert [command for command in ANYWHERE if command not in everything] == []
    assert (FILES.keys() | OWN_DAEMON) - typed.keys() == set()


@pytest.mark.parametrize(
    "by", sorted({row.by for rows in (ANYWHERE, *PAGES.values()) for row in rows.values() if isinstance(row, ByTest)})
)
def test_each_test_that_is_named_is_there(by: str) -> None:
    """A test that is renamed is renamed in the table."""
    path, _, function = by.partition("::")
    with open(os.path.join(REPOSITORY, path), encoding="utf-8") as file:
        assert not function or re.search(rf"^(async )?def {function}\(", file.read(), re.MULTILINE)


@pytest.mark.parametrize("page", ALL)
def test_each_block_says_what_it_is(page: str) -> None:
    """An indented block is commands; a fence has a language that is known here."""
    wrong = [f"{where(block)}: {block.language}: one of {sorted(LANGUAGES)}" for block in blocks(page)
             if block.language not in LANGUAGES]  # fmt: skip
    assert wrong == []


@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page_work(page: str, place: str) -> None:
    """One after another as printed, with the files that the page prints; what is shown has the shape of what comes."""
    follow(page, place)


@pytest.mark.parametrize("block", [block for page in ALL for block in blocks(page, "toml")], ids=where)
def test_each_configuration_is_taken(block: Block, tmp_path: Path) -> None:
    """By the one that reads a file of its name: a bridge, the audit, or the daemon."""
    name = file_name(block) or ""
    path = os.path.join(tmp_path, os.path.basename(name) or "edgeguardd.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(block.text)
    if "/bridges/" in name:
        bridge.read_settings(path)
    elif name == "audit.toml":
        ownrules.load(path, [rule.id for rule in rules.RULES])
    else:
        read(block.text.encode(), where(block))


@pytest.mark.parametrize("block", [block for page in ALL for block in blocks(page, "ini")], ids=where)
def test_each_unit_is_what_systemd_takes(block: Block, tmp_path: Path) -> None:
    """No line of it would be left out, read as a file of its own."""
    kinds = {"Socket": "socket", "Slice": "slice", "Timer": "timer"}
    kind = next(
        (kinds[section] for section in re.findall(r"^\[(\w+)]", block.text, re.MULTILINE) if section in kinds),
        "service",
    )
    (tmp_path / f"page.{kind}").write_text(block.text)
    loaded = unit.Loader(unitfiles.SearchPath((str(tmp_path),)), unit.Machine(8 << 30, version=257)).load(
        f"page.{kind}"
    )
    faults = [f"{where(block)}: {remark.text}" for remark in loaded.ignored]
    wrong = WRONG_ON_PURPOSE.get(block.page, "nothing")
    assert bool(faults) == (wrong in block.text.splitlines()), faults


@pytest.mark.parametrize("block", [block for page in ALL for block in blocks(page, "python")], ids=where)
def test_each_program_is_python(block: Block) -> None:
    """Those of the client's pages are run as well, each by a test of its own."""
    compile(block.text, where(block), "exec")


@pytest.mark.parametrize("block", [block for page in ALL for block in blocks(page, "json")], ids=where)
def test_each_json_is_json(block: Block) -> None:
    """One document, or one a line."""
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("block", [block for page in ALL for block in blocks(page, "yaml")], ids=where)
def test_each_yaml_is_yaml(block: Block) -> None:
    """Documents that can be read."""
    assert list(yaml.safe_load_all(block.text))


@pytest.mark.parametrize("page", ALL)
def test_links_lead_somewhere(page: str) -> None:
    """To a file that is there, and to a heading that is on it."""
    broken = []
    for link in links(text_of(page)):
        address = urllib.parse.urlsplit(link)
        if address.scheme or address.netloc:
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(page), urllib.parse.unquote(address.path)))
        target = page if not address.path else target
        there = os.path.exists(os.path.join(REPOSITORY, target))
        if there and address.fragment and target.endswith(".md"):
            there = urllib.parse.unquote(address.fragment) in anchors(text_of(target))
        if not there:
            broken.append(link)
    assert broken == []
