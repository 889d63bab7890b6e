"""edgeguardctl audit and adr as people and CI systems run them: docs/how-to/audit-units.md, exit status, faults."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.isolate.rules import RULES
from tests.support.documents.pages import blocks, commands
from tests.support.running import REPOSITORY
from tests.support.unittree import GIB, RUN, write

CTL = [sys.executable, "-c", "import sys; from edgeguardd.cli.edgeguardctl import main; sys.exit(main())"]
PAGE = Path(REPOSITORY, "docs/how-to/audit-units.md").read_text()
COMMANDS = [command.text for command in commands("docs/how-to/audit-units.md")]
TOML = blocks("docs/how-to/audit-units.md", "toml")[0].text
UNIT = blocks("docs/how-to/audit-units.md", "ini")[0].text
TIMEOUT_S = 60


def run(command: str, place: Path) -> "subprocess.CompletedProcess[str]":
    """A command line as it is typed in a directory; ">" writes a file."""
    words, _, file = command.partition(" > ")
    environment = {**os.environ, "PYTHONPATH": REPOSITORY}
    argv = [*CTL, *shlex.split(words)[1:]]
    done = subprocess.run(
        argv, cwd=place, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if file:
        (place / file).write_text(done.stdout)
    assert "Traceback" not in done.stderr
    return done


def audit(place: Path, options: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON."""
    done = run(f"edgeguardctl audit {options} --json", place)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the reader of the how-to has."""
    write(
        tmp_path,
        {
            "llama.service": UNIT,
            "audit.toml": TOML,
            "etc/systemd/system/llama.service": UNIT,
            "usr/lib/systemd/system/other.service": f"[Service]\n{RUN}",
            "image/etc/systemd/system/llama.service": UNIT,
        },
    )
    return tmp_path


def test_each_command_of_the_how_to_runs(checkout: Path) -> None:
    """In order; the audits find what is broken, the records are in order at the end."""
    statuses = {command: run(command, checkout).returncode for command in COMMANDS}
    assert len(statuses) == len(COMMANDS) >= 10
    audits = {command: status for command, status in statuses.items() if command.startswith("edgeguardctl audit")}
    on_the_box = audits.pop("edgeguardctl audit llama.service")
    assert on_the_box in {1, 2}
    assert set(audits.values()) == {1}
    assert {status for command, status in statuses.items() if command.startswith("edgeguardctl adr")} == {0}
    assert json.loads((checkout / "audit.sarif").read_text())["version"] == "2.1.0"
    assert (checkout / "audit.xml").read_text().startswith("<?xml")


def test_what_the_how_to_shows_is_what_is_printed(checkout: Path) -> None:
    """Line by line, up to where it leaves something out."""
    shown = re.findall(r"\$ edgeguardctl audit \./llama\.service\n(.*?)```", PAGE, re.DOTALL)[0]
    printed = run("edgeguardctl audit ./llama.service", checkout).stdout.replace(str(checkout), "/srv/units")
    for line in shown.splitlines():
        if line.strip() != "…":
            assert line in printed.splitlines()
    assert "1 record in order" in PAGE
    assert "adr/0001-bounded-tasks.md" in run('edgeguardctl adr adr --new "Bounded tasks"', checkout).stdout
    assert run("edgeguardctl adr adr --rules-file audit.toml", checkout).stdout == "1 record in order\n"


def test_the_exit_status_follows_the_asked_severity(tmp_path: Path) -> None:
    """0 kept, 1 broken."""
    write(tmp_path, {"a.service": f"[Service]\n{RUN}MemoryMax=2G\nMemoryHigh=1G\nOOMScoreAdjust=600\n"})
    options = "a.service --search-path . --memtotal-kb 8000000"
    assert audit(tmp_path, options)[0] == 0
    assert audit(tmp_path, f"{options} --fail-on warning")[0] == 1
    write(tmp_path / "b", {"a.service": f"[Service]\n{RUN}"})
    assert audit(tmp_path / "b", options)[0] == 1
    assert audit(tmp_path / "b", f"{options} --fail-on never")[0] == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "no UNIT or FILE given"),
        ("nope.service --search-path .", "cannot audit nope.service: no file for it in "),
        (
            "nope.service",
            "cannot audit nope.service: no file for it in systemd's search path (systemd-analyze unit-paths)",
        ),
        ("NOTES.md", "cannot audit NOTES.md: it is a file, but its name is no unit's"),
        ("./NOTES.md", "cannot audit ./NOTES.md: its name is no unit's"),
        ("./nope.service", "cannot read ./nope.service: there is no such file"),
        ("'a b.service' --search-path .", "not the name of a unit"),
        ("a.service --search-path gone", "cannot search gone: no such directory"),
        ("--all --search-path empty", "no service and no slice"),
        ("a.service --rules-file gone.toml", "cannot read gone.toml"),
        ("a.service --memtotal-kb 0", "it is no count"),
        ("a.service --search-path . --systemd-version 7", "cannot read files as systemd 7: 252 to "),
    ],
)
def test_what_cannot_be_audited_is_one_sentence_and_status_2(tmp_path: Path, options: str, says: str) -> None:
    """With what to do."""
    write(tmp_path, {"a.service": f"[Service]\n{RUN}"})
    (tmp_path / "empty").mkdir()
    (tmp_path / "NOTES.md").write_text("nothing of a unit\n")
    done = run(f"edgeguardctl audit {options}", tmp_path)
    assert (done.returncode, done.stdout, says in done.stderr) == (2, "", True), done.stderr
    assert len(done.stderr.splitlines()) == 1 or "usage:" in done.stderr


def test_a_missing_folder_of_several_is_no_fault(tmp_path: Path) -> None:
    """As for systemd; a checkout does not keep empty ones."""
    write(tmp_path, {"lib/a.service": f"[Service]\n{RUN}MemoryMax=1G\n"})
    assert audit(tmp_path, "a --search-path etc:run:lib")[1]["effective"]["MemoryMax"] == GIB


def test_a_file_is_read_with_the_drop_ins_beside_it(tmp_path: Path) -> None:
    """In its place in the search path, if it has one there; a template as an instance."""
    write(
        tmp_path,
        {
            "lib/a@.service": f"[Service]\n{RUN}MemoryMax=1G\n",
            "lib/a@.service.d/1.conf": "[Service]\nMemoryMax=2G\n",
            "etc/a@.service.d/1.conf": "[Service]\nMemoryMax=3G\n",
        },
    )
    status, alone = audit(tmp_path, "lib/a@.service --memtotal-kb 8000000")
    assert (status, alone["unit"], alone["effective"]["MemoryMax"]) == (1, "a@instance.service", 2 * GIB)
    both = audit(tmp_path, "lib/a@.service --search-path etc:lib --memtotal-kb 8000000")[1]
    assert both["effective"]["MemoryMax"] == 3 * GIB


def test_several_units_are_a_list_and_masked_ones_pass(tmp_path: Path) -> None:
    """`--all` takes services, slices, templates."""
    write(
        tmp_path,
        {
            "a.service": "",
            "b@.service": f"[Service]\n{RUN}",
            "c.slice": "[Slice]\n",
            "d.timer": "[Timer]\nOnBootSec=1\n",
        },
    )
    units = audit(tmp_path, "--all --search-path . --memtotal-kb 8000000")[1]["units"]
    assert [unit["unit"] for unit in units] == ["a.service", "c.slice", "b@instance.service"]
    assert audit(tmp_path, "a.service --search-path .") == (0, audit(tmp_path, "a.service --search-path .")[1])


def test_a_running_unit_is_compared_with_its_cgroup(tmp_path: Path) -> None:
    """In the tree that is named."""
    write(
        tmp_path,
        {
            "a.service": f"[Service]\n{RUN}MemoryMax=1G\n",
            "cgroup/system.slice/a.service/memory.max": "max\n",
            "cgroup/system.slice/a.service/cgroup.controllers": "memory\n",
        },
    )
    document = audit(tmp_path, "a.service --search-path . --cgroup-root cgroup")[1]
    assert (document["verdicts"]["kernel_agrees"], document["cgroup"]) == ("fail", "/system.slice/a.service")


def test_the_rules_are_listed(tmp_path: Path) -> None:
    """Own ones with them."""
    (tmp_path / "audit.toml").write_text(TOML)
    lines = run("edgeguardctl audit --rules --rules-file audit.toml", tmp_path).stdout.splitlines()
    assert len(lines) == len(RULES) + 1
    assert lines[-1].startswith("tasks_bounded (error): ")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("adr gone", "cannot check gone: No such file"),
        ("adr .", "no NNNN-some-words.md in it"),
        ("adr . --new ' '", "its title is empty"),
        ("adr /dev/null/x --new x", "cannot write"),
    ],
)
def test_a_folder_that_cannot_be_checked_is_one_sentence(tmp_path: Path, command: str, says: str) -> None:
    """And no traceback."""
    done = run(f"edgeguardctl {command}", tmp_path)
    assert done.returncode in {1, 2}
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_faults_of_records_are_told_with_file_and_line(tmp_path: Path) -> None:
    """As text and as JSON, with status 1."""
    write(tmp_path, {"0001-a.md": "# 1. A\n\nStatus: done (2026-11)\n"})
    done = run("edgeguardctl adr .", tmp_path)
    assert done.returncode == 1
    assert "0001-a.md:3: status 'done' is none of" in done.stdout
    assert len(json.loads(run("edgeguardctl adr . --json", tmp_path).stdout)["faults"]) == 6
