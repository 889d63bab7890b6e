"""A team's folder of architecture decision records: numbers, status, sections, links, and what rules refer to.

Must not: change a file. Upstream: nothing. Downstream: cli.adr.
The form is that of docs/adr here: `NNNN-words.md`, a title `# N. What was decided`, a line `Status: accepted (2026-11)`
or a section `## Status`, and the sections of SECTIONS. A decision that changes gets a new record that names the one it
replaces; the old one stays and its status says by which it is replaced.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

STATUSES = ("proposed", "accepted", "rejected", "deprecated", "superseded")
SECTIONS = ("Context", "Options", "Decision", "How it was verified", "Consequences")
# What other templates call the same.
_ALSO = {
    "Context": ("Context and Problem Statement", "Problem", "Background"),
    "Options": ("Considered Options", "Options weighed", "Alternatives", "Alternatives considered"),
    "Decision": ("Decision Outcome", "Rules"),
    "How it was verified": ("Verification", "Confirmation", "Validation"),
    "Consequences": ("Positive Consequences", "Results"),
}
MAX_FILE_BYTES = 1024 * 1024

_FILE = re.compile(r"(\d{4})-([a-z0-9]+(?:-[a-z0-9]+)*)\.md")
_TITLE = re.compile(r"^# +(?:ADR[- ])?0*(\d+)[.:]? +(\S.*)$", re.MULTILINE)
_STATUS = re.compile(r"^(?:\*\*)?Status:(?:\*\*)? *(\S.*)$|^## +Status *\n+(\S.*)$", re.MULTILINE)
_DATE = re.compile(r"\b\d{4}-\d{2}(?:-\d{2})?\b")
_REPLACED = re.compile(r"superseded by[^\d]*0*(\d+)", re.IGNORECASE)
# "record 3", "ADR-0003", "replaces 3", or the file of the record.
_NAMED = r"(?:records?|adr|replaces|supersedes)\W{{0,3}}0*{0}\b|\b{0:04d}-"
_LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)]*)?\)")
_NOT_RECORDS = ("README.md", "index.md", "template.md")

TEMPLATE = """\
# {number}. {title}

Status: proposed ({date})

## Context
What is so, and why something has to be decided: facts with their source, measured where they can be.

## Options
1. The first, and what speaks against it.
2. The second.

## Decision
Option 2, and the rules that follow from it, each so that it can be checked.

## How it was verified
The command, test or measurement that showed it, and the figures that were seen.

## Consequences
What becomes easier, what harder, and what would make us decide anew.
"""


class Fault(Struct, frozen=True):
    """One thing that is wrong with a record, or with what refers to one."""

    file: str
    line: int
    text: str


class Record(Struct, frozen=True):
    """One record as it is written."""

    name: str
    number: int
    text: str


def check(folder: str, referred: Mapping[str, str] | None = None) -> tuple[list[Record], list[Fault]]:
    """The records of a folder and all that is wrong. `referred`: who refers -> the path of a record. Raises OSError."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".md") and name not in _NOT_RECORDS)
    faults = [
        Fault(name, 1, "name is not NNNN-some-words.md; rename it") for name in names if not _FILE.fullmatch(name)
    ]
    records = [_read(folder, name) for name in names if _FILE.fullmatch(name)]
    faults += _numbering(records)
    for record in records:
        faults += _form(record)
        faults += _links(folder, record.name, record.text)
        faults += _replaced(record, records)
    faults += _index(folder, records)
    for who, path in (referred or {}).items():
        if not os.path.isfile(path):
            faults.append(Fault(who, 1, f"refers to {path}, which is not there"))
        elif os.path.basename(path) in names and _state(_read(folder, os.path.basename(path)).text) not in (
            "accepted",
            "proposed",
        ):
            faults.append(Fault(who, 1, f"refers to {path}, which is no longer in force"))
    return records, sorted(faults, key=lambda fault: (fault.file, fault.line))


def template(folder: str, title: str, date: str) -> tuple[str, str]:
    """File name and text of the next record. Raises OSError."""
    there = [int(found[1]) for name in os.listdir(folder) if (found := _FILE.fullmatch(name))]
    number = max(there, default=0) + 1
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "decision"
    return f"{number:04d}-{words}.md", TEMPLATE.format(number=number, title=title, date=date)


