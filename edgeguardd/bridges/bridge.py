"""What edgeguardd's commands do to one server and the gate before it; the same for every server.

    trim_kv_cache     the server's own trim; from `release_from` on, or asked again: shut, drain, release, verify, open;
                      where the server can park what only running requests need, that, while requests are refused
    reduce_batch      fewer places, or the server's own limit
    reject_requests   shut
    unload_model      shut, drain, unload, verify
    restore           what its parameters say: the model first, the gate last

The quick half of every command (the gate, what is wanted) happens before the first wait, whatever else is under way.
The slow half, one at a time, works on the server, and gives up when a later command wants something else.

Must not: judge memory pressure, know a server's calls. Upstream: base, places, figures, taken. Downstream: run.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec import Struct

from edgeguardd.bridges.base import Look, Server, UndoneError
from edgeguardd.bridges.calls import AwayError, RefusedError, ServerError
from edgeguardd.bridges.drain import Drain
from edgeguardd.bridges.figures import Figures
from edgeguardd.bridges.out import Out, Result, freed_bytes, measured
from edgeguardd.bridges.places import Places
from edgeguardd.bridges.taken import Taken
from edgeguardd.client import Command, Level, Logical, NoEffect
from edgeguardd.logs import get_logger

# The commands of one rung are written at once; between the first and the last lies the reading of a few lines.
RUNG_S = 0.2

log = get_logger()

T = TypeVar("T")


class Settings(Struct, frozen=True):
    """How a bridge works.

    places         requests inside at once while nothing is reduced; None: what the server says, else no bound
    drain_s        how long those inside may take to end
    patience_s     how long a release, an unload or a load may take
    release_from   below this level a trim costs no request anything, until it is asked for again
    worth_bytes    a release that would bring less than this is not made
    external       another proxy refuses for us, by asking edgeguardd's /admit
    """

    places: int | None = None
    drain_s: float = 60.0
    patience_s: float = 120.0
    release_from: Level = Level.HIGH
    worth_bytes: int = 32 * 1024 * 1024
    external: bool = False


class SupersededError(ServerError):
    """A later command wants the opposite of what was under way."""


class Bridge:
    """The handlers, and what they share. `subscribed_level` tells what the daemon's level is."""

    def __init__(self, server: Server, places: Places, figures: Figures, taken: Taken, settings: Settings) -> None:
        self.look = Look()
        self.server = server
        self._places = places
        self._drain = Drain(server, places, settings.drain_s, external=settings.external)
        self._figures = figures
        self._settings = settings
        # One at a time works on the server.
        self._working = asyncio.Lock()
        self._wants_model = True
        self._out = Out(taken)
        self._rejecting = asyncio.Event()
        self._ratio = 1.0
        # A trim that cost nothing has been tried since the last restore: edgeguardd asks again only if it did not help.
        self._tried_softly = False
        self._rest_bytes: int | None = None

    def handlers(self) -> dict[str, Callable[[Command], object]]:
        """By action, those that the server as it was found can carry out."""
        found: dict[str, Callable[[Command], object]] = {
            "reject_requests": self.reject_requests,
            "restore": self.restore,
        }
        if self.look.reduces or self._settings.external or self.full_places is not None:
            found["reduce_batch"] = self.reduce_batch
        if self.look.trims or self.look.releases or self.look.parks:
            found["trim_kv_cache"] = self.trim
        if self.look.unloads:
            found["unload_model"] = self.unload
        return found

    # Finding out

    async def find(self, look: Look, *, at_rest: bool = False) -> None:
        """Take over what the server was found to be, and bring back what a bridge before this one had taken.

        at_rest: it was just started, so what it needs now is what it needs at rest.
        """
        self.look = look
        self._apply_ratio()
        if at_rest:
            self._rest_bytes = self._figures.needed_bytes()
        if (look.unloads or look.parks) and self._out.take_over():
            self._places.shut("unloaded", "the model is out of memory")
            await self._bring_back()

    @property
    def full_places(self) -> int | None:
        """The configured batch."""
        return self._settings.places or self.look.places

    @property
    def rest_bytes(self) -> int | None:
        """What the server needs at rest, measured after it was started anew; None: not known."""
        return self._rest_bytes

    @property
    def is_busy(self) -> bool:
        """Whether something works on the server, or waits until it may."""
        return self._working.locked()

    # Commands

    async def trim(self, command: Command) -> Result:
        """Give memory back: what costs nothing first, then what costs those who come a moment of refusal."""
        if self._out or not self._wants_model:
            return NoEffect()
        if self.look.parks and await self._are_refused(command.level):
            async with self._working:
                return await self._park()
        before = self._figures.needed_bytes()
        trimmed = await self._trim_softly()
        if not self._is_release_due(command, before):
            self._tried_softly = True
            return trimmed
        self._places.shut("release", f"the server is {self.server.release_words}")
        try:
            async with self._working:
                return await self._release(before)
        finally:
            self._places.open("release")

    async def reduce_batch(self, command: Command) -> Result:
        """Let fewer requests in at once."""
        self._ratio = _share(command.parameters.max_batch_ratio)
        self._apply_ratio()
        if self.look.reduces:
            await self.server.reduce(self._ratio)
            return None
        return NoEffect() if self._settings.external else None

    async def reject_requests(self, command: Command) -> Result:
        """Refuse new requests."""
        self._reject(command.parameters.accept_requests is False)
        return NoEffect() if self._settings.external else None

    async def unload(self, command: Command) -> Result:
        """Take the model out of memory until restored."""
        if command.parameters.model_loaded:
            return await self.restore(command)
        self._wants_model = False
        self._places.shut("unloaded", "the model is out of memory")
        self._places.notify()
        async with self._working:
            if self._out:
                return await self._deepen() if self._out.parked else NoEffect()
            return await self._unload()

    async def restore(self, command: Command) -> Result:
        """Allow again what the parameters say."""
        wanted = command.parameters
        self._tried_softly = False
        if wanted.max_batch_ratio is not None:
            self._ratio = _share(wanted.max_batch_ratio)
            self._apply_ratio()
        if wanted.accept_requests is not None:
            self._reject(not wanted.accept_requests)
        if wanted.model_loaded or self._out.parked:
            self._wants_model = self._wants_model or bool(wanted.model_loaded)
            self._places.notify()
            async with self._working:
                await self._bring_back()
        if self.look.reduces:
            await self.server.reduce(self._ratio)
        return None

    async def close(self) -> None:
        """The bridge ends: what it has taken out of memory comes back, as far as that works."""
        self._wants_model = True
        self._out.parked = False
        async with self._working:
            await self._bring_back()

    # The slow halves: inside self._working

    async def _release(self, before: int | None) -> Result:
        self._give_up_unless(self._wants_model)
        began = time.monotonic()
        await self._drain.wait(lambda: not self._wants_model, cut=False)
        self._give_up_unless(self._wants_model)
        drained = time.monotonic()
        self._out.begin()
        try:
            await self._within(self.server.release(), "release memory")
        except ServerError:
            self._keep_out(self.server.out)
            raise
        self._out.clear()
        self._tried_softly = False
        after = self._rest_bytes = self._figures.needed_bytes()
        ended = time.monotonic()
        log.info(
            "bridge_released",
            server=self.server.name,
            freed_bytes=freed_bytes(before, after),
            drain_s=round(drained - began, 3),
            release_s=round(ended - drained, 3),
        )
        return self._measured(before, after)

    def _keep_out(self, out: tuple[str, ...] | None) -> None:
        """What a release could not load again is out until it is restored: requests would only fail."""
        self.server.out = None
        if out is None:
            self._out.clear()
            return
        self._out.took(out)
        self._places.shut("unloaded", "the model is out of memory")

    async def _park(self) -> Result:
        if self._out:
            return NoEffect()
        before = self._figures.needed_bytes()
        began = time.monotonic()
        await self._drain.wait(lambda: not self._may_park, cut=False)
        self._give_up_unless(self._may_park)
        self._places.shut("parked", "memory is short")
        self._out.begin(parked=True)
        try:
            self._out.took(await self._within(self.server.park(), "park its cache"), parked=True)
        except (RefusedError, UndoneError):
            # Everything is where it was. What became of one that does not answer, restore sets right.
            self._out.clear()
            self._places.open("parked")
            raise
        after = self._figures.needed_bytes()
        took_s = round(time.monotonic() - began, 3)
        log.info("bridge_parked", server=self.server.name, freed_bytes=freed_bytes(before, after), took_s=took_s)
        return self._measured(before, after)

    @property
    def _may_park(self) -> bool:
        """Nothing needs the cache while nobody is let in."""
        return self._rejecting.is_set() and self._wants_model

    async def _unload(self) -> Result:
        self._give_up_unless(not self._wants_model)
        before = self._figures.needed_bytes()
        began = time.monotonic()
        drained = await self._drain.wait(lambda: self._wants_model, cut=True)
        self._give_up_unless(not self._wants_model)
        self._out.begin()
        self._out.took(await self._within(self.server.unload(), "unload"))
        return self._unloaded(before, drained, began)

    async def _deepen(self) -> Result:
        """From parked to unloaded, where the server can: nobody is inside."""
        self._give_up_unless(not self._wants_model)
        before = self._figures.needed_bytes()
        began = time.monotonic()
        names = await self._within(self.server.deepen(), "unload")
        if names is None:
            return NoEffect()
        self._out.took(names)
        return self._unloaded(before, True, began)

    def _unloaded(self, before: int | None, drained: bool, began: float) -> Result:
        after = self._figures.needed_bytes()
        log.info(
            "bridge_unloaded",
            server=self.server.name,
            freed_bytes=freed_bytes(before, after),
            drained=drained,
            took_s=round(time.monotonic() - began, 3),
        )
        return self._measured(before, after)

    async def _bring_back(self) -> None:
        self._give_up_unless(self._wants_model)
        if self._out.parked and self._rejecting.is_set():
            self._places.open("unloaded")
            return  # for as long as requests are refused, it stays parked
        if self._out.names is not None:
            began = time.monotonic()
            await self._within(self.server.load(self._out.names), "load")
            self._out.clear()
            self._rest_bytes = self._figures.needed_bytes()
            log.info("bridge_loaded", server=self.server.name, took_s=round(time.monotonic() - began, 3))
        self._places.open("parked")
        self._places.open("unloaded")

    async def _within(self, work: Awaitable[T], what: str) -> T:
        limit_s = self._settings.patience_s
        try:
            async with asyncio.timeout(limit_s):
                return await work
        except TimeoutError:
            name = self.server.name
            raise ServerError(f"cannot say that {name} did {what}: not within {limit_s:g} s; raise --within") from None

    def _give_up_unless(self, still_wanted: bool) -> None:
        if not still_wanted:
            raise SupersededError("cannot go on: a later command wants the opposite")

    # Smaller things

    async def _trim_softly(self) -> Result:
        if not self.look.trims:
            return NoEffect()
        try:
            await self.server.trim()
        except ServerError as error:
            if not self.look.releases or isinstance(error, AwayError):
                raise
            log.warning("bridge_cannot", server=self.server.name, why=str(error))
            return NoEffect()
        return Logical()

    def _is_release_due(self, command: Command, before: int | None) -> bool:
        if not self.look.releases or (command.level < self._settings.release_from and not self._tried_softly):
            return False
        if self._settings.external and not self._rejecting.is_set():
            return False  # nobody would keep requests out meanwhile
        if before is None or self._rest_bytes is None:
            return True
        return before >= self._rest_bytes + self._settings.worth_bytes

    def _measured(self, before: int | None, after: int | None) -> Result:
        return measured(before, after, on_device=self.look.on_device)

    async def _are_refused(self, level: Level) -> bool:
        """Whether requests are refused. Of one rung's commands a trim comes first, and the refusal right behind it."""
        if level < self._settings.release_from:
            return False
        if level >= Level.CRITICAL and not self._rejecting.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rejecting.wait(), RUNG_S)
        return self._rejecting.is_set()

    def _reject(self, on: bool) -> None:
        if on:
            self._rejecting.set()
            self._places.shut("reject", "memory is short")
        else:
            self._rejecting.clear()
            self._places.open("reject")

    def _apply_ratio(self) -> None:
        full = self.full_places
        self._places.limit(None if full is None else max(1, int(full * self._ratio)))


def _share(ratio: float | None) -> float:
    return 1.0 if ratio is None else min(max(ratio, 0.0), 1.0)
