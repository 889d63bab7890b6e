"""Pressure, refaults and the whole machine on a real kernel, with PSI and without: real pages, the daemon's own shells.

Triggers that fire are in tests/component/test_pressure.py, which needs no memory controller.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from edgeguardd.core.config import MachineConfig, SamplingConfig, TargetSpec
from edgeguardd.core.events import CgroupVanished, Event, MachineSampled, SampleTaken
from edgeguardd.core.model import MachineSample, Usage
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.machine import Machine
from edgeguardd.kernel.targets import Targets
from tests.support.cgroup import Cgroup
from tests.support.hog import Hog
from tests.support.wait import soon

MIB = 1024 * 1024
PAGE = os.sysconf("SC_PAGE_SIZE")
NEVER_S = 3600.0
# The hog's own interpreter takes about 5 MiB; limits leave room for it.
BASE = 16 * MIB


class Watched:
    """One target, sampled only when its kernel files wake the daemon or a test asks."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.told: list[Event] = []
        self.faults: list[str] = []
        loop = asyncio.get_running_loop()
        self.targets = Targets(find_root(), loop, self.told.append, on_fault=self.faults.append)
        self.targets.apply([TargetSpec("job", path=cgroup.below_root)], SamplingConfig(slow_s=NEVER_S))

    def usage(self) -> Usage:
        """A fresh reading of the target's own cgroup."""
        self.targets.sample_now("job")
        return self.latest()

    def latest(self) -> Usage:
        """The last reading told."""
        return [event for event in self.told if isinstance(event, SampleTaken)][-1].sample.usages[0]

    def psi(self) -> str:
        """What status says."""
        return self.targets.status()["job"].psi


def watch(cgroup: Cgroup, scene: Callable[[Watched], Awaitable[None]]) -> None:
    """Run a scene with the cgroup as target."""

    async def run() -> None:
        made = Watched(cgroup)
        try:
            await scene(made)
        finally:
            made.targets.close()

    asyncio.run(run())


def thrash(hog: Hog, cgroup: Cgroup, disk_dir: str) -> None:
    """Twice through mapped weights that are larger than the cgroup's limit: the second time their pages come back.

    Mapped, because a file that nobody holds open may lose its cache, and what is known of its pages, as a whole.
    """
    cgroup.set(max=BASE)
    path = f"{disk_dir}/weights"
    hog.write_file(path, 2 * BASE)
    for _ in range(2):
        hog.map_file(path)


def test_a_target_is_watched_with_psi_and_without(cgroup: Cgroup) -> None:
    """Status says which it is; a kernel without is no fault and nothing is said of it."""

    with_psi = os.path.exists(cgroup.file("memory.pressure"))

    async def scene(w: Watched) -> None:
        if with_psi:
            assert w.psi() == "trigger"
            assert w.usage().psi_some_us is not None
        else:
            assert w.psi() == "absent"
            assert w.usage().psi_some_us is None
        assert w.faults == []

    watch(cgroup, scene)


def test_pages_that_come_back_are_counted(cgroup: Cgroup, hog: Hog, disk_dir: str) -> None:
    """A server that reads its own weights again and again: refaulted bytes, of file and anonymous memory together."""

    async def scene(w: Watched) -> None:
        before = w.usage().refaulted_bytes
        thrash(hog, cgroup, disk_dir)
        after = w.usage().refaulted_bytes
        assert before is not None
        assert after is not None
        # Three times twice the limit went through, and the hog's own pages beside.
        assert 0 < after - before < 16 * BASE
        stat = cgroup.keyed("memory.stat")
        assert after <= PAGE * sum(value for key, value in stat.items() if key.startswith("workingset_refault"))

    watch(cgroup, scene)


def test_mapped_weights_are_told(cgroup: Cgroup, hog: Hog, disk_dir: str) -> None:
    """What a server maps and touches, not what it reads."""

    async def scene(w: Watched) -> None:
        path = f"{disk_dir}/weights"
        hog.write_file(path, 8 * MIB)
        hog.read_file(path)
        before = w.usage().mapped_bytes
        hog.map_file(path)
        after = w.usage().mapped_bytes
        assert before is not None
        assert after is not None
        assert after - before == pytest.approx(8 * MIB, abs=MIB)

    watch(cgroup, scene)


@pytest.mark.needs("memory.pressure")
def test_waiting_for_memory_adds_up(cgroup: Cgroup, hog: Hog, disk_dir: str) -> None:
    """The total of `some` of the target's own cgroup."""

    async def scene(w: Watched) -> None:
        before = w.usage().psi_some_us
        thrash(hog, cgroup, disk_dir)
        after = w.usage().psi_some_us
        assert before is not None
        assert after is not None
        assert after > before

    watch(cgroup, scene)


@pytest.mark.needs("memory.pressure")
def test_a_cgroup_made_again_has_a_trigger_of_its_own(cgroup: Cgroup) -> None:
    """`systemctl restart`, ten times: the descriptors of the old one go with it."""
    service = cgroup.child("service")

    async def scene(w: Watched) -> None:
        descriptors = set()
        for round_ in range(1, 11):
            await soon(lambda: w.psi() == "trigger")
            descriptors.add(len(os.listdir("/proc/self/fd")))
            os.rmdir(service.path)
            await soon(lambda: sum(isinstance(event, CgroupVanished) for event in w.told) == round_)  # noqa: B023
            assert w.psi() == "absent"
            os.mkdir(service.path)
        assert len(descriptors) == 1

    watch(service, scene)


def test_the_machine_is_read_with_psi_and_without(hog: Hog) -> None:
    """Real figures; what a process takes is no longer available."""
    told: list[Event] = []
    faults: list[str] = []
    with_psi = os.path.exists("/proc/pressure/memory")

    def latest() -> MachineSample:
        return [event.sample for event in told if isinstance(event, MachineSampled)][-1]

    async def run() -> None:
        machine = Machine(MachineConfig(sample_s=0.05), asyncio.get_running_loop(), told.append, on_fault=faults.append)
        machine.start()
        before = latest().available_bytes
        assert 0 < before <= latest().total_bytes
        hog.grow(96 * MIB)
        # Others on this machine may give back some of it meanwhile.
        await soon(lambda: latest().available_bytes < before - 32 * MIB)
        assert (latest().psi_some_us is not None) == with_psi
        assert machine.status().psi == ("trigger" if with_psi else "absent")
        machine.close()

    asyncio.run(run())
    assert faults == []
