"""One bridge from its start to SIGTERM: the gate listens, the server is found, the daemon is subscribed to.

Must not: know a server's calls. Upstream: catalog, bridge, gate, surroundings, client, systemd. Downstream: cli.bridge.
"""

import argparse
import asyncio
import contextlib
import importlib
import signal
from collections.abc import AsyncIterator, Coroutine

from edgeguardd.bridges import catalog
from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.bridge import Bridge
from edgeguardd.bridges.calls import Http, ServerError
from edgeguardd.bridges.figures import Figures
from edgeguardd.bridges.gate import Gate
from edgeguardd.bridges.places import Places
from edgeguardd.bridges.supervise import ChildKeeper, UnitKeeper
from edgeguardd.bridges.surroundings import allow_descriptors, api_key, cgroup_root, keeper_of, listening
from edgeguardd.bridges.taken import Taken
from edgeguardd.bridges.works import Settings
from edgeguardd.client import AsyncSubscriber, Level
from edgeguardd.core.model import Action
from edgeguardd.errors import EdgeguardError
from edgeguardd.logs import get_logger
from edgeguardd.systemd import Notifier

REPORT_EVERY_S = 1.0
MEND_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
# Those inside when the bridge is told to stop get this long for their answers.
LEAVE_S = 10.0

NO_FIGURES = "cannot measure what is given back: the server's cgroup is not known; give --unit or --cgroup"
NO_PLACES = "cannot reduce the batch: the server does not say how many requests it takes at once; give --places"
NO_GATE = (
    "cannot refuse requests, reduce the batch, or give memory back while requests come: there is no gate; give "
    "--listen, or --gate external where a proxy asks edgeguardd's /admit"
)
NO_RUNNING = (
    "cannot tell when nobody is inside: without a gate of the bridge's own only the server could; a trim gives nothing "
    "back, and an unload cuts off who is inside; give --listen"
)

log = get_logger()


class BridgeSubscriber(AsyncSubscriber):
    """Handlers of different actions do not wait for each other: each does its quick half before it first waits."""

    def _lane_of(self, action: Action) -> str:
        """One lane an action."""
        return action.value


