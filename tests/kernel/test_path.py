"""The whole path on a real kernel: real pages cross real limits, and a subscriber is told in time."""

import os
import select
import statistics
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.cgroup import Cgroup
from tests.support.hog import Hog, HogKilledError
from tests.support.running import Daemon, Subscriber
from tests.support.wait import eventually

MIB = 1 << 20
CROSSINGS = 20
WITHIN_S = 0.100

# Short dwells, so that each crossing starts from normal soon, also when the target is taken to flap, which doubles
# them; the marks are the defaults. No relief: memory.high is the
# tests' own here, to set and to lift.
POLICY = """
[defaults]
dwell = 0.01
restore_dwell = 0.01
repeat = 30
relief = "off"
"""

EVERYTHING = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]


@pytest.fixture
def daemon(cgroup: Cgroup, run_dir: str) -> Iterator[Daemon]:
    """A daemon that guards `cgroup` as target llm."""
    with Daemon(run_dir, POLICY + f'[[target]]\nname = "llm"\npath = "{cgroup.below_root}"\n') as running:
        yield running


@pytest.fixture
def subscriber(daemon: Daemon) -> Iterator[Subscriber]:
    """A server of llm that says done to everything."""
    with Subscriber(daemon.socket_path, {"name": "test", "target": "llm", "supports": EVERYTHING}) as connected:
        connected.wait_for("welcome")
        yield connected


class KernelCounts:
    """Stamps the moment at which the kernel counted: an epoll on memory.events beside the daemon's."""

    def __init__(self, cgroup: Cgroup, key: str) -> None:
        self.first_at: float | None = None
        self._cgroup = cgroup
        self._key = key
        self._before = cgroup.counters()[key]
        self._stop, self._stopper = os.pipe()
        self._thread = threading.Thread(target=self._watch)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()

    def _watch(self) -> None:
        file = os.open(self._cgroup.file("memory.events"), os.O_RDONLY)
        os.pread(file, 4096, 0)
        with select.epoll() as poll:
            poll.register(file, select.EPOLLPRI)
            poll.register(self._stop, select.EPOLLIN)
            self._ready.set()
            while self.first_at is None:
                woken = {number for number, _ in poll.poll()}
                at = time.monotonic()
                text = os.pread(file, 4096, 0).decode()
                if dict(line.split() for line in text.splitlines())[self._key] != str(self._before):
                    self.first_at = at
                elif self._stop in woken:
                    break
        os.close(file)

    def wait(self) -> None:
        """Until the kernel has counted."""
        eventually(lambda: self.first_at is not None, what=f"the kernel counts {self._key}")

    def close(self) -> float:
        """End; the time of the first count. A command can be earlier: samples see needed bytes before any count."""
        os.write(self._stopper, b"x")
        self._thread.join()
        os.close(self._stop)
        os.close(self._stopper)
        assert self.first_at is not None, f"the kernel never counted {self._key}"
        return self.first_at


def back_to_normal(daemon: Daemon, subscriber: Subscriber) -> None:
    """Wait until the target is normal with nothing in force."""

    def rests() -> bool:
        (target,) = daemon.status()["targets"]
        return target["level"] == "normal" and target["rung"] == "normal" and not target["outstanding"]

    eventually(rests, 60, what="normal again")


def report(what: str, delays: list[float]) -> None:
    """The figures of a series, for whoever reads the output."""
    ordered = sorted(delays)
    print(
        f"{what}: {len(delays)} crossings, count to command in ms: median {statistics.median(delays) * 1e3:.1f}, "
        f"p90 {ordered[int(0.9 * len(ordered))] * 1e3:.1f}, max {ordered[-1] * 1e3:.1f}"
    )


@pytest.mark.cost(40)
@pytest.mark.timeout(240)
def test_soft_marks_give_their_level_and_command_before_any_count(
    cgroup: Cgroup, hog: Hog, daemon: Daemon, subscriber: Subscriber
) -> None:
    """A ramp to 60, 80 and 92 % of memory.max: trim, then reduce, then reject, and the kernel has counted nothing."""
    cgroup.set(max=128 * MIB)
    crossings = 0
    for _ in range(7):
        # A server still at work: `done` without effect would escalate, and show the next rung before its level.
        subscriber.ack = "accepted"
        start = time.monotonic()
        for level, action, mib in [
            ("elevated", "trim_kv_cache", 80),
            ("high", "reduce_batch", 106),
            ("critical", "reject_requests", 120),
        ]:
            hog.ask("grow", mib * MIB - needed_now(cgroup))
            subscriber.wait_for_timed("command", since=start, level=level, action=action)
            crossings += 1
        assert cgroup.counters()["max"] == 0
        subscriber.ack = "done"
        hog.shrink(120 * MIB)
        back_to_normal(daemon, subscriber)
    assert crossings >= CROSSINGS


