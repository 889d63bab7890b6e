"""What a bridge has taken out of memory, here and in its file, and what an operation gave back, as an answer.

Must not: call the server, touch the gate. Upstream: taken, client. Downstream: bridge, works.
"""

from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.taken import Taken
from edgeguardd.client import Logical, NoEffect, Released
from edgeguardd.errors import EdgeguardError
from edgeguardd.logs import get_logger

log = get_logger()

Result = Released | Logical | NoEffect | None


class Out:
    """`names` is what load() needs; None: all is in memory. `parked`: out for as long as requests are refused."""

    def __init__(self, taken: Taken, server: str) -> None:
        self._taken = taken
        self._server = server
        self.names: tuple[str, ...] | None = None
        self.parked = False

    def __bool__(self) -> bool:
        """Whether anything is out."""
        return self.names is not None

    def take_over(self) -> bool:
        """What a bridge before this one had taken; whether it had."""
        self.names = self._taken.read()
        return self.names is not None

    def begin(self, *, parked: bool = False) -> None:
        """Before anything is taken: a bridge that dies in the middle is followed by one that brings everything back."""
        self.took((), parked=parked)

    def took(self, names: tuple[str, ...], *, parked: bool = False) -> None:
        """So much is out. Memory comes first: where that cannot be written down, it works as well."""
        self.names, self.parked = names, parked
        try:
            self._taken.write(names)
        except EdgeguardError as error:
            log.warning("bridge_cannot", server=self._server, why=str(error))

    def clear(self) -> None:
        """It is all back."""
        self.names, self.parked = None, False
        self._taken.clear()


def freed_bytes(before: int | None, after: int | None) -> int | None:
    """How much left; None: it was not measured."""
    return None if before is None or after is None else before - after


def measured(before: int | None, after: int | None, *, on_device: bool) -> Result:
    """What was measured, as the answer; None where that cannot be. Raises ServerError where nothing left.

    on_device: it left a device, which a cgroup does not show.
    """
    freed = freed_bytes(before, after)
    if freed is None or (freed <= 0 and on_device):
        return None
    if freed <= 0:
        raise ServerError(f"cannot say that memory was released: {before} bytes were needed before and {after} after")
    return Released(freed)
