"""What works on the server itself, one at a time. Each drains, measures, and gives up when a later command wants
something else.

    release   drain ─▶ the server's release ─▶ measure
    park      drain ─▶ the server's park ─▶ measure
    unload    drain, cut off who is left ─▶ the server's unload ─▶ measure; from parked, the server's deepen
    back      the server's load ─▶ open

What is out of memory is written down before it is taken out, so that whoever comes after this bridge brings it back; a
load that fails is tried again (mend).

Must not: decide what is wanted. Upstream: base, drain, places, figures, out. Downstream: bridge.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from msgspec import Struct

from edgeguardd.bridges.base import Look, Server, UndoneError
from edgeguardd.bridges.calls import RefusedError, ServerError
from edgeguardd.bridges.drain import Drain
from edgeguardd.bridges.figures import Figures
from edgeguardd.bridges.out import Out, Result, freed_bytes, measured
from edgeguardd.bridges.places import Places
from edgeguardd.client import Level, NoEffect
from edgeguardd.logs import get_logger

log = get_logger()

T = TypeVar("T")


class Settings(Struct, frozen=True):
    """How a bridge works.

    places         requests inside at once while nothing is reduced; None: what the server says, else no bound
    drain_s        how long those inside may take to end
    patience_s     how long a release, an unload or a load may take
    release_from   below this level a trim costs no request anything, until it is asked for again
    worth_bytes    a release that would bring less than this is not made
    external       no gate of our own: another proxy refuses, by asking edgeguardd's /admit, or nobody does
    refuses        somebody does
    """

    places: int | None = None
    drain_s: float = 60.0
    patience_s: float = 120.0
    release_from: Level = Level.HIGH
    worth_bytes: int = 32 * 1024 * 1024
    external: bool = False
    refuses: bool = True


class Wanted:
    """What the daemon's commands come to: what is in force now. `rejecting` can be waited for."""

    def __init__(self) -> None:
        self.model = True
        self.ratio = 1.0
        self.rejecting = asyncio.Event()

    @property
    def may_park(self) -> bool:
        """Nothing needs the cache while nobody is let in."""
        return self.rejecting.is_set() and self.model


class SupersededError(ServerError):
    """A later command wants the opposite of what was under way."""


