"""The whole machine on a made-up /proc: figures, what is implausible or missing, how often it is read, what is said."""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edgeguardd.core import procfmt
from edgeguardd.core.config import DeviceSpec, MachineConfig
from edgeguardd.core.events import Event, MachineSampled
from edgeguardd.core.model import DeviceUsage, MachineSample
from edgeguardd.errors import FormatError
from edgeguardd.kernel.machine import RAM_KEYS, Machine, ram_of
from edgeguardd.kernel.pressure import SWITCHED_OFF
from tests.support.descriptors import none_left, open_now
from tests.support.wait import soon

CASES = Path(__file__).parents[2] / "cases/cgroupfiles"
NEVER_S = 3600.0
OFTEN_S = 0.01
GIB = 2**30


def case(name: str) -> str:
    """The /proc/meminfo of a board."""
    (found,) = CASES.glob(f"*{name}*.txt")
    return found.read_text()


def meminfo(total_kb: int = 8 << 20, available_kb: int = 4 << 20, swap_kb: int = 0, swap_free_kb: int = 0) -> str:
    """A small one."""
    return (
        f"MemTotal: {total_kb} kB\nMemFree: 1 kB\nMemAvailable: {available_kb} kB\n"
        f"SwapTotal: {swap_kb} kB\nSwapFree: {swap_free_kb} kB\n"
    )


class Scene:
    """A made-up /proc, the machine that reads it, and everything that it told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[Event] = []
        self.faults: list[str] = []
        self.now = 100.0
        self.machine: Machine | None = None
        self.write("meminfo", meminfo())

    def write(self, name: str, content: str) -> None:
        """Set the whole content of one file of /proc."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)

    def start(self, config: MachineConfig) -> Machine:
        """Begin to read."""
        self.machine = Machine(
            config,
            asyncio.get_running_loop(),
            self.told.append,
            lambda: self.now,
            str(self.path),
            on_fault=self.faults.append,
        )
        self.machine.start()
        return self.machine

    def samples(self) -> list[MachineSample]:
        """What was told."""
        return [event.sample for event in self.told if isinstance(event, MachineSampled)]


def play(path: Path, scene: Callable[[Scene], Awaitable[None]]) -> None:
    """Run a scene; whatever happened in it, no descriptor and no timer is left."""

    async def run() -> None:
        made = Scene(path)
        try:
            await scene(made)
        finally:
            if made.machine is not None:
                made.machine.close()
                made.machine.close()
                count = len(made.told)
                made.machine.sample_now()
                assert len(made.told) == count

    before = open_now()
    asyncio.run(run())
    none_left(before)


def config(**fields: object) -> MachineConfig:
    """A configuration that reads only when asked, unless it says otherwise."""
    return MachineConfig(**{"sample_s": NEVER_S, **fields})  # type: ignore[arg-type]


# Figures


def test_the_first_sample_comes_at_once_and_holds_everything(tmp_path: Path) -> None:
    """RAM, swap, pressure, devices; all in bytes."""

    async def scene(s: Scene) -> None:
        s.write("meminfo", case("jetson-tx2"))
        s.write("pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\n")
        s.write("npu", "3 8")
        s.start(config(devices=(DeviceSpec("npu", "file", path=str(s.path / "npu")), DeviceSpec("gpu", "nvmap"))))
        (sample,) = s.samples()
        assert sample == MachineSample(
            total_bytes=8038788 * 1024,
            available_bytes=5642288 * 1024,
            swap_total_bytes=4019376 * 1024,
            swap_free_bytes=4019376 * 1024,
            psi_some_us=77,
            devices=(DeviceUsage("npu", 3, 8), DeviceUsage("gpu", 805068 * 1024, 8038788 * 1024)),
        )
        assert s.faults == []

    play(tmp_path, scene)


def test_every_reading_is_a_fresh_one(tmp_path: Path) -> None:
    """Swap that is added later, zram for one, is seen; so is what comes back."""

    async def scene(s: Scene) -> None:
        machine = s.start(config())
        assert s.samples()[-1].swap_total_bytes == 0
        s.write("meminfo", meminfo(available_kb=2 << 20, swap_kb=100, swap_free_kb=40))
        machine.sample_now()
        sample = s.samples()[-1]
        assert (sample.available_bytes, sample.swap_total_bytes, sample.swap_free_bytes) == (2 * GIB, 102400, 40960)

    play(tmp_path, scene)


@pytest.mark.parametrize(
    "board", ["jetson-tx2", "rk3568-2g", "pi-zero", "x86-6.18", "swapfree-underflow", "swaptotal-huge"]
)
def test_the_lines_that_are_asked_for_say_all(board: str) -> None:
    """The other forty would be read for nothing, each second."""
    everything = case(board).encode()
    asked = procfmt.meminfo(everything, RAM_KEYS).values
    assert set(asked) <= {key.decode() for key in RAM_KEYS}
    assert ram_of(asked) == ram_of(procfmt.meminfo(everything).values)


