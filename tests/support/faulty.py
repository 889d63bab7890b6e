"""`edgeguardd` that is killed (SIGKILL) when it comes to a point for the n-th time: EDGEGUARDD_FAULT=POINT:WHEN:N.

POINT is one of POINTS, WHEN `before` or `after`. Must not: change what the points do. Downstream: component tests.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from edgeguardd.cli import edgeguardd
from edgeguardd.journal import Journal
from edgeguardd.serve.subscribers import SubscriberServer
from edgeguardd.state import StateDirectory

VARIABLE = "EDGEGUARDD_FAULT"

# Each effect that a restart has to make good, by the method that has it.
POINTS: dict[str, tuple[type, str]] = {
    "written": (Journal, "write"),
    "told": (SubscriberServer, "deliver"),
    "welcomed": (SubscriberServer, "welcome"),
    "announced": (SubscriberServer, "announce"),
    "heard": (SubscriberServer, "heard"),
    "turned": (Journal, "turn"),
    "recorded": (StateDirectory, "save"),
    "settled": (Journal, "settle"),
}


def arm(fault: str) -> None:
    """Make the point deadly."""
    point, when, count = fault.split(":")
    owner, name = POINTS[point]
    left = int(count)
    real: Callable[..., Any] = getattr(owner, name)

    def die() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(real)
    def deadly(*args: Any, **options: Any) -> Any:
        if when == "before":
            die()
        result = real(*args, **options)
        if when == "after":
            die()
        return result

    setattr(owner, name, deadly)


if __name__ == "__main__":
    if os.environ.get(VARIABLE):
        arm(os.environ[VARIABLE])
    sys.exit(edgeguardd.main())
