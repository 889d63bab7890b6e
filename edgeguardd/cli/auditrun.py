"""What `edgeguardctl audit` does: units from their files and from the running system, rules, a report.

Must not: know a rule or a setting (isolate does), parse the command line. Upstream: isolate. Downstream: cli.audit.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct, structs

from edgeguardd.cli import common
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError
from edgeguardd.isolate import livecgroup, ownrules, reports, systemdshow, unitkeys
from edgeguardd.isolate import unitnames as names
from edgeguardd.isolate.findings import Rule, Severity
from edgeguardd.isolate.judge import Assignments, Report, report
from edgeguardd.isolate.rules import RULES
from edgeguardd.isolate.unit import NOT_FOUND, Loader, Machine, Unit
from edgeguardd.isolate.unitfiles import SYSTEM_PATH, USER_PATH, SearchPath

CGROUP_ROOT = "/sys/fs/cgroup"
_ALL_KINDS = ("service", "slice")
_FIND_NAMES = "correct the name (systemctl list-unit-files has all), or give --search-path or --root"
_NO_UNITS_NAME = "its name is no unit's; a unit file's ends in .service, .slice, .socket, .scope or the like"


class _Job(Struct, frozen=True):
    """Units that are looked for in one search path."""

    path: SearchPath
    units: tuple[str, ...]


def run(args: argparse.Namespace) -> int:
    """Audit; returns the exit status. Raises EdgeguardError."""
    own: tuple[Rule, ...] = ()
    given = Assignments()
    if args.rules_file is not None:
        own, given = ownrules.load(args.rules_file, [rule.id for rule in RULES])
    table = (*RULES, *own)
    if args.rules:
        print("\n".join(f"{rule.id} ({rule.severity}): {rule.text}" for rule in table))
        return common.OK
    parser: argparse.ArgumentParser = args.parser
    if not args.units and not args.all:
        parser.error("cannot audit: no UNIT or FILE given; name one, or give --all")
    given = structs.replace(given, guess=args.all)
    machine = _machine(args)
    found = [one for job in _jobs(args) for one in _reports(job, args, machine, table, given)]
    missing = [one.unit for one in found if one.unit.load_state == NOT_FOUND]
    _print(found, args, table)
    for unit in missing:
        print(f"edgeguardctl: cannot audit {_missing(unit, args.units)}", file=sys.stderr)
    if missing:
        return common.UNUSABLE
    failing = args.fail_on != "never" and any(one.broken(Severity(args.fail_on)) for one in found)
    return common.FAILED if failing else common.OK


def _missing(unit: Unit, words: Sequence[str]) -> str:
    """The sentence for it, which knows that a file was meant where there is one."""
    word = unit.name.removesuffix(".service")
    if word in words and not names.valid(word) and os.path.isfile(word):
        return f"{printable(word, common.MAX_SHOWN_CHARS)}: it is a file, but {_NO_UNITS_NAME}"
    return f"{unit.name}: {unit.why}; {_FIND_NAMES}"


def _machine(args: argparse.Namespace) -> Machine:
    """The machine that the units are for: this one, or what was said of it."""
    memory = args.memtotal_kb * 1024 if args.memtotal_kb else livecgroup.memory_bytes()
    if memory is None:
        raise ConfigError(["cannot tell how much memory there is: no MemTotal in /proc/meminfo; give --memtotal-kb"])
    # What was said of another machine means the usual page; its own size is this machine's.
    page = 4096 if args.memtotal_kb else os.sysconf("SC_PAGESIZE")
    if args.systemd_version is not None and not unitkeys.OLDEST <= args.systemd_version <= unitkeys.NEWEST:
        raise ConfigError(
            [f"cannot read files as systemd {args.systemd_version}: {unitkeys.OLDEST} to {unitkeys.NEWEST} are known"]
        )
    version = args.systemd_version or (systemdshow.version() if _of_this_machine(args) else None)
    return Machine(memory, page, min(max(version or unitkeys.OLDEST, unitkeys.OLDEST), unitkeys.NEWEST), args.user)


def _jobs(args: argparse.Namespace) -> Iterator[_Job]:
    """Files are looked for in their own folder first; units in the search path."""
    if args.search_path is not None:
        folders = tuple(folder for folder in args.search_path.split(":") if folder)
    else:
        folders = tuple(map(os.path.expanduser, USER_PATH if args.user else SYSTEM_PATH))
    if args.search_path is not None and not any(os.path.isdir(_below(args.root, folder)) for folder in folders):
        shown = printable(args.search_path, common.MAX_SHOWN_CHARS)
        raise ConfigError([f"cannot search {shown}: no such directory; name those with unit files"])
    files = [word for word in args.units if _is_file(word, args)]
    path = SearchPath(folders, args.root)
    units = [_checked(word) for word in args.units if word not in files]
    if args.all:
        units += [name for name in path.units(_ALL_KINDS) if name not in units]
        units += [_instance(name) for name in path.templates(("service",))] if args.search_path is not None else []
    if args.all and not units:
        shown = printable(":".join(path.folders), common.MAX_SHOWN_CHARS)
        raise ConfigError([f"cannot audit all units: no service and no slice in {shown}; name folders with unit files"])
    if units:
        yield _Job(path, tuple(units))
    for file in files:
        if not names.valid(os.path.basename(file)):
            raise ConfigError([f"cannot audit {printable(file, common.MAX_SHOWN_CHARS)}: {_NO_UNITS_NAME}"])
        own = os.path.dirname(os.path.abspath(file))
        asked = tuple(map(os.path.abspath, folders)) if args.search_path is not None else ()
        yield _Job(SearchPath(asked if own in asked else (own, *asked)), (_checked(os.path.basename(file)),))


def _below(root: str, folder: str) -> str:
    return folder if root == "/" else os.path.join(root, folder.lstrip("/"))


def _is_file(word: str, args: argparse.Namespace) -> bool:
    """A path names a file; so does a bare name, when no search path is given and a file of that name is here."""
    if "/" in word:
        if not os.path.lexists(word):
            shown = printable(word, common.MAX_SHOWN_CHARS)
            raise ConfigError([f"cannot read {shown}: there is no such file; name a unit file, or a unit"])
        return True
    return args.search_path is None and args.root == "/" and names.valid(word) and os.path.isfile(word)


def _checked(word: str) -> str:
    """The unit's name: without a suffix it is a service, and a template stands for an instance of it."""
    name = word if names.valid(word) else f"{word}.service"
    if not names.valid(name):
        raise ConfigError(
            [f"cannot audit {printable(word, 255)!r}: not the name of a unit; write one such as llama.service"]
        )
    return _instance(name) if names.is_template(name) else name


