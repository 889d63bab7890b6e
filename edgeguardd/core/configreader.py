"""TOML tree -> Config: collects values and faults; a fault leaves the default behind, so that reading goes on.

Must not: decide what a key means (configtable), or what goes together (configcheck). Upstream: configtable,
configpolicy, configkinds, configcheck. Downstream: configparse.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from edgeguardd.core import configcheck, configpolicy, configprovision, configscores
from edgeguardd.core import configtable as table
from edgeguardd.core.config import (
    Config,
    DeviceSpec,
    Ladder,
    LastResorts,
    LastResortStep,
    OomScoreRule,
    Policy,
    Step,
    TargetSpec,
    WatchSpec,
)
from edgeguardd.core.configcheck import Finding
from edgeguardd.core.configkinds import shown
from edgeguardd.core.configlines import Path
from edgeguardd.core.configrows import Row, Section
from edgeguardd.core.model import Action, LastResort
from edgeguardd.core.provisionspec import ProvisionConfig, ServiceSpec, SliceSpec
from edgeguardd.core.text import printable

Tree = Mapping[str, Any]
_DEVICE_SAMPLES = {"name": '"gpu"', "kind": '"nvml"'}
_SCORE_SAMPLES = {"name": '"llm"', "value": "500"}
# Each is tried on each process; every rule has metrics of its own.
MAX_RULES = 64
Levels = TypeVar("Levels", Ladder, LastResorts)
Group = TypeVar("Group", SliceSpec, ServiceSpec)
# Tables within a table, which are read apart.
_NESTED = {"machine": ("device",), "provision": ("slice", "service")}


# Who has made more than so many mistakes has made one, a wrong file above all; telling each would take half a minute.
MAX_PROBLEMS = 256


class TooManyProblems(Exception):  # noqa: N818 - the reading ends early, which is no fault of its own
    """So many faults that the rest is not looked for."""


class Reader:
    """One reading. `problems`: the faults found, each with its line."""

    def __init__(self, lines: Mapping[Path, int]) -> None:
        self.problems: list[tuple[int, str]] = []
        self._lines = lines
        self._faulty: set[Path] = set()

    def config(self, tree: Tree) -> Config:
        """The whole tree, in the order in which the parts build on each other. Raises TooManyProblems."""
        named = (
            table.SOCKET,
            table.HTTP,
            table.GATE,
            table.SAMPLING,
            table.LOG,
            table.MACHINE,
            table.RECORDER,
            table.KERNEL_LOG,
            configprovision.PROVISION,
            configscores.DELAYS,
        )
        tables = (*(section.header for section in named), "defaults", "target", "pressure_watch", "oom_score")
        top = self._values(tree, (), table.TOP, tables)
        trees = {section.header: self._table(tree, (section.header,)) for section in named}
        sections: dict[str, Any] = {
            name: msgspec.convert(
                self._values(trees[name], (name,), section, _NESTED.get(name, ())),
                section.fills,
            )
            for name, section in zip(trees, named, strict=True)
        }
        devices = self._devices(trees["machine"])
        sections["machine"] = msgspec.structs.replace(sections["machine"], devices=devices)
        sections["provision"] = self._provision(trees["provision"], sections["provision"])
        defaults = self._policy(self._table(tree, ("defaults",)), ("defaults",), Policy())
        targets = self._targets(tree, defaults)
        watches = self._watches(tree, sections["socket"].path, {spec.name for spec in targets if not spec.glob})
        scores = self._oom_scores(tree)
        config = Config(
            **top, **sections, defaults=defaults, targets=targets, pressure_watches=watches, oom_scores=scores
        )
        self._findings(("sampling",), trees["sampling"], configcheck.sampling_findings(config.sampling))
        self._findings(("machine",), trees["machine"], configcheck.machine_findings(config.machine))
        if len(config.targets) > config.max_targets:
            why = f"there are {len(config.targets)} targets; raise it or take some out"
            self._problem(("max_targets",), config.max_targets, why)
        return config

    def _devices(self, tree: Tree) -> tuple[DeviceSpec, ...]:
        specs: dict[str, DeviceSpec] = {}
        for entry, path in self._entries(tree, ("machine", "device"), table.DEVICE):
            values = self._values(entry, path, table.DEVICE)
            missing = [key for key in ("name", "kind") if key not in entry]
            for key in missing:
                self._problem(path, None, f"it has no {key}; write one such as {key} = {_DEVICE_SAMPLES[key]}")
            if "name" not in values or "kind" not in values:
                continue
            spec = DeviceSpec(**values)
            self._findings(path, entry, configcheck.device_findings(spec))
            if spec.kind == "file" and "path" not in entry:
                self._problem((*path, "kind"), spec.kind, 'no file is named; write path = "/run/npu/memory"')
            if spec.name in specs:
                self._problem((*path, "name"), spec.name, "another device has that name; choose one of its own")
            specs[spec.name] = spec
        return tuple(specs.values())

    def _provision(self, tree: Tree, config: ProvisionConfig) -> ProvisionConfig:
        slices = self._groups(tree, configprovision.SLICE, SliceSpec)
        services = self._groups(tree, configprovision.SERVICE, ServiceSpec)
        config = msgspec.structs.replace(config, slices=slices, services=services)
        for fault in configprovision.faults(config):
            self._problem(("provision", fault.kind, fault.number, fault.key), fault.value, fault.why)
        return config

    def _groups(self, tree: Tree, section: Section, fills: type[Group]) -> tuple[Group, ...]:
        found: list[Group] = []
        header, kind = section.header.split(".")
        for entry, path in self._entries(tree, (header, kind), section):
            values = self._values(entry, path, section)
            if "name" in values:
                found.append(fills(**values))
            elif "name" not in entry:
                sample = configprovision.SAMPLES[section.header]["name"]
                self._problem(path, None, f"it has no name; write one such as name = {sample}")
        return tuple(found)

    def _watches(self, tree: Tree, taken_path: str, targets: set[str]) -> tuple[WatchSpec, ...]:
        specs: dict[str, WatchSpec] = {}
        for entry, path in self._entries(tree, ("pressure_watch",), table.WATCH):
            values = self._values(entry, path, table.WATCH)
            if "path" not in entry:
                self._problem(path, None, 'it has no path; write path = "/run/edgeguardd/pressure.sock"')
            if "path" not in values:
                continue
            spec = WatchSpec(**values)
            if spec.path == taken_path or spec.path in specs:
                self._problem((*path, "path"), spec.path, "another socket is made there; choose a path of its own")
            if spec.target is not None and spec.target not in targets:
                why = "no [[target]] has that name, with a path or a unit; write one, or leave target out"
                self._problem((*path, "target"), spec.target, why)
            specs[spec.path] = spec
        return tuple(specs.values())

    def _oom_scores(self, tree: Tree) -> tuple[OomScoreRule, ...]:
        rules: dict[str, OomScoreRule] = {}
        for entry, path in self._entries(tree, ("oom_score",), configscores.OOM_SCORE):
            values = self._values(entry, path, configscores.OOM_SCORE)
            missing = [key for key in ("name", "value") if key not in entry]
            for key in missing:
                self._problem(path, None, f"it has no {key}; write one such as {key} = {_SCORE_SAMPLES[key]}")
            if not {"unit", "cgroup", "exe", "comm"} & entry.keys():
                self._problem(path, None, "it would hold for every process; write unit, cgroup, exe or comm")
            if "name" not in values or "value" not in values:
                continue
            rule = OomScoreRule(**values)
            self._findings(path, entry, configcheck.score_findings(rule))
            if rule.name in rules:
                self._problem((*path, "name"), rule.name, "another rule has that name; choose one of its own")
            rules[rule.name] = rule
        if len(rules) > MAX_RULES:
            self._problem(("oom_score",), None, f"there are {len(rules)} rules; write at most {MAX_RULES}")
        return tuple(rules.values())

    def _targets(self, tree: Tree, defaults: Policy) -> tuple[TargetSpec, ...]:
        specs: dict[str, TargetSpec] = {}
        for entry, path in self._entries(tree, ("target",), table.TARGET):
            if spec := self._target(entry, path, defaults):
                if spec.name in specs:
                    self._problem((*path, "name"), spec.name, "another target has that name; choose one of its own")
                specs[spec.name] = spec
        return tuple(specs.values())

    def _entries(self, tree: Tree, path: Path, section: Section) -> list[tuple[Tree, Path]]:
        """The tables of an array of tables, each with its path; what is no table is a fault."""
        entries = tree.get(str(path[-1]), [])
        if not isinstance(entries, list):
            self._problem(path, entries, f"this is an array of tables; write {section.title} with two brackets")
            return []
        found: list[tuple[Tree, Path]] = []
        for number, entry in enumerate(entries):
            if isinstance(entry, dict):
                found.append((entry, (*path, number)))
            else:
                self._problem((*path, number), entry, f"it is a table; write {section.title} and its keys below it")
        return found

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
        if "name" not in values:
            return None
        spec = TargetSpec(**values, policy=policy)
        if len(places) == 1:
            self._restarts(spec, entry, (*path, places[0]))
        return spec

    def _restarts(self, spec: TargetSpec, entry: Tree, place: Path) -> None:
        """A restart of the target's own unit needs one. What is inherited is told at the target's place."""
        own = entry.get("last_resort")
        for level in configcheck.restarts_of_nothing(spec):
            path = (*place[:-1], "last_resort", level) if isinstance(own, dict) and level in own else place
            if not {path, place, ("defaults", "last_resort", level)} & self._faulty:
                why = (
                    f"the last resort of level {level} restarts its unit, and it is not named by a .service; "
                    'name it by unit, or write {action = "restart", unit = "llama.service"}'
                )
                self._problem(path, None, why)

    def _policy(self, tree: Tree, path: Path, base: Policy, more: Section | None = None) -> Policy:
        """The policy keys of a table over those of `base`; keys of the section `more` are left for the caller."""
        own_rows = [row.key for row in more.rows] if more else []
        values = self._values(tree, path, configpolicy.DEFAULTS, ("ladder", "last_resort", *own_rows))
        ladder_path, resort_path = (*path, "ladder"), (*path, "last_resort")
        ladder_tree, resort_tree = self._table(tree, ladder_path), self._table(tree, resort_path)
        ladder = self._levels(ladder_tree, ladder_path, base.ladder, configpolicy.LADDER, self._step)
        resort = self._levels(resort_tree, resort_path, base.last_resort, configpolicy.LAST_RESORT, self._resort)
        policy = msgspec.structs.replace(base, **values, ladder=ladder, last_resort=resort)
        self._findings(path, tree, configcheck.policy_findings(policy))
        self._findings(ladder_path, ladder_tree, configcheck.ladder_findings(ladder))
        self._findings(resort_path, resort_tree, configcheck.resort_findings(resort))
        return policy

    def _levels(
        self, tree: Tree, path: Path, base: Levels, section: Section, read: Callable[[object, Path], object]
    ) -> Levels:
        """Steps level by level over those of `base`; `read` makes a step of what is written, or None."""
        levels = self._values(tree, path, section)
        for level, entries in levels.items():
            steps = [read(entry, (*path, level, number)) for number, entry in enumerate(entries)]
            if None in steps:
                self._faulty.add((*path, level))
            levels[level] = tuple(step for step in steps if step)
        return msgspec.structs.replace(base, **levels)

    def _step(self, entry: object, path: Path) -> Step | None:
        known = len(self.problems)
        values = self._step_values(entry, path, configpolicy.STEP, "trim_kv_cache")
        if values is None:
            return None
        action = Action(values.pop("action"))
        step = msgspec.structs.replace(configpolicy.plain_step(action), **values)
        if action is Action.REDUCE_BATCH and step.max_batch_ratio is None:
            why = 'it does not say how far; write {action = "reduce_batch", max_batch_ratio = 0.5}'
            self._problem(path, entry, why)
        if action is not Action.REDUCE_BATCH and step.max_batch_ratio is not None:
            self._problem((*path, "max_batch_ratio"), step.max_batch_ratio, f"{action} has no batch; leave it out")
        return step if len(self.problems) == known else None

    def _resort(self, entry: object, path: Path) -> LastResortStep | None:
        known = len(self.problems)
        values = self._step_values(entry, path, configpolicy.RESORT_STEP, "reclaim")
        if values is None:
            return None
        action = LastResort(values.pop("action"))
        for key, only in configpolicy.RESORT_KEYS.items():
            if isinstance(entry, dict) and key in entry and action is not only:
                self._problem((*path, key), entry[key], f"it is for {only} alone, and this is {action}; leave it out")
        return LastResortStep(action, **values) if len(self.problems) == known else None

    def _step_values(self, entry: object, path: Path, section: Section, example: str) -> dict[str, Any] | None:
        """The fields of one step, written as a table or as the bare name of its action. None: it has a fault."""
        known = len(self.problems)
        tree: Tree = entry if isinstance(entry, dict) else {"action": entry}
        values = self._values(tree, path, section)
        if "action" not in tree:
            self._problem(path, entry, f'the step names no action; write {{action = "{example}"}}')
        return values if len(self.problems) == known else None

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
        if len(self.problems) == MAX_PROBLEMS:
            raise TooManyProblems


def _dotted(path: Path) -> str:
    return ".".join(printable(part, 60) for part in path if isinstance(part, str))


def _unknown(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key[:60], known, n=1, cutoff=0.6)
    if near:
        return f"there is no such key; did you mean {near[0]}?"
    return f"there is no such key; the keys here are {', '.join(known)}"
