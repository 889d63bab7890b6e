"""What every test in the guest may need."""

import subprocess
from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """A failure is read on another machine later: the journal's end goes with it."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        argv = ["journalctl", "--no-pager", "--boot", "--lines=40", "--output=short-monotonic"]
        journal = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout
        report.sections.append(("journal", journal))
