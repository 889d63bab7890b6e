"""Lowering a limit below what is in use without a kill: memory.high first, in steps, each waited for.

Must not: write memory.max, which the kernel answers with its OOM killer when reclaim does not bring enough. Upstream:
model. Downstream: treeio, systemd.
"""

import time
from collections.abc import Callable

from edgeguardd.isolate.provision.model import ProvisionError, size_text

STEPS = 8
LOOK_AGAIN_S = 0.05


def lower(name: str, to_bytes: int, used: Callable[[], int], set_high: Callable[[int], None], wait_s: float) -> None:
    """Bring use to to_bytes at most by lowering memory.high. Raises ProvisionError; putting it back is the caller's.

    `wait_s`: how long all steps together may take; a step that reclaim does not reach in its share of it ends it.
    """
    start = used()
    until = time.monotonic() + wait_s
    for number in range(1, STEPS + 1):
        step_bytes = start - (start - to_bytes) * number // STEPS
        set_high(step_bytes)
        while used() > step_bytes:
            if time.monotonic() >= until:
                left = used() - to_bytes
                raise ProvisionError(
                    f"cannot bring {name} below {size_text(to_bytes)}: with memory.high at {size_text(step_bytes)} it "
                    f"still used {size_text(left)} too much after {wait_s:g} s; have it use less, or allow more"
                )
            time.sleep(LOOK_AGAIN_S)
