"""What happened to a cgroup that was removed before its last counts were read.

Must not: say whose a kill was when it cannot know. Upstream: tree. Downstream: sampler.
"""

import contextlib
import os

from edgeguardd.core import kernelfmt
from edgeguardd.errors import EdgeguardError
from edgeguardd.kernel.cgroupfs import EVENTS, READ_BYTES, shown
from edgeguardd.kernel.tree import Place


class Neighbourhood:
    """The kills in the parent of a target's cgroup, the target's own included, as memory.events of the parent counts.

    A cgroup that is removed takes its last counts with it: reading them gives ENODEV. Its parent still has them, among
    those of the other children.
    """

    def __init__(self, parent: Place) -> None:
        """`parent` is present. The root cgroup, and a kernel without the controller there, count nothing."""
        self.path = shown(parent.path)
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = os.open(EVENTS, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent.dir_fd)
        self.explained = self.kills()

    def kills(self) -> int | None:
        """The kills counted so far; None: nobody counts here."""
        if self._fd is None:
            return None
        try:
            return kernelfmt.memory_events(os.pread(self._fd, READ_BYTES, 0), self.path).oom_kill
        except (OSError, EdgeguardError):
            return None  # the parent went as well, or cannot be read: then nothing is claimed

    def explain(self, kills_before: int | None, own_kills: int) -> None:
        """The target's own counters have been read, own_kills more than before; kills_before stood here just before.

        A kill that fell between the two readings is in own_kills and not in kills_before: it is explained as well.
        """
        if kills_before is None or self.explained is None:
            self.explained = kills_before
        else:
            self.explained = max(kills_before, self.explained + own_kills)

    def unexplained(self) -> int:
        """Kills since the target's own were last read and explained."""
        now = self.kills()
        return 0 if now is None or self.explained is None else max(0, now - self.explained)

    def close(self) -> None:
        """Close the descriptor. Twice is fine."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
