"""The flight recorder: what reaches the disk, when, and what happens when the disk will not have it."""

import asyncio
import contextlib
import errno
import os
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edgeguardd import recorder as recorders
from edgeguardd import segments
from edgeguardd.core.config import Config, Policy, RecorderConfig
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import CgroupAppeared, ConfigReloaded, Event, SampleTaken, TargetAdded
from edgeguardd.core.model import Sample
from edgeguardd.core.recording import Clock, RecordingError, Segment
from edgeguardd.core.replay import Opened, Step, recorded
from edgeguardd.recorder import Recorder
from edgeguardd.segments import Ring, is_segment
from tests.support.descriptors import none_left, open_now
from tests.support.script import usage
from tests.support.wait import soon
from tests.torture import callsites
from tests.torture.afflictions import Afflictions, Gate

# Small enough to fill in a test, large enough for a checkpoint in each of its eight segments.
SMALL_BYTES = 128 << 10


class Flight:
    """An engine with one target and its recorder, on the running loop."""

    def __init__(self, directory: Path, max_bytes: int = SMALL_BYTES, ring: Ring | None = None) -> None:
        self.directory = directory
        self.loop = asyncio.get_running_loop()
        self.engine = Engine()
        self.faults: list[str] = []
        self.wall_s = 1000.0
        self.config = Config(state_directory=str(directory), recorder=RecorderConfig(max_bytes=max_bytes))
        self.recorder = Recorder(
            self.config,
            self.engine,
            self.loop,
            run="run",
            on_fault=self.faults.append,
            wall_clock=lambda: self.wall_s + self.loop.time(),
            ring=ring,
        )
        self.events: list[Event] = []
        self.do(TargetAdded("llm", "/llm", Policy()))
        self.do(CgroupAppeared("llm"))

    def do(self, event: Event) -> None:
        """As the daemon does."""
        now = self.loop.time()
        self.recorder.record(event, now)
        self.engine.handle(event, now)
        self.events.append(event)

    def need(self, mib: float) -> None:
        """A sample."""
        self.do(SampleTaken(Sample("llm", (usage("/llm", mib),))))

    def settled(self) -> bool:
        """Whether nothing is on its way to the disk."""
        writer = self.recorder._writer
        return writer is not None and writer.backlog == 0 and self.recorder._flush_now is None

    def names(self) -> list[str]:
        """The files there are."""
        try:
            return sorted(os.listdir(self.directory / "recordings"))
        except FileNotFoundError:
            return []

    def size(self) -> int:
        """What the files hold, while the ring turns."""
        found = 0
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):
                found += (self.directory / "recordings" / name).stat().st_size
        return found

    def segments(self) -> list[Segment]:
        """The files, read; one that has only just been made has no header yet."""
        found = []
        for name in self.names():
            with contextlib.suppress(RecordingError):
                found.append(Segment((self.directory / "recordings" / name).read_bytes(), name))
        return found

    def read(self) -> list[Event]:
        """The events that can be read back by now."""
        return [record[1] for s in self.segments() for record in s.events() if not isinstance(record, Clock)]


def fly(directory: Path, flight: Callable[[Flight], Awaitable[None]], ring: Ring | None = None) -> None:
    """Run a flight; the recorder is closed, and no descriptor is left."""
    before = open_now()

    async def whole() -> None:
        one = Flight(directory, ring=ring)
        try:
            await flight(one)
        finally:
            one.recorder.close()

    asyncio.run(whole())
    none_left(before)
    assert not [thread for thread in threading.enumerate() if thread.name == "edgeguardd-recorder"]


def test_what_is_recorded_can_be_read_within_five_seconds(tmp_path: Path) -> None:
    """Without anybody asking for it, and without another event."""

    async def flight(one: Flight) -> None:
        one.need(100)
        await soon(lambda: one.names() and len(one.read()) == 3, 10)
        assert one.read() == one.events

    fly(tmp_path, flight)


def test_a_level_that_rises_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """flush_soon does not wait for the second to be over."""
    monkeypatch.setattr(recorders, "FLUSH_S", 3600.0)
    monkeypatch.setattr(recorders, "LATEST_S", 3600.0)

    async def flight(one: Flight) -> None:
        one.need(900)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.written == 3)
        assert one.read() == one.events

    fly(tmp_path, flight)


