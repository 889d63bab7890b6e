"""pytest plugin inside the guest: writes each test's reports to a file on the host as they come, one JSON a line.

Must not: decide anything. Upstream: host_plugin starts pytest with `-p` and names the file in the environment.
Downstream: host_plugin turns the lines back into reports.
"""

import json
import os
from typing import Any

import pytest

REPORTS_VARIABLE = "EDGEGUARDD_KERNEL_REPORTS"


class Reporter:
    """Streams `start` and `report` lines. O_SYNC, because the guest caches host files like any disk."""

    def __init__(self, config: pytest.Config, path: str) -> None:
        self._config = config
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC | os.O_CLOEXEC, 0o644)

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins: should the guest die now, this is the one that was running."""
        self._write({"start": nodeid})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of a test has ended."""
        self._write({"report": self._config.hook.pytest_report_to_serializable(config=self._config, report=report)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that collects on the host can still fail in here; its tests will then have no reports."""
        if report.failed:
            self._write({"collect": report.nodeid, "text": report.longreprtext})

    def pytest_unconfigure(self) -> None:
        """The end of the run."""
        os.close(self._file)


def pytest_configure(config: pytest.Config) -> None:
    """Start reporting, if the host asked for it."""
    path = os.environ.get(REPORTS_VARIABLE)
    if path is not None:
        config.pluginmanager.register(Reporter(config, path), "edgeguardd-guest-reporter")
