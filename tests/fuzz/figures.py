"""What a run is judged by: memory of processes, and how long a valid peer waits.

Must not: decide. Upstream: /proc. Downstream: the other modules here.
"""

from msgspec import Struct

# What may be added after the first quarter of a run, when every cache and pool has its size: allocators do not settle
# to the page. What leaks ten bytes a line is found in the full run.
MOST_GROWTH_BYTES = 4 * 2**20


class Figures(Struct, frozen=True):
    """One run. Resident bytes after a quarter of the lines and at the end; the slowest answer a valid peer got."""

    part: str
    lines: int
    took_s: float
    connections: int
    first_bytes: int
    last_bytes: int
    answers: int = 0
    slowest_s: float = 0.0

    @property
    def sentence(self) -> str:
        """For people."""
        first_mib, last_mib = self.first_bytes / 2**20, self.last_bytes / 2**20
        parts = [
            f"{self.part}: {self.lines} lines in {self.took_s:.1f} s",
            f"resident {first_mib:.1f} MiB after a quarter, {last_mib:.1f} MiB at the end",
        ]
        if self.connections:
            parts.append(f"{self.connections} connections")
        if self.answers:
            parts.append(
                f"{self.answers} pings of a valid peer answered, the slowest in {self.slowest_s * 1000:.0f} ms"
            )
        return "; ".join(parts)

    def check(self) -> None:
        """Raises AssertionError when memory has grown."""
        grown = self.last_bytes - self.first_bytes
        assert grown <= MOST_GROWTH_BYTES, f"memory has grown by {grown} bytes: {self.sentence}"


def resident_bytes(pid: int) -> int:
    """VmRSS of a process."""
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
