"""The rules on a real kernel: early, right, and sure of what came of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.cgroup import Cgroup
from tests.support.hog import Hog
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

MIB = 1 << 20
EVERYTHING = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]


def guarding(cgroup: Cgroup, more: str = "", **keys: str) -> str:
    """A configuration with `cgroup` as target llm."""
    rows = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n{rows}{more}'


def machine_bytes() -> tuple[int, int]:
    """RAM in all, and what is available of it."""
    with open("/proc/meminfo") as file:
        kb = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in file)}
    return kb["MemTotal"] * 1024, kb["MemAvailable"] * 1024


@contextmanager
def server(daemon: Daemon, target: str = "llm", ack: str | None = "done", **hello: Any) -> Iterator[Subscriber]:
    """A subscribed server that answers every command in the same way."""
    words = {"name": target, "target": target, "supports": EVERYTHING, **hello}
    with Subscriber(daemon.socket_path, words, ack=ack) as subscriber:
        subscriber.wait_for("welcome")
        yield subscriber


@pytest.mark.cost(15)
def test_a_fast_ramp_is_told_before_the_limit(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Anonymous memory as fast as the guest can take it: told while the kernel has counted nothing yet."""
    limit = 320 * MIB
    cgroup.set(max=limit)
    with Daemon(run_dir, guarding(cgroup)) as daemon, server(daemon, ack="accepted") as subscriber:
        start = time.monotonic()
        told_at_bytes = None
        for _ in range(37):
            hog.grow(8 * MIB)
            if subscriber.of("command"):
                told_at_bytes = cgroup.keyed("memory.stat")["anon"]
                break
        took_s = time.monotonic() - start
        assert told_at_bytes is not None
        assert cgroup.counters()["max"] == 0
        assert told_at_bytes < limit
    rate = told_at_bytes / MIB / took_s
    print(f"ramp of {rate:.0f} MiB/s of guest time: told at {told_at_bytes / limit:.0%} of the limit")


@pytest.mark.cost(20)
def test_mapped_weights_being_evicted_are_told_before_any_oom(
    cgroup: Cgroup, hog: Hog, run_dir: str, disk_dir: str
) -> None:
    """Anonymous memory pushes out mapped pages that are read again and again: told, with `oom` still 0."""
    with Cgroup.fresh("writer") as elsewhere:
        writer = Hog(elsewhere)
        writer.write_file(f"{disk_dir}/weights", 48 * MIB)
        writer.close()
    cgroup.set(max=100 * MIB)
    hog.map_file(f"{disk_dir}/weights")
    with Daemon(run_dir, guarding(cgroup)) as daemon, server(daemon, ack="accepted") as subscriber:
        hog.touch_files()
        assert subscriber.of("command") == []
        hog.grow(30 * MIB)
        hog.grow(36 * MIB)
        until = time.monotonic() + 30
        while not subscriber.of("level") and time.monotonic() < until:
            hog.touch_files()
        raised = subscriber.wait_for("level")
        assert cgroup.counters()["oom"] == 0
        assert raised["level"] in {"elevated", "high", "critical"}
        (row,) = daemon.status()["targets"]
        print(f"told: {raised['level']}: {raised['reason']}; evicted {row['evicted_bytes'] / MIB:.0f} MiB")
        assert daemon.metric("edgeguardd_target_refaulted_bytes_per_second", target="llm") is not None


@pytest.mark.cost(5)
def test_growth_nobody_has_read_is_asked_for_as_the_machine_crosses_its_mark(
    cgroup: Cgroup, hog: Hog, run_dir: str
) -> None:
    """A server without a limit, looked at once a minute, fills the machine: asked for what it has by then, at once."""
    total, available = machine_bytes()
    share = (available - 96 * MIB) / total
    if share >= 0.9:
        pytest.skip("more of this machine is available than its marks can be set to")
    marks = "".join(
        f'{level} = "{share / part:.3%}"\n' for level, part in (("elevated", 1), ("high", 2), ("critical", 4))
    )
    rare = f"repeat = 600\n[sampling]\nslow = 60\n[machine]\n{marks}"
    with Daemon(run_dir, guarding(cgroup, rare)) as daemon, server(daemon, ack="accepted") as subscriber:
        assert daemon.status()["machine"]["level"] == "normal"
        hog.grow(128 * MIB)
        command = subscriber.wait_for("command", action="trim_kv_cache")
        assert command["parameters"]["release_bytes"] > 0
        # A Python process that holds nothing takes some 10 MiB.
        (row,) = daemon.status()["targets"]
        assert row["needed_bytes"] > 32 * MIB


