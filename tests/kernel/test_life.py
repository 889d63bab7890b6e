"""Deaths and births on a real kernel: the target's, the subscriber's, the daemon's, and a disk that is full."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.cgroup import Cgroup
from tests.support.hog import Hog
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

MIB = 1 << 20

# Short dwells, so that each round starts from normal; the marks are the defaults.
POLICY = """
[defaults]
dwell = 0.1
restore_dwell = 0.1
repeat = 30
"""

# A share of one processor; a daemon that spins takes all of it, one at rest 0-0.7 % in user-mode Linux.
RESTS_AT = 0.02

EVERYTHING = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]


@pytest.mark.cost(60)
@pytest.mark.timeout(300)
def test_a_target_restarted_fifty_times_under_load(cgroup: Cgroup, run_dir: str) -> None:
    """As systemctl restart: removed, made again, killed again. Each kill is seen, nothing leaks, nothing spins."""
    rounds = 50
    config = POLICY + f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}/service"\n'
    with Daemon(run_dir, config) as daemon:
        hello = {"name": "test", "target": "llm", "supports": EVERYTHING}
        with Subscriber(daemon.socket_path, hello) as subscriber:
            subscriber.wait_for("welcome")
            descriptors = []
            for number in range(1, rounds + 1):
                start = time.monotonic()
                with cgroup.child("service") as service:
                    service.set(max=16 * MIB)
                    victim = service.spawn(["tail", "/dev/zero"])
                    subscriber.wait_for_timed("command", since=start, level="emergency")
                    assert victim.wait() == -9
                    descriptors.append(daemon.descriptors())
                    # A record that is being written has one for a moment; what is left open has one more each round.
                    eventually(lambda: daemon.descriptors() <= min(descriptors), what="no descriptor stays")
                assert eventually(lambda: not daemon.status()["targets"][0]["present"])
                # A count that went with its cgroup is still in the parent's, where the daemon finds it.
                counted = daemon.metric("edgeguardd_memory_events_total", target="llm", event="oom_kill") or 0
                near = daemon.metric("edgeguardd_kills_near_removal_total", target="llm") or 0
                assert counted + near == number
                lost_with_the_cgroup = near
            share = rest_share(daemon)
    print(
        f"{rounds} restarts; {lost_with_the_cgroup:.0f} kills read from the parent; "
        f"descriptors {descriptors[0]}; CPU afterwards {share:.1%}"
    )
    assert share <= RESTS_AT


@pytest.mark.cost(15)
def test_kill_9_of_daemon_and_subscriber_leaves_nothing_changed(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Whoever dies, in whatever order: the limits are as they were, and a new daemon takes up where things stand."""
    limits = ("memory.high", "memory.max", "memory.low", "memory.min", "cgroup.freeze")
    cgroup.set(high=100 * MIB, max=120 * MIB)
    before = [cgroup.read(name) for name in limits]
    config = POLICY + f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n'
    hello = {"name": "test", "target": "llm", "supports": EVERYTHING}
    with Daemon(run_dir, config) as daemon:
        with Subscriber(daemon.socket_path, hello, ack=None) as first:
            hog.grow(94 * MIB - cgroup.keyed("memory.stat")["anon"])
            first.wait_for("command", level="critical")
            daemon.kill()
        assert [cgroup.read(name) for name in limits] == before
        daemon.start()
        with Subscriber(daemon.socket_path, hello, ack=None) as second:
            assert second.wait_for("welcome")["level"] == "critical"
            second.wait_for("command", action="reject_requests")
        eventually(lambda: daemon.facts("subscriber_left"), what="the dead subscriber is noticed")
        daemon.kill()
        assert [cgroup.read(name) for name in limits] == before
        daemon.start()
        assert daemon.facts("started")[-1]["memory_locked"] is True
        with open(f"/proc/{daemon.pid}/status") as file:
            figures = dict(line.split(":", 1) for line in file if ":" in line)
        # As touched, not as mapped: what is locked is what was resident all the same.
        assert 0 < int(figures["VmRSS"].split()[0]) <= 32 * 1024 < int(figures["VmLck"].split()[0])
        assert daemon.stop() == 0
    assert [cgroup.read(name) for name in limits] == before
    assert not os.path.exists(daemon.socket_path)


def test_a_kill_that_went_with_its_cgroup_is_found_in_the_parent(cgroup: Cgroup, run_dir: str) -> None:
    """The daemon sleeps through kill and removal: reading the counters gives ENODEV, the parent still has the kill."""
    config = f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}/service"\n'
    with Daemon(run_dir, config) as daemon:
        with cgroup.child("service") as service:
            service.set(max=16 * MIB)
            eventually(lambda: daemon.status()["targets"][0]["sample_age_s"] is not None)
            os.kill(daemon.pid, signal.SIGSTOP)
            assert service.spawn(["tail", "/dev/zero"]).wait() == -9
        os.kill(daemon.pid, signal.SIGCONT)
        (found,) = eventually(lambda: daemon.facts("kills_near_removal"))
        assert (found["target"], found["kills"]) == ("llm", 1)
        assert daemon.metric("edgeguardd_kills_near_removal_total", target="llm") == 1
        eventually(lambda: daemon.facts("cgroup_vanished"))


@pytest.fixture
def full_disk(run_dir: str) -> Iterator[str]:
    """A file system without room for another file."""
    path = f"{run_dir}/full"
    os.mkdir(path)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", path]
    subprocess.run(mount, check=True)
    with open(f"{path}/last", "w"):
        pass
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_where_the_socket_should_be_is_one_sentence(full_disk: str, run_dir: str) -> None:
    """No room for the socket: exit status 1 and one sentence that names it, nothing half made."""
    daemon = Daemon(run_dir, start=False)
    daemon.socket_path = f"{full_disk}/s"
    daemon.write_config("")
    daemon.start(wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(60) == 1
    (sentence,) = [line for line in daemon.log_text().splitlines() if line.startswith("edgeguardd: ")]
    assert daemon.socket_path in sentence
    assert "cannot" in sentence
    assert os.listdir(full_disk) == ["last"]


def rest_share(daemon: Daemon) -> float:
    """The share of a processor that a daemon without work takes: of windows of 2 s the first in which it rests.

    A guest slowed down by its host charges the daemon for it, for a while; a daemon that spins has no such window.
    """
    share = 1.0
    for _ in range(15):
        used, since = daemon.cpu_s(), time.monotonic()
        threading.Event().wait(2.0)  # the passing of time itself is what is measured
        share = min(share, (daemon.cpu_s() - used) / (time.monotonic() - since))
        if share <= RESTS_AT:
            break
    return share
