"""Before the machine's level rises, the targets are read: who gives for it is chosen by what each of them holds.

    kernel.machine  --MachineSampled-->  here  --SampleTaken of each target, then MachineSampled-->  dispatch

A target far from its own marks is looked at every other second (docs/adr/0018). What it took since would be missed: it
would count as holding nothing to give, and be asked at the next repeat only. A rise is rare, so that this costs one
reading of each target now and then, and none while nothing happens.
Must not: judge the sample (core.machine does), keep it back. Upstream: kernel.machine. Downstream: dispatch.
"""

from collections.abc import Callable

from edgeguardd.core import machine as machines
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import Event, MachineSampled
from edgeguardd.kernel.targets import Targets


class ReadFirst:
    """Its `emit` is what the machine tells to."""

    def __init__(
        self, engine: Engine, targets: Targets, emit: Callable[[Event], None], clock: Callable[[], float]
    ) -> None:
        """`clock`: the one by which the targets are read."""
        self._engine = engine
        self._targets = targets
        self._emit = emit
        self._clock = clock

    def emit(self, event: Event) -> None:
        """Pass a fact on, after those that it has to be judged by."""
        if isinstance(event, MachineSampled):
            now = self._clock()
            if machines.rises(self._engine.machine, self._engine.guard.machine_config, event.sample, now):
                self._targets.sample_older(now)
        self._emit(event)
