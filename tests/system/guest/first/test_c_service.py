"""The service and one inference server beside it, both units, through an operator's day."""

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.guest import box
from tests.system.guest.box import MIB, PATIENCE_S, SERVICE, eventually, kernel, main_pid, run, show
from tests.system.guest.server import Server, serving

HIGH_BYTES, MAX_BYTES = 96 * MIB, 128 * MIB
# Trims have a minute here, so that a limit that is lifted for one stays so until the test has looked.
CONFIG = """
[defaults]
dwell = "500ms"
restore_dwell = "500ms"
static = "8M"

[[target]]
name = "llm"
unit = "eg-llm.service"

[target.ladder]
elevated = [{action = "trim_kv_cache", deadline = "60s"}]
high = [{action = "trim_kv_cache", deadline = "60s"}, {action = "reduce_batch", max_batch_ratio = "50%"}]
critical = [
    {action = "trim_kv_cache", deadline = "60s"},
    {action = "reduce_batch", max_batch_ratio = "25%"},
    "reject_requests",
]
"""
LEVELS = ("normal", "elevated", "high", "critical", "emergency")
PROMETHEUS = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: edgeguardd
    static_configs: [{targets: ["127.0.0.1:9464"]}]
"""
PROMETHEUS_PORT = 19090


@pytest.fixture(scope="module")
def llm() -> Iterator[Server]:
    """The daemon, a server with two subscribers, and a Prometheus that scrapes from now on."""
    box.installed()
    os.makedirs("/run/eg-prometheus", exist_ok=True)
    with open("/run/eg-prometheus/prometheus.yml", "w") as file:
        file.write(PROMETHEUS)
    words = ["/usr/bin/prometheus", "--config.file=/run/eg-prometheus/prometheus.yml"]
    words += ["--storage.tsdb.path=/run/eg-prometheus", f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"]
    with box.configured(CONFIG):
        run("systemd-run", "--unit=eg-prometheus", *words)
        try:
            with serving("eg-llm", target="llm", high=str(HIGH_BYTES), most=str(MAX_BYTES), subscribers=2) as server:
                yield server
        finally:
            run("systemctl", "stop", "eg-prometheus.service")


@pytest.fixture(autouse=True)
def at_rest(llm: Server) -> None:
    """Each test begins with a daemon that answers, a server that holds little, and at level normal."""
    eventually(box.answers, PATIENCE_S, what="the daemon answers")
    llm.ask("answer", how="obey")
    llm.ask("drop")
    eventually(lambda: box.target("llm").get("level") == "normal", PATIENCE_S, what="level normal")


def asked(query: str) -> list[dict[str, Any]]:
    """What Prometheus answers; [] before it does."""
    url = f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return list(json.load(answer)["data"]["result"])
    except OSError:
        return []


def test_status_says_the_worst_level(llm: Server) -> None:
    """`systemctl status` has it on one line, when it rises and when it has fallen."""
    assert show("StatusText") == "normal: 1 targets, 0 above normal"
    llm.ask("answer", how="silent")
    llm.grow(72)
    raised = re.compile(r"(elevated|high|critical): 1 targets, 1 above normal")
    eventually(lambda: raised.fullmatch(show("StatusText")), PATIENCE_S, what="a level above normal")
    print(show("StatusText"))
    llm.ask("drop")
    said = "normal: 1 targets, 0 above normal"
    eventually(lambda: show("StatusText") == said, PATIENCE_S, what=said)


def test_real_pressure_is_answered_with_commands_and_acks(llm: Server) -> None:
    """Over memory.high, with tasks that wait by PSI: asked, answered, measured, and nobody killed."""
    # With relief the limit would be lifted before it is met.
    box.configure(CONFIG.replace("\nunit =", '\nrelief = "off"\nunit ='))
    run("systemctl", "reload", SERVICE)
    before_us, began = box.stalled_us(llm.unit), time.monotonic()
    llm.ask("answer", how="silent")
    llm.grow_aside(80)

    def waits() -> bool:
        return box.counts("memory.events", llm.unit)["high"] > 0 and box.stalled_us(llm.unit) > before_us

    eventually(waits, PATIENCE_S, what="the kernel throttles, and PSI shows it")
    trims = eventually(lambda: llm.commands("trim_kv_cache", since=began), PATIENCE_S, what="a trim is asked for")
    llm.ask("answer", how="obey")
    eventually(lambda: freed("trim_kv_cache") > 0, PATIENCE_S, what="a trim is done, and its bytes are measured")
    counts = box.counts("memory.events", llm.unit)
    print(f"memory.events: {counts}; waited by PSI: {(box.stalled_us(llm.unit) - before_us) / 1000:.0f} ms")
    print(f"{freed('trim_kv_cache')} bytes freed; asked because {trims[0]['reason']}")
    assert counts["oom_kill"] == 0
    assert int(kernel("memory.high", llm.unit)) == HIGH_BYTES
    box.configure(CONFIG)
    run("systemctl", "reload", SERVICE)


def freed(action: str) -> int:
    """What commands of this kind have brought, as the daemon measured it."""
    ended = box.status()["last_commands"]
    return sum(row["freed_bytes"] or 0 for row in ended if (row["action"], row["outcome"]) == (action, "done"))


def test_prometheus_scrapes_it(llm: Server) -> None:
    """A real one: the target is up, and the level that the pressure made is in its history."""
    eventually(lambda: [row for row in asked("up") if row["value"][1] == "1"], PATIENCE_S, what="up")
    query = 'max_over_time(edgeguardd_target_level{target="llm"}[10m])'
    (row,) = eventually(lambda: asked(query), PATIENCE_S, what=query)
    print(row)
    llm.ask("answer", how="silent")
    llm.grow(72)
    now = 'edgeguardd_target_level{target="llm"} >= 2'
    eventually(lambda: asked(now), PATIENCE_S, what=now)


def test_reload_takes_a_good_configuration(llm: Server) -> None:
    """systemd waits for it, the new target is guarded, and no connection is lost."""
    began, since, pid = time.monotonic(), box.now(), main_pid()
    box.configure(CONFIG + '\n[[target]]\nname = "more"\nunit = "eg-more.service"\n')
    run("systemctl", "reload", SERVICE)
    eventually(lambda: box.target("more"), PATIENCE_S, what="the new target")
    assert box.says(since, "configuration_in_force")
    assert main_pid() == pid
    assert llm.told("lost", since=began) == []


def test_reload_refuses_a_bad_configuration(llm: Server) -> None:
    """`systemctl reload` fails and says why; what was in force stays so."""
    since, pid = box.now(), main_pid()
    box.configure(CONFIG.replace('dwell = "500ms"', 'dwell = "soon"') + '\n[[target]]\nname = "more"\nunit = 7\n')
    refused = subprocess.run(["systemctl", "reload", SERVICE], capture_output=True, text=True, check=False, timeout=60)
    box.configure(CONFIG)
    print(refused.stderr, *box.says(since, "cannot"), sep="\n")
    assert refused.returncode != 0
    assert (show("ActiveState"), main_pid()) == ("active", pid)
    assert box.target("more")
    run("systemctl", "reload", SERVICE)
    eventually(lambda: not box.target("more"), PATIENCE_S, what="the good one is taken again")


def test_the_target_is_restarted_under_load(llm: Server) -> None:
    """Its cgroup is another then: watched again, subscribed again, and counters go on."""
    llm.ask("answer", how="idle")
    llm.grow_aside(90)
    series = 'edgeguardd_memory_events_total{event="high",target="llm"}'
    before = eventually(lambda: box.metric(series), PATIENCE_S, what="counts")
    began = time.monotonic()
    run("systemctl", "restart", llm.unit)
    llm.welcomed(2, since=began)
    assert eventually(lambda: box.target("llm").get("present"), PATIENCE_S)
    assert box.counts("memory.events", llm.unit)["high"] == 0
    assert box.metric(series) >= before
    llm.ask("answer", how="silent")
    llm.grow(72)
    eventually(lambda: box.target("llm")["level"] != "normal", PATIENCE_S, what="the new cgroup is judged")


def test_the_daemon_is_restarted_under_load(llm: Server) -> None:
    """Subscribers wait in systemd's socket; the level is as it was, and every limit right."""
    llm.ask("answer", how="silent")
    llm.grow(80)
    level = eventually(lambda: LEVELS.index(box.target("llm")["level"]), PATIENCE_S, what="a level above normal")
    began = time.monotonic()
    run("systemctl", "restart", SERVICE)
    llm.welcomed(2, since=began)
    welcomes = [fields for _, _, _, fields in llm.told("welcome", since=began)]
    print(f"{LEVELS[level]} before, {' and '.join(fields['level'] for fields in welcomes)} after")
    assert min(LEVELS.index(fields["level"]) for fields in welcomes) >= level
    assert int(kernel("memory.max", llm.unit)) == MAX_BYTES
    llm.ask("answer", how="obey")
    llm.ask("drop")
    eventually(lambda: int(kernel("memory.high", llm.unit)) == HIGH_BYTES, PATIENCE_S, what="the limit is right")


