"""Reports -> text for people, JSON, JUnit XML and SARIF for programs.

Must not: judge, open files. Upstream: judge. Downstream: cli.audit.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as Xml

from edgeguardd import __version__
from edgeguardd.core.text import printable
from edgeguardd.isolate.findings import Rule, Severity, Verdict
from edgeguardd.isolate.judge import BROKEN, Finding, Report
from edgeguardd.isolate.unit import LOADED

MAX_TEXT_CHARS = 4096
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_NO_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 65534, 65535, *range(55296, 57344)), "�")


def text(reports: Sequence[Report], *, brief: bool = False) -> list[str]:
    """Lines: each unit with what is broken, what to decide, and what is ignored; last a summary."""
    lines: list[str] = []
    for report in reports:
        if brief and not any(_counts(finding) for finding in report.findings):
            continue
        lines += [*_unit(report), ""]
    broken = [f for report in reports for f in report.findings if _counts(f)]
    counted = {severity: sum(f.severity is severity for f in broken) for severity in Severity}
    summary = ", ".join(f"{number} {severity}{'' if number == 1 else 's'}" for severity, number in counted.items())
    lines.append(f"{len(reports)} unit{'' if len(reports) == 1 else 's'}: {summary}{_review(reports)}")
    return lines


def document(reports: Sequence[Report], *, single: bool) -> str:
    """JSON: one object for a single unit, else `{"units": […]}`. ASCII."""
    found = [_object(report) for report in reports]
    return json.dumps(found[0] if single and len(found) == 1 else {"units": found}, indent=1)


def junit(reports: Sequence[Report]) -> str:
    """JUnit XML: a suite a unit, a case a rule."""
    top = Xml.Element("testsuites", name="edgeguardctl audit")
    for report in reports:
        findings = {finding.rule: finding for finding in report.findings}
        rules = [*report.verdicts, *(rule for rule in findings if rule not in report.verdicts)]
        failures = [f for f in findings.values() if _counts(f)]
        skipped = [f for f in findings.values() if not _counts(f)]
        suite = Xml.SubElement(
            top, "testsuite", name=_xml(report.unit.name), tests=str(len(rules)), failures=str(len(failures)),
            errors="0", skipped=str(len(skipped)),
        )  # fmt: skip
        for rule in rules:
            case = Xml.SubElement(suite, "testcase", classname=_xml(report.unit.name), name=_xml(rule))
            finding = findings.get(rule)
            if finding is not None:
                case.set("file", _xml(finding.file))
                case.set("line", str(finding.line))
                _case(case, finding)
    return Xml.tostring(top, encoding="unicode", xml_declaration=True)


def sarif(reports: Sequence[Report], rules: Iterable[Rule], base: str = "") -> str:
    """SARIF 2.1.0. Paths below `base` are written relative to it, as code hosts want them."""
    driver = {
        "name": "edgeguardctl audit",
        "version": __version__,
        "rules": [
            {
                "id": rule.id,
                "shortDescription": {"text": rule.text},
                "help": {"text": rule.remedy},
                "defaultConfiguration": {"level": str(rule.severity)},
                "properties": {"adr": rule.adr},
            }
            for rule in rules
        ],
    }
    results = [_result(report, finding, base) for report in reports for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def _counts(finding: Finding) -> bool:
    return finding.verdict in BROKEN and finding.ignored is None


def _review(reports: Sequence[Report]) -> str:
    """How much a person has to look at; nothing where there is nothing."""
    number = sum(f.verdict is Verdict.JUDGEMENT and f.ignored is None for report in reports for f in report.findings)
    return f", {number} to review" if number else ""


def _unit(report: Report) -> list[str]:
    unit = report.unit
    state = "" if unit.load_state == LOADED else f" [{unit.load_state}]"
    files = ", ".join(unit.files) or "no file"
    lines = [_safe(f"{unit.name}{state} ({report.role}; {files})")]
    if unit.load_state == "masked":
        return [*lines, "  nothing to audit: it is masked"]
    lines += [_safe(f"  note: {note}") for note in unit.found.notes]
    for finding in report.findings:
        if finding.ignored is not None:
            lines.append(_safe(f"  ignored  {finding.rule}: {finding.why} (reason: {finding.ignored})"))
            continue
        word = "review" if finding.verdict is Verdict.JUDGEMENT else str(finding.severity)
        lines.append(_safe(f"  {word:8} {finding.rule}: {finding.why}"))
        lines.append(_safe(f"           {finding.file}:{finding.line}"))
        if finding.verdict in BROKEN:
            lines.append(_safe(f"           {finding.remedy}" + (f" ({finding.adr})" if finding.adr else "")))
        else:
            lines.append(_safe(f"           Right if it is meant so, and no rule can tell. Else: {finding.remedy}"))
    kept = sum(verdict is Verdict.PASS for verdict in report.verdicts.values())
    return [*lines, f"  {kept} of {len(report.verdicts)} rules kept"]


def _object(report: Report) -> dict[str, Any]:
    unit = report.unit
    return {
        "unit": unit.name,
        "aliases": list(unit.found.aliases),
        "role": str(report.role),
        "source": report.source,
        "files": list(unit.files),
        "effective": dict(report.effective),
        "verdicts": {rule: str(verdict) for rule, verdict in report.verdicts.items()},
        "findings": [
            {
                "rule": f.rule,
                "severity": str(f.severity),
                "verdict": str(f.verdict),
                "why": f.why,
                "remedy": f.remedy,
                "adr": f.adr,
                "file": f.file,
                "line": f.line,
                "ignored": f.ignored,
            }
            for f in report.findings
        ],
        "ignored_settings": [{"file": r.file, "line": r.line, "text": r.text} for r in unit.ignored],
        "notes": list(unit.found.notes),
        "cgroup": report.live.cgroup if report.live else None,
    }


def _case(case: Xml.Element, finding: Finding) -> None:
    said = _xml(f"{finding.why} ({finding.file}:{finding.line})")
    if finding.ignored is not None:
        Xml.SubElement(case, "skipped", message=_xml(f"ignored: {finding.ignored}"))
    elif finding.verdict is Verdict.JUDGEMENT:
        Xml.SubElement(case, "skipped", message=f"to decide: {said}")
    else:
        failure = Xml.SubElement(case, "failure", message=said, type=str(finding.severity))
        failure.text = _xml(finding.remedy)


def _result(report: Report, finding: Finding, base: str) -> dict[str, Any]:
    path = finding.file.removeprefix(base.rstrip("/") + "/") if base else finding.file
    level = "note" if finding.verdict is Verdict.JUDGEMENT else str(finding.severity)
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": level,
        "kind": "review" if finding.verdict is Verdict.JUDGEMENT else "fail",
        "message": {"text": f"{report.unit.name}: {finding.why}. {finding.remedy}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(path)},
                    "region": {"startLine": max(1, finding.line)},
                }
            }
        ],
        "partialFingerprints": {"unitAndRule": f"{report.unit.name}/{finding.rule}"},
    }
    if result["kind"] == "review":
        result["level"] = "none"  # SARIF: a kind other than fail has no level
    if finding.ignored is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.ignored}]
    return result


def _uri(path: str) -> str:
    """A path as a URI reference, whatever bytes the file's name has."""
    return quote(path.encode(errors="surrogateescape"), safe="/@:")


def _safe(line: str) -> str:
    return printable(line, MAX_TEXT_CHARS)


def _xml(words: str) -> str:
    """Text without what XML 1.0 cannot hold."""
    return words.translate(_NO_XML)
