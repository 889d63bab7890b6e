"""Triggers on this machine's own PSI: what the kernel takes, when it wakes, and what becomes of them.

Needs a cgroup v2 tree with memory.pressure in which cgroups can be made; skipped by name where there is none.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from edgeguardd.core.config import MachineConfig
from edgeguardd.core.events import Event, MachineSampled
from edgeguardd.kernel.machine import Machine
from edgeguardd.kernel.pressure import PressureFile, StallAlarm, open_trigger
from tests.support.cgroup import Cgroup
from tests.support.stalls import psi_cgroup, psi_tree, stalling
from tests.support.wait import eventually, soon

# Without CAP_SYS_RESOURCE the kernel looks every 2 s, and compares with the window before.
WAKE_WITHIN_S = 40.0
QUIET_S = 0.3
CAP_SYS_RESOURCE = 24

TREE, WHY_NOT = psi_tree()
pytestmark = pytest.mark.skipif(TREE is None, reason=WHY_NOT)


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """A fresh cgroup with PSI."""
    with psi_cgroup(str(TREE)) as fresh:
        yield fresh


class Scene:
    """One alarm over a real memory.pressure, opened by directory as the daemon does."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.cgroup = cgroup
        self.stalls: list[float] = []
        self.faults: list[str] = []
        loop = asyncio.get_running_loop()
        self.dir_fd = os.open(cgroup.path, os.O_PATH | os.O_DIRECTORY)
        self.file = PressureFile("memory.pressure", cgroup.file("memory.pressure"), self.dir_fd)
        self.alarm = StallAlarm(self.file, loop, loop.time, lambda: self.stalls.append(loop.time()), self.faults.append)

    def sample(self, ratio: float = 0.1) -> int | None:
        """Read the total, and have the alarm follow."""
        some_us = self.file.some_us()
        self.alarm.follow(ratio, some_us)
        return some_us

    def close(self) -> None:
        self.alarm.close()
        self.file.close()
        os.close(self.dir_fd)


def play(cgroup: Cgroup, scene: Callable[[Scene], Awaitable[None]]) -> None:
    """Run a scene; whatever happened in it, no descriptor is left."""

    async def run() -> None:
        made = Scene(cgroup)
        try:
            await scene(made)
        finally:
            made.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before


def may_have_short_windows() -> bool:
    """Whether this process has CAP_SYS_RESOURCE."""
    with open("/proc/self/status") as file:
        (effective,) = [line.split()[1] for line in file if line.startswith("CapEff:")]
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


def test_the_window_is_the_shortest_that_the_kernel_allows(cgroup: Cgroup) -> None:
    """One second with CAP_SYS_RESOURCE, else two; a second trigger on the same descriptor is EBUSY."""
    file = PressureFile(cgroup.file("memory.pressure"), cgroup.path)
    for ratio in (1e-9, 0.1, 1.0):
        trigger = open_trigger(file, ratio)
        assert trigger is not None
        try:
            assert trigger.window_s == (1.0 if may_have_short_windows() else 2.0)
            with pytest.raises(OSError, match="busy") as raised:
                os.write(trigger.fd, b"some 200000 2000000\0")
            assert raised.value.errno == errno.EBUSY
        finally:
            os.close(trigger.fd)


def test_an_idle_cgroup_wakes_nobody(cgroup: Cgroup) -> None:
    """The loop sleeps while nobody waits for memory."""

    async def scene(s: Scene) -> None:
        assert s.sample() == 0
        assert (s.alarm.mode, s.faults) == ("trigger", [])
        await asyncio.sleep(QUIET_S)
        assert s.stalls == []

    play(cgroup, scene)


@pytest.mark.timeout(180)
def test_tasks_that_wait_for_memory_wake(cgroup: Cgroup) -> None:
    """A process that reads more than its memory holds: the total rises, and the alarm calls without being asked."""

    async def scene(s: Scene) -> None:
        s.sample(ratio=0.002)
        await soon(lambda: s.stalls, WAKE_WITHIN_S)
        assert s.sample(ratio=0.002)

    with stalling(cgroup):
        eventually(
            lambda: not cgroup.read("memory.pressure").startswith("some avg10=0.00 avg60=0.00 avg300=0.00 total=0")
        )
        play(cgroup, scene)


def test_removal_wakes_and_lets_go(cgroup: Cgroup) -> None:
    """EPOLLERR at once, before anybody polls; there are no figures any more, and no trigger."""

    async def scene(s: Scene) -> None:
        s.sample()
        s.cgroup.remove()
        await soon(lambda: s.stalls)
        assert s.sample() is None
        assert s.alarm.mode == "absent"
        assert s.file.fault is None

    play(cgroup, scene)


def test_pressure_that_is_switched_off_and_on_again_has_a_new_trigger(cgroup: Cgroup) -> None:
    """cgroup.pressure (6.1): off takes trigger and figures away, on gives them back to whoever opens the file anew."""
    if not os.path.exists(cgroup.file("cgroup.pressure")):
        pytest.skip("cgroup.pressure came with Linux 6.1")

    async def scene(s: Scene) -> None:
        s.sample()
        s.cgroup.write("cgroup.pressure", 0)
        await soon(lambda: s.stalls)
        s.sample()
        assert s.alarm.mode == "absent"
        s.cgroup.write("cgroup.pressure", 1)
        assert s.sample() == 0
        assert s.alarm.mode == "trigger"
        s.cgroup.write("cgroup.pressure", 0)
        s.cgroup.write("cgroup.pressure", 1)
        await soon(lambda: len(s.stalls) == 2)
        # The old descriptor is dead for good: one reading finds out, the next has a new one.
        assert s.sample() is None
        assert s.sample() == 0
        assert s.alarm.mode == "trigger"

    play(cgroup, scene)


def test_cgroups_that_come_and_go_leave_no_trigger_behind(cgroup: Cgroup) -> None:
    """Removed under the daemon's hands, fifty times; `play` counts descriptors each time."""

    async def scene(s: Scene) -> None:
        assert s.sample() == 0
        assert s.alarm.mode == "trigger"
        s.cgroup.remove()

    for _ in range(50):
        play(cgroup, scene)
        os.mkdir(cgroup.path)


def test_the_machine_is_read_as_it_is() -> None:
    """The real /proc: figures that hang together, and a trigger on the machine's own pressure."""
    told: list[Event] = []
    faults: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        machine = Machine(MachineConfig(sample_s=0.1), loop, told.append, on_fault=faults.append)
        machine.start()
        await soon(lambda: len(told) >= 3)
        status = machine.status()
        assert status.psi == ("trigger" if os.access("/proc/pressure/memory", os.W_OK) else "absent")
        machine.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before
    (sample, *_) = [event.sample for event in told if isinstance(event, MachineSampled)]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert sample.total_bytes == pytest.approx(pages, rel=0.1)
    assert 0 < sample.available_bytes <= sample.total_bytes
    assert faults == []
