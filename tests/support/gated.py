"""A bridge in this process with its gate on a real port and a cgroup of plain files; commands by hand.

Must not: know a server. Upstream: tests.unit.bridges. Downstream: edgeguardd.bridges.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from edgeguardd.bridges.base import Server
from edgeguardd.bridges.bridge import Bridge
from edgeguardd.bridges.calls import Http
from edgeguardd.bridges.endpoint import endpoint
from edgeguardd.bridges.figures import Figures
from edgeguardd.bridges.gate import Gate
from edgeguardd.bridges.places import Places
from edgeguardd.bridges.taken import Taken
from edgeguardd.bridges.works import Settings
from edgeguardd.client import Command, Level, Parameters
from edgeguardd.core.model import Action
from edgeguardd.kernel.cgroupfs import CgroupRoot
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.standin import StandIn

REST_BYTES = 100 * MIB
GROWN_BYTES = 400 * MIB


class FakeKeeper:
    """Stops and starts a stand-in as a service manager would; its cgroup's memory goes and comes with it."""

    def __init__(self, server: StandIn, cgroup: FakeCgroup) -> None:
        self.server = server
        self.cgroup = cgroup
        self.done: list[str] = []
        self.leaks = 0
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    async def stop(self) -> None:
        self.done.append("stop")
        await self.may_stop.wait()
        await self.server.down()
        self.cgroup.usage(self.leaks)

    async def start(self) -> None:
        self.done.append("start")
        await self.server.up()
        self.cgroup.usage(REST_BYTES + self.leaks)


class Gated:
    """All of it, for a test to play with."""

    def __init__(self, directory: Path, server: StandIn) -> None:
        self.standin = server
        directory.joinpath("tree").mkdir()
        self.cgroup = FakeTree(directory / "tree").cgroup("/llm")
        self.cgroup.usage(REST_BYTES)
        self.keeper = FakeKeeper(server, self.cgroup)
        self.state_file = directory / "taken"
        self.bridge: Bridge
        self.places: Places
        self.front: Http
        self._root = CgroupRoot(str(directory / "tree"))

    @contextlib.asynccontextmanager
    async def over(
        self, kind: type[Server], settings: Settings | None = None, *, kept: bool = True, **options: Any
    ) -> AsyncIterator["Gated"]:
        """A bridge of this kind over the stand-in, which is entered with it."""
        settings = settings or Settings(drain_s=5.0, patience_s=5.0)
        async with self.standin:
            args = argparse.Namespace(**{"model": None, **options})
            server = kind(self.standin.http(), args, self.keeper if kept else None, settings.patience_s)
            self.places = Places(settings.places, 5.0)
            figures = Figures(self._root, "/llm")
            self.bridge = Bridge(server, self.places, figures, Taken(str(self.state_file)), settings)
            gate = Gate(endpoint(self.standin.url), self.places, server.harmless, 2)
            listener = await asyncio.start_server(gate.connection, "127.0.0.1", 0)
            self.front = Http(endpoint(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"))
            try:
                await self.bridge.find(await server.look())
                self.standin.calls.clear()
                yield self
            finally:
                listener.close()
                await gate.close()

    def grow(self, to_bytes: int = GROWN_BYTES) -> None:
        """As a prompt cache does."""
        self.cgroup.usage(to_bytes)

    async def obey(self, action: str, level: Level = Level.HIGH, **parameters: Any) -> Any:
        """Carry out a command as the client would; what its handler returns or raises."""
        return await self.begin(action, level, **parameters)

    def begin(self, action: str, level: Level = Level.HIGH, **parameters: Any) -> "asyncio.Task[Any]":
        """As obey, in a task."""
        handler: Any = self.bridge.handlers()[action]
        command = Command(1, "llm", Action(action), Parameters(**parameters), level, "needed 81 %", 90.0)
        return asyncio.create_task(handler(command))

    def ask(self, path: str = "/completion", **content: Any) -> "asyncio.Task[Any]":
        """A client's request through the gate; its status."""

        async def status() -> int:
            return (await self.front.ask("POST", path, content)).status

        return asyncio.create_task(status())
