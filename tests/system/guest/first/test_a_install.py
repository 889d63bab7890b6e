"""Installing: the package brings everything, the service starts, and READY means what it says."""

import glob
import os
import signal
from collections.abc import Iterator

import pytest

from tests.system.guest import box, leavings
from tests.system.guest.box import PATIENCE_S, SERVICE, eventually, main_pid, run, show

COUNT = 5
TARGETS = """
[[target]]
name = "many"
glob = "/egmany.slice/*.service"
[[target]]
name = "ssh"
path = "/system.slice/dbus.service"
[[target]]
name = "journal"
unit = "systemd-journald.service"
"""
LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
ACCEPTS = "00010000"  # __SO_ACCEPTCON in /proc/net/unix


def test_the_package_installs_without_a_network() -> None:
    """No download, no question; the service is up when dpkg returns. This one is the build before the present one."""
    leavings.remember()
    run("dpkg", "-i", box.package("previous/edgeguardd_*.deb"))
    assert (show("ActiveState"), show("Type")) == ("active", "notify")
    assert show("ActiveState", "edgeguardd.socket") == "active"
    version = run("dpkg-query", "--show", "--showformat=${Version}", "edgeguardd")
    print(f"{version}: {show('StatusText')}")
    assert show("StatusText") == "normal: 0 targets, 0 above normal"


@pytest.fixture
def frozen_at_ready() -> Iterator[int]:
    """The daemon as it was when systemd had its READY=1, which is when ExecStartPost= runs; its process."""
    units = [f"eg-many{number}.service" for number in range(COUNT)]
    for unit in units:
        run("systemd-run", f"--unit={unit}", "--slice=egmany.slice", "/usr/bin/sleep", "1000")
    with box.configured(TARGETS, frozen="[Service]\nExecStartPost=/bin/kill -STOP $MAINPID\nWatchdogSec=0\n"):
        try:
            yield main_pid()
        finally:
            os.kill(main_pid(), signal.SIGCONT)
            run("systemctl", "stop", *units)


def test_ready_is_said_when_sockets_are_bound_and_every_target_is_watched(frozen_at_ready: int) -> None:
    """Stopped in that moment, it holds listening sockets and the memory.events of every target that exists."""
    with open(f"/proc/{frozen_at_ready}/stat") as file:
        assert file.read().rsplit(")", 1)[1].split()[0] == "T"
    held = [os.readlink(path) for path in glob.glob(f"/proc/{frozen_at_ready}/fd/*")]
    watched = {path for path in held if path.endswith("/memory.events")}
    wanted = {f"/sys/fs/cgroup/egmany.slice/eg-many{number}.service/memory.events" for number in range(COUNT)}
    wanted |= {
        f"/sys/fs/cgroup/system.slice/{unit}/memory.events" for unit in ("dbus.service", "systemd-journald.service")
    }
    print(f"{len(watched)} targets are watched at READY")
    assert wanted <= watched
    assert any("inotify" in path for path in held)
    with open("/proc/net/unix") as file:
        rows = [line.split() for line in file]
    (inode,) = [row[6] for row in rows if row[-1] == "/run/edgeguardd/edgeguardd.sock" and row[3] == ACCEPTS]
    assert f"socket:[{inode}]" in held
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file]
    (inode,) = [row[9] for row in rows if row[1] == f"0100007F:{9464:04X}" and row[3] == LISTENS]
    assert f"socket:[{inode}]" in held
    os.kill(frozen_at_ready, signal.SIGCONT)
    said = f"normal: {COUNT + 2} targets, 0 above normal"
    assert eventually(lambda: show("StatusText", SERVICE) == said, PATIENCE_S, what=said)
