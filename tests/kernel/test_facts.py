"""What this software takes for granted about the kernel, tried on the kernel at hand.

When one of these fails on some kernel, the code that leans on the fact (named in each docstring) is wrong there too.
"""

import errno
import os
import select
import time

import pytest
from asyncinotify import Inotify, Mask

from tests.support import cgroup as cgroups
from tests.support.cgroup import Cgroup
from tests.support.hog import Hog, HogKilledError
from tests.support.wait import eventually

MIB = 1024 * 1024
# Long against the 10 ms in which the kernel merges wake-ups, short enough to wait out.
QUIET_S = 0.3
WAKE_WITHIN_S = 5.0
# The hog's own interpreter takes about 5 MiB; limits leave room for it.
BASE = 16 * MIB


class EventsFile:
    """memory.events as the daemon watches it: opened read-only, in an epoll for EPOLLPRI, inside another epoll."""

    def __init__(self, cgroup: Cgroup, read_first: bool = True) -> None:
        self.descriptor = os.open(cgroup.file("memory.events"), os.O_RDONLY)
        if read_first:
            self.read()
        self.inner = select.epoll()
        self.inner.register(self.descriptor, select.EPOLLPRI)
        self.outer = select.epoll()
        self.outer.register(self.inner.fileno(), select.EPOLLIN)

    def __enter__(self) -> "EventsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.outer.close()
        self.inner.close()
        os.close(self.descriptor)

    def read(self) -> dict[str, int]:
        """The counters, through the watched descriptor: this re-arms it."""
        lines = os.pread(self.descriptor, 4096, 0).decode().splitlines()
        return {key: int(value) for key, value in map(str.split, lines)}

    def woken(self, within_s: float) -> bool:
        """Whether the outer epoll has something."""
        return bool(self.outer.poll(within_s))


def breach(hog: Hog, cgroup: Cgroup) -> None:
    """Move counters: the hog grows past memory.max and is killed."""
    cgroup.write("memory.max", BASE)
    with pytest.raises(HogKilledError):
        hog.grow(2 * BASE)


def test_a_plain_reader_of_memory_events_would_spin(cgroup: Cgroup) -> None:
    """The file always counts as readable, also when nothing happened: hence EPOLLPRI and a nested epoll."""
    with EventsFile(cgroup) as events, select.epoll() as plain:
        plain.register(events.descriptor, select.EPOLLIN)
        assert plain.poll(0)
        events.read()
        assert plain.poll(0)


def test_a_nested_epoll_is_quiet_while_nothing_changes(cgroup: Cgroup, hog: Hog) -> None:
    """The event loop sleeps while the target lives below its limits, however much it allocates."""
    with EventsFile(cgroup) as events:
        hog.grow(4 * MIB)
        assert not events.woken(QUIET_S)


def test_a_nested_epoll_wakes_when_a_counter_moves(cgroup: Cgroup, hog: Hog) -> None:
    """The inner epoll's own descriptor becomes readable, with PRI and ERR; ERR is no fault."""
    with EventsFile(cgroup) as events:
        breach(hog, cgroup)
        assert events.woken(WAKE_WITHIN_S)
        assert events.inner.poll(0) == [(events.descriptor, select.EPOLLPRI | select.EPOLLERR)]


def test_only_reading_re_arms(cgroup: Cgroup, hog: Hog) -> None:
    """Until somebody reads the file through this descriptor it stays ready; afterwards it is quiet again."""
    with EventsFile(cgroup) as events:
        breach(hog, cgroup)
        assert events.woken(WAKE_WITHIN_S)
        assert cgroup.counters()["oom_kill"] == 1  # through a descriptor of its own
        assert events.woken(0)
        # The kernel may pass the last counts on up to 10 ms later, so one read need not be the last.
        eventually(lambda: events.read() and not events.woken(QUIET_S))


def test_an_unread_descriptor_wakes_at_once(cgroup: Cgroup) -> None:
    """A file that was opened and not yet read is ready though nothing happened: read once after opening."""
    with EventsFile(cgroup, read_first=False) as events:
        assert events.woken(0)
        events.read()
        assert not events.woken(QUIET_S)


def test_one_wake_up_can_stand_for_many_counts(cgroup: Cgroup, hog: Hog) -> None:
    """Only the difference of two readings says how much happened."""
    cgroup.set(high=BASE)
    with EventsFile(cgroup) as events:
        hog.send("grow", 2 * BASE)
        wakes, counts = 0, 0
        until = time.monotonic() + WAKE_WITHIN_S
        while counts < 20 and time.monotonic() < until:
            wakes += events.woken(0.5)
            counts = events.read()["high"]
        assert wakes >= 1
        assert counts > wakes


def test_removal_wakes_nobody_and_reading_gives_enodev(cgroup: Cgroup) -> None:
    """A watcher of a removed cgroup sleeps for ever: the parent directory has to be watched.

    A plain look at the file would report PRI and ERR for ever, but an epoll looks only when something wakes it.
    """
    with EventsFile(cgroup) as events:
        cgroup.remove()
        assert not events.woken(QUIET_S)
        with pytest.raises(OSError, match="No such device") as raised:
            events.read()
        assert raised.value.errno == errno.ENODEV


def test_removal_with_a_wake_up_pending_stays_ready_for_ever(cgroup: Cgroup, hog: Hog) -> None:
    """An epoll that still had the file on its ready list looks again each time: on ENODEV, unregister, or spin."""
    with EventsFile(cgroup) as events:
        breach(hog, cgroup)
        assert events.woken(WAKE_WITHIN_S)
        cgroup.remove()
        with pytest.raises(OSError, match="No such device"):
            events.read()
        assert events.woken(0)
        assert events.woken(0)
        events.inner.unregister(events.descriptor)
        assert not events.woken(0)


