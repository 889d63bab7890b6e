"""OOMs made on purpose: the command and the daemon tell each right, once, also after a restart."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edgeguardd.errors import EdgeguardError
from edgeguardd.kernel.kmsg import Kmsg
from tests.support.cgroup import Cgroup
from tests.support.running import REPOSITORY, Daemon
from tests.support.uml.host_plugin import IN_GUEST_VARIABLE
from tests.support.wait import eventually

MIB = 1 << 20
HOSTILE = "evil) total-vm:1kB, x"
COMM = HOSTILE[:15]
HOG = ["tail", "/dev/zero"]


@pytest.fixture(autouse=True)
def _readable() -> None:
    """This user may read the kernel's log; whoever runs kernel tests elsewhere than in a guest may have to be root."""
    try:
        Kmsg.open().close()
    except EdgeguardError as error:
        pytest.skip(str(error))


@pytest.fixture
def evil(disk_dir: str) -> str:
    """A program whose name, as the kernel keeps it, looks like the end of the kernel's own line."""
    path = os.path.join(disk_dir, HOSTILE)
    os.symlink("/usr/bin/tail", path)
    return path


@pytest.fixture
def sleeper() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that do nothing, ended behind the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def guarding(cgroup: Cgroup) -> str:
    """A configuration with this cgroup as target llm."""
    return f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n'


def until_told(daemon: Daemon, count: int) -> list[dict[str, Any]]:
    """Wait until the daemon has told so many reports; no more than that."""
    eventually(lambda: len(daemon.facts("oom_report")) >= count, what=f"{count} reports are told")
    facts = daemon.facts("oom_report")
    assert len(facts) == count
    return facts


def told(*, since: int = 0) -> list[dict[str, Any]]:
    """What `edgeguardctl oom --json` says of this kernel's log, from a pid's first kill on."""
    argv = [sys.executable, "-m", "edgeguardd.cli.edgeguardctl", "oom", "--json"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, check=True, timeout=60)
    events: list[dict[str, Any]] = json.loads(done.stdout)["events"]
    return [event for event in events if event["kmsg"]["seq"] >= since]


def next_record() -> int:
    """The number that the kernel's next message has at least."""
    with contextlib.closing(Kmsg.open()) as log:
        for _ in log.records(1 << 20):
            pass
        return (log.last_seq or 0) + 1


def killed(process: "subprocess.Popen[bytes]") -> int:
    """Wait until the kernel has killed it; its pid."""
    assert process.wait(60) == -signal.SIGKILL
    return process.pid


@pytest.mark.cost(8)
def test_an_oom_of_each_kind_is_told_by_the_command_and_by_the_daemon(
    cgroup: Cgroup, run_dir: str, evil: str, sleeper: list["subprocess.Popen[bytes]"]
) -> None:
    """Own limit, an ancestor's, a group, a hostile name: the figures, the cgroups, and each once."""
    since = next_record()
    with cgroup.child("own") as own, cgroup.child("slice") as above, cgroup.child("group") as group:
        for limited in (own, above, group):
            limited.set(max=16 * MIB)
        group.write("memory.oom.group", 1)
        with above.child("service") as below, Daemon(run_dir, guarding(own)) as daemon:
            pids = {"own": killed(own.spawn(HOG))}
            until_told(daemon, 1)
            pids["ancestor"] = killed(below.spawn(HOG))
            until_told(daemon, 2)
            sleeper.append(group.spawn(["sleep", "60"]))
            eventually(lambda: comm(sleeper[0].pid) == "sleep")
            pids["group"] = killed(group.spawn(HOG))
            assert sleeper[0].wait(60) == -signal.SIGKILL
            until_told(daemon, 3)
            pids["evil"] = killed(own.spawn([evil, "/dev/zero"]))
            facts = until_told(daemon, 4)

    base = cgroup.below_root
    found = {event["victim_pid"]: event for event in told(since=since)}
    assert sorted(found) == sorted([*pids.values(), sleeper[0].pid])
    assert all(found[pid]["scope"] == "memcg" for pid in pids.values())
    paths = {name: (found[pid]["oom_memcg"], found[pid].get("task_memcg")) for name, pid in pids.items()}
    assert paths["own"] == paths["evil"] == (f"{base}/own", f"{base}/own")
    assert paths["ancestor"] == (f"{base}/slice", f"{base}/slice/service")
    assert paths["group"][0] == f"{base}/group"
    members = [found[pid].get("group_kill_member") for pid in (pids["group"], sleeper[0].pid)]
    assert sorted(map(bool, members)) == [False, True]
    evil_event = found[pids["evil"]]
    assert (evil_event["comm"], evil_event["limit_kb"]) == (COMM, 16 * 1024)
    assert 8 * 1024 < evil_event["anon_rss_kb"] <= 16 * 1024

    assert [fact["pid"] for fact in facts[:2]] == [pids["own"], pids["ancestor"]]
    assert facts[2]["pid"] in (pids["group"], sleeper[0].pid)
    assert (facts[3]["pid"], facts[3]["comm"]) == (pids["evil"], COMM)
    assert [fact["kills"] for fact in facts] == [1, 1, 2, 1]
    assert [fact["target"] for fact in facts] == ["llm", None, None, "llm"]
    assert facts[0]["limit_cgroup"] == facts[0]["victim_cgroup"] == f"{base}/own"
    assert facts[1]["limit_cgroup"] == f"{base}/slice"
    assert "not the victim's own cgroup" in facts[1]["why"]
    assert "memory.oom.group" in facts[2]["why"]