def lifted(llm: Server) -> int:
    """Bring memory.high to where the daemon has lifted it, for a trim that nobody carries out; its process then."""
    llm.ask("answer", how="silent")
    llm.grow_aside(88)
    eventually(lambda: int(kernel("memory.high", llm.unit)) > HIGH_BYTES, PATIENCE_S, what="the limit is lifted")
    return main_pid()


def test_kill_9_while_a_limit_is_lifted(llm: Server) -> None:
    """It is put back before the next run, which comes at once, reads anything."""
    pid, since, began = lifted(llm), box.now(), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    # While the trim is still owed, the next run would lift the limit again.
    llm.ask("answer", how="obey")
    llm.ask("drop")
    eventually(lambda: main_pid() not in (0, pid), PATIENCE_S, what="a new process")
    eventually(lambda: int(kernel("memory.high", llm.unit)) == HIGH_BYTES, PATIENCE_S, what="the limit is put back")
    print(
        f"killed, restarted and put back within {time.monotonic() - began:.2f} s (emulated)",
        *box.says(since, "memory.high of", "again"),
    )


def test_kill_9_while_a_limit_is_lifted_and_then_no_daemon(llm: Server) -> None:
    """Nobody comes after it: systemd puts the limit back by ExecStopPost=."""
    pid = lifted(llm)
    # Else who subscribes would wake it.
    run("systemctl", "stop", "edgeguardd.socket")
    box.drop_in(SERVICE, "stay", "[Service]\nRestart=no\n")
    run("systemctl", "daemon-reload")
    try:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: show("ActiveState") == "failed", PATIENCE_S, what="it stays away")
        assert int(kernel("memory.high", llm.unit)) == HIGH_BYTES
    finally:
        box.remove(f"{box.UNITS}/{SERVICE}.d/stay.conf")
        run("systemctl", "daemon-reload")
        run("systemctl", "reset-failed", SERVICE)
        run("systemctl", "start", "edgeguardd.socket", SERVICE)


