"""struct taskstats as the kernel sends it -> how long a process has waited for memory.

Must not: ask the kernel (kernel.delays does). Upstream: nothing. Downstream: kernel.delays.
Layout: include/uapi/linux/taskstats.h, Documentation/accounting/delay-accounting.rst. Fields are only ever added at
the end, but for version 15 (Linux 6.14 to 6.16), which put maximum and minimum after each total; 16 took them back.
"""

import struct
from typing import Final

from msgspec import Struct

from edgeguardd.errors import FormatError

NS_PER_S: Final = 1_000_000_000

_VERSION = struct.Struct("=H")
_TOTAL = struct.Struct("=Q")
_INTERLEAVED_VERSION: Final = 15
# swapin_delay_total, freepages_delay_total, thrashing_delay_total: offset, and offset in version 15
_SWAP_IN, _RECLAIM, _THRASHING = (56, 88), (320, 368), (336, 400)
# thrashing came last of the three, with version 9 (Linux 4.20).
LEAST_VERSION: Final = 9


class Delays(Struct, frozen=True):
    """Seconds, over all threads of the process that there are or were."""

    reclaim_s: float = 0.0
    thrashing_s: float = 0.0
    swap_in_s: float = 0.0


def delays(data: bytes) -> Delays:
    """Raises FormatError for what is cut, or older than LEAST_VERSION."""
    if len(data) < _VERSION.size:
        raise FormatError("cannot use what the kernel says of delays: it is empty; is CONFIG_TASKSTATS on?")
    (version,) = _VERSION.unpack_from(data)
    if version < LEAST_VERSION:
        raise FormatError(f"cannot use version {version} of taskstats: it has no thrashing; it takes Linux 4.20")
    which = 1 if version == _INTERLEAVED_VERSION else 0
    if len(data) < _THRASHING[which] + _TOTAL.size:
        raise FormatError(f"cannot use what the kernel says of delays: {len(data)} bytes are cut short; report this")
    swap_in, reclaim, thrashing = (
        _TOTAL.unpack_from(data, place[which])[0] / NS_PER_S for place in (_SWAP_IN, _RECLAIM, _THRASHING)
    )
    return Delays(reclaim, thrashing, swap_in)
