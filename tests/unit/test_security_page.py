"""The security model names a test for each attack, and each of them exists."""

import glob
import re

from tests.support.running import REPOSITORY


def rows() -> list[list[str]]:
    """The table of attacks, cell by cell."""
    with open(f"{REPOSITORY}/docs/explanation/security.md") as file:
        section = file.read().split("\n## Attacks\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_each_attack_has_tests_and_each_of_them_exists() -> None:
    """By name."""
    defined: set[str] = set()
    for path in glob.glob(f"{REPOSITORY}/tests/**/test_*.py", recursive=True):
        with open(path) as file:
            defined.update(re.findall(r"^def (test_\w+)\(", file.read(), re.MULTILINE))
    assert len(rows()) >= 20
    for attack, stopped_by, shown_by in rows():
        named = re.findall(r"`(test_\w+)`", shown_by)
        assert attack
        assert stopped_by
        assert named, attack
        assert [name for name in named if name not in defined] == []
