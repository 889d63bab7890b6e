"""What every test in the guest may need."""

import subprocess
from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, Any, None]:
    """What the test states; and a failure is read on another machine later: the journal's end goes with it."""
    outcome = yield
    report = outcome.get_result()
    report.user_properties.append(("states", (item.function.__doc__ or "").strip().splitlines()[0]))
    if report.failed:
        argv = ["journalctl", "--no-pager", "--boot", "--lines=40", "--output=short-monotonic"]
        journal = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout
        report.sections.append(("journal", journal))


class Figures:
    """What a test states, and what it has printed when it passed, belong to the output as well, below its name."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After the line with the name."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and report.when == "call":
            terminal.write_line(f"    {dict(report.user_properties)['states']}")
            for line in report.capstdout.rstrip().splitlines() if report.passed else ():
                terminal.write_line(f"    {line}")


def pytest_configure(config: pytest.Config) -> None:
    """Show figures."""
    config.pluginmanager.register(Figures(config))
