"""The files for Prometheus and Grafana, taken by the real programs: rules, alerts, dashboard, and what is scraped."""

import contextlib
import json
import math
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.openmetrics import parser

from edgeguardd.cli import metricspage
from tests.support import prometheus
from tests.support.documents.pages import anchors, blocks, commands, headings, text_of
from tests.support.documents.place import Place
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.prometheus import Prometheus
from tests.support.running import REPOSITORY, Daemon, Subscriber
from tests.support.wait import eventually

# The library gives it no types.
openmetrics_families: Any = parser.text_string_to_metric_families

HOW_TO = "docs/how-to/alert.md"
CONFIG = """
[[target]]
name = "llm"
path = "/llm"
[[target]]
name = "alone"
path = "/alone"
[target.last_resort]
critical = [{ action = "reclaim" }]
[defaults]
dwell = 0.2
repeat = 0.2
[sampling]
fast = 0.05
slow = 0.1
"""
PSI = "/proc/pressure/memory"
# Queries, and series that rules ask for, that cannot have an answer in this run, each with the reason.
NO_DATA = {
    "instance:edgeguardd_wakeup_to_deliver_seconds:p99_10m": "plain files wake nobody: every look is the timer's",
    'edgeguardd_reliefs_total{outcome="failed"}': "every limit that is lifted here can be put back",
}
NO_DATA_WITHOUT_PSI = {
    'edgeguardd_machine_stalled_ratio{instance=~".*"}': "read off the machine that the test runs on",
}


# The files


def test_promtool_takes_configuration_and_rules() -> None:
    """Without a word of warning."""
    checked = prometheus.run("promtool", "check", "config", "scrape.yml", cwd=prometheus.SHIPPED)
    assert checked.returncode == 0, checked.stdout
    assert "SUCCESS" in checked.stdout
    assert not re.search(r"warn|fail|duplicate", checked.stdout, re.IGNORECASE)


def test_each_alert_fires_where_it_should() -> None:
    """And where it should not, it does not: promtool's own unit tests."""
    tested = prometheus.run("promtool", "test", "rules", "tests.yml", cwd=prometheus.SHIPPED)
    assert tested.returncode == 0, tested.stdout


def test_each_alert_has_a_case_of_both_kinds() -> None:
    """One that names it firing with all that it says, and one at which nothing fires."""
    fires: set[str] = set()
    rests: set[str] = set()
    with open(prometheus.TESTS) as file:
        for case in yaml.safe_load(file)["tests"]:
            for expected in case["alert_rule_test"]:
                (fires if expected.get("exp_alerts") else rests).add(expected["alertname"])
    names = {rule["alert"] for rule in prometheus.alerts()}
    assert fires == rests == names


@pytest.mark.parametrize("rule", prometheus.alerts(), ids=lambda rule: rule["alert"])
def test_each_alert_says_what_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """Severity, a sentence, the figures, and a heading of the page on alerts."""
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert "$labels.instance" in rule["annotations"]["summary"]
    assert "$value" in rule["annotations"]["description"] or "query" in rule["annotations"]["description"]
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == HOW_TO
    assert anchor in anchors(text_of(page))


def test_each_dashboard_query_has_a_name_that_is_exported_and_each_panel_its_place() -> None:
    """No two panels overlap, ids differ, and all take the data source that is chosen above."""
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in prometheus.panels()]
    assert len(ids) == len(set(ids))
    for panel in prometheus.panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    variables = {one["name"]: one["type"] for one in prometheus.dashboard()["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query", "target": "query"}


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """Read and written again by the types that Grafana generates from its schema, nothing of it is lost or changed."""
    register_default_plugins()
    shipped = prometheus.dashboard()
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(shipped)))
    assert list(lost(shipped, again)) == []


def lost(given: Any, again: Any, where: str = "") -> Iterator[str]:
    """What is not there again, or is another."""
    if isinstance(given, dict) and isinstance(again, dict):
        for key, value in given.items():
            yield from lost(value, again[key], f"{where}.{key}") if key in again else [f"{where}.{key}"]
    elif isinstance(given, list) and isinstance(again, list) and len(given) == len(again):
        for number, (one, other) in enumerate(zip(given, again, strict=True)):
            yield from lost(one, other, f"{where}[{number}]")
    elif given != again:
        yield f"{where}: {given!r} is {again!r}"


# The page


def test_the_commands_of_the_page_set_it_up(place: str) -> None:
    """As printed, with the files that it prints: they say that all is well, and Prometheus has the rules afterwards."""
    with Place(place) as reader:
        for program in ("promtool", "amtool"):
            os.symlink(prometheus.needed(program), f"{place}/bin/{program}")
        etc = f"{place}/root/etc/prometheus"
        os.makedirs(etc)
        with open(f"{etc}/prometheus.yml", "w") as file:
            file.write("global: {}\n")
        with prometheus.started(place, f"{etc}/prometheus.yml") as server:
            # What Debian's unit does for a reload.
            reader.script("systemctl", f'#!/bin/sh\n[ "$*" = "reload prometheus" ] && kill -HUP {server.pid}\n')
            for block in blocks(HOW_TO, "yaml"):
                reader.write(block.text.split()[1], reader.here(block.text))
            for command in commands(HOW_TO):
                done = reader.run(command.text.replace("/usr/share/edgeguardd", f"{REPOSITORY}/packaging"))
                assert done.returncode == 0, f"{command.text}\n{done.stdout}"
                assert "FAILED" not in done.stdout
            eventually(lambda: server.ask("rules")["groups"], what="the rules are loaded")
    with open(f"{etc}/edgeguardd.rules.yml") as file:
        assert "runbook_url: https://wiki.example/edgeguardd/docs/how-to/alert.md#edgeguarddkilled" in file.read()