def test_the_watchdog_bites_a_stopped_daemon(llm: Server) -> None:
    """SIGSTOP: no sample, no word to systemd, and after WatchdogSec= a new process; subscribers come again."""
    pid, began, since = main_pid(), time.monotonic(), box.now()
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: main_pid() not in (0, pid) and show("ActiveState") == "active", PATIENCE_S, what="it is back")
    print(f"back {time.monotonic() - began:.1f} s after SIGSTOP, with WatchdogSec={show('WatchdogUSec')}")
    assert box.journal(since, "Watchdog timeout")
    llm.welcomed(2, since=began)


def test_subscribers_activate_a_daemon_that_was_stopped(llm: Server) -> None:
    """The socket is systemd's: ten wait there, are the reason for the start, and each of them is let in."""
    run("systemctl", "stop", llm.unit)
    run("systemctl", "stop", SERVICE)
    assert (show("ActiveState"), show("ActiveState", "edgeguardd.socket")) == ("inactive", "active")
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for number, sock in enumerate(waiting):
        sock.settimeout(PATIENCE_S)
        sock.connect("/run/edgeguardd/edgeguardd.sock")
        sock.sendall(b'{"type":"hello","name":"w%d","role":"observer"}\n' % number)
    welcomes = [json.loads(sock.makefile("rb").readline()) for sock in waiting]
    for sock in waiting:
        sock.close()
    assert [line["type"] for line in welcomes] == ["welcome"] * 10
    assert show("ActiveState") == "active"
