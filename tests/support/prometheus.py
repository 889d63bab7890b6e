"""A real Prometheus with the configuration, the rules and the dashboard that are shipped, scraping every second.

Must not: reach beyond loopback and its directory. Upstream: programs, packaging/prometheus, packaging/grafana.
Downstream: tests/component/test_prometheus.py.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support import programs
from tests.support.children import ending
from tests.support.proxies import free_port
from tests.support.running import REPOSITORY
from tests.support.wait import DEADLINE_S, eventually

SHIPPED = os.path.join(REPOSITORY, "packaging", "prometheus")
DASHBOARD = os.path.join(REPOSITORY, "packaging", "grafana", "edgeguardd.json")
RULES = os.path.join(SHIPPED, "edgeguardd.rules.yml")
TESTS = os.path.join(SHIPPED, "tests.yml")
SCRAPE = os.path.join(SHIPPED, "scrape.yml")
# The address that the shipped files name.
DAEMON = "127.0.0.1:9464"

# A name and perhaps its labels, or a number that follows letters: what is no function, no keyword and no label list.
_SELECTOR = re.compile(r"\b(?:instance\w*:)?(?:edgeguardd|process|up|scrape)\w*(?::\w+)*(?:\{[^}]*\})?")


def needed(name: str) -> str:
    """The path of a program of Prometheus'; skips by name where it could not be had."""
    path = programs.find(name)
    if path is None:
        pytest.skip(f"no {name} here: see what tests/support/setup.sh said")
    return path


def run(*argv: str, cwd: str = REPOSITORY, given: bytes | None = None) -> "subprocess.CompletedProcess[str]":
    """One of the programs, to its end; output and errors are one."""
    done = subprocess.run(
        [needed(argv[0]), *argv[1:]], cwd=cwd, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=60, check=False, env=programs.environment(),
    )  # fmt: skip
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), "")


class Prometheus:
    """One server, by its HTTP interface."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self.pid = address, pid

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises AssertionError with what Prometheus says of a bad question."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            with refused:
                raise AssertionError(f"{parameters}: {refused.read().decode()}") from None

    def samples(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What an expression gives now: labels and values."""
        return [(one["metric"], float(one["value"][1])) for one in self.ask("query", query=expression)["result"]]

    def health(self) -> set[str]:
        """How the rules fare: ok, err, or unknown until they have been evaluated."""
        return {rule["health"] for group in self.ask("rules")["groups"] for rule in group["rules"]}

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        return {one["labels"]["alertname"] for one in self.ask("alerts")["alerts"] if one["state"] == "firing"}

    def scraped(self, times: int) -> None:
        """Wait until the daemon has been scraped so often from here on."""
        before = self._scrapes()
        eventually(lambda: self._scrapes() >= before + times, what=f"{times} more scrapes")

    def _scrapes(self) -> float:
        counted = self.samples('sum(count_over_time(up{job="edgeguardd"}[5m]))')
        return counted[0][1] if counted else 0.0

    def ready(self) -> bool:
        """Whether it has started."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=DEADLINE_S):
                return True
        except urllib.error.HTTPError as not_yet:
            not_yet.close()
        except OSError:
            pass
        return False


@contextlib.contextmanager
def scraping(place: str, http: str) -> Iterator[Prometheus]:
    """A Prometheus with the shipped files, for a daemon at `http`; an interval of a second instead of 15."""
    shutil.copy(RULES, place)
    with open(SCRAPE) as file:
        shipped = file.read()
    config = shipped.replace(DAEMON, http.removeprefix("http://")).replace(": 15s", ": 1s")
    assert config.count(": 1s") == 2
    with open(f"{place}/scrape.yml", "w") as file:
        file.write(config)
    with started(place, f"{place}/scrape.yml") as server:
        yield server


@contextlib.contextmanager
def started(place: str, config: str) -> Iterator[Prometheus]:
    """A Prometheus with this configuration and its data in this directory."""
    address = f"127.0.0.1:{free_port()}"
    argv = [
        needed("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={place}/tsdb",
        f"--web.listen-address={address}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    log_path = f"{place}/prometheus.log"
    with (
        open(log_path, "wb") as log,
        ending(subprocess.Popen(argv, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log)) as process,
    ):
        server = Prometheus(address, process.pid)
        eventually(lambda: process.poll() is not None or server.ready(), what="Prometheus answers")
        if process.poll() is not None:
            with open(log_path) as said:
                raise AssertionError(f"Prometheus ended: {said.read()}")
        yield server


def rules() -> list[dict[str, Any]]:
    """The shipped rules, recording and alerting."""
    with open(RULES) as file:
        return [rule for group in yaml.safe_load(file)["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """The alerts among them."""
    return [rule for rule in rules() if "alert" in rule]


def dashboard() -> dict[str, Any]:
    """The shipped dashboard."""
    with open(DASHBOARD, encoding="utf-8") as file:
        return dict(json.load(file))


def panels() -> list[dict[str, Any]]:
    """Its panels, rows included."""
    return list(dashboard()["panels"])


def queries() -> list[tuple[str, str]]:
    """Each query of the dashboard: the panel's title, and the expression with its variables filled in, for all."""
    return [(panel["title"], _filled(one["expr"])) for panel in panels() for one in panel.get("targets", ())]


def selectors(expression: str) -> list[str]:
    """The series that an expression asks for, each as an expression of its own."""
    return sorted(set(_SELECTOR.findall(expression)))


def _filled(expression: str) -> str:
    filled = expression.replace('"$instance"', '".*"').replace('"$target"', '".*"').replace("$__rate_interval", "5m")
    assert "$" not in filled, filled
    return filled
