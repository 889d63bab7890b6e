"""The machine's level rises: what the targets hold by then decides who is asked, not what they held when last read."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeguardd.core.config import MachineConfig, Policy, SamplingConfig, TargetSpec
from edgeguardd.core.effects import Deliver, Effect
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import Event, MachineSampled, SampleTaken, SubscriberJoined
from edgeguardd.core.model import Action, Level, MachineSample, Role
from edgeguardd.dispatch import EventQueue
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.targets import Targets
from edgeguardd.readfirst import ReadFirst
from tests.support.faketree import FakeCgroup, FakeTree
from tests.support.script import EVERYTHING, MIB

NEVER_S = 3600.0
ABOVE = MachineSample(8192 * MIB, 8000 * MIB, None, None, None, ())
# 200 MiB below the first mark, 15 % of 8 GiB.
BELOW = MachineSample(8192 * MIB, 1028 * MIB, None, None, None, ())


class Box:
    """An engine over targets on a fake tree, none of them read but when they are told to be, and the machine's facts.

    Time stands until `now` is moved.
    """

    def __init__(self, path: Path, **priorities: int) -> None:
        tree = FakeTree(path)
        loop = asyncio.get_running_loop()
        self.now = 100.0
        self.told: list[Event] = []
        self.effects: list[Effect] = []
        queue = EventQueue(lambda: self.now)
        queue.handle = self._handle
        self.engine = Engine(machine=MachineConfig())
        self.targets = Targets(find_root(str(path)), loop, queue.emit, lambda: self.now)
        self.machine_told = ReadFirst(self.engine, self.targets, queue.emit, lambda: self.now).emit
        self.cgroups: dict[str, FakeCgroup] = {name: tree.cgroup(f"/{name}") for name in priorities}
        specs = [TargetSpec(n, path=f"/{n}", policy=Policy(priority=p)) for n, p in priorities.items()]
        self.targets.apply(specs, SamplingConfig(slow_s=NEVER_S))
        for number, name in enumerate(priorities, start=1):
            queue.emit(SubscriberJoined(number, name, Role.INFERENCE, name, EVERYTHING))
        self.told.clear()

    def _handle(self, event: Event, at: float) -> None:
        self.told.append(event)
        self.effects += self.engine.handle(event, at)

    def read(self) -> list[str]:
        """The targets that were read, in order."""
        return [event.sample.target for event in self.told if isinstance(event, SampleTaken)]

    def trims(self) -> dict[str, int | None]:
        """Who was asked to trim, and for how much."""
        commands = [e.command for e in self.effects if isinstance(e, Deliver)]
        return {c.target: c.parameters.release_bytes for c in commands if c.action is Action.TRIM_KV_CACHE}


def play(path: Path, scene: Callable[[Box], None], **priorities: int) -> None:
    """Run a scene; no descriptor is left."""

    async def run() -> None:
        box = Box(path, **priorities)
        try:
            scene(box)
        finally:
            box.targets.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before


def test_growth_that_nobody_has_read_yet_is_asked_for_at_once(tmp_path: Path) -> None:
    """It held nothing when last read, and fills the machine before its next look: it is asked with the crossing."""

    def scene(box: Box) -> None:
        box.machine_told(MachineSampled(ABOVE))
        box.now += 1.0
        box.cgroups["llm"].usage(900 * MIB)
        box.machine_told(MachineSampled(BELOW))
        assert box.engine.machine.level is Level.ELEVATED
        assert box.trims()["llm"] == box.engine.machine.wanted_bytes > 200 * MIB

    play(tmp_path, scene, llm=0)


def test_who_gives_first_is_chosen_by_what_each_holds_by_now(tmp_path: Path) -> None:
    """All are read before the first is asked: the higher priority is spared what the lower one has by now."""

    def scene(box: Box) -> None:
        box.cgroups["main"].usage(900 * MIB)
        box.targets.sample_now("main")
        box.now += 1.0
        box.cgroups["extra"].usage(900 * MIB)
        box.machine_told(MachineSampled(BELOW))
        assert list(box.trims()) == ["extra"]

    play(tmp_path, scene, main=10, extra=0)


@pytest.mark.parametrize(("sample", "read"), [(ABOVE, []), (BELOW, ["llm", "other"])])
def test_targets_are_read_for_a_rise_only(tmp_path: Path, sample: MachineSample, read: list[str]) -> None:
    """Each once, before the machine's fact; where the level stays as it is nobody is, and at rest nothing is added."""

    def scene(box: Box) -> None:
        box.now += 1.0
        box.machine_told(MachineSampled(sample))
        assert box.read() == read
        assert isinstance(box.told[-1], MachineSampled)
        box.now += 0.1
        box.machine_told(MachineSampled(sample))
        assert box.read() == read

    play(tmp_path, scene, llm=0, other=0)


def test_what_was_read_at_this_moment_is_not_read_again(tmp_path: Path) -> None:
    """Figures as old as the machine's are as good."""

    def scene(box: Box) -> None:
        box.now += 1.0
        box.targets.sample_now("llm")
        box.machine_told(MachineSampled(BELOW))
        assert box.read() == ["llm", "other"]

    play(tmp_path, scene, llm=0, other=0)


def test_a_target_whose_files_are_gone_holds_up_nobody(tmp_path: Path) -> None:
    """The machine's level is told of all the same, and the others are asked."""

    def scene(box: Box) -> None:
        box.now += 1.0
        box.cgroups["llm"].usage(900 * MIB)
        for name in ("memory.current", "memory.stat"):
            box.cgroups["gone"].write(name, b"\xff")
        box.machine_told(MachineSampled(BELOW))
        assert box.engine.machine.level is Level.ELEVATED
        assert list(box.trims()) == ["llm"]

    play(tmp_path, scene, gone=0, llm=0)
