"""Targets on a tree, fake or real, and everything that they tell: the stage of the kernel layer's tests.

Must not: judge what was told (the tests do). Upstream: unit and kernel tests. Downstream: kernel.targets, faketree.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from edgeguardd.core.config import Policy, SamplingConfig, TargetSpec
from edgeguardd.core.events import Event, SampleTaken
from edgeguardd.core.model import Usage
from edgeguardd.kernel.cgroupfs import CgroupRoot, find_root
from edgeguardd.kernel.targets import Targets
from tests.support.faketree import FakeTree

NEVER_S = 3600.0
OFTEN_S = 0.01

E = TypeVar("E", bound=Event)
S = TypeVar("S", bound="Stage")


class Stage:
    """Targets on some tree, and everything that they told.

    `while_told` is called with each event at the moment that it is told, in the middle of whatever tells it.
    """

    def __init__(self, root: CgroupRoot, max_targets: int = 8) -> None:
        self.told: list[Event] = []
        self.faults: list[str] = []
        self.defects: list[str] = []
        self.while_told: Callable[[Event], None] | None = None
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.defects.append(repr(context)))
        self.targets = Targets(root, loop, self._tell, max_targets=max_targets, on_fault=self.faults.append)

    def _tell(self, event: Event) -> None:
        self.told.append(event)
        if self.while_told is not None:
            self.while_told(event)

    def apply(self, *specs: TargetSpec, slow_s: float = NEVER_S) -> None:
        """Guard these. With NEVER_S only wake-ups and inotify make anything happen, with OFTEN_S polling does."""
        self.targets.apply(specs, SamplingConfig(slow_s=slow_s))

    def of(self, kind: type[E], target: str | None = None) -> list[E]:
        """What was told of this kind, about this target."""
        return [event for event in self.told if isinstance(event, kind) and target in (None, about(event))]

    def kinds(self) -> list[str]:
        """The names of everything told, in order."""
        return [type(event).__name__ for event in self.told]

    def usage(self, target: str, index: int = 0) -> Usage:
        """The latest sample's usage."""
        return self.of(SampleTaken, target)[-1].sample.usages[index]


class Scene(Stage):
    """A stage on a fake tree."""

    def __init__(self, path: str) -> None:
        self.tree = FakeTree(path)
        super().__init__(find_root(path))


def about(event: Event) -> str:
    """The target that an event is about."""
    if isinstance(event, SampleTaken):
        return event.sample.target
    target = getattr(event, "target", None)
    assert isinstance(target, str)
    return target


def play(path: Path, scene: Callable[[Scene], Awaitable[None]]) -> None:
    """Run a scene on a fake tree; whatever happened in it, no descriptor is left and no callback has raised."""
    perform(lambda: Scene(str(path)), scene)


def perform(make: Callable[[], S], scene: Callable[[S], Awaitable[None]]) -> None:
    """As play, on the stage that `make` makes inside the loop."""

    async def run() -> None:
        made = make()
        try:
            await scene(made)
        finally:
            made.targets.close()
        assert made.defects == []

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before


def job(name: str = "job", path: str = "/job", policy: Policy | None = None) -> TargetSpec:
    """A target named by its path."""
    return TargetSpec(name, path=path, policy=policy or Policy())
