"""edgeguardctl adr DIR: check a folder of decision records, or begin the next one.

Must not: know what a record looks like (isolate.adrs does). Upstream: isolate.adrs, isolate.ownrules.
Downstream: edgeguardctl.
Exit status: 0 the folder is in order; 1 something is wrong, each said with file and line; 2 it cannot be checked.
"""

import argparse
import json
import os
import time

from edgeguardd.cli import common
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError, EdgeguardError


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "adr",
        help="check a folder of architecture decision records",
        description="Check a folder of architecture decision records: numbers, names, status, sections, links, the "
        "index, and that what rules refer to is there and in force.",
        epilog="Exit status: 0 the folder is in order; 1 something is wrong, each said with file and line; 2 it cannot "
        "be checked.",
    )
    option = parser.add_argument
    option("folder", metavar="DIR", help="the folder with NNNN-some-words.md")
    option("--new", metavar="TITLE", help="write the next record from the template, and print its path")
    option("--rules-file", metavar="FILE", help="own rules of the audit: each `adr` in it must be a record in force")
    option("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.isolate import adrs  # noqa: PLC0415 - other commands do without it

    folder = printable(args.folder, common.MAX_SHOWN_CHARS)
    if args.new is not None:
        return _begin(args.folder, args.new)
    try:
        records, faults = adrs.check(args.folder, _referred(args.rules_file))
    except OSError as error:
        raise ConfigError([f"cannot check {folder}: {error.strerror}; name a folder with decision records"]) from None
    if not records and not faults:
        raise ConfigError([f"cannot check {folder}: no NNNN-some-words.md in it; name a folder with decision records"])
    if args.json:
        said = [{"file": fault.file, "line": fault.line, "text": fault.text} for fault in faults]
        print(json.dumps({"records": [record.name for record in records], "faults": said}, indent=1))
    else:
        lines = [f"{fault.file}:{fault.line}: {fault.text}" for fault in faults]
        print(
            "\n".join(
                printable(line, common.MAX_SHOWN_CHARS)
                for line in lines or [f"{len(records)} record{'' if len(records) == 1 else 's'} in order"]
            )
        )
    return common.FAILED if faults else common.OK


def _begin(folder: str, title: str) -> int:
    from edgeguardd.isolate import adrs  # noqa: PLC0415 - as above

    title = " ".join(title.split())
    if not title.isprintable() or not title:
        raise ConfigError(["cannot begin a record: its title is empty or cannot be printed; give words"])
    try:
        os.makedirs(folder, exist_ok=True)
        name, text = adrs.template(folder, title, time.strftime("%Y-%m"))
        path = os.path.join(folder, name)
        with open(path, "x") as file:
            file.write(text)
    except OSError as error:
        shown = printable(folder, common.MAX_SHOWN_CHARS)
        raise EdgeguardError(f"cannot write to {shown}: {error.strerror}; name a folder that is yours") from None
    print(printable(path, common.MAX_SHOWN_CHARS))
    return common.OK


def _referred(path: str | None) -> dict[str, str]:
    """Rule -> the record that it names, as a path relative to the rules file."""
    if path is None:
        return {}
    from edgeguardd.isolate import ownrules  # noqa: PLC0415 - as above
    from edgeguardd.isolate.rules import RULES  # noqa: PLC0415 - as above

    rules, _ = ownrules.load(path, [rule.id for rule in RULES])
    base = os.path.dirname(path)
    return {f"{os.path.basename(path)} rule {rule.id}": os.path.join(base, rule.adr) for rule in rules if rule.adr}