def test_the_page_scrapes_and_alerts_as_the_shipped_file_does() -> None:
    """One is in the other, word for word, but for who is told."""
    shown = {block.text.split()[1]: yaml.safe_load(block.text) for block in blocks(HOW_TO, "yaml")}
    with open(prometheus.SCRAPE) as file:
        shipped = yaml.safe_load(file)
    page = shown["/etc/prometheus/prometheus.yml"]
    assert {key: value for key, value in page.items() if key != "alerting"} == shipped
    names = {rule["alert"] for rule in prometheus.alerts()}
    headings_there = {text for depth, text in headings(text_of(HOW_TO)) if depth == 3}
    assert headings_there == names
    told = re.findall(r"Edgeguardd\w+", yaml.safe_dump(shown["/etc/prometheus/alertmanager.yml"]))
    assert set(told) - {"Edgeguardd"} <= names


def test_the_package_brings_what_the_page_names() -> None:
    """Below /usr/share/edgeguardd, as the page says."""
    with open(f"{REPOSITORY}/packaging/debian/rules") as file:
        rules = file.read()
    for path in re.findall(r"/usr/share/edgeguardd/([\w./]+)", text_of(HOW_TO)):
        assert os.path.exists(f"{REPOSITORY}/packaging/{path}")
        assert f"/usr/share/edgeguardd/{path.split('/')[0]} packaging/{path.split('/')[0]}/*" in rules


# A run


def test_a_real_prometheus_answers_every_query_about_a_real_run(place: str, llm: FakeCgroup) -> None:
    """Levels, commands, answers, freed bytes, a lifted limit, a kill, a last resort and a proxy's question: each query
    of the dashboard and each series that a rule asks for has data afterwards, or its reason above."""
    alone = FakeTree(f"{place}/tree").cgroup("/alone", max_bytes=1000 * MIB)
    llm.limits(high_bytes=1000 * MIB, max_bytes=2000 * MIB)
    with (
        Daemon(place, CONFIG, cgroup_root=f"{place}/tree") as daemon,
        prometheus.scraping(place, daemon.http) as server,
        Subscriber(daemon.socket_path, {"name": "test", "target": "llm"}, ack=None) as subscriber,
    ):
        alone.usage(950 * MIB)
        server.scraped(1)
        for number in (1, 2):
            llm.pressure(number * 50_000)
            llm.events(high=3 * number, max=number, oom_kill=number)
            pressed(daemon, llm, subscriber, number)
            asked_by_a_proxy(daemon)
            server.scraped(2)
        linted(daemon)
        without = NO_DATA.keys() | (set() if os.path.exists(PSI) else NO_DATA_WITHOUT_PSI.keys())
        with contextlib.suppress(AssertionError):  # the next says what is missing
            eventually(lambda: unanswered(server) <= without)
        assert unanswered(server) == without
        eventually(lambda: server.health() == {"ok"}, what="all rules have been evaluated")
        eventually(lambda: "EdgeguarddKilled" in server.firing(), what="the kill is told")
        told = server.ask("query_exemplars", query="edgeguardd_commands_total", start="0", end="9999999999")
        exemplar = told[0]["exemplars"][0]["labels"]
        assert exemplar == {"epoch": daemon.status()["epoch"], "seq": exemplar["seq"], "target": "llm"}


def linted(daemon: Daemon) -> None:
    """What is scraped is as Prometheus would have it, in both formats."""
    checked = prometheus.run("promtool", "check", "metrics", given=daemon.get("/metrics").encode())
    assert (checked.returncode, checked.stdout) == (0, "")
    asked = urllib.request.Request(  # noqa: S310  loopback
        f"{daemon.http}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310  loopback
        read = {family.name for family in openmetrics_families(answer.read().decode())}
    assert {family.name for family in metricspage.families()} - read <= {"edgeguardd_machine_stalled_ratio"}


def pressed(daemon: Daemon, llm: FakeCgroup, subscriber: Subscriber, times: int) -> None:
    """Memory comes near its limit, the server is asked to trim, gives back and answers, until so many trims helped."""
    since = time.monotonic()
    llm.usage(970 * MIB)
    subscriber.wait_for_timed("command", since=since, action="trim_kv_cache")
    llm.usage(100 * MIB)
    answered: set[int] = set()

    def helped() -> bool:
        # A command may be superseded by another before it is answered: a level that rises further sees to that.
        for seq in {command["seq"] for command in subscriber.of("command")} - answered:
            answered.add(seq)
            for status in ("accepted", "done"):
                subscriber.send({"type": "ack", "v": 1, "seq": seq, "status": status, "released_bytes": 800 * MIB})
        return len([end for end in daemon.facts("command_ended") if (end["freed_bytes"] or 0) > 0]) >= times

    eventually(helped, what=f"{times} trims help")


def asked_by_a_proxy(daemon: Daemon) -> None:
    """Whether a request may go to the target that is short of memory."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        daemon.get("/admit?mode=direct&target=alone&bytes=999999999")
    refused.value.close()


def unanswered(server: Prometheus) -> set[str]:
    """The queries without a single number. Bad ones raise."""
    asked = {expression for _, expression in prometheus.queries()}
    for rule in prometheus.rules():
        server.samples(rule["expr"])
        asked |= {rule["record"]} if "record" in rule else set(prometheus.selectors(rule["expr"]))
    return {expression for expression in asked if all(math.isnan(value) for _, value in server.samples(expression))}
