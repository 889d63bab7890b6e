"""What a daemon that died has left lifted or frozen, put back without a daemon: for systemd's ExecStopPost=.

Must not: run beside a daemon, whose own it would put back under its hands; decide anything. Upstream: kernel.relief,
kernel.freezer. Downstream: the command line. A daemon that starts again does the same by itself, first of all.
"""

import asyncio
import time

from edgeguardd.core.config import Config
from edgeguardd.core.events import Event, LastResortEnded, LimitPutBack
from edgeguardd.kernel import cgroupfs
from edgeguardd.kernel.freezer import Freezer
from edgeguardd.kernel.relief import Relief
from edgeguardd.state import StateDirectory, StateError
from edgeguardd.statelock import StateLock


def put_back(config: Config) -> tuple[list[str], list[str]]:
    """One sentence for each thing that was put back, and one for each that could not be. Raises EdgeguardError."""
    return asyncio.run(_put_back(config))


async def _put_back(config: Config) -> tuple[list[str], list[str]]:
    done: list[str] = []
    failed: list[str] = []

    def told(event: Event) -> None:
        if isinstance(event, LimitPutBack | LastResortEnded):  # these two shells tell nothing else
            (failed if event.outcome == "failed" else done).append(event.message or event.outcome)

    lock = StateLock(config.state_directory)
    if lock.elsewhere:
        raise StateError(
            f"cannot put back what is lifted or frozen: another edgeguardd keeps its state in {config.state_directory} "
            "and is at it; stop it first"
        )
    root = cgroupfs.find_root(config.cgroup_root)
    state = StateDirectory(config.state_directory, failed.append, require=lock.require)
    relief = Relief(root, state, told, time.monotonic)
    freezer = Freezer(root, asyncio.get_running_loop(), told, time.monotonic, state)
    relief.recover()
    freezer.recover()
    # A freeze that cannot be ended is tried again by whoever comes next; what was lifted keeps its record.
    relief.close()
    freezer.close("there is no daemon")
    lock.release()
    return done, failed
