"""Relief on a real kernel: it ends the throttling, and memory.high comes back whatever happens."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from edgeguardd.core.events import Event, LimitPutBack, LimitRaised, ReliefFailed
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.held import boot_id
from edgeguardd.kernel.relief import KIND, Lifted, Relief
from edgeguardd.state import StateDirectory
from tests.support import cgroup as cgroups
from tests.support.cgroup import Cgroup
from tests.support.children import ending
from tests.support.hog import Hog
from tests.support.wait import eventually

MIB = 1 << 20
HIGH = 20 * MIB
RAISED = 30 * MIB

# A daemon that raises and is never heard of again.
CRASH_DUMMY = textwrap.dedent(
    """
    import sys, time
    from edgeguardd.kernel.cgroupfs import CgroupRoot
    from edgeguardd.kernel.relief import Relief
    from edgeguardd.state import StateDirectory

    root, state, high, raised, *paths = sys.argv[1:]
    relief = Relief(CgroupRoot(root), StateDirectory(state, print), lambda event: None, time.monotonic)
    for path in paths:
        relief.raise_limit(path, path, int(high), int(raised))
    print("raised", flush=True)
    time.sleep(600)
    """
)


class Daemon:
    """A Relief with its state directory, and what it told."""

    def __init__(self, directory: str, root: str = cgroups.ROOT) -> None:
        self.state = StateDirectory(f"{directory}/state", pytest.fail)
        self.told: list[Event] = []
        self.relief = Relief(CgroupRoot(root), self.state, self.told.append, time.monotonic)

    def raise_limit(self, cgroup: Cgroup, to_bytes: int = RAISED) -> None:
        """Raise it from HIGH for target llm."""
        self.relief.raise_limit("llm", cgroup.below_root, HIGH, to_bytes)

    def put_back(self) -> LimitPutBack:
        """Put it back; what came of it."""
        self.told.clear()
        self.relief.put_back("llm")
        (event,) = self.told
        assert isinstance(event, LimitPutBack)
        return event

    def records(self) -> dict[str, Lifted]:
        """What is written down."""
        return self.state.load_all(KIND, Lifted)


@pytest.fixture
def daemon(run_dir: str) -> Iterator[Daemon]:
    """A daemon on the real tree."""
    started = Daemon(run_dir)
    yield started
    started.relief.close()


@pytest.mark.cost(10)
def test_a_trim_is_at_least_20_times_sooner_with_relief(cgroup: Cgroup, hog: Hog, daemon: Daemon) -> None:
    """2.5 MiB over a memory.high of 20 MiB, told to drop half: first throttled, then with the limit raised."""
    cgroup.set()
    took_s = {}
    for relieved in (False, True):
        cgroup.write("memory.high", "max")
        hog.grow(HIGH + 5 * MIB // 2 - int(cgroup.read("memory.current")))
        cgroup.write("memory.high", HIGH)
        started = time.monotonic()
        if relieved:
            daemon.raise_limit(cgroup)
        # Shedding is work: while it goes through its cache a server takes some pages first.
        hog.grow(MIB // 2)
        hog.shrink(HIGH // 2)
        took_s[relieved] = time.monotonic() - started
    assert daemon.told == [LimitRaised("llm", HIGH, RAISED)]
    assert daemon.put_back().outcome == "restored"
    assert cgroup.read("memory.high") == str(HIGH)
    assert daemon.records() == {}
    print(f"throttled {took_s[False]:.2f} s, relieved {took_s[True]:.3f} s: {took_s[False] / took_s[True]:.0f} times")
    assert took_s[False] >= 20 * took_s[True]


def test_a_limit_that_somebody_else_wrote_meanwhile_is_left_alone(cgroup: Cgroup, daemon: Daemon) -> None:
    """As `systemctl set-property MemoryHigh=` would."""
    cgroup.set(high=HIGH)
    daemon.raise_limit(cgroup)
    assert cgroup.read("memory.high") == str(RAISED)
    cgroup.write("memory.high", 25 * MIB)
    assert daemon.put_back().outcome == "changed"
    assert cgroup.read("memory.high") == str(25 * MIB)
    daemon.raise_limit(cgroup)
    (_, refused) = daemon.told
    assert isinstance(refused, ReliefFailed)
    assert "it is 25.0 MiB now, not the 20.0 MiB" in refused.message
    assert cgroup.read("memory.high") == str(25 * MIB)
    assert daemon.records() == {}


def test_limits_that_are_no_whole_pages_come_back_as_the_kernel_keeps_them(cgroup: Cgroup, daemon: Daemon) -> None:
    """What is compared is what memory.high shows."""
    cgroup.set(high=HIGH + 5)
    daemon.raise_limit(cgroup, RAISED + 5)
    assert daemon.told == [LimitRaised("llm", HIGH, RAISED)]
    assert cgroup.read("memory.high") == str(RAISED)
    assert daemon.put_back().outcome == "restored"
    assert cgroup.read("memory.high") == str(HIGH)


def test_max_can_be_put_back(cgroup: Cgroup, daemon: Daemon) -> None:
    """A record's old value may be no limit at all."""
    cgroup.set(high=HIGH)
    inode = os.stat(cgroup.path).st_ino
    daemon.state.save(KIND, cgroup.below_root, Lifted("llm", boot_id(), inode, None, HIGH, time.monotonic()))
    daemon.relief.recover()
    (event,) = daemon.told
    assert isinstance(event, LimitPutBack)
    assert event.outcome == "restored"
    assert cgroup.read("memory.high") == "max"


