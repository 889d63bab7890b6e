"""What may run beside the daemon or instead of its usual rights: drop-ins, bridge, watchers, systemd-oomd."""

import ctypes
import os
from collections.abc import Iterator

import pytest

from tests.system.guest import box
from tests.system.guest.box import MIB, PATIENCE_S, SERVICE, eventually, kernel, main_pid, run, show
from tests.system.guest.server import Server, serving

HIGH_BYTES = 96 * MIB
CONFIG = """
[defaults]
dwell = "500ms"
restore_dwell = "500ms"
static = "8M"
relief = "off"

[[target]]
name = "llm"
unit = "eg-llm.service"
"""
WATCH = """
[[pressure_watch]]
path = "/run/edgeguardd/pressure.sock"
target = "llm"
"""
BRIDGE = "edgeguardd-bridge@eg.service"
SETTINGS = """\
server = "llama-server"
target = "llm"
url = "http://127.0.0.1:18081"
listen = "http://127.0.0.1:18080"
"""
WATCHER = "eg-watcher.service"
# Built on the host where it has a libsystemd that can; the library beside it, for a release that cannot.
WATCHER_PROGRAM = "/opt/edgeguardd-tests/sdevent/sdevent"
HERE = os.getcwd()


@pytest.fixture(scope="module")
def llm() -> Iterator[Server]:
    """A server with one subscriber; the daemon is set up by each test."""
    box.installed()
    with serving("eg-llm", target="self", high=str(HIGH_BYTES), most="128M") as server:
        yield server


def under_pressure(server: Server, mib: int = 80) -> None:
    """Have it grow beyond its marks, and the daemon ask; it obeys."""
    before = len(server.commands())
    server.ask("answer", how="obey")
    server.grow(mib)
    eventually(lambda: len(server.commands()) > before, PATIENCE_S, what="a command")
    eventually(
        lambda: any(row["outcome"] == "done" for row in box.status()["last_commands"]), PATIENCE_S, what="it is done"
    )
    server.ask("drop")