def _numbering(records: Iterable[Record]) -> Iterator[Fault]:
    """Every number once, and none left out: a record that is gone was a decision once."""
    seen: dict[int, str] = {}
    for record in records:
        if record.number in seen:
            yield Fault(
                record.name, 1, f"number {record.number} is that of {seen[record.number]}; take the next free one"
            )
        seen.setdefault(record.number, record.name)
    for number in range(1, max(seen, default=0)):
        if number not in seen:
            yield Fault("README.md", 1, f"no record has number {number}; records are superseded, never removed")


def _form(record: Record) -> Iterator[Fault]:
    title = _TITLE.search(record.text)
    if title is None:
        yield Fault(record.name, 1, f'no title "# {record.number}. What was decided"; write it in the first line')
    elif int(title[1]) != record.number:
        line = _line(record.text, title.start())
        yield Fault(record.name, line, f"title has number {title[1]}, the file {record.number}; make them one")
    state = _state(record.text)
    if state is None:
        yield Fault(record.name, 1, 'no line "Status: accepted (2026-11)"; write it below the title')
    elif state not in STATUSES:
        yield Fault(record.name, _status_line(record.text), f"status {state!r} is none of {', '.join(STATUSES)}")
    elif not _DATE.search(_status(record.text) or "") and "## Status" not in record.text:
        yield Fault(record.name, _status_line(record.text), "status has no date; write it as in (2026-11)")
    headings = {heading.strip().lower() for heading in re.findall(r"^## +(.+)$", record.text, re.MULTILINE)}
    for section in SECTIONS:
        if not headings & {one.lower() for one in (section, *_ALSO[section])}:
            yield Fault(record.name, 1, f'no section "## {section}"; write it')
    for heading, body in re.findall(r"^## +(.+)\n((?:(?!## ).*\n?)*)", record.text, re.MULTILINE):
        if not body.strip():
            yield Fault(
                record.name, _line(record.text, record.text.find(f"## {heading}")), f"section {heading!r} is empty"
            )


def _replaced(record: Record, records: Iterable[Record]) -> Iterator[Fault]:
    """Who is superseded says by whom, and that one names it."""
    if _state(record.text) != "superseded":
        return
    line = _status_line(record.text)
    found = _REPLACED.search(_status(record.text) or "")
    if found is None:
        yield Fault(record.name, line, 'superseded by what is not said; write "superseded by N"')
        return
    newer = next((one for one in records if one.number == int(found[1])), None)
    if newer is None or newer is record:
        yield Fault(record.name, line, f"superseded by {found[1]}, which is not there")
    elif not re.search(_NAMED.format(record.number), newer.text, re.IGNORECASE):
        yield Fault(newer.name, 1, f"does not name record {record.number}, which it replaces")


def _index(folder: str, records: Iterable[Record]) -> Iterator[Fault]:
    """A README or index lists every record, and nothing that is not there."""
    for name in ("README.md", "index.md"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            text = _text(path)
            for record in records:
                if record.name not in text:
                    yield Fault(name, 1, f"does not list {record.name}")
            yield from _links(folder, name, text)


def _links(folder: str, name: str, text: str) -> Iterator[Fault]:
    for found in _LINK.finditer(text):
        target = found[1]
        if not target.startswith("/") and not os.path.exists(os.path.join(folder, target)):
            yield Fault(name, _line(text, found.start()), f"link to {target}, which is not there")


def _read(folder: str, name: str) -> Record:
    return Record(name, int(name[:4]), _text(os.path.join(folder, name)))


def _text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES).decode(errors="replace").replace("\r\n", "\n")


def _status(text: str) -> str | None:
    found = _STATUS.search(text)
    return (found[1] or found[2]).strip() if found else None


def _state(text: str) -> str | None:
    status = _status(text)
    words = re.findall(r"[a-z]+", status.lower()) if status else []
    return words[0] if words else None


def _status_line(text: str) -> int:
    found = _STATUS.search(text)
    return _line(text, found.start()) if found else 1


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, max(at, 0)) + 1
