"""Keeps the daemon's own pages in memory, so that in the crisis it guards against it need not wait for a disk.

Pages are locked as they are touched (MCL_ONFAULT): without that flag the whole of every library and of every thread's
stack would become resident. A bounded RLIMIT_MEMLOCK is taken for "no": with MCL_FUTURE, reaching it would make
allocations fail later.

Must not: raise; a daemon without the right works all the same. Upstream: daemon. Downstream: mlockall(2).
"""

import ctypes
import os
import resource

# include/uapi/asm-generic/mman.h; MCL_ONFAULT since Linux 4.4.
MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT = 1, 2, 4
# These have numbers of their own (arch/*/include/uapi/asm/mman.h).
OTHER_NUMBERS = ("alpha", "ppc", "sparc")
CAP_IPC_LOCK = 14  # include/uapi/linux/capability.h


def lock_memory(proc: str = "/proc") -> bool:
    """Whether all memory of this process, now and later, is locked as it is touched."""
    if os.uname().machine.startswith(OTHER_NUMBERS) or not _may_lock_all(proc):
        return False
    return bool(ctypes.CDLL(None).mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0)


def _may_lock_all(proc: str) -> bool:
    """No limit, or the right to pass any."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY:
        return True
    try:
        with open(f"{proc}/self/status", "rb") as file:
            effective = next(line.split()[1] for line in file if line.startswith(b"CapEff:"))
        return bool(int(effective, 16) >> CAP_IPC_LOCK & 1)
    except (OSError, StopIteration, IndexError, ValueError):
        return False
