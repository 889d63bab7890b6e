"""Restarts of the daemon on a real kernel: limits after each of its deaths, and kills that nobody was there to see."""

import pytest

from tests.support.cgroup import Cgroup
from tests.support.hog import Hog
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

MIB = 1 << 20
HIGH = 24 * MIB

POLICY = """
[defaults]
dwell = 0.1
restore_dwell = 0.1
repeat = 30
"""


def at_critical(cgroup: Cgroup, hog: Hog) -> None:
    """Needed bytes so near to memory.high that a trim wants it lifted."""
    cgroup.set(high=HIGH, max=2 * HIGH)
    hog.grow(97 * HIGH // 100 - int(cgroup.read("memory.current")))


def trim_under_way(daemon: Daemon) -> int:
    """Its number; those before it were superseded as memory grew."""
    waiting = daemon.status()["targets"][0]["outstanding"]
    (seq,) = [row["seq"] for row in waiting if row["action"] == "trim_kv_cache"]
    return int(seq)


@pytest.mark.cost(15)
@pytest.mark.timeout(120)
def test_limits_are_right_after_each_death(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Killed and stopped while memory.high is lifted: the trim is told again, lifted for again, and then put back."""
    config = POLICY + f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n'
    hello = {"name": "test", "target": "llm"}
    with Daemon(run_dir, config) as daemon:
        for death in ("killed", "stopped", "killed"):
            with Subscriber(daemon.socket_path, hello, ack=None) as server:
                server.wait_for("welcome", level="normal")
                at_critical(cgroup, hog)
                assert eventually(lambda: cgroup.read("memory.high") != str(HIGH), what="it is lifted")
                told = server.wait_for("command", seq=trim_under_way(daemon))
                if death == "killed":
                    daemon.kill()
                else:
                    daemon.stop()
                    assert cgroup.read("memory.high") == str(HIGH)
            daemon.start()
            with Subscriber(daemon.socket_path, hello, ack=None) as server:
                assert server.wait_for("welcome")["level"] != "normal"
                again = server.wait_for("command", seq=told["seq"])
                assert (again["action"], again["parameters"]) == (told["action"], told["parameters"])
                hog.shrink(HIGH // 2)
                server.ack = "done"
                for command in server.of("command"):
                    server.send({"type": "ack", "seq": command["seq"], "status": "done"})
                eventually(lambda: cgroup.read("memory.high") == str(HIGH), what="it is put back")
                eventually(lambda: daemon.status()["worst_level"] == "normal")
        records = [fact["why"] for fact in daemon.facts("works_in_part") if "state" in fact["why"]]
        assert (records, daemon.facts("defect")) == ([], [])
        ends = [(fact["seq"], fact["outcome"]) for fact in daemon.facts("command_ended") if "trim" in fact["action"]]
        assert len({seq for seq, _ in ends}) == len(ends)
        assert {outcome for _, outcome in ends} <= {"done", "superseded"}


def test_a_kill_that_nobody_saw_is_told_once(cgroup: Cgroup, run_dir: str) -> None:
    """The kernel counted it while the daemon was dead; the next run tells it, and the one after has nothing to tell."""
    cgroup.set(max=16 * MIB)
    config = POLICY + f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n'
    with Daemon(run_dir, config) as daemon:
        daemon.kill()
        assert cgroup.spawn(["tail", "/dev/zero"]).wait() == -9
        daemon.start()
        told = eventually(lambda: daemon.facts("kills_while_away"))
        assert [(fact["kills"], fact["new_cgroup"]) for fact in told] == [(1, False)]
        assert daemon.metric("edgeguardd_kills_while_away_total", target="llm") == 1
        assert daemon.metric("edgeguardd_memory_events_total", target="llm", event="oom_kill") == 0
        daemon.kill()
        daemon.start()
        daemon.stop()
        assert len(daemon.facts("kills_while_away")) == 1