@pytest.mark.cost(8)
def test_a_restart_tells_what_came_meanwhile_and_nothing_twice(cgroup: Cgroup, run_dir: str) -> None:
    """kill -9 and a kill of the kernel's in between, then an orderly restart: each OOM has one line."""
    with cgroup.child("own") as own:
        own.set(max=16 * MIB)
        with Daemon(run_dir, guarding(own)) as daemon:
            pids = [killed(own.spawn(HOG))]
            until_told(daemon, 1)
            daemon.kill()
            pids.append(killed(own.spawn(HOG)))
            daemon.start()
            until_told(daemon, 2)
            assert daemon.stop() == 0
            daemon.start()
            pids.append(killed(own.spawn(HOG)))
            facts = until_told(daemon, 3)
            assert daemon.status()["kernel_log"]["last_report"]["pid"] == pids[-1]
            assert daemon.metric("edgeguardd_oom_reports_total", scope="memcg") == 1  # of the daemon that runs now
            assert daemon.metric("edgeguardd_kernel_log_readable") == 1
    assert [fact["pid"] for fact in facts] == pids
    assert daemon.facts("oom_kills_unexplained") == []


@pytest.fixture
def filled(run_dir: str) -> Iterator[None]:
    """A file in memory that leaves a hundred MiB to everybody.

    No process of a guest can use up the machine by itself: arch/um maps page by page, and the host allows 65,530 maps.
    """
    where = os.path.join(run_dir, "filled")
    os.mkdir(where)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100%", "tmpfs", where], check=True)
    with open("/proc/meminfo") as file:
        available_kb = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    try:
        with open(os.path.join(where, "file"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, available_kb * 1024 - 100 * MIB)
        yield
    finally:
        subprocess.run(["umount", where], check=True)


@pytest.mark.cost(7)
@pytest.mark.skipif(IN_GUEST_VARIABLE not in os.environ, reason="uses up a machine's whole memory: in a guest only")
def test_an_oom_of_the_whole_machine_is_told_as_that(
    cgroup: Cgroup, run_dir: str, request: pytest.FixtureRequest
) -> None:
    """Nobody's limit: the guest has no memory left. Who is killed has asked for it by its oom_score_adj."""
    with Daemon(run_dir) as daemon:
        since = next_record()
        request.getfixturevalue("filled")
        script = "echo 1000 > /proc/self/oom_score_adj && exec tail /dev/zero"
        pid = killed(cgroup.spawn(["/bin/sh", "-c", script]))
        (fact,) = until_told(daemon, 1)
    (event,) = told(since=since)
    assert (event["victim_pid"], event["scope"], event["constraint"]) == (pid, "global", "CONSTRAINT_NONE")
    assert (event["task_memcg"], event["oom_score_adj"]) == (cgroup.below_root, 1000)
    assert "oom_memcg" not in event
    assert (fact["pid"], fact["scope"], fact["limit_cgroup"]) == (pid, "global", None)
    assert fact["victim_cgroup"] == cgroup.below_root


def comm(pid: int) -> str:
    """A process's name."""
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