async def serve(args: argparse.Namespace) -> None:
    """Until SIGTERM or SIGINT. Raises EdgeguardError for what cannot be used."""
    allow_descriptors()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    notifier = Notifier()
    try:
        async with _Scene(args, notifier) as scene:
            working = asyncio.create_task(scene.work())
            stopping = asyncio.create_task(over.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            notifier.stopping()
            for task in (working, stopping):
                task.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await working
    finally:
        notifier.close()


class _Scene:
    """Everything of one bridge, put together from its options."""

    def __init__(self, args: argparse.Namespace, notifier: Notifier) -> None:
        row = catalog.SERVERS[args.server]
        self._args = args
        self._notifier = notifier
        self._figures = Figures(cgroup_root(args.cgroup_root), args.cgroup)
        self._keeper = keeper_of(args, row, self._figures.procs_file())
        kind = getattr(importlib.import_module(f"edgeguardd.bridges.{row.module}"), row.server)
        http = Http(args.url, within_s=args.call_within, key=api_key(args.api_key_file))
        self._server: Server = kind(http, args, self._keeper, args.within)
        self._server.procs_file = self._figures.procs_file
        settings = Settings(
            places=args.places,
            drain_s=args.drain,
            patience_s=args.within,
            release_from=Level[args.release_from.upper()],
            worth_bytes=args.worth,
            external=args.listen is None,
            refuses=args.listen is not None or args.gate == "external",
        )
        self._places = Places(args.places, args.patience)
        self._taken = Taken(args.state)
        self.bridge = Bridge(self._server, self._places, self._figures, self._taken, settings)
        server = self._server
        self._gate = Gate(args.url, self._places, server.harmless, args.retry_after, server.operators)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "_Scene":
        try:
            if isinstance(self._keeper, ChildKeeper):
                self._stack.push_async_callback(self._keeper.stop)
                await self._keeper.start()
            elif self._keeper is not None and self._taken.read() is not None:
                # A bridge before this one has stopped it, and it would be waited for in vain.
                await self._keeper.start()
            if self._args.listen is not None:
                await self._stack.enter_async_context(listening(self._gate, self._args.listen))
        except BaseException:  # __aexit__ does not follow, and a child that was started would go on
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._places.shut("leaving", "the bridge is stopping")
        await self._places.drain(LEAVE_S)
        try:
            if not isinstance(self._keeper, ChildKeeper):
                async with asyncio.timeout(LEAVE_S):
                    await self.bridge.close()
        except (EdgeguardError, TimeoutError) as error:
            log.warning("bridge_cannot", server=self._server.name, why=str(error) or "the model is not back in time")
        await self._stack.aclose()

    async def work(self) -> None:
        """Find the server, say what cannot be done, subscribe, and report until cancelled."""
        look = await self._found()
        await self._find_cgroup()
        await self.bridge.find(look, at_rest=isinstance(self._keeper, ChildKeeper))
        for why in (*look.cannot, *await self._shortcomings()):
            log.warning("bridge_cannot", server=self._server.name, why=why)
        handlers = self.bridge.handlers()
        subscriber = BridgeSubscriber(
            self._args.name, path=self._args.socket, target=self._args.target, handlers=handlers
        )
        async with subscriber, _running(self._mend()):
            log.info(
                "bridge_ready",
                server=self._server.name,
                version=look.version,
                url=str(self._args.url),
                listen=None if self._args.listen is None else str(self._args.listen),
                commands=list(handlers),
                places=self.bridge.full_places,
            )
            self._notifier.ready(f"bridge to {self._server.name} {look.version or ''} at {self._args.url}")
            while True:
                self._report(subscriber)
                self._notifier.watchdog()
                await asyncio.sleep(REPORT_EVERY_S)

    async def _mend(self) -> None:
        """Try again what has failed to come back. Why it fails is said once."""
        said = None
        while True:
            await asyncio.sleep(MEND_EVERY_S)
            try:
                await self.bridge.mend()
                said = None
            except ServerError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("bridge_cannot", server=self._server.name, why=said)

    async def _found(self) -> Look:
        """Look until the server answers; that it does not is said once."""
        said = None
        while True:
            try:
                return await self._server.look()
            except ServerError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("bridge_waits", server=self._server.name, why=said)
                    self._notifier.status(f"waiting: {said}")
            self._notifier.watchdog()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _find_cgroup(self) -> None:
        """A unit's cgroup; it has none while it is stopped."""
        if self._figures.path is None and self._args.unit is not None:
            with contextlib.suppress(ServerError):
                self._figures.path = await UnitKeeper(self._args.unit).cgroup()

    async def _shortcomings(self) -> list[str]:
        """What is not possible with the options of the bridge itself."""
        found = []
        if self._figures.needed_bytes() is None:
            found.append(NO_FIGURES)
        if self._args.listen is None and self._args.gate != "external":
            found.append(NO_GATE)
        elif "reduce_batch" not in self.bridge.handlers():
            found.append(NO_PLACES)
        if self._args.listen is None and await self._server.running() is None:
            found.append(NO_RUNNING)
        return found

    def _report(self, subscriber: AsyncSubscriber) -> None:
        rest, needed = self.bridge.rest_bytes, self._figures.needed_bytes()
        subscriber.report(
            static_bytes=rest,
            kv_bytes=None if rest is None or needed is None else max(0, needed - rest),
            running=None if self._args.listen is None else self._places.inside,
            waiting=None if self._args.listen is None else self._places.waiting,
            batch_limit=self.bridge.full_places,
        )


@contextlib.asynccontextmanager
async def _running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Meanwhile."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
