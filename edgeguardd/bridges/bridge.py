"""What edgeguardd's commands do to one server and the gate before it; the same for every server.

    trim_kv_cache     the server's own trim; from `release_from` on, or asked again: shut, drain, release, verify, open;
                      where the server can park what only running requests need, that, while requests are refused
    reduce_batch      fewer places, or the server's own limit
    reject_requests   shut
    unload_model      shut, drain, unload, verify
    restore           what its parameters say: the model first, the gate last

The quick half of every command (the gate, what is wanted) happens before the first wait, whatever else is under way.
The slow half is works.Works, one at a time.

Must not: judge memory pressure, know a server's calls. Upstream: base, places, works. Downstream: run.
"""

import asyncio
import contextlib
from collections.abc import Callable

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import AwayError, ServerError
from edgeguardd.bridges.figures import Figures
from edgeguardd.bridges.out import Out, Result
from edgeguardd.bridges.places import Places
from edgeguardd.bridges.taken import Taken
from edgeguardd.bridges.works import Settings, Wanted, Works
from edgeguardd.client import Command, Level, Logical, NoEffect
from edgeguardd.logs import get_logger

# The commands of one rung are written at once; between the first and the last lies the reading of a few lines.
RUNG_S = 0.2

log = get_logger()


class Bridge:
    """The handlers, and what they share."""

    def __init__(self, server: Server, places: Places, figures: Figures, taken: Taken, settings: Settings) -> None:
        self.server = server
        self._places = places
        self._settings = settings
        self._wanted = Wanted()
        self._out = Out(taken, server.name)
        self._works = Works(server, places, figures, self._out, settings, self._wanted)
        # A trim that cost nothing has been tried since the last restore: edgeguardd asks again only if it did not help.
        self._tried_softly = False

    def handlers(self) -> dict[str, Callable[[Command], object]]:
        """By action, those that the server as it was found can carry out."""
        found: dict[str, Callable[[Command], object]] = {"restore": self.restore}
        if self._settings.refuses:
            found["reject_requests"] = self.reject_requests
        places = self._settings.external or self.full_places is not None
        if self.look.reduces or (self._settings.refuses and places):
            found["reduce_batch"] = self.reduce_batch
        if self.look.trims or self.look.releases or self.look.parks:
            found["trim_kv_cache"] = self.trim
        if self.look.unloads:
            found["unload_model"] = self.unload
        return found

    # Finding out

    async def find(self, look: Look, *, at_rest: bool = False) -> None:
        """Take over what the server was found to be, and bring back what a bridge before this one had taken out.

        at_rest: it was just started, so what it needs now is what it needs at rest.
        """
        self._works.look = look
        self._apply_ratio()
        if at_rest:
            self._works.note_rest()
        self._works.note_left()
        try:
            await self.mend()
        except ServerError as error:
            log.warning("bridge_cannot", server=self.server.name, why=str(error))

    @property
    def look(self) -> Look:
        """What the server was found to be."""
        return self._works.look

    @property
    def full_places(self) -> int | None:
        """The configured batch."""
        return self._settings.places or self.look.places

    @property
    def rest_bytes(self) -> int | None:
        """What the server needs at rest, measured after it was started anew; None: not known."""
        return self._works.rest_bytes

    @property
    def is_busy(self) -> bool:
        """Whether something works on the server, or waits until it may."""
        return self._works.is_busy

    # Commands

    async def trim(self, command: Command) -> Result:
        """Give memory back: what costs nothing first, then what costs those who come a moment of refusal."""
        if self._out or not self._wanted.model:
            return NoEffect()
        if self.look.parks and await self._are_refused(command.level):
            return await self._works.park()
        before = self._works.needed_bytes()
        trimmed = await self._trim_softly()
        if not self._is_release_due(command, before):
            self._tried_softly = True
            return trimmed
        self._places.shut("release", f"the server is {self.server.release_words}")
        try:
            result = await self._works.release(before)
        finally:
            self._places.open("release")
        self._tried_softly = False
        return result

    async def reduce_batch(self, command: Command) -> Result:
        """Let fewer requests in at once."""
        self._wanted.ratio = _share(command.parameters.max_batch_ratio)
        self._apply_ratio()
        await self._works.reduce()
        return NoEffect() if self._settings.external and not self.look.reduces else None

    async def reject_requests(self, command: Command) -> Result:
        """Refuse new requests."""
        self._reject(command.parameters.accept_requests is False)
        return NoEffect() if self._settings.external else None

    async def unload(self, command: Command) -> Result:
        """Take the model out of memory until restored."""
        if command.parameters.model_loaded:
            return await self.restore(command)
        self._wanted.model = False
        # This wakes up a drain that waits for something else, too.
        self._places.shut("unloaded", "the model is out of memory")
        return await self._works.unload()

    async def restore(self, command: Command) -> Result:
        """Allow again what the parameters say."""
        wanted = command.parameters
        self._tried_softly = False
        if wanted.max_batch_ratio is not None:
            self._wanted.ratio = _share(wanted.max_batch_ratio)
            self._apply_ratio()
        if wanted.accept_requests is not None:
            self._reject(not wanted.accept_requests)
        if wanted.model_loaded or self._out.parked:
            self._wanted.model = self._wanted.model or bool(wanted.model_loaded)
            self._places.notify()
            await self._works.bring_back()
        await self._works.reduce()
        return None

    # Without a command

    async def mend(self) -> None:
        """Bring back what is out although it is wanted. Raises ServerError, and may be tried again."""
        await self._works.mend()

    async def close(self) -> None:
        """The bridge ends: what it has taken out of memory comes back, as far as that works. Raises ServerError."""
        self._wanted.model = True
        self._out.parked = False
        await self._works.bring_back()

    # Their parts

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
        if self._settings.external and not self._wanted.rejecting.is_set():
            return False  # nobody would keep requests out meanwhile
        if before is None or self.rest_bytes is None:
            return True
        return before >= self.rest_bytes + self._settings.worth_bytes

    async def _are_refused(self, level: Level) -> bool:
        """Whether requests are refused. Of one rung's commands a trim comes first, and the refusal right behind it."""
        if level < self._settings.release_from:
            return False
        rejecting = self._wanted.rejecting
        if level >= Level.CRITICAL and not rejecting.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(rejecting.wait(), RUNG_S)
        return rejecting.is_set()

    def _reject(self, on: bool) -> None:
        if on:
            self._wanted.rejecting.set()
            self._places.shut("reject", "memory is short")
        else:
            self._wanted.rejecting.clear()
            self._places.open("reject")

    def _apply_ratio(self) -> None:
        full = self.full_places
        self._places.limit(None if full is None else max(1, int(full * self._wanted.ratio)))


def _share(ratio: float | None) -> float:
    return 1.0 if ratio is None else min(max(ratio, 0.0), 1.0)