@pytest.mark.cost(15)
def test_a_livelock_at_memory_high_is_critical(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Over memory.high without swap and without relief, throttled for seconds: critical, with no `max` and no kill."""
    cgroup.set(high=40 * MIB, max=200 * MIB)
    with Daemon(run_dir, guarding(cgroup, relief='"off"')) as daemon, server(daemon, ack="accepted") as subscriber:
        hog.send("grow", 60 * MIB)
        subscriber.wait_for("command", level="critical")
        # The marks may have called it before the limit was met.
        eventually(lambda: cgroup.counters()["high"] > 0)
        assert cgroup.counters()["max"] == 0
        assert cgroup.counters()["oom_kill"] == 0
        cgroup.write("memory.high", "max")
        hog.answer()


@pytest.mark.cost(15)
def test_under_one_slice_the_right_one_is_asked(cgroup: Cgroup, run_dir: str) -> None:
    """The slice's limit binds: the server of lower priority is asked, the other one is left alone."""
    cgroup.set(max=120 * MIB)
    with cgroup.child("control") as control, cgroup.child("llm") as llm:
        hogs = [Hog(control), Hog(llm)]
        config = "".join(
            f'[[target]]\nname = "{name}"\npath = "{one.below_root}"\npriority = {priority}\n'
            for name, one, priority in [("control", control, 10), ("llm", llm, 0)]
        )
        with (
            Daemon(run_dir, config) as daemon,
            server(daemon, "control", "accepted") as important,
            server(daemon, "llm", "accepted") as other,
        ):
            hogs[0].grow(30 * MIB)
            hogs[1].grow(50 * MIB)
            asked = other.wait_for("command", action="trim_kv_cache")
            assert cgroup.below_root in asked["reason"]
            important.wait_for("level", level="elevated")
            assert important.of("command") == []
        for one in hogs:
            one.close()


@pytest.mark.cost(10)
def test_ten_admits_at_once_are_not_promised_the_same_bytes(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Ten askers for 10 MiB each with about 40 MiB of room: what is granted fits."""
    cgroup.set(max=100 * MIB)
    hog.grow(44 * MIB)
    with Daemon(run_dir, guarding(cgroup)) as daemon, server(daemon) as subscriber:
        eventually(lambda: (daemon.status()["targets"][0]["needed_bytes"] or 0) > 40 * MIB)
        for number in range(10):
            subscriber.send({"type": "admit", "v": 1, "id": str(number), "bytes": 10 * MIB})
        eventually(lambda: len(subscriber.of("admission")) == 10)
        granted = sum(answer["granted"] for answer in subscriber.of("admission"))
        room = daemon.status()["targets"][0]["marks"]["critical_bytes"] - cgroup.keyed("memory.stat")["anon"]
        assert 1 <= granted <= room // (10 * MIB)


@pytest.mark.cost(30)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["liar", "slow", "dead", "supports nothing"])
def test_each_kind_of_bad_subscriber_gets_its_escalation(cgroup: Cgroup, hog: Hog, run_dir: str, kind: str) -> None:
    """Lies: ineffective, next rung. Silence: expired, next rung. Death: lost, said. Nothing to ask: the last resort."""
    cgroup.set(max=100 * MIB)
    ladder = 'elevated = [{action = "trim_kv_cache", deadline = "1s"}]\n'
    more = f'[target.ladder]\n{ladder}[target.last_resort]\nelevated = ["reclaim"]\n'
    with Daemon(run_dir, guarding(cgroup, more)) as daemon:
        match kind:
            case "liar":
                with server(daemon) as subscriber:
                    hog.grow(70 * MIB)
                    subscriber.wait_for("command", action="reduce_batch")
                    ended = eventually(lambda: daemon.facts("command_ended"))
                    assert ended[0]["outcome"] == "ineffective"
                    eventually(lambda: daemon.facts("escalated"))
            case "slow":
                with server(daemon, ack="accepted") as subscriber:
                    hog.grow(70 * MIB)
                    subscriber.wait_for("command", action="reduce_batch")
                    # The log is written after what it tells of has left.
                    assert eventually(lambda: daemon.facts("command_ended"))[0]["outcome"] == "expired"
            case "dead":
                with server(daemon, ack=None) as subscriber:
                    hog.grow(70 * MIB)
                    subscriber.wait_for("command")
                eventually(lambda: [f for f in daemon.facts("command_ended") if f["outcome"] == "lost"])
                eventually(lambda: daemon.facts("nobody_to_ask"))
            case _:
                with server(daemon, supports=[]) as subscriber:
                    hog.grow(70 * MIB)
                    eventually(lambda: daemon.facts("last_resort_ended"))
                    eventually(lambda: daemon.facts("nobody_to_ask"))
                    assert daemon.facts("last_resort_ended")[0]["action"] == "reclaim"
                    assert subscriber.of("command") == []


@pytest.mark.cost(15)
def test_relief_on_the_way_of_a_real_trim(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Over memory.high: lifted with the command, put back with the ack, both said, and the kernel's file shows it."""
    cgroup.set(high=40 * MIB, max=200 * MIB)
    with Daemon(run_dir, guarding(cgroup)) as daemon, server(daemon, ack=None) as subscriber:
        hog.send("grow", 45 * MIB)
        eventually(lambda: daemon.facts("limit_raised"))
        assert int(cgroup.read("memory.high")) == 50 * MIB
        hog.answer()
        hog.shrink(30 * MIB)
        for command in subscriber.of("command"):
            subscriber.send({"type": "ack", "v": 1, "seq": command["seq"], "status": "done"})
        subscriber.ack = "done"
        (back,) = eventually(lambda: daemon.facts("limit_put_back"))
        assert back["outcome"] == "restored"
        assert int(cgroup.read("memory.high")) == 40 * MIB


@pytest.mark.cost(15)
def test_relief_survives_kill_9_of_the_daemon(cgroup: Cgroup, hog: Hog, run_dir: str) -> None:
    """Killed while memory.high is lifted: the next start puts it back before anything else."""
    cgroup.set(high=40 * MIB, max=200 * MIB)
    with Daemon(run_dir, guarding(cgroup)) as daemon:
        with server(daemon, ack=None):
            hog.send("grow", 45 * MIB)
            eventually(lambda: daemon.facts("limit_raised"))
            daemon.kill()
            assert int(cgroup.read("memory.high")) == 50 * MIB
            hog.answer()
        hog.shrink(40 * MIB)
        daemon.start()
        eventually(lambda: int(cgroup.read("memory.high")) == 40 * MIB)
