"""What becomes of threaded clients in a forked child, which has none of the threads and shares the descriptors.

Must not: log or lock: the child of a threaded process may find any lock taken for ever. Upstream: nothing.
Downstream: blocking.
"""

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What has threads."""

    def abandon(self) -> None:
        """In the child: wait for nothing that only the parent's threads would bring."""


_living: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def abandon_in_children(client: Forkable) -> None:
    """Have the client's copies in forked children abandoned at once."""
    _living.add(client)


def _in_child() -> None:
    for client in tuple(_living):
        client.abandon()


os.register_at_fork(after_in_child=_in_child)
