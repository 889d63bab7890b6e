"""Every collected set of unit files comes out of `edgeguardctl audit --json` as its sidecar says."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.cli import audit

FOLDER = Path(__file__).with_name("units")
SIDECARS = sorted(FOLDER.glob("[0-9]*.json"))
TABLE: dict[str, Any] = json.loads((FOLDER / "_size_and_value_syntax_table.json").read_text())
MEMTOTAL_KB = 24684096  # of the machine that the table was made on


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The command's exit status and its JSON."""
    parser = argparse.ArgumentParser(prog="edgeguardctl")
    audit.add(parser.add_subparsers(required=True))
    args = parser.parse_args(["audit", *words, "--json"])
    status: int = args.run(args)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


def load(sidecar: Path) -> dict[str, Any]:
    """One sidecar."""
    loaded: dict[str, Any] = json.loads(sidecar.read_text())
    return loaded


@pytest.mark.parametrize("sidecar", SIDECARS, ids=lambda path: path.stem)
def test_a_collected_unit_is_in_force_and_judged_as_its_sidecar_says(
    sidecar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal effective values, equal verdicts; what does not load has no verdicts at all."""
    case = load(sidecar)
    folders = ":".join(str(sidecar.with_suffix("") / folder) for folder in case["search_path_order"])
    memory = str(case["host_memtotal_kb"])
    _, document = ran(capsys, case["unit"], "--search-path", folders, "--memtotal-kb", memory)
    there = document["effective"]
    assert {key: there.get(key, "missing") for key in case["expected_effective"]} == case["expected_effective"]
    verdicts = document["verdicts"]
    assert {rule: verdicts.get(rule) for rule in case["rule_verdicts"]} == case["rule_verdicts"]
    assert bool(verdicts) == bool(case["rule_verdicts"])


@pytest.mark.parametrize("sidecar", SIDECARS, ids=lambda path: path.stem)
def test_the_lines_that_systemd_ignores_are_those_that_are_told(
    sidecar: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By file and line; what systemd only warns of is not ignored."""
    case = load(sidecar)
    folders = ":".join(str(sidecar.with_suffix("") / folder) for folder in case["search_path_order"])
    _, document = ran(capsys, case["unit"], "--search-path", folders, "--memtotal-kb", "8000000")
    told = {(Path(one["file"]).name, one["line"]) for one in document["ignored_settings"]}
    messages = (re.match(r"(\S+):(\d+): (.*)", message) for message in case.get("systemd_252_messages", ()))
    found = {
        (Path(m[1]).name, int(m[2]))
        for m in messages
        if m and re.search("ignoring", m[3], re.I) and "escape" not in m[3]
    }
    assert told == found


@pytest.mark.parametrize("row", TABLE["MemoryMax_values"], ids=lambda row: repr(row["value"]))
def test_a_spelling_of_a_size_is_taken_or_ignored_as_by_systemd(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bytes are equal; what systemd warns of is an ignored setting, and nothing else is."""
    document = one_setting(tmp_path, capsys, "MemoryMax", row["value"])
    assert document["effective"]["MemoryMax"] == row["effective_bytes"]
    assert (not document["ignored_settings"]) == row["accepted"]


@pytest.mark.parametrize("row", TABLE["other_keys"], ids=lambda row: f"{row['key']}={row['value']}")
def test_a_spelling_of_another_value_is_taken_or_ignored_as_by_systemd(
    row: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The word in force is equal, in systemd's own form."""
    key = row["key"]
    document = one_setting(tmp_path, capsys, key, row["value"])
    assert (not document["ignored_settings"]) == row["accepted"]
    there = document["effective"]
    if row.get("effective") == "unset (default)":
        assert there[key] is None
    elif "effective" in row:
        assert str(there["MemoryMax" if key == "memorymax" else key]) == row["effective"]
    for extra in row.get("extra", ()):
        name, _, value = extra.partition(":")
        shown = "infinity" if value.strip() == "18446744073709551615" else value.strip()
        assert str(there.get(name, "")) == shown


def one_setting(folder: Path, capsys: pytest.CaptureFixture[str], key: str, value: str) -> dict[str, Any]:
    """The audit of a service that sets one key."""
    (folder / "a.service").write_text(f"[Service]\nExecStart=/usr/bin/true\n{key}={value}\n")
    return ran(capsys, "a.service", "--search-path", str(folder), "--memtotal-kb", str(MEMTOTAL_KB))[1]
