"""TOML text -> Config, or every fault at once with its line.

Must not: open files (cli.common does), decide what a key means (configtable), or what goes together (configcheck).
Upstream: configtable, configkinds, configlines, configcheck. Downstream: cli, daemon (through `load`).
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from edgeguardd.core import configtable as table
from edgeguardd.core.config import Config, Ladder, Policy, Step, TargetSpec
from edgeguardd.core.configcheck import Finding, ladder_findings, policy_findings, sampling_findings
from edgeguardd.core.configkinds import shown
from edgeguardd.core.configlines import Path, key_lines
from edgeguardd.core.configtable import Row, Section
from edgeguardd.core.model import Action
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError

# Room for 4,096 targets; tomllib takes seconds for more than this.
MAX_FILE_BYTES = 1024 * 1024

Tree = Mapping[str, Any]
_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def read(text: str | bytes, source: str) -> Config:
    """The configuration in a TOML text. `source` names it in every fault. Raises ConfigError."""
    try:
        decoded = _decoded(text)
        return parse(_tree(decoded), key_lines(decoded))
    except ConfigError as error:
        raise ConfigError([f"{source}: {problem}" for problem in error.problems]) from None


def parse(tree: Tree, lines: Mapping[Path, int] | None = None) -> Config:
    """The configuration in a TOML tree; `lines` tells where each key stands. Raises ConfigError with every fault."""
    reader = _Reader(lines or {})
    config = reader.config(tree)
    if reader.problems:
        raise ConfigError([problem for _, problem in sorted(reader.problems, key=lambda found: found[0])])
    return config


def _decoded(text: str | bytes) -> str:
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError([f"cannot read a configuration of over {MAX_FILE_BYTES} bytes; is it the right file?"])
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ConfigError(
                [f"line {line}: cannot read byte {error.start} as UTF-8; save the file as UTF-8"]
            ) from None
    if text.startswith("\ufeff"):
        raise ConfigError(["line 1: cannot read a byte order mark; save the file as UTF-8 without one"])
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError([f"line {line}: cannot read a NUL character; is it a text file?"])
    return text.replace("\r\n", "\n")


def _tree(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(["cannot read brackets nested this deep; no key needs more than three"]) from None
    except ValueError as error:  # TOMLDecodeError, and int()'s own for numbers of thousands of digits
        raise ConfigError([_syntax_problem(str(error))]) from None


def _syntax_problem(message: str) -> str:
    remedy = "mend it, or compare it with the commented example"
    found = _SYNTAX.fullmatch(message)
    if not found:
        return f"cannot read this as TOML: {printable(message, 200)}; {remedy}"
    what, line, column = found.groups()
    what = printable(what[:1].lower() + what[1:], 200)
    if line is None:
        return f"cannot read this as TOML: {what} at the end; {remedy}"
    return f"line {line}: cannot read this as TOML: {what} at column {column}; {remedy}"


class _Reader:
    """Collects values and faults; a value that has a fault leaves its default behind, so that reading goes on."""

    def __init__(self, lines: Mapping[Path, int]) -> None:
        self.problems: list[tuple[int, str]] = []
        self._lines = lines
        self._faulty: set[Path] = set()

    def config(self, tree: Tree) -> Config:
        """The whole tree, in the order in which the parts build on each other."""
        named = (table.SOCKET, table.HTTP, table.SAMPLING, table.LOG)
        tables = (*(section.header for section in named), "defaults", "target")
        top = self._values(tree, (), table.TOP, tables)
        trees = {section.header: self._table(tree, (section.header,)) for section in named}
        sections: dict[str, Any] = {
            name: msgspec.convert(self._values(trees[name], (name,), section), section.fills)
            for name, section in zip(trees, named, strict=True)
        }
        defaults = self._policy(self._table(tree, ("defaults",)), ("defaults",), Policy())
        config = Config(**top, **sections, defaults=defaults, targets=self._targets(tree, defaults))
        self._findings(("sampling",), trees["sampling"], sampling_findings(config.sampling))
        if len(config.targets) > config.max_targets:
            why = f"there are {len(config.targets)} targets; raise it or take some out"
            self._problem(("max_targets",), config.max_targets, why)
        return config

    def _targets(self, tree: Tree, defaults: Policy) -> tuple[TargetSpec, ...]:
        entries = tree.get("target", [])
        if not isinstance(entries, list):
            self._problem(("target",), entries, "targets are an array of tables; write [[target]] with two brackets")
            return ()
        specs: dict[str, TargetSpec] = {}
        for number, entry in enumerate(entries):
            path: Path = ("target", number)
            if not isinstance(entry, dict):
                self._problem(path, entry, "a target is a table; write [[target]] and its keys below it")
            elif spec := self._target(entry, path, defaults):
                if spec.name in specs:
                    self._problem((*path, "name"), spec.name, "another target has that name; choose one of its own")
                specs[spec.name] = spec
        return tuple(specs.values())

    def _target(self, entry: Tree, path: Path, defaults: Policy) -> TargetSpec | None:
        policy = self._policy(entry, path, defaults, table.TARGET)
        places = [key for key in ("path", "unit", "glob") if key in entry]
        if not places:
            self._problem(path, None, "it names no cgroup; write one of path, unit and glob")
        elif len(places) > 1:
            why = f"{' and '.join(places)} both say which cgroup; keep one of them"
            self._problem((*path, places[-1]), entry[places[-1]], why)
        if "name" not in entry:
            self._problem(path, None, 'it has no name; write one such as name = "llm"')
        own = {key: value for key, value in entry.items() if any(row.key == key for row in table.TARGET.rows)}
        values = self._values(own, path, table.TARGET)
        return TargetSpec(**values, policy=policy) if "name" in values else None

    def _policy(self, tree: Tree, path: Path, base: Policy, more: Section | None = None) -> Policy:
        """The policy keys of a table over those of `base`; keys of the section `more` are left for the caller."""
        own_rows = [row.key for row in more.rows] if more else []
        values = self._values(tree, path, table.DEFAULTS, ("ladder", *own_rows))
        ladder_path = (*path, "ladder")
        ladder_tree = self._table(tree, ladder_path)
        ladder = self._ladder(ladder_tree, ladder_path, base.ladder)
        policy = msgspec.structs.replace(base, **values, ladder=ladder)
        self._findings(path, tree, policy_findings(policy))
        self._findings(ladder_path, ladder_tree, ladder_findings(ladder))
        return policy

    def _ladder(self, tree: Tree, path: Path, base: Ladder) -> Ladder:
        rungs = self._values(tree, path, table.LADDER)
        for level, entries in rungs.items():
            steps = [self._step(entry, (*path, level, number)) for number, entry in enumerate(entries)]
            if None in steps:
                self._faulty.add((*path, level))
            rungs[level] = tuple(step for step in steps if step)
        return msgspec.structs.replace(base, **rungs)

    def _step(self, entry: object, path: Path) -> Step | None:
        known = len(self.problems)
        tree: Tree = entry if isinstance(entry, dict) else {"action": entry}
        values = self._values(tree, path, table.STEP)
        if "action" not in tree:
            self._problem(path, entry, 'the step names no action; write {action = "trim_kv_cache"}')
        if len(self.problems) > known:
            return None
        action = Action(values.pop("action"))
        step = msgspec.structs.replace(table.plain_step(action), **values)
        if action is Action.REDUCE_BATCH and step.max_batch_ratio is None:
            why = 'it does not say how far; write {action = "reduce_batch", max_batch_ratio = 0.5}'
            self._problem(path, entry, why)
        if action is not Action.REDUCE_BATCH and step.max_batch_ratio is not None:
            self._problem((*path, "max_batch_ratio"), step.max_batch_ratio, f"{action} has no batch; leave it out")
        return step if len(self.problems) == known else None

    def _table(self, tree: Tree, path: Path) -> Tree:
        """The table at the last part of `path`; an empty one when it is missing or no table."""
        found = tree.get(str(path[-1]), {})
        if isinstance(found, dict):
            return found
        self._problem(path, found, f"it is a table; write [{_dotted(path)}] and its keys below it")
        return {}

    def _values(self, tree: Tree, path: Path, section: Section, others: Iterable[str] = ()) -> dict[str, Any]:
        """The fields that the keys of one table fill. `others` are keys somebody else reads."""
        rows: dict[str, Row] = {row.key: row for row in section.rows}
        values = {}
        for key, value in tree.items():
            if row := rows.get(key):
                try:
                    values[row.field] = row.kind.parse(value)
                except ValueError as error:
                    self._problem((*path, key), value, str(error))
            elif key not in others:
                self._problem((*path, key), None, _unknown(key, [*rows, *others]))
        return values

    def _findings(self, path: Path, tree: Tree, findings: list[Finding]) -> None:
        """Report what lies between keys at the last of them that this table sets, unless one is at fault itself."""
        inherited: Path = ("defaults", *path[2:]) if path[0] == "target" else path
        faulty = self._faulty.copy()
        for finding in findings:
            own = [key for key in finding.keys if key in tree]
            if own and not any({(*path, key), (*inherited, key)} & faulty for key in finding.keys):
                self._problem((*path, own[-1]), tree[own[-1]], finding.why)

    def _problem(self, path: Path, value: object, why: str) -> None:
        self._faulty.add(path)
        line = next((self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), 0)
        where = f"line {line}: " if line else ""
        what = _dotted(path) + ("" if value is None else f" = {shown(value)}")
        if not line and (numbers := [part + 1 for part in path if isinstance(part, int)]):
            what += f" (number {'.'.join(map(str, numbers))})"
        self.problems.append((line, f"{where}cannot use {what}: {why}"))


def _dotted(path: Path) -> str:
    return ".".join(printable(part, 60) for part in path if isinstance(part, str))


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key[:60], known, n=1, cutoff=0.6)
    if near:
        return f"there is no such key; did you mean {near[0]}?"
    return f"there is no such key; the keys here are {', '.join(known)}"
