"""A server that is killed at its MemoryMax, and what its neighbours notice of it."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.guest import box
from tests.system.guest.box import PATIENCE_S, eventually, main_pid, run, show
from tests.system.guest.server import serving

CONTROL = "eg-control.service"
REPORT = "/run/eg-control/report"
PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bystander.py")
UNIT = f"""\
[Service]
Type=exec
RuntimeDirectory=eg-control
Environment=PYTHONPATH={box.LIBRARIES}
ExecStart=/usr/bin/python3 {PROGRAM} {REPORT}
"""


def report() -> dict[str, Any]:
    """What the protected service has seen so far."""
    with contextlib.suppress(FileNotFoundError), open(REPORT) as file:
        return dict(json.load(file))
    return {"sent": 0, "events": []}


@pytest.fixture
def bystander() -> Iterator[None]:
    """A protected service, by the package's drop-in and slice; it pings on loopback and listens to the network."""
    box.installed()
    with open(f"{box.UNITS}/{CONTROL}", "w") as file:
        file.write(UNIT)
    box.drop_in(CONTROL, "edgeguardd", box.shipped("protected"))
    run("systemctl", "daemon-reload")
    run("systemctl", "start", CONTROL)
    try:
        eventually(lambda: "listening" in report()["events"], PATIENCE_S, what="it listens")
        run("ip", "address", "add", "127.0.0.9/8", "dev", "lo")
        eventually(lambda: "RTM_NEWADDR" in report()["events"], PATIENCE_S, what="it hears of the network")
        yield
    finally:
        run("systemctl", "stop", CONTROL)
        run("ip", "address", "del", "127.0.0.9/8", "dev", "lo")
        box.remove(f"{box.UNITS}/{CONTROL}.d/edgeguardd.conf", f"{box.UNITS}/{CONTROL}")
        run("systemctl", "daemon-reload")


def test_a_server_killed_at_memory_max_comes_back_and_its_neighbours_never_noticed(bystander: None) -> None:
    """Whole, then RestartSec=, then subscribed again; no link event, no ping lost, nobody else restarted."""
    # With the configuration that stands there, and not that of the tests before.
    run("systemctl", "restart", box.SERVICE)
    with serving("eg-llm", target="self", high="5G", most="64M", subscribers=2) as server:
        assert show("ControlGroup", CONTROL).startswith("/protected.slice/")
        before, daemon, control = report(), main_pid(), main_pid(CONTROL)
        killed, name = main_pid(server.unit), "/inference.slice/eg-llm.service"
        server.ask("answer", how="silent")
        server.grow_aside(100)
        eventually(lambda: main_pid(server.unit) not in (0, killed), PATIENCE_S, what="it is started again")
        eventually(lambda: len([row for row in box.status()["subscribers"] if row["target"] == name]) == 2, PATIENCE_S)
        after = report()
        eventually(lambda: report()["sent"] > after["sent"] + 5, PATIENCE_S, what="the protected service goes on")
        after = report()
        away_us = int(show("ActiveEnterTimestampMonotonic", server.unit)) - int(
            show("ActiveExitTimestampMonotonic", server.unit)
        )
        pings, heard = after["sent"] - before["sent"], after["events"][len(before["events"]) :]
        print(f"killed and started again {show('NRestarts', server.unit)} time, away for {away_us / 1e6:.1f} s")
        print(f"{pings} pings meanwhile, {after['lost']} lost, the longest took {after['longest_s'] * 1000:.0f} ms")
        print(f"events of the network: {heard}")
        assert show("NRestarts", server.unit) == "1"
        assert away_us >= 2_000_000
        assert box.counts("memory.events", "inference.slice")["oom_kill"] >= 1
        assert heard == []
        assert after["lost"] == 0
        assert (main_pid(), main_pid(CONTROL)) == (daemon, control)
        assert not any(box.counts("memory.events", CONTROL).values())
