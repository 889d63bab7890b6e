"""pytest plugin on the host: runs kernel tests in guests and reports them as if they had run here.

Collection is the host's. At the first kernel test all that are left after -k and friends are started, dealt out by
file to a few guests (a dear test by itself); then each test's reports are passed on when its turn comes, so -v, -x,
--durations, junit and the exit status are pytest's own. A test without reports (guest died, hung, did not
collect it) fails and says why.
Warnings in guests are errors there (pyproject.toml), so none need passing on.

Must not: start anything when no kernel test is selected. Upstream: tests/kernel/conftest.py. Downstream: runner.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from tests.support.uml import guest_plugin, runner, shards

GUESTS_VARIABLE = "EDGEGUARDD_KERNEL_GUESTS"
LIMIT_VARIABLE = "EDGEGUARDD_KERNEL_LIMIT_S"
IN_GUEST_VARIABLE = "EDGEGUARDD_KERNEL_GUEST"
CONFIG_VARIABLE = "EDGEGUARDD_KERNEL_CONFIG"

DEFAULT_GUESTS = 2
# A test said to take so long is dealt out by itself.
ALONE_FROM_S = 10.0
# A guest's whole run: a base for boot, imports and one slow test, and a share for each test.
BASE_LIMIT_S = 300.0
LIMIT_PER_TEST_S = 10.0
# pytest-timeout ends a stuck test inside; a guest silent for so much longer is stuck itself.
SILENCE_GRACE_S = 60.0
POLL_S = 0.02
OUTPUT_TAIL_LINES = 40


class Shard:
    """One guest with its part of the tests, and what it has reported so far."""

    def __init__(self, config: pytest.Config, items: list[pytest.Item], directory: str, limit_s: float) -> None:
        self._config = config
        self._directory = directory
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._started: list[str] = []
        self._notes: list[str] = []
        self._partial = b""
        self._heard = time.monotonic()
        self._silence_s = float(config.getini("timeout") or 120.0) + SILENCE_GRACE_S
        self._trouble: str | None = None
        ids = os.path.join(directory, "ids")
        with open(ids, "w") as file:
            file.writelines(f"{item.nodeid}\n" for item in items)
        self._output = open(os.path.join(directory, "output"), "wb")  # noqa: SIM115 - open as long as the guest
        self._lines = open(os.path.join(directory, "reports"), "ab+")  # noqa: SIM115 - dito
        argv = [sys.executable, "-m", "pytest", *passed_options(config), f"@{ids}"]
        environment = {
            IN_GUEST_VARIABLE: "1",
            CONFIG_VARIABLE: os.path.join(directory, "kernel-config"),
            guest_plugin.REPORTS_VARIABLE: self._lines.name,
        }
        with open(environment[CONFIG_VARIABLE], "w") as file:
            file.write(runner.kernel_config())
        self._guest = runner.Guest(
            argv, output=self._output.fileno(), cwd=str(config.rootpath), env=environment, limit_s=limit_s
        )

    def reports_of(self, nodeid: str) -> Iterator[pytest.TestReport]:
        """This test's reports as they arrive, up to its teardown's; ends early when none will come any more."""
        passed_on = 0
        while True:
            running = self._guest.running()
            self._read_lines()
            known = self._reports.get(nodeid, [])
            while passed_on < len(known):
                yield known[passed_on]
                passed_on += 1
            if (known and known[-1].when == "teardown") or not running:
                return
            if time.monotonic() - self._heard > self._silence_s:
                self._guest.end(f"the guest reported nothing for {self._silence_s:.0f} s")
            time.sleep(POLL_S)

    def autopsy(self, nodeid: str) -> str:
        """Why this test has not all its reports: the guest's end, what ran last, its output and console."""
        outcome = self._guest.outcome()
        tail = "\n".join(self._read_output().splitlines()[-OUTPUT_TAIL_LINES:])
        ran = "was running" if self._started and self._started[-1] == nodeid else "has no report"
        ended = outcome.trouble or f"pytest in the guest ended with status {outcome.status}"
        parts = [f"{nodeid} {ran}: {ended}", *self._notes]
        parts += ["--- output of the guest's pytest", tail, "--- guest's console", self._guest.console_tail()]
        return "\n".join(parts)

    def close(self) -> None:
        """End the guest if it still runs."""
        self._guest.close()
        self._output.close()
        self._lines.close()

    def _read_lines(self) -> None:
        fresh = self._lines.read()
        if not fresh:
            return
        self._heard = time.monotonic()
        *lines, self._partial = (self._partial + fresh).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, line: dict[str, Any]) -> None:
        if "start" in line:
            self._started.append(line["start"])
        elif "report" in line:
            report = revived(self._config, line["report"])
            self._reports.setdefault(report.nodeid, []).append(report)
        else:
            self._notes.append(f"{line['collect']} could not be collected in the guest:\n{line['text']}")

    def _read_output(self) -> str:
        with open(self._output.name, errors="replace") as file:
            return file.read()


