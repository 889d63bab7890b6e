"""A signal to every process of a cgroup, and to no other: process ids are given to somebody else at any time.

Must not: choose the signal or the moment. Upstream: held, pidfd. Downstream: lastresort.
"""

import contextlib
import errno
import os
import signal
from itertools import islice

from msgspec import Struct

from edgeguardd.errors import KernelError
from edgeguardd.kernel.held import HeldCgroup

# Descriptors held at once; the list is read again for each batch.
BATCH = 64


class Reached(Struct, frozen=True):
    """How many processes got the signal, and how many could not be given it (no permission, another pid namespace)."""

    reached: int
    refused: int


def signal_all(cgroup: HeldCgroup, number: signal.Signals) -> Reached:
    """Once to each process that was there at the beginning. Raises KernelError."""
    reached = refused = 0
    pids = iter(cgroup.processes())
    while batch := list(islice(pids, BATCH)):
        with contextlib.ExitStack() as opened:
            processes = [(pid, _open(pid, opened)) for pid in batch]
            # Listed before and after its descriptor was taken, a process is the one that the descriptor means.
            still_there = set(cgroup.processes())
            for pid, pidfd in processes:
                if pid == 0:
                    refused += 1
                if pidfd is None or pid not in still_there:
                    continue
                try:
                    signal.pidfd_send_signal(pidfd, number)
                    reached += 1
                except ProcessLookupError:
                    continue
                except PermissionError:
                    refused += 1
    return Reached(reached, refused)


def _open(pid: int, opened: contextlib.ExitStack) -> int | None:
    """A descriptor of the process, closed with `opened`; None: it has ended, or has no name in our pid namespace."""
    if pid == 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return None
        raise KernelError(f"cannot signal process {pid}: {error.strerror}; raise LimitNOFILE= of the daemon") from None
    opened.callback(os.close, pidfd)
    return pidfd
