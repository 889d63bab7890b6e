"""A folder of decision records: what is in order, and what is not."""

from pathlib import Path

import pytest

from edgeguardd.isolate import adrs

GOOD = adrs.TEMPLATE.format(number=1, title="First", date="2026-11")


def faults(folder: Path, records: dict[str, str], referred: dict[str, str] | None = None) -> list[str]:
    """File: text of each fault."""
    for name, text in records.items():
        (folder / name).write_text(text)
    return [f"{fault.file}: {fault.text}" for fault in adrs.check(str(folder), referred)[1]]


def record(number: int, **changes: str) -> dict[str, str]:
    """A record in order, with words replaced."""
    text = adrs.TEMPLATE.format(number=number, title="A title", date="2026-11")
    for old, new in changes.items():
        text = text.replace(old.replace("_", " "), new)
    return {f"{number:04d}-a-title.md": text}


def test_the_template_is_in_order(tmp_path: Path) -> None:
    """And the next number is taken for the next record."""
    name, text = adrs.template(str(tmp_path), "Größe & Limits!", "2026-11")
    assert name == "0001-gr-e-limits.md"
    assert faults(tmp_path, {name: text, "README.md": f"[1]({name})\n", "notes.txt": "x"}) == []
    assert adrs.template(str(tmp_path), "x", "2026-11")[0] == "0002-x.md"


def test_the_records_of_this_repository_are_in_order() -> None:
    """Which makes them an example."""
    records, wrong = adrs.check(str(Path(__file__).parents[3] / "docs/adr"))
    assert (wrong, len(records) >= 12) == ([], True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"Status: proposed (2026-11)": "Status: done (2026-11)"}, "status 'done' is none of"),
        ({"Status: proposed (2026-11)": ""}, 'no line "Status:'),
        ({"Status: proposed (2026-11)": "Status: accepted"}, "status has no date"),
        ({"# 1. A title": "# A title"}, "no title"),
        ({"# 1. A title": "# 2. A title"}, "title has number 2, the file 1"),
        ({"## Options": "## Other"}, 'no section "## Options"'),
        (
            {"Option 2, and the rules that follow from it, each so that it can be checked.": ""},
            "section 'Decision' is empty",
        ),
        ({"Status: proposed (2026-11)": "Status: superseded (2026-11)"}, "superseded by what is not said"),
        ({"Status: proposed (2026-11)": "Status: superseded by 7 (2026-11)"}, "superseded by 7, which is not there"),
        ({"The second.": "[x](gone.md)"}, "link to gone.md, which is not there"),
    ],
)
def test_one_fault_is_one_sentence(tmp_path: Path, change: dict[str, str], says: str) -> None:
    """With the file."""
    (found,) = faults(tmp_path, record(1, **change))
    assert found.startswith("0001-a-title.md: ")
    assert says in found


def test_numbers_are_taken_once_and_never_left_out(tmp_path: Path) -> None:
    """A gap means a decision that vanished."""
    found = faults(tmp_path, {**record(1), "0001-b.md": GOOD, **record(3), "x.md": GOOD})
    assert found == [
        "0001-b.md: number 1 is that of 0001-a-title.md; take the next free one",
        "README.md: no record has number 2; records are superseded, never removed",
        "x.md: name is not NNNN-some-words.md; rename it",
    ]


def test_who_supersedes_says_so(tmp_path: Path) -> None:
    """Both ways."""
    old = record(1, **{"Status: proposed": "Status: superseded by 0002"})
    assert faults(tmp_path, {**old, **record(2)}) == ["0002-a-title.md: does not name record 1, which it replaces"]
    assert faults(tmp_path, record(2, **{"What is so": "Replaces record 1. What is so"})) == []


def test_an_index_lists_all(tmp_path: Path) -> None:
    """And links to nothing that is gone."""
    found = faults(tmp_path, {**record(1), "README.md": "[gone](0009-gone.md)"})
    assert found == ["README.md: does not list 0001-a-title.md", "README.md: link to 0009-gone.md, which is not there"]


def test_rules_refer_to_records_in_force(tmp_path: Path) -> None:
    """Not to one that is gone, rejected or superseded."""
    rejected = record(1, **{"Status: proposed": "Status: rejected"})
    referred = {"rule a": str(tmp_path / "0001-a-title.md"), "rule b": str(tmp_path / "0002-gone.md")}
    found = faults(tmp_path, rejected, referred)
    assert [line.partition(":")[0] for line in found] == ["rule a", "rule b"]


def test_other_templates_are_read_too(tmp_path: Path) -> None:
    """A section for the status, other names of sections, CRLF, bytes that are no UTF-8."""
    text = GOOD.replace("Status: proposed (2026-11)", "## Status\n\nAccepted").replace(
        "## Options", "## Considered Options"
    )
    text = text.replace("# 1. First", "# ADR-0001: First").replace("\n", "\r\n")
    (tmp_path / "0001-first.md").write_bytes(text.encode() + b"\xff\r\n")
    assert adrs.check(str(tmp_path))[1] == []