@pytest.mark.parametrize("board", ["swapfree-underflow", "swaptotal-huge"])
def test_implausible_swap_of_lxcfs_is_unknown(board: str) -> None:
    """2^64 less a little is no free swap, and "unlimited" no total."""
    ram = ram_of(procfmt.meminfo(case(board).encode()).values)
    assert ram.swap_free_bytes is None
    assert ram.total_bytes > 0
    assert 0 < ram.available_bytes <= ram.total_bytes


@pytest.mark.parametrize("board", ["jetson-tx2", "rk3568-2g", "pi-zero", "x86-6.18"])
def test_the_estimate_of_what_is_available_is_close_where_the_kernel_tells_it(board: str) -> None:
    """It stands in for MemAvailable before 3.14: within 15 % on four real boards, and said to be an estimate."""
    values = dict(procfmt.meminfo(case(board).encode()).values)
    told = ram_of(values)
    assert not told.estimated
    del values["MemAvailable"]
    reckoned = ram_of(values)
    assert reckoned.estimated
    assert reckoned.available_bytes == pytest.approx(told.available_bytes, rel=0.15)


def test_an_old_kernel_has_its_figure_estimated(tmp_path: Path) -> None:
    """Status says so; nothing is wrong with the machine."""

    async def scene(s: Scene) -> None:
        s.write("meminfo", case("a20-highmem"))
        machine = s.start(config())
        assert s.samples()[0].available_bytes == (729104 + 5616 + 85140 - 1568) * 1024
        assert machine.status().estimated
        assert machine.status().degraded is None
        assert s.faults == []

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("values", "available_kb"),
    [
        ({"MemTotal": 100, "MemFree": 10, "MemAvailable": None, "Cached": 20}, 30),
        ({"MemTotal": 100, "MemFree": 10}, 10),
        ({"MemTotal": 100, "MemFree": 10, "Cached": 20, "Shmem": 90}, 10),
        ({"MemTotal": 100, "MemFree": 90, "Cached": 50, "Buffers": None}, 100),
    ],
)
def test_the_estimate_stays_within_free_and_total(values: dict[str, int | None], available_kb: int) -> None:
    """Also with figures missing, implausible, or read at different moments."""
    assert ram_of(values).available_bytes == available_kb * 1024


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "no usable MemTotal"),
        ({"MemTotal": None, "MemAvailable": 5}, "no usable MemTotal"),
        ({"MemTotal": 0, "MemAvailable": 0}, "no usable MemTotal"),
        ({"MemTotal": 5}, "neither MemAvailable nor MemFree"),
    ],
)
def test_too_little_is_an_error(values: dict[str, int | None], says: str) -> None:
    """Better no sample than a made-up one."""
    with pytest.raises(FormatError, match=says):
        ram_of(values)


# What is wrong


def test_a_meminfo_that_cannot_be_used_is_said_once_and_read_again(tmp_path: Path) -> None:
    """Missing, empty, malformed: no sample, no end of the daemon, and a sample when it is good again."""

    async def scene(s: Scene) -> None:
        (s.path / "meminfo").unlink()
        machine = s.start(config())
        machine.sample_now()
        assert s.samples() == []
        assert len(s.faults) == 1
        assert f"cannot read {s.path}/meminfo: No such file or directory; mount procfs on {s.path}" in s.faults
        s.write("meminfo", case("malformed"))
        machine.sample_now()
        machine.sample_now()
        assert len(s.faults) == 2
        assert machine.status().degraded == s.faults[-1]
        s.write("meminfo", "")
        machine.sample_now()
        assert len(s.faults) == 3
        s.write("meminfo", meminfo())
        machine.sample_now()
        assert len(s.samples()) == 1
        assert machine.status().degraded is None

    play(tmp_path, scene)


def test_a_descriptor_that_died_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After lxcfs was restarted, reading gives ENOTCONN for ever."""
    real = os.pread

    async def scene(s: Scene) -> None:
        machine = s.start(config())
        with monkeypatch.context() as patch:

            def pread(*_: object) -> bytes:
                raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

            patch.setattr(os, "pread", pread)
            machine.sample_now()
        assert os.pread is real
        assert len(s.samples()) == 1
        (s.path / "meminfo").unlink()
        s.write("meminfo", meminfo(available_kb=1 << 20))
        machine.sample_now()
        assert s.samples()[-1].available_bytes == GIB

    play(tmp_path, scene)


def test_psi_that_is_switched_off_is_said_once_and_the_rest_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EOPNOTSUPP is how the kernel says it."""
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("pressure/memory"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)

    async def scene(s: Scene) -> None:
        s.write("pressure/memory", "some")
        machine = s.start(config())
        machine.sample_now()
        assert [sample.psi_some_us for sample in s.samples()] == [None, None]
        assert s.faults == [SWITCHED_OFF]
        assert machine.status().psi == "absent"

    play(tmp_path, scene)


