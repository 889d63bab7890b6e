"""What one server's file says of its server: what it is, what it can give up, and by which calls in which order.

Must not: touch the gate, measure memory, judge pressure: Bridge does. Upstream: calls, supervise. Downstream: bridge,
the servers' files.
"""

import abc
import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from msgspec import Struct

from edgeguardd.bridges.calls import Http, ServerError
from edgeguardd.bridges.supervise import Keeper

POLL_S = 0.25
# Of the time that an operation has, so that what is said in the end is what was waited for, not only that it was long.
UNTIL_SHARE = 0.9


class UndoneError(ServerError):
    """It did not work, and everything is as it was before."""


class Look(Struct, frozen=True):
    """What a server is and can do, as it was found.

    version   for people; None: it does not say
    places    requests at once that it is configured for; None: it does not say
    trims     trim() gives something up while requests run
    releases  release() gives memory back, once nobody is inside
    unloads   unload() and load() work
    parks     park() gives up what only running requests need, for as long as none may run; load() brings it back
    on_device its memory is the GPU's, which its cgroup does not show: that nothing leaves the cgroup proves nothing
    reduces   reduce() lowers a live limit of the server's own; else the gate's places do it
    cannot    what is not possible with the flags that were found, a sentence each, with the remedy
    """

    version: str | None = None
    places: int | None = None
    trims: bool = False
    releases: bool = False
    unloads: bool = False
    parks: bool = False
    on_device: bool = False
    reduces: bool = False
    cannot: tuple[str, ...] = ()


class Server(abc.ABC):
    """One inference server, reached over HTTP. One operation runs at a time; look() and running() beside it."""

    # What the log calls it.
    name: ClassVar[str]
    # GET or HEAD of these paths, without a query, neither costs memory nor wakes the server: they pass a shut gate.
    harmless: ClassVar[frozenset[str]] = frozenset({"/health", "/metrics", "/v1/models"})
    # Calls that only the bridge and the operator should make: the gate answers 403, whoever asks.
    operators: ClassVar[frozenset[str]] = frozenset()
    # A release ends with the server ready again, so the gate opens after it; a restart loses what it had in memory.
    release_words: ClassVar[str] = "giving memory back"

    def __init__(self, http: Http, options: argparse.Namespace, keeper: Keeper | None, patience_s: float) -> None:
        self.http = http
        self.options = options
        self.keeper = keeper
        self.patience_s = patience_s
        # What release() or unload() has taken out, or begun to, and load() has not brought back yet.
        self.out: tuple[str, ...] | None = None
        # The cgroup.procs file of the server's cgroup, once it is known.
        self.procs_file: Callable[[], str | None] = lambda: None

    @abc.abstractmethod
    async def look(self) -> Look:
        """Find out what it is and can do, without disturbing it. Raises AwayError while it does not answer."""

    async def trim(self) -> None:
        """Drop cached state while requests run, disturbing none. Its own books only: the framework acks `logical`."""
        raise ServerError(f"cannot trim {self.name} while requests run")

    async def release(self) -> None:
        """Give memory back to the kernel and be ready again. The gate is shut and nobody inside."""
        raise ServerError(f"cannot have {self.name} give memory back")

    async def reload(self) -> None:
        """A release() of those that have to unload for it; what does not come back stays in `out`."""
        self.out = await self.unload()
        await self.load(self.out)
        self.out = None

    async def park(self) -> tuple[str, ...]:
        """Give up the KV cache or the like until load(). Returns what load() needs. The gate is shut, nobody inside."""
        raise ServerError(f"cannot park {self.name}'s cache")

    async def deepen(self) -> tuple[str, ...] | None:
        """From parked to unloaded; what load() needs for all that is out then. None: it cannot without coming back."""
        return None

    async def unload(self) -> tuple[str, ...]:
        """Take all models out of memory and verify it. Returns what load() needs. The gate is shut."""
        raise ServerError(f"cannot unload {self.name}")

    async def load(self, taken: tuple[str, ...]) -> None:  # noqa: ARG002 - for those that can
        """Bring back what unload() took, until it answers. Harmless where it is there already."""
        raise ServerError(f"cannot load {self.name}")

    async def reduce(self, ratio: float) -> None:
        """Set the server's own live limit to this share of the configured one."""
        raise ServerError(f"cannot set a limit of {self.name} to {ratio:g}")

    async def running(self) -> int | None:
        """Requests inside, as the server counts them; None: it does not say. Only asked with an external gate."""
        return None

    async def until(self, condition: Callable[[], Awaitable[bool]], what: str, poll_s: float = POLL_S) -> None:
        """Poll a condition until it holds. Raises ServerError when it takes too long: "cannot say that {what}"."""
        limit_s = UNTIL_SHARE * self.patience_s
        try:
            async with asyncio.timeout(limit_s):
                while not await condition():  # noqa: ASYNC110 - it is another process's state
                    await asyncio.sleep(poll_s)
        except TimeoutError:
            raise ServerError(f"cannot say that {what}: not within {limit_s:g} s; see the server") from None
