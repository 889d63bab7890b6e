"""How often the machine is to be read: the nearer a mark, the sooner it can be crossed unseen.

Must not: judge a sample (machine does), read a clock. Upstream: config, model. Downstream: kernel.machine. Pure.
"""

from edgeguardd.core.config import MachineConfig
from edgeguardd.core.model import MachineSample

# Below so many times the first mark the machine is read so many times as often.
NEAR_FACTOR = 2.0
NEAR_TIMES = 4
# Above so many times the first mark half as often, unless a device has to be looked at: docs/adr/0018.
FAR_FACTOR = 4.0
FAR_TIMES = 2
# As fast as a server that computes what it writes fills memory; a program that only writes is some ten times faster.
FILL_BYTES_PER_S = 256 << 20
# So near above a mark the time to fill what is left counts: 64 MiB take a quarter of a second.
# Not from farther away, or a small machine at rest would be looked at more than once a second.
AT_MARK_BYTES = FILL_BYTES_PER_S // NEAR_TIMES
# No more often than this, however near: every 0.1 s by default, as earlyoom at its fastest.
MOST_TIMES = 10


def interval_s(config: MachineConfig, sample: MachineSample | None) -> float:
    """Seconds until the next look, by the last one."""
    if sample is None:
        return config.sample_s
    first_bytes = config.elevated_ratio * sample.total_bytes
    usual_s = config.sample_s
    if sample.available_bytes < NEAR_FACTOR * first_bytes:
        usual_s /= NEAR_TIMES
    elif sample.available_bytes > FAR_FACTOR * first_bytes and not config.devices:
        # On a small machine even so far a mark is not.
        reached_s = (sample.available_bytes - first_bytes) / FILL_BYTES_PER_S
        usual_s = max(usual_s, min(usual_s * FAR_TIMES, reached_s))
    # Below both only the last mark is left to cross, and commands are on their way.
    marks = (first_bytes, config.high_ratio * sample.total_bytes)
    above = [sample.available_bytes - mark for mark in marks if sample.available_bytes > mark]
    left_bytes = min(above, default=AT_MARK_BYTES)
    if left_bytes >= AT_MARK_BYTES:
        return usual_s
    return max(config.sample_s / MOST_TIMES, min(usual_s, left_bytes / FILL_BYTES_PER_S))
