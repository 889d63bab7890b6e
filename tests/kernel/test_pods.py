"""Pods on a real kernel: found by the manifests' globs, joined from inside of containers, seen from inside of one."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support import apart, pods
from tests.support.cgroup import Cgroup
from tests.support.running import Daemon
from tests.support.wait import eventually

MIB = 1 << 20

# Says hello from where it lives, prints the answers, and stays until its input ends.
SERVER = """
import json, socket, sys

path, hello = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as daemon:
    daemon.connect(path)
    daemon.sendall(hello.encode() + b"\\n")
    for line in daemon.makefile("rb"):
        answer = json.loads(line)
        if answer["type"] in ("welcome", "error"):
            print(json.dumps(answer), flush=True)
            break
    sys.stdin.read()
"""


class Node:
    """A cgroup that stands in for a node's root, and the pods in it."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.cgroup = cgroup
        self.made: dict[str, Cgroup] = {}

    def make(self, path: str, max_bytes: int | None = None) -> Cgroup:
        """A cgroup and all above it, with the memory controller."""
        at = self.cgroup
        for step in [*pods.parents(path), path]:
            if step not in self.made or not os.path.isdir(self.made[step].path):
                self.made[step] = at.child(step.rpartition("/")[2])
            at = self.made[step]
        return at.set(max=max_bytes)

    def remove(self, path: str) -> None:
        """As a runtime does, from the bottom up."""
        self.made.pop(path).remove()


@pytest.fixture
def node(cgroup: Cgroup) -> Node:
    return Node(cgroup)


def names(daemon: Daemon) -> list[str]:
    """What is guarded, by path."""
    return sorted(row["path"] for row in daemon.status()["targets"] if row["present"])


class Server:
    """A program in a container's cgroup, with namespaces of its own, that has said hello; `answer` is what it got."""

    def __init__(self, cgroup: Cgroup, socket_path: str, hello: dict[str, Any], *namespaces: str) -> None:
        argv = [sys.executable, "-I", "-S", "-c", SERVER, socket_path, json.dumps({"type": "hello", "v": 1, **hello})]
        self.process = subprocess.Popen(
            [*apart.command(cgroup.path, *namespaces), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.answer: dict[str, Any] = json.loads(self.process.stdout.readline())

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)


SELF = {"name": "server", "role": "inference", "target": "self", "supports": ["trim_kv_cache"]}


@pytest.mark.cost(4)
@pytest.mark.parametrize("driver", pods.DRIVERS)
def test_pods_that_come_and_go(node: Node, run_dir: str, driver: str) -> None:
    """Both ways to lay out pods, all classes, nested containers: each is found, a kill counted, nothing is left."""
    config = f"max_targets = 512\n{pods.targets(node.cgroup.below_root)}"
    kept = [pods.container_path(driver, qos, pods.uid(n), pods.container_id(n)) for n, qos in enumerate(pods.QOS)]
    node.make(kept[0], 16 * MIB)
    with Daemon(run_dir, config) as daemon:
        for path in kept[1:]:
            node.make(path, 16 * MIB)
        # What a container does inside of itself is its own: it is not guarded apart.
        node.make(f"{kept[1]}/init/worker")
        node.make("/system.slice/ssh.service")
        expected = sorted(node.cgroup.below_root + path for path in kept)
        eventually(lambda: names(daemon) == expected)
        victim = node.made[f"{kept[1]}/init/worker"].spawn(["tail", "/dev/zero"])
        assert victim.wait() == -9
        (name,) = (row["name"] for row in daemon.status()["targets"] if row["path"].endswith(kept[1]))
        eventually(lambda: daemon.metric("edgeguardd_memory_events_total", target=name, event="oom_kill") == 1)
        before = daemon.descriptors()
        for number in range(10, 16):
            qos = pods.QOS[number % 3]
            pod = pods.pod_path(driver, qos, pods.uid(number))
            for container in (2 * number, 2 * number + 1):
                node.make(pods.container_path(driver, qos, pods.uid(number), pods.container_id(container)))
            eventually(lambda: len(names(daemon)) == len(kept) + 2)
            node.remove(pod)
            eventually(lambda: names(daemon) == expected)
        eventually(lambda: daemon.descriptors() <= before)
        assert daemon.facts("defect") == []


@pytest.mark.cost(4)
def test_a_server_in_a_container_joins_its_own_cgroup(node: Node, run_dir: str) -> None:
    """To itself its cgroup is "/" and its pid 1; the daemon on the host sees which container it is."""
    path = pods.container_path("systemd", "burstable", pods.uid(1), pods.container_id(1))
    container = node.make(path, 64 * MIB)
    with (
        Daemon(run_dir, pods.targets(node.cgroup.below_root)) as daemon,
        Server(container, daemon.socket_path, SELF, "cgroup", "pid") as server,
    ):
        assert server.answer["type"] == "welcome"
        assert server.answer["target"].startswith("burst:")
        assert server.answer["target"].endswith(f"{pods.container_id(1)}.scope")
        (row,) = daemon.status()["targets"]
        assert row["path"] == container.below_root
        (subscriber,) = daemon.status()["subscribers"]
        assert subscriber["target"] == row["name"]


@pytest.mark.cost(4)
def test_a_daemon_in_a_container_of_its_own(node: Node, run_dir: str) -> None:
    """As a DaemonSet's pod: hostPID, own cgroup namespace, the host's tree beside, read-only. It finds others there."""
    home = node.make(pods.container_path("systemd", "guaranteed", pods.uid(9), pods.container_id(9)))
    container = node.make(pods.container_path("systemd", "burstable", pods.uid(1), pods.container_id(1)), 64 * MIB)
    beside = node.make("/system.slice/llama.service", 64 * MIB)
    tree = os.path.join(run_dir, "host-cgroup")
    os.mkdir(tree)
    daemon = Daemon(run_dir, pods.targets(node.cgroup.below_root), cgroup_root=tree, start=False)
    daemon.within = apart.command(home.path, "cgroup", tree=tree)
    with daemon:
        daemon.start()
        with open(f"/proc/{daemon.pid}/cgroup") as file:
            assert f"0::{home.below_root}\n" in file.read()
        with Server(container, daemon.socket_path, SELF, "cgroup", "pid") as server:
            assert server.answer["target"].endswith(f"{pods.container_id(1)}.scope")
        with Server(beside, daemon.socket_path, SELF) as server:
            assert server.answer["target"] == beside.below_root


@pytest.mark.cost(4)
def test_a_peer_that_the_daemon_has_no_pid_for(node: Node, run_dir: str) -> None:
    """A daemon in a pid namespace of its own: one sentence with the remedy. Whoever is allowed to may name a target."""
    home = node.make("/daemon")
    container = node.make("/server", 64 * MIB)
    daemon = Daemon(run_dir, f'[[target]]\nname = "llm"\npath = "{container.below_root}"\n', start=False)
    daemon.within = apart.command(home.path, "pid")
    with daemon:
        daemon.start()
        with Server(container, daemon.socket_path, SELF) as server:
            assert server.answer["type"] == "error"
            assert "outside this daemon's pid namespace" in server.answer["message"]
            assert "hostPID: true" in server.answer["message"]
        with Server(container, daemon.socket_path, {**SELF, "target": "llm"}) as server:
            assert server.answer["type"] == "welcome"
        assert daemon.facts("defect") == []