class Works:
    """The server, what is out of its memory, and what was measured. `rest_bytes`: needed at rest; None: not known."""

    def __init__(
        self, server: Server, places: Places, figures: Figures, out: Out, settings: Settings, wanted: Wanted
    ) -> None:
        self.look = Look()
        self.rest_bytes: int | None = None
        self._server = server
        self._places = places
        self._drain = Drain(server, places, settings.drain_s, external=settings.external)
        self._figures = figures
        self._out = out
        self._settings = settings
        self._wanted = wanted
        self._lock = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether something works on the server, or waits until it may."""
        return self._lock.locked()

    def needed_bytes(self) -> int | None:
        """What the server's cgroup needs now."""
        return self._figures.needed_bytes()

    def note_rest(self) -> None:
        """It was just started: what it needs now is what it needs at rest."""
        self.rest_bytes = self.needed_bytes()

    def note_left(self) -> None:
        """Take over what a bridge before this one had taken out; mend() brings it back."""
        if (self.look.unloads or self.look.parks) and self._out.take_over():
            self._places.shut("unloaded", "the model is out of memory")

    # Each of these waits for its turn

    async def release(self, before: int | None) -> Result:
        """Have the server give memory back and be ready again. The gate is shut."""
        async with self._lock:
            self._give_up_unless(self._wanted.model)
            began = time.monotonic()
            await self._drain.wait(lambda: not self._wanted.model, cut=False)
            self._give_up_unless(self._wanted.model)
            drained = time.monotonic()
            self._out.begin()
            try:
                await self._within(self._server.release(), "release memory")
            except BaseException:  # cancelled, too, a model may be half out of memory: what is out has to be known
                self._keep_out(self._server.out)
                raise
            self._out.clear()
            after = self.rest_bytes = self.needed_bytes()
            log.info(
                "bridge_released",
                server=self._server.name,
                freed_bytes=freed_bytes(before, after),
                drain_s=round(drained - began, 3),
                release_s=round(time.monotonic() - drained, 3),
            )
            return self._measured(before, after)

    async def park(self) -> Result:
        """Have the server give up what only running requests need. Requests are refused."""
        async with self._lock:
            if self._out:
                return NoEffect()
            before = self.needed_bytes()
            began = time.monotonic()
            await self._drain.wait(lambda: not self._wanted.may_park, cut=False)
            self._give_up_unless(self._wanted.may_park)
            self._places.shut("parked", "memory is short")
            self._out.begin(parked=True)
            try:
                self._out.took(await self._within(self._server.park(), "park its cache"), parked=True)
            except (RefusedError, UndoneError):
                # Everything is where it was. What became of one that does not answer, restore sets right.
                self._out.clear()
                self._places.open("parked")
                raise
            after = self.needed_bytes()
            took_s = round(time.monotonic() - began, 3)
            log.info("bridge_parked", server=self._server.name, freed_bytes=freed_bytes(before, after), took_s=took_s)
            return self._measured(before, after)

    async def unload(self) -> Result:
        """Take everything out of memory. The gate is shut."""
        async with self._lock:
            if self._out and not self._out.parked:
                return NoEffect()
            self._give_up_unless(not self._wanted.model)
            before = self.needed_bytes()
            began = time.monotonic()
            if self._out.parked:
                names, drained = await self._within(self._server.deepen(), "unload"), True
                if names is None:
                    return NoEffect()
                self._out.took(names)
            else:
                drained = await self._unload_all()
            after = self.needed_bytes()
            log.info(
                "bridge_unloaded",
                server=self._server.name,
                freed_bytes=freed_bytes(before, after),
                drained=drained,
                took_s=round(time.monotonic() - began, 3),
            )
            return self._measured(before, after)

    async def bring_back(self) -> None:
        """Load what is out, and open; what is parked only once requests are let in."""
        async with self._lock:
            self._give_up_unless(self._wanted.model)
            if self._out.parked and self._wanted.rejecting.is_set():
                self._places.open("unloaded")
                return
            if self._out.names is not None:
                began = time.monotonic()
                await self._within(self._server.load(self._out.names), "load")
                self._out.clear()
                self.note_rest()
                log.info("bridge_loaded", server=self._server.name, took_s=round(time.monotonic() - began, 3))
            self._places.open("parked")
            self._places.open("unloaded")

    async def reduce(self) -> None:
        """Have the server set its own limit to what is wanted now; what is out gets that when it is back."""
        if not self.look.reduces:
            return
        async with self._lock:
            if not self._out:
                await self._within(self._server.reduce(self._wanted.ratio), "set its limit")

    async def mend(self) -> None:
        """Bring back what is out although it is wanted: after a load that failed, or a bridge that died.

        Raises ServerError when that does not work this time either.
        """
        if self._out and self._wanted.model and not (self._out.parked and self._wanted.rejecting.is_set()):
            await self.bring_back()
            await self.reduce()

    # Their parts

    async def _unload_all(self) -> bool:
        """Whether all who were inside had ended by themselves."""
        drained = await self._drain.wait(lambda: self._wanted.model, cut=True)
        self._give_up_unless(not self._wanted.model)
        self._out.begin()
        try:
            self._out.took(await self._within(self._server.unload(), "unload"))
        except BaseException:  # cancelled, too
            # In part, perhaps: what is known to be out, or else everything, comes back with the restore.
            self._out.took(self._server.out or ())
            raise
        finally:
            self._server.out = None
        return drained

    def _keep_out(self, out: tuple[str, ...] | None) -> None:
        """What a release could not load again is out until it is: requests would only fail."""
        self._server.out = None
        if out is None:
            self._out.clear()
            return
        self._out.took(out)
        self._places.shut("unloaded", "the model is out of memory")

    async def _within(self, work: Awaitable[T], what: str) -> T:
        limit_s = self._settings.patience_s
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError:
            name = self._server.name
            raise ServerError(f"cannot say that {name} did {what}: not within {limit_s:g} s; raise --within") from None

    def _measured(self, before: int | None, after: int | None) -> Result:
        return measured(before, after, on_device=self.look.on_device)

    def _give_up_unless(self, still_wanted: bool) -> None:
        if not still_wanted:
            raise SupersededError("cannot go on: a later command wants the opposite")