def test_a_kernel_without_psi_is_as_good(tmp_path: Path) -> None:
    """Nothing is said."""

    async def scene(s: Scene) -> None:
        machine = s.start(config())
        assert (machine.status().psi, s.faults, s.samples()[0].psi_some_us) == ("absent", [], None)

    play(tmp_path, scene)


def test_a_device_that_fails_costs_its_own_figure_only(tmp_path: Path) -> None:
    """Said once, in status until it works, and taken again when it does."""

    async def scene(s: Scene) -> None:
        path = s.path / "npu"
        specs = (DeviceSpec("npu", "file", path=str(path)), DeviceSpec("none", "file", path=str(s.path / "none")))
        machine = s.start(config(devices=specs))
        machine.sample_now()
        assert [sample.devices for sample in s.samples()] == [(), ()]
        assert len(s.faults) == 2
        s.write("npu", "1 2")
        machine.sample_now()
        assert s.samples()[-1].devices == (DeviceUsage("npu", 1, 2),)
        npu, none = machine.status().devices
        assert (npu.name, npu.kind, npu.used_bytes, npu.total_bytes, npu.degraded) == ("npu", "file", 1, 2, None)
        assert none.used_bytes is None
        assert none.degraded == s.faults[1]

    play(tmp_path, scene)


# How often


def test_the_machine_is_read_at_its_interval(tmp_path: Path) -> None:
    """By a timer, until close."""

    async def scene(s: Scene) -> None:
        s.start(config(sample_s=OFTEN_S))
        await soon(lambda: len(s.samples()) >= 3)

    play(tmp_path, scene)


def test_near_the_first_mark_it_is_read_four_times_as_often(tmp_path: Path) -> None:
    """From twice the elevated mark on."""

    async def scene(s: Scene) -> None:
        s.write("meminfo", meminfo(total_kb=100_000_000, available_kb=30_000_000))
        machine = s.start(config(sample_s=8.0, elevated_ratio=0.15))
        assert machine.interval_s == 8.0
        s.write("meminfo", meminfo(total_kb=100_000_000, available_kb=29_999_999))
        machine.sample_now()
        assert machine.interval_s == machine.status().interval_s == 2.0

    play(tmp_path, scene)


def test_an_event_that_cannot_be_handled_does_not_end_the_readings(tmp_path: Path) -> None:
    """A defect elsewhere is the loop's to report; the timer goes on."""

    async def scene(s: Scene) -> None:
        defects: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: defects.append(context))

        def emit(event: Event) -> None:
            s.told.append(event)
            raise RuntimeError("a defect")

        s.machine = Machine(config(sample_s=OFTEN_S), asyncio.get_running_loop(), emit, proc=str(s.path))
        with pytest.raises(RuntimeError):
            s.machine.start()
        await soon(lambda: len(s.told) >= 3 and defects)

    play(tmp_path, scene)


def test_status_tells_the_age_of_the_last_sample(tmp_path: Path) -> None:
    """By the clock that was given."""

    async def scene(s: Scene) -> None:
        machine = s.start(config())
        s.now += 2.5
        assert machine.status().sample_age_s == 2.5
        assert machine.status(s.now + 1).sample_age_s == 3.5
        assert machine.status().sample == s.samples()[0]

    play(tmp_path, scene)


# Reload


def test_a_machine_that_nobody_wants_read_is_not(tmp_path: Path) -> None:
    """Until a reload wants it, and again after one that does not."""

    async def scene(s: Scene) -> None:
        machine = s.start(config(enabled=False))
        assert s.told == []
        assert machine.status().enabled is False
        machine.apply(config())
        assert len(s.samples()) == 1
        machine.apply(config(enabled=False))
        machine.sample_now()
        assert len(s.samples()) == 1
        assert machine.status().sample is None

    play(tmp_path, scene)


def test_a_reload_takes_effect_at_once_and_keeps_the_devices_it_can(tmp_path: Path) -> None:
    """The same configuration again changes nothing, not even the time of the next sample."""

    async def scene(s: Scene) -> None:
        s.write("npu", "1 2")
        npu = DeviceSpec("npu", "file", path=str(s.path / "npu"))
        machine = s.start(config(devices=(npu,)))
        machine.apply(config(devices=(npu,)))
        assert len(s.samples()) == 1
        machine.apply(config(devices=(npu,), sample_s=OFTEN_S))
        await soon(lambda: len(s.samples()) >= 4)
        machine.apply(config())
        assert s.samples()[-1].devices == ()
        assert machine.status().devices == ()

    play(tmp_path, scene)
