"""The descriptors of the test's own process: what a shell has opened is closed when it is done.

Must not: count what is open at one moment for a leak. Something that an earlier test has left to a thread or to the
collector may open or close one meanwhile; a leak stays. Upstream: unit tests. Downstream: wait.
"""

import os

from tests.support.wait import eventually


def open_now() -> int:
    """How many are open."""
    return len(os.listdir("/proc/self/fd"))


def none_left(before: int) -> None:
    """Fails unless there come to be no more than there were."""
    eventually(lambda: open_now() <= before, what=f"no more than {before} descriptors")
