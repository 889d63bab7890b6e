"""A time limit on a block of code, so that no part can keep the others waiting.

Must not: be used from two threads or nested (there is one alarm). Upstream: __main__. Downstream: setitimer(2).
"""

import contextlib
import signal
from collections.abc import Iterator


class TimeUpError(Exception):
    """The block was not done in time."""


@contextlib.contextmanager
def within(minutes: float) -> Iterator[None]:
    """Raises TimeUpError in the block, wherever it is, when its time is up; before it, when there is none."""
    if minutes <= 0:
        raise TimeUpError("no time is left; give --minutes more")

    def up(*_: object) -> None:
        raise TimeUpError(f"given up after {minutes:.1f} min")

    before = signal.signal(signal.SIGALRM, up)
    signal.setitimer(signal.ITIMER_REAL, minutes * 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