def _instance(template: str) -> str:
    return names.with_instance(template, names.SAMPLE_INSTANCE)


def _reports(
    job: _Job, args: argparse.Namespace, machine: Machine, table: Sequence[Rule], given: Assignments
) -> Iterator[Report]:
    loader = Loader(job.path, machine)
    ask = _of_this_machine(args)
    root = args.cgroup_root or (CGROUP_ROOT if ask and not args.user else None)
    for name in job.units:
        unit = loader.load(name)
        differs = None
        shown = systemdshow.show(unit.name, user=args.user) if ask and unit.values else None
        if shown is not None:
            unit, other = systemdshow.in_force(unit, shown)
            differs = tuple(other)
        live = livecgroup.look(unit, root) if root is not None else None
        yield report(unit, table, machine, given, live, differs)


def _of_this_machine(args: argparse.Namespace) -> bool:
    """Whether the units are those of the running system: nothing was said of files elsewhere."""
    elsewhere = args.search_path is not None or args.root != "/" or args.memtotal_kb is not None
    return not elsewhere and not any(_is_file(word, args) for word in args.units)


def _print(found: Sequence[Report], args: argparse.Namespace, table: Sequence[Rule]) -> None:
    match args.format:
        case "json":
            print(reports.document(found, single=not args.all and len(args.units) == 1))
        case "junit":
            print(reports.junit(found))
        case "sarif":
            print(reports.sarif(found, table, os.getcwd()))
        case _:
            # What is missing is said on standard error, and there is nothing to report of it.
            there = [one for one in found if one.unit.load_state != NOT_FOUND]
            if there:
                print("\n".join(reports.text(there, brief=args.brief)))
