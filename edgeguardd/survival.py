"""What the loop says of a callback that raised: a shortage of the machine's, or a defect of the daemon's own.

Must not: end anything; a dead guard guards nobody. Upstream: asyncio's exception handler. Downstream: daemon.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any, Final

# What accept(2) answers while there is no room for another connection. asyncio leaves the socket alone for a second
# then, and says so once for each connection that it would have taken at a time (selector_events, Python 3.11 to 3.13).
REMEDIES: Final = {
    errno.EMFILE: "raise LimitNOFILE= of the daemon",
    errno.ENFILE: "raise fs.file-max",
    errno.ENOBUFS: "see what holds the kernel's memory",
    errno.ENOMEM: "see what holds the kernel's memory",
}


class Survival:
    """An exception handler for the loop. Shortages are told once each, in a sentence; everything else is a defect."""

    def __init__(
        self, on_shortage: Callable[[str], None], on_defect: Callable[[str | None, BaseException | None], None]
    ) -> None:
        self._on_shortage = on_shortage
        self._on_defect = on_defect
        self._said: set[int] = set()

    def __call__(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take one context, as asyncio makes it."""
        error = context.get("exception")
        number = error.errno if isinstance(error, OSError) else None
        if "socket" not in context or number is None or number not in REMEDIES:
            self._on_defect(context.get("message"), error)
        elif number not in self._said:
            self._said.add(number)
            self._on_shortage(f"cannot take a connection for now: {os.strerror(number)}; {REMEDIES[number]}")
