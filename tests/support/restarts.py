"""What restarts are tried on: a daemon whose socket outlives it, and memory that trims lower and that grows again.

Must not: judge what came of it (subscriberload does). Upstream: running, faketree. Downstream: component tests, bench.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.faketree import MIB, FakeCgroup
from tests.support.running import Daemon

TARGET = """
[[target]]
name = "llm"
path = "/llm"
[sampling]
fast = 0.05
slow = 0.1
[defaults]
repeat = 0.3
dwell = 0.2
restore_dwell = 0.2
"""
# Under a limit of 1000 MiB above the mark of critical, however much is given back.
FLOOR = 930 * MIB
TOP = 990 * MIB
GROWS_BY = 10 * MIB
GROWS_EVERY_S = 0.05


class Memory:
    """What the cgroup holds: the servers' trims lower it, and it grows again to the top."""

    def __init__(self, cgroup: FakeCgroup) -> None:
        self.cgroup = cgroup
        self.needed = 100 * MIB

    def set(self, needed: int) -> None:
        """So much is needed now."""
        self.needed = needed
        self.cgroup.usage(needed)

    def release(self, wanted: int) -> int:
        """A trim, down to the floor; the bytes that went."""
        freed = max(0, min(wanted, self.needed - FLOOR))
        self.set(self.needed - freed)
        return freed

    async def grow(self) -> None:
        """Requests come, whatever is given back."""
        while True:
            self.set(min(TOP, self.needed + GROWS_BY))
            await asyncio.sleep(GROWS_EVERY_S)


@contextmanager
def activated(place: str, body: str = TARGET) -> Iterator[Daemon]:
    """A daemon that gets its socket from outside, as from systemd: it is there while no daemon is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        daemon = Daemon(place, body, cgroup_root=f"{place}/tree", start=False)
        listener.bind(daemon.socket_path)
        listener.listen(1024)
        daemon.listener = listener
        daemon.start()
        try:
            yield daemon
        finally:
            daemon.stop()
