"""One bridge before a stand-in, as `edgeguardctl bridge` puts it together, without the daemon and the gate's listener.

Must not: know an API. Upstream: bridges, standin. Downstream: tests of the servers' files.
"""

import argparse
import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgeguardd.bridges import catalog
from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.bridge import Bridge
from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.figures import Figures
from edgeguardd.bridges.places import Places
from edgeguardd.bridges.taken import Taken
from edgeguardd.bridges.works import Settings
from edgeguardd.client import Command, Level
from edgeguardd.core.model import Action, Parameters
from tests.support.standin import StandIn

# What the process needs besides what the stand-in counts.
PROCESS_BYTES = 100 << 20


class Measured(Figures):
    """A cgroup that needs what it is told."""

    def __init__(self, needed: Callable[[], int]) -> None:
        super().__init__(None, None)
        self.needed = needed

    def needed_bytes(self) -> int | None:
        return PROCESS_BYTES + self.needed()


class Bridged:
    """The bridge `name` before a stand-in. `needed`: what its cgroup holds; by default nothing that moves."""

    def __init__(
        self,
        name: str,
        standin: StandIn,
        *,
        state: Path | None = None,
        needed: Callable[[], int] = lambda: 0,
        patience_s: float = 10.0,
        call_within_s: float = 5.0,
        **options: Any,
    ) -> None:
        row = catalog.SERVERS[name]
        defaults = {option.name.replace("-", "_"): option.default for option in row.options}
        kind = getattr(importlib.import_module(f"edgeguardd.bridges.{row.module}"), row.server)
        http = standin.http(call_within_s)
        self.server: Server = kind(http, argparse.Namespace(**{**defaults, **options}), None, patience_s)
        self.places = Places(None, 0.0)
        settings = Settings(drain_s=patience_s, patience_s=patience_s)
        taken = Taken(None if state is None else str(state))
        self.figures = Measured(needed)
        self.bridge = Bridge(self.server, self.places, self.figures, taken, settings)
        self._seq = 0

    @property
    def look(self) -> Look:
        """What the server was found to be."""
        return self.bridge.look

    async def found(self) -> "Bridged":
        """Look at the server and take over what it is."""
        await self.bridge.find(await self.server.look())
        return self

    async def refuses(self) -> bool:
        """Whether the gate lets nobody in."""
        if await self.places.enter() is not None:
            return True
        self.places.leave()
        return False

    async def trim(self, level: Level = Level.CRITICAL) -> object:
        """trim_kv_cache."""
        return await self._do(Action.TRIM_KV_CACHE, level, release_bytes=1)

    async def reject(self) -> object:
        """reject_requests."""
        return await self._do(Action.REJECT_REQUESTS, Level.CRITICAL, accept_requests=False)

    async def reduce(self, ratio: float) -> object:
        """reduce_batch."""
        return await self._do(Action.REDUCE_BATCH, Level.HIGH, max_batch_ratio=ratio)

    async def unload(self) -> object:
        """unload_model."""
        return await self._do(Action.UNLOAD_MODEL, Level.EMERGENCY, model_loaded=False)

    async def restore(self, *, accept: bool = True, ratio: float = 1.0) -> object:
        """restore, with the model loaded."""
        wanted = {"max_batch_ratio": ratio, "accept_requests": accept, "model_loaded": True}
        return await self._do(Action.RESTORE, Level.NORMAL, **wanted)

    async def failure_of(self, work: Any) -> str:
        """What a command fails with; that it does not fail is a failure."""
        try:
            result = await work
        except ServerError as error:
            return str(error)
        raise AssertionError(f"it did not fail, but said {result!r}")

    async def _do(self, action: Action, level: Level, **parameters: Any) -> object:
        handler = self.bridge.handlers()[action.value]
        self._seq += 1
        result = handler(Command(self._seq, "llm", action, Parameters(**parameters), level, "a test", 5.0))
        return await result if asyncio.iscoroutine(result) else result
