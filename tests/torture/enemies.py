"""Enemies that have tests of their own, run at full strength: hostile peers and files, and bytes at every parser.

Must not: repeat what those tests do. Upstream: __main__. Downstream: tests/component/test_security_*.py,
tests/kernel/test_security.py, tests.fuzz.
"""

import glob
import os
import re
import subprocess
import sys

from tests.support.running import REPOSITORY
from tests.torture import report

# Connections at once, as tests.support.crowds reads it.
CROWD = "10000"
# Of what a failed run said, so much of its end.
LONGEST = 4000
_VERDICT = re.compile(r"::(test_\w+)(\[.*\])? (PASSED|FAILED|ERROR|SKIPPED)")


def security() -> tuple[bool, str]:
    """Each enemy by name, and whether it was shown harmless."""
    pytest = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    files = sorted(glob.glob("tests/component/test_security_*.py", root_dir=REPOSITORY))
    status, text = output([*pytest, *files], {"EDGEGUARDD_CROWD": CROWD})
    # Peers of other users and other cgroups need a kernel with cgroup v2.
    kernel_status, kernel_text = output([*pytest, "tests/kernel/test_security.py"], {})
    status, text = status or kernel_status, f"{kernel_text}\n{text}"
    cases: dict[str, list[str]] = {}
    for name, _, verdict in _VERDICT.findall(text):
        cases.setdefault(name, []).append(verdict)
    rows = [[_words(name), str(len(found)), str(found.count("PASSED"))] for name, found in cases.items()]
    section = report.table(["enemy", "cases", "harmless"], rows) if rows else ""
    if status:
        section += f"\n\n```text\n{text[-LONGEST:]}\n```"
    return status == 0, f"{section}\n\n{CROWD} connections at once, or as many as the machine lets a test open."


def fuzz(minutes: float, seed: int) -> tuple[bool, str]:
    """Any bytes at each parser, guided by coverage where atheris is."""
    argv = [sys.executable, "-m", "tests.fuzz", "--part", "all", "--minutes", str(minutes), "--seed", str(seed)]
    status, text = output(argv, {})
    return status == 0, "\n".join(f"- {line}" for line in text.splitlines() if line.strip())


def output(argv: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Run it; exit status and what it said."""
    environ = {**os.environ, **environment}
    done = subprocess.run(argv, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")
