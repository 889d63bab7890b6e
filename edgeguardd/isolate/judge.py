"""A unit and rules -> a report: verdicts, what is broken and where, what is ignored on purpose.

Must not: print. Upstream: findings, rules, ignores, effective. Downstream: reports, cli.audit.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate import effective as force
from edgeguardd.isolate import ignores
from edgeguardd.isolate.findings import Live, Role, Rule, Severity, Subject, Verdict
from edgeguardd.isolate.ignores import Ignore
from edgeguardd.isolate.unit import LOADED, MASKED, NOT_FOUND, Machine, Unit
from edgeguardd.isolate.unittext import Remark

BROKEN = (Verdict.FAIL, Verdict.FAIL_UNSET)
UNIT_DOES_NOT_LOAD = "unit_loads"
BAD_IGNORE = "ignore_is_valid"
# Parts of the names of inference servers, of their units and programs.
_SERVERS = (
    *("llama", "ollama", "vllm", "sglang", "triton", "text-generation", "localai", "local-ai", "whisper", "tensorrt"),
    *("trtllm", "ovms", "openvino", "onnx", "mlc_llm", "koboldcpp", "lmdeploy", "aphrodite", "inference", "llm"),
)

_OWN = (("edgeguardd.service", Role.CRITICAL), ("edgeguardd-bridge@*.service", Role.OTHER))


class Finding(Struct, frozen=True):
    """One thing to say of a unit: a broken rule, a judgement, or a unit that does not load."""

    rule: str
    severity: Severity
    verdict: Verdict
    why: str
    remedy: str
    adr: str
    file: str
    line: int
    ignored: str | None = None


class Report(Struct, frozen=True):
    """What the audit says of one unit."""

    unit: Unit
    role: Role
    effective: Mapping[str, Any]
    verdicts: Mapping[str, Verdict]
    findings: Sequence[Finding]
    live: Live | None = None
    source: str = "files"

    def broken(self, least: Severity) -> bool:
        """Whether a rule of at least this severity is broken, and that is not ignored on purpose."""
        counts = list(Severity)[: list(Severity).index(least) + 1]
        return any(f.verdict in BROKEN and f.severity in counts and f.ignored is None for f in self.findings)


class Assignments(Struct, frozen=True):
    """Which units have which role, what severity rules have, what is ignored for whom: the rules file's part."""

    roles: tuple[tuple[str, Role], ...] = ()
    severities: Mapping[str, Severity] = {}
    ignored: tuple[tuple[str, str, str], ...] = ()  # rule, glob of units, reason
    guess: bool = False  # the role of units that no glob fits, by what they run

    def role_of(self, unit: Unit) -> Role:
        """The role of a unit: the first glob that fits; without one it is what the rules are about, inference.

        Where roles are guessed, only a unit whose name or program is that of an inference server is one. The guard
        itself is none, though its bridges have a server's name in theirs.
        """
        said = next((role for glob, role in (*self.roles, *_OWN) if fnmatch.fnmatchcase(unit.name, glob)), None)
        if said is not None:
            return said
        words = [unit.name, *(command.line() for command in unit.values.get("ExecStart", ()))]
        serves = any(server in word.lower() for word in words for server in _SERVERS)
        return Role.INFERENCE if serves or not self.guess else Role.OTHER


def report(
    unit: Unit,
    rules: Iterable[Rule],
    machine: Machine,
    given: Assignments,
    live: Live | None = None,
    differs: tuple[str, ...] | None = None,
) -> Report:
    """Ask every rule. `differs`: where the running systemd has something else than the files; None: not asked."""
    role = given.role_of(unit)
    seen = force.effective(unit)
    source = "files" if differs is None else "systemd"
    table = tuple(rules)
    if unit.load_state != LOADED:
        found = () if unit.load_state == MASKED else (_does_not_load(unit),)
        return Report(unit, role, seen, {}, found, live, source)
    subject = Subject(unit, seen, machine, role, live, differs)
    by_comment, wrong = ignores.read(unit.texts, [rule.id for rule in table])
    findings = [_bad_ignore(remark) for remark in wrong]
    verdicts: dict[str, Verdict] = {}
    for rule in table:
        if unit.kind not in rule.kinds or role not in rule.roles:
            continue
        answer = rule.check(subject)
        if answer is None:
            continue
        verdicts[rule.id] = answer.verdict
        if answer.verdict is not Verdict.PASS:
            place = _place(unit, answer.key)
            reason = _reason(rule.id, unit.name, by_comment, given)
            severity = given.severities.get(rule.id) or _severity(rule, role, unit)
            findings.append(
                Finding(
                    *(rule.id, severity, answer.verdict, answer.why, rule.remedy, rule.adr),
                    *(place.file, place.line, reason),
                )
            )
    return Report(unit, role, seen, verdicts, tuple(findings), live, source)


def _severity(rule: Rule, role: Role, unit: Unit) -> Severity:
    """A server without a limit is a fault; of the eighty others on a box each has none, as its distribution made it."""
    if role is Role.INFERENCE:
        return rule.severity
    limited = any(unit.values[key] != INFINITE for key in ("MemoryHigh", "MemoryMax", "MemoryLimit"))
    bare = None if limited or role is Role.CRITICAL else rule.unlimited
    return bare or rule.elsewhere or rule.severity


def _reason(rule: str, unit: str, by_comment: Mapping[str, Ignore], given: Assignments) -> str | None:
    if rule in by_comment:
        return by_comment[rule].reason
    listed = (why for one, glob, why in given.ignored if one == rule and fnmatch.fnmatchcase(unit, glob))
    return next(listed, None)


def _place(unit: Unit, key: str) -> Remark:
    """Where a setting got its value; the fragment's first line for one that is not set."""
    if key in unit.set_at:
        return unit.set_at[key]
    if not key and unit.ignored:
        return unit.ignored[0]
    return Remark(unit.found.fragment or unit.name, 1, "")


def _does_not_load(unit: Unit) -> Finding:
    place = next((text.broken for text in unit.texts if text.broken), None)
    file, line = (place.file, place.line) if place else (unit.found.fragment or unit.name, 1)
    mend = "Mend the file; `systemd-analyze verify` says the same."
    remedy = "Correct the name, or install the unit." if unit.load_state == NOT_FOUND else mend
    return Finding(
        *(UNIT_DOES_NOT_LOAD, Severity.ERROR, Verdict.FAIL, f"{unit.load_state}: {unit.why}"),
        *(remedy, "", file, line),
    )


def _bad_ignore(remark: Remark) -> Finding:
    return Finding(
        *(BAD_IGNORE, Severity.ERROR, Verdict.FAIL, remark.text),
        *("Write # edgeguard: ignore=RULE reason.", "", remark.file, remark.line),
    )