def test_the_same_path_again_is_another_cgroup(cgroup: Cgroup, hog: Hog) -> None:
    """`systemctl restart`: a new inode with counters at zero; descriptors of the old one stay dead."""
    with EventsFile(cgroup) as events:
        breach(hog, cgroup)
        assert events.read()["oom_kill"] == 1
        inode = os.stat(cgroup.path).st_ino
        cgroup.remove()
        with Cgroup(cgroup.path) as again:
            assert os.stat(again.path).st_ino != inode
            assert set(again.counters().values()) == {0}
            with pytest.raises(OSError, match="No such device"):
                events.read()


def test_inotify_on_the_parent_reports_creation_and_removal(cgroup: Cgroup) -> None:
    """One inotify instance can follow cgroups that come and go, including ones that do not exist yet."""
    with Inotify(sync_timeout=WAKE_WITHIN_S) as inotify:
        inotify.add_watch(cgroup.path, Mask.CREATE | Mask.DELETE)
        cgroup.child("service").remove()
        created, deleted = (inotify.sync_get(), inotify.sync_get())
        assert created is not None
        assert deleted is not None
        assert (created.mask, str(created.name)) == (Mask.CREATE | Mask.ISDIR, "service")
        assert (deleted.mask, str(deleted.name)) == (Mask.DELETE | Mask.ISDIR, "service")


def test_a_kill_counts_in_every_ancestor(cgroup: Cgroup) -> None:
    """memory.events is hierarchical, memory.events.local is not: delegated subtrees show only in the former."""
    middle = cgroup.child("middle")
    leaf = middle.child("leaf")
    leaf.set(max=BASE)
    kill_a_hog_in(leaf)
    assert [each.counters()["oom_kill"] for each in (leaf, middle, cgroup)] == [1, 1, 1]
    local = [each.keyed("memory.events.local")["oom_kill"] for each in (leaf, middle, cgroup)]
    assert local == [1, 0, 0]


def test_oom_stays_zero_where_the_limit_was_an_ancestors(cgroup: Cgroup) -> None:
    """`oom` counts where the limit was met, `oom_kill` where the victim lived: each alone means an emergency."""
    leaf = cgroup.child("leaf")
    cgroup.set(max=BASE)
    kill_a_hog_in(leaf)
    assert leaf.counters()["oom"] == 0
    assert leaf.counters()["oom_kill"] == 1
    assert cgroup.counters()["oom"] >= 1


def test_page_cache_moves_max_and_harms_nobody(cgroup: Cgroup, hog: Hog, disk_dir: str) -> None:
    """Reading and writing files counts `max` as anonymous memory does; nothing fails, nothing is killed."""
    cgroup.set(max=BASE)
    path = f"{disk_dir}/weights"
    hog.write_file(path, 3 * BASE)
    hog.read_file(path)
    counters = cgroup.counters()
    assert counters["max"] > 0
    assert (counters["oom"], counters["oom_kill"]) == (0, 0)


def test_shmem_hides_in_file_and_cannot_be_dropped(cgroup: Cgroup, hog: Hog) -> None:
    """Shared memory is part of memory.stat's `file`: needed bytes have to add it, not subtract `file`."""
    before = cgroup.keyed("memory.stat")
    hog.share(8 * MIB)
    after = cgroup.keyed("memory.stat")
    grown = {key: after[key] - before[key] for key in ("shmem", "file", "anon")}
    assert grown["shmem"] == pytest.approx(8 * MIB, abs=MIB)
    assert grown["file"] == pytest.approx(8 * MIB, abs=MIB)
    assert grown["anon"] < MIB


def test_mapped_weights_count_as_file_mapped(cgroup: Cgroup, hog: Hog, disk_dir: str) -> None:
    """A file that is only read does not count there, one that is mapped and touched does."""
    path = f"{disk_dir}/weights"
    hog.write_file(path, 8 * MIB)
    hog.read_file(path)
    read = cgroup.keyed("memory.stat")["file_mapped"]
    hog.map_file(path)
    mapped = cgroup.keyed("memory.stat")["file_mapped"]
    assert mapped - read == pytest.approx(8 * MIB, abs=MIB)


@pytest.mark.cost(5)
def test_memory_high_makes_the_one_who_should_shed_slow(cgroup: Cgroup, hog: Hog) -> None:
    """Giving memory back takes many times longer above memory.high than with the limit lifted (relief)."""
    cgroup.set(high=BASE)
    took_s = []
    for lifted in (False, True):
        cgroup.write("memory.high", "max")
        hog.grow(BASE)
        cgroup.write("memory.high", "max" if lifted else BASE)
        started = time.monotonic()
        # Shedding is work: while it goes through its cache a server takes some pages first.
        hog.grow(MIB // 2)
        hog.shrink(BASE + MIB // 2)
        took_s.append(time.monotonic() - started)
    throttled_s, lifted_s = took_s
    assert throttled_s > 5 * lifted_s, f"throttled {throttled_s:.2f} s, lifted {lifted_s:.2f} s"


def test_the_root_has_no_memory_events() -> None:
    """The root cgroup cannot be a target; the walk towards the root ends below it."""
    assert not os.path.exists(f"{cgroups.ROOT}/memory.events")


def kill_a_hog_in(cgroup: Cgroup) -> None:
    """Grow a hog until the kernel kills it."""
    hog = Hog(cgroup)
    try:
        with pytest.raises(HogKilledError) as raised:
            hog.grow(4 * BASE)
        assert raised.value.status == -9
    finally:
        hog.close()
