"""When programs that only heed memory pressure are told: at once when it gets worse, then again as a trim is repeated.

Must not: read a clock, know who listens. Upstream: model. Downstream: target, engine.
Such programs answer nothing, so that nobody is asked for more because of them.
"""

from msgspec import Struct

from edgeguardd.core.model import Level

# For the machine, which has no policy of its own. systemd's own watches tell no oftener than this either: its window
# is 2 s (MEMORY_PRESSURE_DEFAULT_WINDOW_USEC, systemd 254).
MACHINE_REPEAT_S = 2.0


class Hint(Struct):
    """The last time that the pressure of something was told."""

    level: Level = Level.NORMAL
    at: float = 0.0

    def due(self, level: Level, repeat_s: float, now: float) -> bool:
        """Whether to tell it now; then it counts as told. What comes and goes within repeat_s is told once."""
        rested = now >= self.at + repeat_s
        if level is Level.NORMAL:
            self.level = Level.NORMAL if rested else self.level
            return False
        if not rested and level <= self.level:
            return False
        self.level, self.at = level, now
        return True
