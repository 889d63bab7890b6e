"""What the server's cgroup needs, as the daemon counts it: the bytes that an ack claims are measured, not believed.

Must not: judge, or watch (the daemon does). Upstream: kernel.cgroupfs, core.kernelfmt. Downstream: bridge.
"""

from edgeguardd.core import kernelfmt
from edgeguardd.kernel import cgroupfs

STAT_READ_BYTES = 16384


class Figures:
    """Needed bytes of one cgroup. `path` is below the root, "/system.slice/llama.service"; None: not known (yet)."""

    def __init__(self, root: cgroupfs.CgroupRoot | None, path: str | None) -> None:
        self._root = root
        self.path = path

    def needed_bytes(self) -> int | None:
        """As edgeguardd counts it; 0 where the cgroup is gone, as a stopped unit's is; None: it cannot be known."""
        if self._root is None or self.path is None:
            return None
        try:
            # Opened each time: a restarted unit has a new cgroup of the same name.
            with open(f"{self._root.full(self.path)}/{cgroupfs.STAT}", "rb") as file:
                return kernelfmt.needed_bytes(kernelfmt.memory_stat(file.read(STAT_READ_BYTES)))
        except (FileNotFoundError, ProcessLookupError):
            return 0
        except OSError:
            return None

    def procs_file(self) -> str | None:
        """The file that moves a process in."""
        return None if self._root is None or self.path is None else f"{self._root.full(self.path)}/cgroup.procs"