class KernelInGuests:
    """The plugin: takes over the running of kernel items."""

    def __init__(self, config: pytest.Config, directory: str) -> None:
        self._config = config
        self._kernel_directory = directory
        self._scratch: str | None = None
        self._shards: dict[str, Shard] = {}
        self._missing: str | None = None

    def _is_ours(self, item: pytest.Item) -> bool:
        return str(item.path).startswith(self._kernel_directory + os.sep)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Pass on what the guest reports of this test, instead of running it."""
        if not self._is_ours(item):
            return None
        if self._scratch is None:
            self._start([each for each in item.session.items if self._is_ours(each)])
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> bool | None:
        """No alarm on the host: the test is timed in its guest, and the guest has limits of its own."""
        return True if self._is_ours(item) else None

    def pytest_sessionfinish(self) -> None:
        """Also after -x, Ctrl-C and errors: no guest outlives the run."""
        for shard in set(self._shards.values()):
            shard.close()
        self._shards = {}
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
            self._scratch = None

    def _start(self, items: list[pytest.Item]) -> None:
        # /tmp, not tempfile's choice: TMPDIR may lie on a file system of the host that the guest mounts over.
        self._scratch = tempfile.mkdtemp(prefix="edgeguardd-kernel-", dir="/tmp")
        self._missing = runner.missing()
        if self._missing is not None:
            return
        guests = int(os.environ.get(GUESTS_VARIABLE, DEFAULT_GUESTS))
        for number, parcels in enumerate(shards.deal(((parcel_of(item), cost_s(item)) for item in items), guests)):
            directory = os.path.join(self._scratch, str(number))
            os.mkdir(directory)
            part = [item for item in items if parcel_of(item) in parcels]
            shard = Shard(self._config, part, directory, limit_s(part))
            self._shards.update(dict.fromkeys(parcels, shard))

    def _reports_of(self, item: pytest.Item) -> Iterator[pytest.TestReport]:
        if self._missing is not None:
            yield failure(
                item, f"no cgroup v2 with the memory controller to write to on this host, and {self._missing}"
            )
            return
        shard = self._shards[parcel_of(item)]
        ended = False
        for report in shard.reports_of(item.nodeid):
            ended = report.when == "teardown"
            yield report
        if not ended:
            yield failure(item, shard.autopsy(item.nodeid))


def revived(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A report from its JSON, which knows no tuples; pytest insists on some."""
    for name in ("location", "longrepr"):
        if isinstance(data[name], list):
            data[name] = tuple(data[name])
    data["user_properties"] = [tuple(pair) for pair in data["user_properties"]]
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=data)
    return report


def failure(item: pytest.Item, text: str) -> pytest.TestReport:
    """A failed test that never ran to its end."""
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call")


def cost_s(item: pytest.Item) -> float:
    """What a test is said to take: @pytest.mark.cost(seconds), else 1."""
    mark = item.get_closest_marker("cost")
    return float(mark.args[0]) if mark else 1.0


def parcel_of(item: pytest.Item) -> str:
    """What goes to one guest together: the tests of a file, but a dear test by itself, so that guests end together."""
    return item.nodeid if cost_s(item) >= ALONE_FROM_S else str(item.path)


def limit_s(items: list[pytest.Item]) -> float:
    """How long a guest may take for these tests; EDGEGUARDD_KERNEL_LIMIT_S overrides."""
    named = os.environ.get(LIMIT_VARIABLE)
    return float(named) if named else BASE_LIMIT_S + sum(max(LIMIT_PER_TEST_S, 2 * cost_s(item)) for item in items)


def passed_options(config: pytest.Config) -> list[str]:
    """The host's options that change how a test runs or what a failure shows."""
    option = config.option
    passed = ["-p", guest_plugin.__name__, "-p", "no:cacheprovider", f"--rootdir={config.rootpath}"]
    passed += [f"--tb={option.tbstyle}", f"--capture={option.capture}"]
    if option.showlocals:
        passed.append("--showlocals")
    if getattr(option, "timeout", None) is not None:
        passed.append(f"--timeout={option.timeout}")
    return passed