@pytest.mark.parametrize(("lines", "after_s"), [(3, 3.6), (10, 0.95)])
def test_a_quiet_daemon_is_not_woken_once_more(lines: int, after_s: float, tmp_path: Path) -> None:
    """A later sample takes what is there along, many lines sooner than few; no timer rings in between."""

    async def flight(one: Flight) -> None:
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.written == 2)
        now = one.loop.time()
        for _ in range(lines):
            one.recorder.record(CgroupAppeared("llm"), now)
        timer = one.recorder._flush_at
        assert timer is not None
        assert timer.when() > now + 1.1 * after_s
        one.recorder.record(CgroupAppeared("llm"), now + 0.9 * after_s)
        assert not timer.cancelled()
        one.recorder.record(CgroupAppeared("llm"), now + after_s)
        assert timer.cancelled()
        await soon(lambda: one.recorder.stats.written == 4 + lines)

    fly(tmp_path, flight)


def test_only_the_daemon_may_read_and_write_them(tmp_path: Path) -> None:
    """0700 and 0600, whatever the umask allows."""

    async def flight(one: Flight) -> None:
        await soon(one.names)

    before = os.umask(0)
    try:
        fly(tmp_path, flight)
    finally:
        os.umask(before)
    directory = tmp_path / "recordings"
    (file,) = directory.iterdir()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_ring_never_takes_more_than_it_may_and_each_segment_replays(tmp_path: Path) -> None:
    """Many times its size goes through it: the newest is there, every file replays from its own beginning on."""

    async def flight(one: Flight) -> None:
        most = 0
        for number in range(12_000):
            one.need(100 + number * 7919 % 500)
            if number % 100 == 0:
                await soon(one.settled)
                one.recorder.flush_soon()
                await asyncio.sleep(0)
                most = max(most, one.size())
        assert SMALL_BYTES / 2 < most <= SMALL_BYTES
        one.recorder.close()
        assert one.names()[0] != "recording-00000001.jsonl.gz"
        read = one.read()
        assert read == one.events[-len(read) :]
        assert [item.exact for item in recorded(one.segments()) if isinstance(item, Opened)][1:] == [True] * (
            len(one.names()) - 1
        )

    fly(tmp_path, flight)


def test_another_run_goes_on_behind_the_last_file(tmp_path: Path) -> None:
    """A restart overwrites nothing."""

    async def flight(one: Flight) -> None:
        one.need(100)

    fly(tmp_path, flight)
    first = (tmp_path / "recordings" / "recording-00000001.jsonl.gz").read_bytes()
    fly(tmp_path, flight)
    assert sorted(os.listdir(tmp_path / "recordings")) == [f"recording-0000000{n}.jsonl.gz" for n in (1, 2)]
    assert (tmp_path / "recordings" / "recording-00000001.jsonl.gz").read_bytes() == first


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """The ring removes its own segments only."""
    directory = tmp_path / "recordings"
    directory.mkdir()
    (directory / "notes.txt").write_bytes(b"x" * SMALL_BYTES)
    (directory / "recording-00000007.jsonl.gz").write_bytes(b"x" * SMALL_BYTES)

    async def flight(one: Flight) -> None:
        await soon(lambda: "recording-00000008.jsonl.gz" in one.names())

    fly(tmp_path, flight)
    assert sorted(os.listdir(directory)) == ["notes.txt", "recording-00000008.jsonl.gz"]
    assert is_segment("recording-00000008.jsonl.gz")
    assert not is_segment("recording-8.jsonl.gz")


class Disk:
    """A disk of so many bytes; `stuck` writes wait until they are let go."""

    def __init__(self, size: int = 1 << 30) -> None:
        self.free = size
        self.stuck = threading.Event()
        self.stuck.set()
        self.waiting = threading.Event()

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if not self.stuck.is_set():
            self.waiting.set()
            self.stuck.wait()
        if self.free <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = os.write(fd, data[: self.free])
        self.free -= done
        return done


