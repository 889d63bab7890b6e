"""Unit files in a directory, and the unit that the audit makes of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from edgeguardd.isolate.findings import Live, Rule
from edgeguardd.isolate.judge import Assignments, Report, report
from edgeguardd.isolate.rules import RULES
from edgeguardd.isolate.unit import Loader, Machine, Unit
from edgeguardd.isolate.unitfiles import SearchPath

GIB = 2**30
MIB = 2**20
MACHINE = Machine(8 * GIB)
RUN = "ExecStart=/usr/bin/server\n"


def write(place: Path, files: Mapping[str, str]) -> None:
    """Path below `place` -> text; a text that begins with "-> " is a link."""
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text[3:])
        else:
            path.write_text(text)


def loaded(place: Path, files: Mapping[str, str], name: str = "a.service", folders: Iterable[str] = (".",)) -> Unit:
    """The unit of these files."""
    write(place, files)
    return Loader(SearchPath(tuple(str(place / folder) for folder in folders)), MACHINE).load(name)


def service(place: Path, text: str, **more: str) -> Unit:
    """a.service with these lines in [Service]; more files with "_" for "." in their names."""
    files = {"a.service": f"[Service]\n{RUN}{text}"}
    return loaded(place, files | {name.replace("_", "."): body for name, body in more.items()})


def judged(
    unit: Unit,
    given: Assignments | None = None,
    live: Live | None = None,
    differs: tuple[str, ...] | None = None,
    rules: Iterable[Rule] = RULES,
) -> Report:
    """The report of a unit."""
    return report(unit, rules, MACHINE, given or Assignments(), live, differs)
