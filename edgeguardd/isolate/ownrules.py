"""A team's rules file (TOML): own rules on any key, roles of units, other severities, and what is ignored for whom.

Must not: judge. Upstream: findings, values. Downstream: cli.audit, adrs.
"""

import fnmatch
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from edgeguardd.core import systemdvalues as values
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError
from edgeguardd.isolate.findings import Answer, Role, Rule, Severity, Subject, failed, passed, unset
from edgeguardd.isolate.judge import Assignments

MAX_FILE_BYTES = 1024 * 1024
_TESTS = ("is_set", "equals", "one_of", "at_least", "at_most")
_EVERYWHERE = ("service", "socket", "mount", "swap", "slice", "scope", "target", "timer", "path", "automount", "device")


class _RuleTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[[rule]]: one key, and exactly one of the tests."""

    id: str
    key: str
    text: str
    remedy: str
    adr: str = ""
    severity: Severity = Severity.WARNING
    units: tuple[str, ...] = ("*",)
    is_set: bool | None = None
    equals: str | int | bool | None = None
    one_of: tuple[str | int | bool, ...] | None = None
    at_least: str | int | None = None
    at_most: str | int | None = None


class _RoleTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[[role]]: what these units are for."""

    name: Role
    units: tuple[str, ...]


class _IgnoreTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[[ignore]]: one rule that these units break on purpose."""

    rule: str
    units: tuple[str, ...]
    reason: str


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    rule: tuple[_RuleTable, ...] = ()
    role: tuple[_RoleTable, ...] = ()
    ignore: tuple[_IgnoreTable, ...] = ()
    severity: dict[str, Severity] = {}


def load(path: str, known: Iterable[str]) -> tuple[tuple[Rule, ...], Assignments]:
    """read() of the file with this path. Raises ConfigError."""
    shown = printable(path, 4096)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"cannot read {shown}: {error.strerror}; name a rules file"]) from None
    return read(data, shown, known)


def read(data: bytes, name: str, known: Iterable[str]) -> tuple[tuple[Rule, ...], Assignments]:
    """The rules and the assignments of a file. Raises ConfigError with every fault that is found at once."""
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError([f"cannot use {name}: more than {MAX_FILE_BYTES} bytes; is it a rules file?"])
    try:
        file = msgspec.convert(tomllib.loads(data.decode()), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError([f"cannot use {name}: {error}; see docs/how-to/audit-units.md for its form"]) from None
    problems = list(_problems(file, name, frozenset(known)))
    if problems:
        raise ConfigError(problems)
    assignments = Assignments(
        tuple((glob, role.name) for role in file.role for glob in role.units),
        file.severity,
        tuple((ignore.rule, glob, ignore.reason) for ignore in file.ignore for glob in ignore.units),
    )
    return tuple(_rule(table) for table in file.rule), assignments


def _problems(file: _File, name: str, known: frozenset[str]) -> Iterable[str]:
    seen: set[str] = set()
    for table in file.rule:
        if not table.id.isidentifier():
            yield f"cannot use {name}: rule id {table.id!r} is not letters, digits and _; rename it"
        if table.id in known or table.id in seen:
            yield f"cannot use {name}: there is a rule {table.id} already; rename it"
        seen.add(table.id)
        given = [test for test in _TESTS if getattr(table, test) is not None]
        if len(given) != 1:
            yield f"cannot use {name}: rule {table.id} has {len(given)} tests; give one of {', '.join(_TESTS)}"
        for test in ("at_least", "at_most"):
            limit = getattr(table, test)
            if limit is not None and _number(limit, table.key) is None:
                yield f"cannot use {name}: {test} of rule {table.id} is no number, size or time span; write one"
    for rule in (*file.severity, *(ignore.rule for ignore in file.ignore)):
        if rule not in known and rule not in seen:
            yield f"cannot use {name}: there is no rule {rule}; `edgeguardctl audit --rules` lists them"
    for ignore in file.ignore:
        if not ignore.reason.strip():
            yield f"cannot use {name}: no reason to ignore {ignore.rule}; give one"


def _rule(table: _RuleTable) -> Rule:
    test = next(test for test in _TESTS if getattr(table, test) is not None)
    return Rule(table.id, table.severity, table.text, table.remedy, table.adr, _check(table, test), _EVERYWHERE)


def _check(table: _RuleTable, test: str) -> Callable[[Subject], Answer | None]:
    wanted = getattr(table, test)

    def check(subject: Subject) -> Answer | None:
        if not any(fnmatch.fnmatchcase(subject.unit.name, glob) for glob in table.units):
            return None
        there = subject.shown.get(table.key)
        if table.key not in subject.shown:
            there = subject.unit.raw.get(table.key) or None
        if test == "is_set":
            is_set = there not in (None, "", "infinity", [])
            return (passed if is_set == wanted else failed)(f"{table.key} is {_said(there)}", table.key)
        if there is None:
            return unset(f"{table.key} is not set", table.key)
        kept = _keeps(test, there, wanted, table.key)
        return (passed if kept else failed)(f"{table.key} is {_said(there)}, {test} {wanted}", table.key)

    return check


def _keeps(test: str, there: Any, wanted: Any, key: str) -> bool:
    if test == "one_of":
        return any(_same(there, one, key) for one in wanted)
    if test == "equals":
        return _same(there, wanted, key)
    number, limit = _number(there, key), _number(wanted, key)
    if number is None or limit is None:
        return False
    return number >= limit if test == "at_least" else number <= limit


def _same(there: Any, wanted: Any, key: str) -> bool:
    if isinstance(wanted, bool) or isinstance(there, bool):
        return values.boolean(str(there)) == values.boolean(str(wanted))
    numbers = _number(there, key), _number(wanted, key)
    return str(there) == str(wanted) or (None not in numbers and numbers[0] == numbers[1])


def _number(value: Any, key: str) -> int | None:
    """Bytes, microseconds or a plain number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    if value == "infinity":
        return values.INFINITE
    if key.endswith("Sec"):
        return values.time_span(str(value))
    if isinstance(value, int):
        return value
    number = values.size(value)
    return values.integer(value) if number is None else number


def _said(value: Any) -> str:
    return "not set" if value in (None, "", []) else str(value)