def test_a_full_disk_is_said_once_counted_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before stays readable; when there is room again a new segment begins with the state of then."""
    monkeypatch.setattr(recorders, "RETRY_S", 0.0)
    disk = Disk()

    async def flight(one: Flight) -> None:
        one.need(100)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.written == 3)
        whole = one.size()
        disk.free = 20
        one.need(200)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.fault is not None)
        one.recorder.flush_soon()
        one.need(300)
        await soon(lambda: one.faults)
        assert one.faults == [
            f"cannot record events in {tmp_path}/recordings: No space left on device; make room on that file system"
        ]
        assert one.read() == one.events[:3]
        assert one.size() == whole  # what the disk still took of it is cut off again
        for number in range(10):  # still full: tried again and again, and no empty file is left
            one.need(300 + number)
            one.recorder.flush_soon()
            await soon(one.settled)
        assert one.names() == ["recording-00000001.jsonl.gz"]
        disk.free = 1 << 30
        await _until_it_records(one)
        lost = one.recorder.stats.dropped
        one.need(400)
        one.recorder.flush_soon()
        await soon(lambda: one.read() == [*one.events[:3], one.events[-1]])
        assert lost >= 12
        assert one.recorder.stats.fault is None
        assert len(one.faults) == 1
        steps = [step for step in recorded(one.segments()) if isinstance(step, Step)]
        assert steps[-1].engine.targets["llm"].gauge.needed_bytes == 400 << 20
        last = [item for item in recorded(one.segments()) if isinstance(item, Opened)][-1]
        assert not last.continuous
        assert last.engine.targets["llm"].present

    fly(tmp_path, flight, Ring(str(tmp_path), SMALL_BYTES, disk.write))


class Remote(Ring):
    """On a file system of another machine, which may fail the closing of a file as well as a write."""

    away = False

    def close(self) -> None:
        super().close()
        if self.away:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_that_can_neither_be_written_nor_closed_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder's thread goes on, and records again when the file system is back."""
    monkeypatch.setattr(recorders, "RETRY_S", 0.0)
    disk = Disk()
    ring = Remote(str(tmp_path), SMALL_BYTES, disk.write)

    async def flight(one: Flight) -> None:
        disk.free, ring.away = 0, True
        one.need(100)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.fault is not None)
        disk.free, ring.away = 1 << 30, False
        await _until_it_records(one)
        one.need(400)
        one.recorder.flush_soon()
        await soon(lambda: one.read()[-1:] == [one.events[-1]])
        assert one.recorder.stats.fault is None

    fly(tmp_path, flight, ring)


def test_a_directory_that_fails_to_close_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost by it, so a segment begins as ever, and no descriptor is left."""
    closing = [site for site in callsites.sites() if (site.module, site.function) == (segments.__name__, "_let_go")]
    failing = Afflictions()
    failing.fail([site.key for site in closing], errno.EIO, odds=1.0, seed=0)
    monkeypatch.setattr(segments, "os", Gate(os, segments.__name__, failing, frozenset({"os.close"})))
    before = open_now()
    ring = Ring(str(tmp_path), SMALL_BYTES)
    ring.begin(b"{}\n", continuous=False)
    ring.close()
    none_left(before)
    assert sum(failing.hits.values()) == 2


async def _until_it_records(one: Flight) -> None:
    """Events come along until one of them starts a segment that holds."""

    def started() -> bool:
        if one.settled() and (one.recorder._gap or one.recorder.stats.fault is not None):
            one.need(350)
            one.recorder.flush_soon()
            return False
        return one.settled()

    await soon(started)


def test_a_disk_that_stands_still_delays_nobody(tmp_path: Path) -> None:
    """While a write hangs, recording costs memory up to its bound; what is beyond is counted, and then all is exact."""
    disk = Disk()

    async def flight(one: Flight) -> None:
        await soon(one.names)
        disk.stuck.clear()
        one.need(100)
        one.recorder.flush_soon()
        await soon(disk.waiting.is_set)
        for number in range(10_000):
            one.need(100 + number % 300)
            if number % 500 == 0:
                await asyncio.sleep(0)
        assert one.recorder.stats.dropped > 1000
        assert one.recorder._pending_bytes <= recorders.MAX_PENDING_BYTES
        disk.stuck.set()
        await soon(one.settled)
        one.recorder.flush_soon()
        await soon(lambda: not one.recorder._gap)
        one.need(500)
        one.recorder.flush_soon()
        await soon(lambda: one.read()[-1] == one.events[-1])
        assert one.recorder.stats.written + one.recorder.stats.dropped == len(one.events)
        steps = [step for step in recorded(one.segments()) if isinstance(step, Step)]
        assert steps[-1].engine.targets["llm"].gauge.growth == one.engine.targets["llm"].gauge.growth
        opened = [item for item in recorded(one.segments()) if isinstance(item, Opened)]
        assert [item.continuous for item in opened] == [False, False]

    # One segment takes it all, so that nothing but the standstill is lost.
    fly(tmp_path, flight, Ring(str(tmp_path), 64 << 20, disk.write))


@pytest.mark.parametrize("what", ["missing", "a file", "a link"])
def test_without_a_directory_it_is_off_and_says_so_once(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon guards all the same; when the directory comes, recording begins."""
    monkeypatch.setattr(recorders, "RETRY_S", 0.0)
    state = tmp_path / "state"
    if what == "a file":
        state.write_text("")
    elif what == "a link":
        state.mkdir()
        (tmp_path / "elsewhere").mkdir()
        (state / "recordings").symlink_to(tmp_path / "elsewhere")

    async def flight(one: Flight) -> None:
        await soon(lambda: one.recorder.stats.fault is not None)
        one.need(100)
        one.recorder.flush_soon()
        await soon(lambda: one.faults)
        (fault,) = one.faults
        assert fault.startswith(f"cannot record events in {state}/recordings: ")
        for number in range(5):
            one.need(number)
            one.recorder.flush_soon()
            await soon(one.settled)
        if what == "missing":
            state.mkdir()
            await _until_it_records(one)
            one.need(200)
            one.recorder.flush_soon()
            await soon(lambda: one.read() == one.events[-1:])
        assert one.faults == [fault]

    fly(state, flight)
    if what == "a link":
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_was_flushed_survives_a_crash(tmp_path: Path) -> None:
    """No orderly end, and half a batch behind it: everything before is read."""

    async def flight(one: Flight) -> None:
        for number in range(50):
            one.need(number)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.written == 52)
        content = (tmp_path / "recordings" / "recording-00000001.jsonl.gz").read_bytes()
        for torn in (content, content[:-7], content + b"\x01\x02"):
            segment = Segment(torn, "torn")
            read = [record[1] for record in segment.events() if not isinstance(record, Clock)]
            assert read == one.events[: len(read)]
            assert len(read) >= 50 if torn == content[:-7] else len(read) == 52
            assert not segment.complete

    fly(tmp_path, flight)