@pytest.mark.cost(40)
@pytest.mark.timeout(240)
def test_memory_high_is_told_within_100_ms(cgroup: Cgroup, hog: Hog, daemon: Daemon, subscriber: Subscriber) -> None:
    """The median time from the kernel's count of `high` to the command read by the subscriber, in 20 crossings."""
    delays = []
    for _ in range(CROSSINGS):
        cgroup.set(high=48 * MIB, max=256 * MIB)
        counts = KernelCounts(cgroup, "high")
        start = time.monotonic()
        hog.send("grow", 60 * MIB)
        at, _ = subscriber.wait_for_timed("command", since=start, action="reduce_batch")
        counts.wait()
        cgroup.write("memory.high", "max")
        hog.answer()
        delays.append(at - counts.close())
        hog.shrink(60 * MIB)
        back_to_normal(daemon, subscriber)
    report("memory.high", delays)
    assert daemon.metric("edgeguardd_wakeup_to_deliver_seconds_count", cause="counter")
    assert statistics.median(delays) <= WITHIN_S


@pytest.mark.cost(40)
@pytest.mark.timeout(240)
def test_memory_max_is_told_within_100_ms(
    cgroup: Cgroup, hog: Hog, daemon: Daemon, subscriber: Subscriber, disk_dir: str
) -> None:
    """Anonymous memory near the limit, then cache pushes into it: `max` counts, and critical is told."""
    hog.write_file(f"{disk_dir}/model", 64 * MIB)
    delays = []
    for _ in range(CROSSINGS):
        cgroup.set(max=64 * MIB)
        hog.grow(46 * MIB - needed_now(cgroup))
        counts = KernelCounts(cgroup, "max")
        start = time.monotonic()
        hog.read_file(f"{disk_dir}/model")
        at, _ = subscriber.wait_for_timed("command", since=start, level="critical", action="reject_requests")
        delays.append(at - counts.close())
        hog.shrink(64 * MIB)
        cgroup.write("memory.max", "max")
        back_to_normal(daemon, subscriber)
    report("memory.max", delays)
    assert statistics.median(delays) <= WITHIN_S


@pytest.mark.cost(60)
@pytest.mark.timeout(300)
def test_an_oom_kill_is_told_within_100_ms(cgroup: Cgroup, daemon: Daemon, subscriber: Subscriber) -> None:
    """A process over memory.max is killed by the kernel: emergency, with its commands."""
    cgroup.set(max=32 * MIB)
    delays = []
    for _ in range(CROSSINGS):
        counts = KernelCounts(cgroup, "oom_kill")
        start = time.monotonic()
        # tail keeps all of a line that never ends.
        victim = cgroup.spawn(["tail", "/dev/zero"])
        at, _ = subscriber.wait_for_timed("command", since=start, level="emergency", action="unload_model")
        assert victim.wait() == -9
        delays.append(at - counts.close())
        back_to_normal(daemon, subscriber)
    report("OOM kill", delays)
    assert statistics.median(delays) <= WITHIN_S
    assert daemon.metric("edgeguardd_memory_events_total", target="llm", event="oom_kill") == CROSSINGS


@pytest.mark.cost(15)
def test_page_cache_is_silent_and_anonymous_memory_is_not(
    cgroup: Cgroup, hog: Hog, daemon: Daemon, subscriber: Subscriber, disk_dir: str
) -> None:
    """Three times the limit read through the page cache: no command. The same volume of anonymous memory: told."""
    limit = 64 * MIB
    with Cgroup.fresh("writer") as elsewhere:
        writer = Hog(elsewhere)
        writer.write_file(f"{disk_dir}/model", 3 * limit)
        writer.close()
    cgroup.set(max=limit)
    hog.read_file(f"{disk_dir}/model")
    assert cgroup.counters()["max"] > 0, "the read did not meet the limit: the test shows nothing"
    counted = cgroup.counters()["max"]
    eventually(
        lambda: daemon.metric("edgeguardd_memory_events_total", target="llm", event="max") == counted,
        what="the daemon has seen every count",
    )
    assert subscriber.of("command") == []
    assert subscriber.of("level") == []
    with pytest.raises(HogKilledError):
        hog.grow(3 * limit)
    subscriber.wait_for("command", level="emergency")


def needed_now(cgroup: Cgroup) -> int:
    """Anonymous memory of the cgroup, read in the test's own plain way."""
    return cgroup.keyed("memory.stat")["anon"]
