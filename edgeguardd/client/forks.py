"""What becomes of threaded clients in a forked child, which has none of the threads and shares the descriptors.

Must not: log or lock: the child of a threaded process may find any lock taken for ever. Upstream: nothing.
Downstream: blocking.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_in_children: "weakref.WeakKeyDictionary[Any, Callable[[Any], None]]" = weakref.WeakKeyDictionary()


def call_in_children(owner: T, function: Callable[[T], None]) -> None:
    """Call function(owner) in every forked child, before anything else runs there; as long as the owner lives."""
    _in_children[owner] = function


def _after_fork() -> None:
    for owner, function in tuple(_in_children.items()):
        function(owner)


os.register_at_fork(after_in_child=_after_fork)