def test_a_wall_clock_that_jumps_is_followed(tmp_path: Path) -> None:
    """A board without a clock of its own starts in 1970; what comes after it was set has the right time."""

    async def flight(one: Flight) -> None:
        one.need(100)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.written == 3)
        one.wall_s += 1_700_000_000
        one.need(200)
        one.recorder.flush_soon()
        await soon(lambda: one.recorder.stats.written == 4)
        one.need(300)
        one.recorder.close()
        *_, before, after = [step for step in recorded(one.segments()) if isinstance(step, Step)]
        assert before.wall_s < 1_000_000_000
        assert after.wall_s == pytest.approx(1_700_001_000 + after.now, abs=1)

    fly(tmp_path, flight)


def test_a_new_configuration_is_in_the_next_header(tmp_path: Path) -> None:
    """A segment alone says under which configuration it was made."""

    async def flight(one: Flight) -> None:
        one.do(ConfigReloaded(Config(self_targets=False)))
        one.recorder._begin(one.recorder._writer, continuous=True)  # type: ignore[arg-type]
        await soon(lambda: len(one.names()) == 2)
        one.recorder.close()
        assert [segment.header.config.self_targets for segment in one.segments()] == [True, False]
        assert [segment.header.segment for segment in one.segments()] == [0, 1]

    fly(tmp_path, flight)


def test_switched_off_it_touches_nothing(tmp_path: Path) -> None:
    """No directory, no thread, no count."""

    async def flight() -> None:
        config = Config(state_directory=str(tmp_path), recorder=RecorderConfig(enabled=False))
        loop = asyncio.get_running_loop()
        recorder = Recorder(config, Engine(), loop, run="run", on_fault=lambda text: None)
        recorder.record(CgroupAppeared("llm"), 1.0)
        recorder.flush_soon()
        assert not [thread for thread in threading.enumerate() if thread.name == "edgeguardd-recorder"]
        recorder.close()
        assert recorder.stats == recorders.RecorderStats()

    asyncio.run(flight())
    assert list(tmp_path.iterdir()) == []


def test_a_sample_takes_less_than_a_hundred_bytes(tmp_path: Path) -> None:
    """One a second, each flushed by itself, with an ancestor and busy figures: 16 MiB are two days or more."""

    async def flight(one: Flight) -> None:
        await soon(one.names)
        begun = one.recorder.stats.bytes
        for number in range(500):
            figures = {
                "refaulted_bytes": number * 3 * 4096,
                "mapped_bytes": 1 << 30,
                "psi_some_us": 5_000_000 + number * number % 911,
            }
            own = usage("/system.slice/llama-server.service", 3000 + number * 7919 % 997 / 16, 8192, 9216, **figures)
            slice_usage = usage("/system.slice", 4000 + number * 104729 % 997 / 16, None, 12288, **figures)
            one.do(SampleTaken(Sample("llm", (own, slice_usage))))
            one.recorder.flush_soon(urgent=False)
            await soon(one.settled)
        await soon(lambda: one.recorder.stats.written == 502)
        assert (one.recorder.stats.bytes - begun) / 500 < 100

    fly(tmp_path, flight, Ring(str(tmp_path), 64 << 20))