@pytest.mark.cost(6)
def test_what_a_killed_daemon_raised_the_next_one_puts_back(cgroup: Cgroup, run_dir: str) -> None:
    """kill -9 in the middle of a trim. A cgroup made again under its path meanwhile is not touched."""
    kept, remade = cgroup.child("kept").set(high=HIGH), cgroup.child("remade").set(high=HIGH)
    paths = (kept.below_root, remade.below_root)
    argv = [sys.executable, "-c", CRASH_DUMMY, cgroups.ROOT, f"{run_dir}/state", *map(str, (HIGH, RAISED)), *paths]
    with ending(subprocess.Popen(argv, stdout=subprocess.PIPE)) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"raised\n"
        victim.send_signal(signal.SIGKILL)
    assert kept.read("memory.high") == str(RAISED)
    remade.remove()
    remade = Cgroup(remade.path).set(high=RAISED)
    daemon = Daemon(run_dir)
    daemon.relief.recover()
    outcomes = {event.target: event.outcome for event in daemon.told if isinstance(event, LimitPutBack)}
    assert outcomes == {kept.below_root: "restored", remade.below_root: "gone"}
    assert kept.read("memory.high") == str(HIGH)
    assert remade.read("memory.high") == str(RAISED)
    assert daemon.records() == {}
    daemon.relief.recover()
    assert len(daemon.told) == 2


def test_a_cgroup_removed_under_a_raised_limit_is_gone(cgroup: Cgroup, daemon: Daemon) -> None:
    """`systemctl restart` in the middle of a trim: the new cgroup has its own limit, whatever it is."""
    llm = cgroup.child("llm").set(high=HIGH)
    daemon.raise_limit(llm)
    llm.remove()
    again = Cgroup(llm.path).set(high=RAISED)
    assert daemon.put_back().outcome == "gone"
    assert again.read("memory.high") == str(RAISED)
    assert daemon.records() == {}


@pytest.mark.cost(5)
def test_putting_back_does_not_wait_for_reclaim(cgroup: Cgroup, hog: Hog, daemon: Daemon, disk_dir: str) -> None:
    """A lower memory.high makes the kernel evict mapped pages in whoever writes it: not in the daemon's loop."""
    path = f"{disk_dir}/weights"
    hog.write_file(path, 64 * MIB)
    inode = os.stat(cgroup.path).st_ino

    def timed(lower: Callable[[], None]) -> float:
        cgroup.write("memory.high", RAISED * 4)
        hog.map_file(path)
        assert int(cgroup.read("memory.current")) > 60 * MIB
        started = time.monotonic()
        lower()
        took_s = time.monotonic() - started
        assert cgroup.read("memory.high") == str(HIGH)
        eventually(lambda: threading.active_count() == 1, what="the thread has ended")
        assert int(cgroup.read("memory.current")) <= HIGH
        hog.shrink(64 * MIB)
        return took_s

    def recover() -> None:
        lifted = Lifted("llm", boot_id(), inode, HIGH, RAISED * 4, time.monotonic())
        daemon.state.save(KIND, cgroup.below_root, lifted)
        daemon.relief.recover()

    # The better one of two each: the guest has one CPU, and its host others to serve.
    plain_s = min(timed(lambda: cgroup.write("memory.high", HIGH)) for _ in range(2))
    ours_s = min(timed(recover) for _ in range(2))
    assert [event.outcome for event in daemon.told if isinstance(event, LimitPutBack)] == ["restored"] * 2
    print(f"plain write {plain_s * 1e3:.1f} ms, put back {ours_s * 1e3:.1f} ms")
    assert ours_s < plain_s / 2


def test_a_full_disk_means_no_relief(cgroup: Cgroup, run_dir: str) -> None:
    """What cannot be written down is not raised."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=0700", "none", run_dir], check=True)
    try:
        with open(f"{run_dir}/filling", "wb", buffering=0) as file:
            file.write(b"x" * 4096)
        daemon = Daemon(run_dir)
        daemon.state.path = run_dir
        cgroup.set(high=HIGH)
        daemon.raise_limit(cgroup)
        (event,) = daemon.told
        assert isinstance(event, ReliefFailed)
        assert "No space left on device; make room" in event.message
        assert cgroup.read("memory.high") == str(HIGH)
        assert os.listdir(run_dir) == ["filling"]
    finally:
        subprocess.run(["umount", run_dir], check=True)


def test_a_read_only_tree_means_no_relief(cgroup: Cgroup, run_dir: str) -> None:
    """A container sees its cgroups so; no record stays of what was not done."""
    mount = f"{run_dir}/tree"
    os.mkdir(mount)
    subprocess.run(["mount", "--bind", cgroups.ROOT, mount], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", mount], check=True)
        daemon = Daemon(run_dir, mount)
        cgroup.set(high=HIGH)
        daemon.raise_limit(cgroup)
        (event,) = daemon.told
        assert isinstance(event, ReliefFailed)
        assert "Read-only file system; have cgroupfs mounted writable" in event.message
        assert cgroup.read("memory.high") == str(HIGH)
        assert daemon.records() == {}
    finally:
        subprocess.run(["umount", mount], check=True)
