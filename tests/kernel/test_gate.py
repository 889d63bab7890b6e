"""Real memory shuts the gate and is told to programs that watch, each by the cgroup that it lives in."""

import subprocess
import sys
import urllib.error
import urllib.request

from tests.support.cgroup import Cgroup
from tests.support.children import ending
from tests.support.hog import Hog
from tests.support.running import Daemon
from tests.support.wait import DEADLINE_S, eventually

MIB = 1 << 20
LIMIT = 200 * MIB
QUICK = '[defaults]\ndwell = 0.05\nrestore_dwell = 0.05\nrelief = "off"\n'
# A program as the protocol has it: it connects, then reads and discards whenever there is anything.
WATCHER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    while sock.recv(4096):
        print("pressure", flush=True)
"""


def admit(daemon: Daemon) -> int:
    """The status that /admit answers with."""
    try:
        with urllib.request.urlopen(f"{daemon.http}/admit", timeout=DEADLINE_S) as answer:  # noqa: S310  loopback
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_a_program_is_told_of_the_pressure_of_its_own_cgroup(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """It need not be configured: its cgroup is guarded for as long as it watches, and another's says nothing to it."""
    cgroup.set(max=LIMIT)
    argv = [sys.executable, "-I", "-S", "-B", "-c", WATCHER, f"{run_dir}/w"]
    with (
        Daemon(run_dir, QUICK + f'[[pressure_watch]]\npath = "{run_dir}/w"\n') as daemon,
        Cgroup.fresh("other") as other,
        ending(cgroup.spawn(argv, stdout=subprocess.PIPE)) as program,
        ending(other.spawn(argv, stdout=subprocess.PIPE)) as bystander,
    ):
        assert program.stdout is not None
        assert bystander.stdout is not None
        expected = {cgroup.below_root: 1, other.below_root: 1}
        eventually(lambda: {row["path"]: row["watchers"] for row in daemon.status()["targets"]} == expected)
        hog.grow(150 * MIB)
        assert program.stdout.readline() == b"pressure\n"
        bystander.kill()
        assert bystander.stdout.read() == b""
        program.kill()
        eventually(lambda: not daemon.status()["targets"])


def test_the_gate_is_shut_at_critical_and_opens_when_memory_is_back(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Nobody is subscribed: the level alone decides, in both directions."""
    cgroup.set(max=LIMIT)
    with Daemon(run_dir, QUICK + f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n') as daemon:
        assert admit(daemon) == 204
        hog.grow(188 * MIB)
        eventually(lambda: admit(daemon) == 503)
        hog.shrink(150 * MIB)
        eventually(lambda: admit(daemon) == 204)
