"""Reports as text, JSON, JUnit and SARIF: complete, safe to print, and of the form that CI systems read."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree as Xml

from edgeguardd.isolate import reports
from edgeguardd.isolate.judge import Report
from edgeguardd.isolate.rules import RULES
from tests.support.unittree import judged, loaded, service


def two(tmp_path: Path) -> list[Report]:
    """One with an ignore and a name of control characters in a value, one that does not load."""
    bad = "# edgeguard: ignore=no_new_privileges it \x1b[2J needs them\nMemoryMax=1G\x1b[31m\nOOMScoreAdjust=300\n"
    other = loaded(tmp_path / "b", {"b.service": "[Service]\n"}, "b.service")
    return [judged(service(tmp_path / "a", bad)), judged(other)]


def test_text_tells_rule_figures_place_and_remedy(tmp_path: Path) -> None:
    """One line each; escapes of strangers are shown, not obeyed."""
    lines = reports.text(two(tmp_path))
    text = "\n".join(lines)
    assert "\x1b" not in text
    assert "  error    memory_max_set: MemoryMax is infinity" in lines
    assert "  review   oom_score_adjust_high: OOMScoreAdjust is 300, less than 500" in lines
    remedy = "Set OOMScoreAdjust=500 or more; a unit that must live is named in a [[role]] as critical instead."
    assert f"           Right if it is meant so, and no rule can tell. Else: {remedy}" in lines
    assert any(line.startswith("  ignored  no_new_privileges: NoNewPrivileges is no (reason: it ") for line in lines)
    assert any(line.startswith("  error    unit_loads: bad-setting: no ExecStart=") for line in lines)
    assert re.fullmatch(r"2 units: \d+ errors, \d+ warnings, \d+ notes?, 1 to review", lines[-1])


def test_file_names_may_be_any_bytes(tmp_path: Path) -> None:
    """A drop-in whose name is no UTF-8 and holds what a terminal or XML would act on."""
    unit = service(tmp_path, "")
    (tmp_path / "a.service.d").mkdir()
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/a.service.d/\xff\x1b<\n.conf"))).write_text(
        "[Service]\nMemoryMax=1g\n"
    )
    report = judged(loaded(tmp_path, {}))
    assert len(report.unit.files) == len(unit.files) + 1
    assert "%FF%1B%3C%0A.conf" in reports.sarif([report], RULES)
    assert Xml.fromstring(reports.junit([report])) is not None  # noqa: S314  written above
    assert all(line.isprintable() for line in reports.text([report]))
    assert reports.document([report], single=True).isascii()


def test_brief_leaves_out_what_is_well_or_left_to_decide(tmp_path: Path) -> None:
    """A masked unit has nothing to say."""
    masked = judged(loaded(tmp_path, {"c.service": ""}, "c.service"))
    assert reports.text([masked], brief=True) == ["1 unit: 0 errors, 0 warnings, 0 notes"]
    assert "  nothing to audit: it is masked" in reports.text([masked])


def test_json_is_one_object_for_one_unit_and_a_list_for_several(tmp_path: Path) -> None:
    """ASCII, whatever the unit says."""
    found = two(tmp_path)
    one = json.loads(reports.document(found[:1], single=True))
    assert one["unit"] == "a.service"
    assert one["verdicts"]["oom_score_adjust_high"] == "judgement"
    assert [unit["unit"] for unit in json.loads(reports.document(found, single=False))["units"]] == [
        "a.service",
        "b.service",
    ]
    assert reports.document(found, single=False).isascii()


def test_junit_counts_failures_and_skips(tmp_path: Path) -> None:
    """A case for each rule; judgements and ignores are skipped; the unit that does not load is a failure."""
    top = Xml.fromstring(reports.junit(two(tmp_path)))  # noqa: S314  written above
    suites = {suite.get("name"): suite for suite in top}
    first = suites["a.service"]
    assert int(first.get("tests", 0)) == len(first.findall("testcase"))
    assert int(first.get("failures", 0)) == len(first.findall("testcase/failure")) > 0
    assert int(first.get("skipped", 0)) == len(first.findall("testcase/skipped")) > 1
    assert suites["b.service"].findall("testcase/failure")


def test_sarif_has_rules_levels_places_and_suppressions(tmp_path: Path) -> None:
    """Paths relative to the checkout; a review has no level."""
    run = json.loads(reports.sarif(two(tmp_path), RULES, str(tmp_path)))["runs"][0]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {rule.id for rule in RULES}
    results = {result["ruleId"]: result for result in run["results"]}
    place = results["memory_max_set"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a/a.service"
    assert (results["memory_max_set"]["level"], results["oom_score_adjust_high"]["level"]) == ("error", "none")
    assert results["no_new_privileges"]["suppressions"][0]["justification"].startswith("it ")
    assert results["settings_accepted"]["locations"][0]["physicalLocation"]["region"]["startLine"] == 4
