"""Eight hours of traffic in a few minutes: memory and descriptors of a daemon under mixed load, and whether they grow.

The load and the looks are the benchmarks' own (tests/bench/soaker.py, soak.py): cgroups come and go, memory moves,
subscribers join, obey, refuse and vanish, pages are scraped, the configuration is read again. What is simulated is one
such act a second for eight hours; here they come as fast as the minutes given ask for.
Must not: make load or look by itself. Upstream: __main__. Downstream: tests.bench.soak, tests.support.fits.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from edgeguardd.series import DEPARTED_VISIBLE_S
from tests.bench.soak import Soaked, soak
from tests.support.fits import Line, line

HOURS = 8
ACTS_PER_HOUR = 3600
# Until then what is bounded fills: the allocator's pools, and series of departed targets, kept for five minutes.
SETTLED_AFTER = 0.45
SETTLED_AFTER_S = DEPARTED_VISIBLE_S + 30.0
# So much more is asked for than eight hours: what comes before it has settled is seven of them (resident memory rose by
# 0.7 MiB until then, and by 18 KiB an hour after it), and a busy machine may fall behind.
HASTE = 2.0
KIB = 1024
# What eight hours may add, at the upper end of what the fit allows for (95 %). The allocator goes up and down by some
# hundred KiB; a leak of 40 bytes an act would be found.
ALLOWED_KIB = 1024
# Room for some MiB is made at the start (edgeguardd.kernel.heap), in which a leak would not show; what is in use does.
# Who is there makes it go up and down by some thousand; a block an act would be found.
ALLOWED_BLOCKS = HOURS * ACTS_PER_HOUR * 3 // 4


@dataclass(frozen=True)
class Growth:
    """What a soak came to: acts, and by how much memory and descriptors grow in a simulated hour."""

    acts: int
    commands: int
    defects: int
    looks: int
    first_bytes: int
    last_bytes: int
    resident_kib: Line
    blocks: Line
    descriptors: Line
    left_open: int

    @property
    def hours(self) -> float:
        """So many hours of an act a second."""
        return self.acts / ACTS_PER_HOUR

    @property
    def most_kib(self) -> float:
        """What eight hours add at most, with a certainty of 97.5 % (the upper end of the 95 % interval)."""
        return HOURS * max(0.0, self.resident_kib.slope + self.resident_kib.within)

    @property
    def most_blocks(self) -> float:
        """As most_kib, of blocks in use."""
        return HOURS * max(0.0, self.blocks.slope + self.blocks.within)

    @property
    def right(self) -> bool:
        """Whether nothing grows. Too little of a series to be sure of that is wrong as well.

        Descriptors go up and down with who is there, so they are judged by what is left when nobody is.
        """
        flat = self.most_kib <= ALLOWED_KIB and self.most_blocks <= ALLOWED_BLOCKS and self.left_open <= 0
        return flat and self.defects == 0 and self.hours >= HOURS


def run(minutes: float, seed: int, tell: Callable[[str], None]) -> Growth:
    """The soak, as long as it is given."""
    seconds = 60 * minutes
    tempo = HASTE * HOURS * ACTS_PER_HOUR / seconds
    return judged(asyncio.run(soak(seconds, tempo, seed, tell)), seconds)


def judged(soaked: Soaked, seconds: float) -> Growth:
    """The lines through what is settled, against simulated hours."""
    hours_per_second = soaked.acts / ACTS_PER_HOUR / seconds
    settled_at_s = max(SETTLED_AFTER * seconds, min(SETTLED_AFTER_S, 0.6 * seconds))
    settled = [look for look in soaked.looks if look.at_s >= settled_at_s]
    return Growth(
        acts=soaked.acts,
        commands=soaked.commands,
        defects=soaked.defects,
        looks=len(soaked.looks),
        first_bytes=settled[0].resident_bytes,
        last_bytes=settled[-1].resident_bytes,
        resident_kib=line([(look.at_s * hours_per_second, look.resident_bytes / KIB) for look in settled]),
        blocks=line([(look.at_s * hours_per_second, float(look.blocks)) for look in settled]),
        descriptors=line([(look.at_s * hours_per_second, float(look.descriptors)) for look in settled]),
        left_open=soaked.opened,
    )
