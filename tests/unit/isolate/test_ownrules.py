"""A team's rules file: own rules, roles, severities, ignores, and every fault at once."""

from pathlib import Path

import pytest

from edgeguardd.errors import ConfigError
from edgeguardd.isolate import ownrules
from edgeguardd.isolate.findings import Role, Severity, Verdict
from edgeguardd.isolate.rules import RULES
from tests.support.unittree import judged, service

KNOWN = [rule.id for rule in RULES]
RULE = '[[rule]]\nid = "own"\ntext = "T."\nremedy = "R."\n'


def verdict(tmp_path: Path, test: str, lines: str) -> Verdict | None:
    """What an own rule says of a service with these lines."""
    rules, given = ownrules.read((RULE + test).encode(), "f", KNOWN)
    return judged(service(tmp_path, lines + "\n"), given, rules=rules).verdicts.get("own")


@pytest.mark.parametrize(
    ("test", "lines", "says"),
    [
        ('key = "MemoryMax"\nat_most = "2G"', "MemoryMax=1G", Verdict.PASS),
        ('key = "MemoryMax"\nat_most = "2G"', "MemoryMax=3G", Verdict.FAIL),
        ('key = "MemoryMax"\nat_most = "2G"', "", Verdict.FAIL),
        ('key = "MemoryMax"\nis_set = true', "", Verdict.FAIL),
        ('key = "MemoryMax"\nis_set = false', "", Verdict.PASS),
        ('key = "TasksMax"\nat_most = 512', "TasksMax=100", Verdict.PASS),
        ('key = "TasksMax"\nat_most = 512', "TasksMax=50%", Verdict.FAIL),
        ('key = "TasksMax"\nat_most = 512', "", Verdict.FAIL_UNSET),
        ('key = "RestartSec"\nat_least = "1s"', "RestartSec=1500ms", Verdict.PASS),
        ('key = "RestartSec"\nat_least = "1s"', "RestartSec=500ms", Verdict.FAIL),
        ('key = "Restart"\none_of = ["always", "on-failure"]', "Restart=always", Verdict.PASS),
        ('key = "PrivateTmp"\nequals = true', "PrivateTmp=on", Verdict.PASS),
        ('key = "PrivateTmp"\nequals = true', "PrivateTmp=off", Verdict.FAIL),
        ('key = "ReadWritePaths"\nis_set = true', "ReadWritePaths=/a", Verdict.PASS),
        ('key = "Slice"\nequals = "llm.slice"\nunits = ["b*"]', "", None),
    ],
)
def test_an_own_rule_tests_one_key(tmp_path: Path, test: str, lines: str, says: Verdict | None) -> None:
    """Of `effective`, else the text that the unit gives; sizes and time spans as systemd has them."""
    assert verdict(tmp_path, test, lines) == says


def test_roles_severities_and_ignores_hold_for_the_units_they_name(tmp_path: Path) -> None:
    """The first role that fits counts."""
    text = """
    severity = {protect_system_strict = "error"}
    [[role]]
    name = "critical"
    units = ["a.*"]
    [[role]]
    name = "other"
    units = ["*"]
    [[ignore]]
    rule = "no_new_privileges"
    units = ["a*"]
    reason = "setuid helper"
    """
    _, given = ownrules.read(text.encode(), "f", KNOWN)
    report = judged(service(tmp_path, ""), given)
    found = {finding.rule: finding for finding in report.findings}
    assert report.role is Role.CRITICAL
    assert found["protect_system_strict"].severity is Severity.ERROR
    assert found["no_new_privileges"].ignored == "setuid helper"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "unknown field"),
        ("[[rule", "cannot use f"),
        ("\xff", "cannot use f"),
        (RULE + 'key = "A"', "rule own has 0 tests"),
        (RULE + 'key = "A"\nequals = 1\nis_set = true', "rule own has 2 tests"),
        (RULE + 'key = "MemoryMax"\nat_most = "2GiB"', "at_most of rule own is no number"),
        (RULE.replace("own", "memory_max_set") + 'key = "A"\nis_set = true', "there is a rule memory_max_set already"),
        (RULE.replace("own", "my rule") + 'key = "A"\nis_set = true', "is not letters, digits and _"),
        ('severity = {nope = "error"}', "there is no rule nope"),
        ('[[ignore]]\nrule = "no_new_privileges"\nunits = ["*"]\nreason = " "', "no reason to ignore"),
        ('[[role]]\nname = "important"\nunits = []', "Invalid enum value"),
    ],
)
def test_a_fault_is_one_sentence_with_the_file(text: str, says: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigError) as caught:
        ownrules.read(text.encode("latin-1"), "f", KNOWN)
    assert says in str(caught.value)
    assert all(problem.startswith("cannot use f: ") for problem in caught.value.problems)


def test_all_faults_are_said_at_once() -> None:
    """Of one reading."""
    text = RULE + 'key = "A"\n' + RULE + 'key = "B"\nis_set = true\n[severity]\nnope = "note"\n'
    with pytest.raises(ConfigError) as caught:
        ownrules.read(text.encode(), "f", KNOWN)
    assert len(caught.value.problems) == 3


def test_a_file_that_is_not_there_or_endless_is_refused(tmp_path: Path) -> None:
    """With what to do."""
    with pytest.raises(ConfigError, match="name a rules file"):
        ownrules.load(str(tmp_path / "none"), KNOWN)
    with pytest.raises(ConfigError, match="is it a rules file"):
        ownrules.read(b"#" * (ownrules.MAX_FILE_BYTES + 1), "f", KNOWN)
