"""When regular looks fall due: on common beats, so that those of machine and targets wake the daemon once together.

Must not: read a clock. Upstream: nothing. Downstream: machine, sampler, keeper. Pure.
"""

import math

BEAT_S = 1.0
# A look costs about 0.2 ms: so many on one beat hold up a wake-up by less than a reaction may take.
LOOKS_A_BEAT = 16
# Beats of the others lie between, so many to each.
PHASES = 16
# asyncio may call back a moment early, by the resolution of its clock; a beat that is so near counts as over.
EARLY_S = 0.01


def due(last: float, interval_s: float, number: int = 0) -> float:
    """When to look again: at most interval_s after the last time, and on a beat if it is no shorter than one.

    Twice the interval keeps to every second beat, and so on: those who look seldom wake nobody whom those who look more
    often do not wake anyway, and meet each other. `number`: of whoever looks; those beyond LOOKS_A_BEAT have a beat
    beside the first ones'.
    """
    if interval_s < BEAT_S:
        return last + interval_s
    phase = number // LOOKS_A_BEAT % PHASES * BEAT_S / PHASES
    beat_s = BEAT_S * 2.0 ** math.floor(math.log2(interval_s / BEAT_S))
    return math.floor((last + interval_s - phase + EARLY_S) / beat_s) * beat_s + phase