def test_the_monitor_only_profile_runs_without_any_privilege(llm: Server) -> None:
    """No capability in any set, no root, cgroups read-only; and it watches and asks all the same."""
    with box.configured(CONFIG, monitor=box.shipped("monitor-only")):
        with open(f"/proc/{main_pid()}/status") as file:
            rights = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        print({key: rights[key] for key in ("Uid", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")})
        assert {int(rights[key], 16) for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert "0" not in rights["Uid"].split()
        assert rights["NoNewPrivs"] == "1"
        with open(f"/proc/{main_pid()}/mountinfo") as file:
            cgroups = [line.split() for line in file if line.split()[4] == "/sys/fs/cgroup"]
        assert all("ro" in fields[5].split(",") for fields in cgroups)
        under_pressure(llm)
        assert int(kernel("memory.high", llm.unit)) == HIGH_BYTES


def test_the_bridge_unit_starts(llm: Server) -> None:
    """Ready when it has found its server, a stand-in for llama-server; it subscribes, and stops as asked."""
    os.makedirs("/etc/edgeguardd/bridges", exist_ok=True)
    with open("/etc/edgeguardd/bridges/eg.toml", "w") as file:
        file.write(SETTINGS)
    words = [f"--setenv=PYTHONPATH={box.LIBRARIES}:{HERE}", f"--working-directory={HERE}", "/usr/bin/python3"]
    with box.configured(CONFIG):
        run("systemd-run", "--unit=eg-fake-llama", *words, "-m", "tests.system.guest.fakellama", "18081")
        try:
            run("systemctl", "start", BRIDGE)
            assert show("ActiveState", BRIDGE) == "active"
            subscribers = eventually(
                lambda: [r for r in box.status()["subscribers"] if r["pid"] == main_pid(BRIDGE)], PATIENCE_S
            )
            print(subscribers[0]["name"], subscribers[0]["target"], show("StatusText", BRIDGE))
            run("systemctl", "stop", BRIDGE)
            assert show("Result", BRIDGE) == "success"
        finally:
            run("systemctl", "stop", "eg-fake-llama.service")
            os.unlink("/etc/edgeguardd/bridges/eg.toml")


def sd_event_library() -> str | None:
    """The directory of a libsystemd that watches memory pressure (254); "": the release's own can."""
    if hasattr(ctypes.CDLL("libsystemd.so.0"), "sd_event_add_memory_pressure"):
        return ""
    directory = os.path.dirname(WATCHER_PROGRAM)
    return directory if os.path.exists(f"{directory}/libsystemd.so.0") else None


def test_an_sd_event_service_hears_of_pressure(llm: Server) -> None:
    """By the package's drop-in and socket unit; not a line of the program knows the daemon."""
    library = sd_event_library()
    if library is None or not os.path.exists(WATCHER_PROGRAM):
        pytest.skip("no libsystemd of at least 254 here, nor on the host that made the disk")
    with open(f"{box.UNITS}/{WATCHER}", "w") as file:
        file.write(f"[Service]\nType=exec\nUser=nobody\nExecStart={WATCHER_PROGRAM}\nMemoryMax=64M\n")
        file.write(f"Environment=LD_LIBRARY_PATH={library}\n" if library else "")
    box.drop_in(WATCHER, "pressure-watch", box.shipped("pressure-watch"))
    with box.configured(CONFIG + WATCH):
        since = box.now()
        try:
            # As docs/how-to/pressure-watch.md says.
            run("systemctl", "enable", "edgeguardd-pressure.socket")
            run("systemctl", "stop", "edgeguardd.socket", "edgeguardd.service")
            run("systemctl", "start", "edgeguardd.socket", "edgeguardd-pressure.socket", "edgeguardd.service")
            run("systemctl", "start", WATCHER)
            box.says(since, "watching", unit=WATCHER)
            eventually(lambda: box.target("llm")["watchers"] == 1, PATIENCE_S, what="the watcher is heard")
            under_pressure(llm)
            print(*box.says(since, "pressure", unit=WATCHER))
            # Its connection outlives the daemon, held by systemd.
            pid = main_pid(WATCHER)
            run("systemctl", "restart", SERVICE)
            eventually(lambda: box.target("llm").get("watchers") == 1, PATIENCE_S, what="it is still heard")
            assert main_pid(WATCHER) == pid
        finally:
            run("systemctl", "stop", WATCHER)
            run("systemctl", "disable", "--now", "edgeguardd-pressure.socket")
            box.remove(f"{box.UNITS}/{WATCHER}.d/pressure-watch.conf", f"{box.UNITS}/{WATCHER}")


def test_systemd_oomd_beside_it_does_no_harm(llm: Server) -> None:
    """The guard answers long before systemd-oomd would; nobody is killed, neither daemon gives up."""
    box.drop_in(
        "inference.slice", "oomd", "[Slice]\nManagedOOMMemoryPressure=kill\nManagedOOMMemoryPressureLimit=80%\n"
    )
    try:
        with box.configured(CONFIG):
            run("systemctl", "start", "systemd-oomd.service")
            eventually(lambda: "/inference.slice" in run("oomctl"), PATIENCE_S, what="it is watched")
            seen = run("oomctl")
            print(next(line.strip() for line in seen.splitlines() if "inference.slice" in line))
            assert "edgeguardd" not in seen
            pid, guard = main_pid(llm.unit), main_pid()
            under_pressure(llm, 100)
            assert (main_pid(llm.unit), main_pid()) == (pid, guard)
            assert show("ActiveState", "systemd-oomd.service") == "active"
            assert box.journal(0, "Killed", unit="systemd-oomd.service") == []
    finally:
        run("systemctl", "stop", "systemd-oomd.service", "systemd-oomd.socket")
        box.remove(f"{box.UNITS}/inference.slice.d/oomd.conf")
        run("systemctl", "daemon-reload")
