"""How long the main process of a cgroup has waited for memory: taskstats, over pyroute2's generic netlink.

Must not: be called in the event loop (pyroute2 runs one of its own), import pyroute2 before it is asked.
Upstream: core.taskstats, kernel.processes, pyroute2. Downstream: delays.
pyroute2 finds the family, and packs and takes apart the attributes. Its own get_pid_stat (0.9.7) asks for one thread,
and knows reclaim and thrashing in version 15 of the structure only: that is read in core.taskstats.
"""

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct

from edgeguardd.core import taskstats
from edgeguardd.core.taskstats import Delays
from edgeguardd.errors import FormatError, KernelError
from edgeguardd.kernel.processes import GoneError, Process

SWITCH: Final = "/proc/sys/kernel/task_delayacct"
# A server's main process is the oldest: who looks at more than these has a cgroup of thousands.
MAX_PROCESSES: Final = 256
MAX_CGROUPS: Final = 64


class Reading(Struct, frozen=True):
    """One main process: its number and beginning tell whether it is still the one before."""

    target: str
    pid: int
    started_ticks: int
    delays: Delays


class TaskStats:
    """One netlink socket, for one thread. Making it imports pyroute2: 13 MB, 0.15 s."""

    def __init__(self) -> None:
        """Raises KernelError."""
        from pyroute2.netlink import NLM_F_REQUEST, genlmsg, nla  # noqa: PLC0415  see above
        from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415
        from pyroute2.netlink.generic import GenericNetlinkSocket  # noqa: PLC0415
        from pyroute2.netlink.taskstats import TASKSTATS_CMD_GET, tcmd  # noqa: PLC0415

        class Of(nla):  # type: ignore[misc]
            nla_map = (
                ("TASKSTATS_TYPE_UNSPEC", "none"),
                ("TASKSTATS_TYPE_PID", "uint32"),
                ("TASKSTATS_TYPE_TGID", "uint32"),
                ("TASKSTATS_TYPE_STATS", "cdata"),
            )

        class Reply(genlmsg):  # type: ignore[misc]
            nla_map = (*Of.nla_map, ("TASKSTATS_TYPE_AGGR_PID", "of"), ("TASKSTATS_TYPE_AGGR_TGID", "of"))
            of = Of

        self._request, self._command, self._flags = tcmd, TASKSTATS_CMD_GET, NLM_F_REQUEST
        self._error: type[Exception] = NetlinkError
        try:
            self._socket: Any = GenericNetlinkSocket()
            self._socket.bind("TASKSTATS", Reply)
        except (OSError, NetlinkError) as error:
            raise KernelError(
                f"cannot ask for delays: {error}; it takes CONFIG_TASKSTATS, and AF_NETLINK and CAP_NET_ADMIN, "
                "which the drop-in oom-scores.conf gives"
            ) from None

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def of(self, pid: int) -> Delays:
        """Of all threads of a process. Raises GoneError, KernelError."""
        message = self._request()
        message["cmd"], message["version"] = self._command, 1
        message["attrs"].append(["TASKSTATS_CMD_ATTR_TGID", pid])
        try:
            (answer,) = self._socket.nlm_request(message, self._socket.prid, msg_flags=self._flags)
            return taskstats.delays(bytes(answer.get_nested("TASKSTATS_TYPE_AGGR_TGID", "TASKSTATS_TYPE_STATS")))
        except self._error as error:
            if error.args[:1] in ((errno.ESRCH,), (errno.EINVAL,)):
                raise GoneError from None
            raise KernelError(f"cannot ask for delays: {error}; the drop-in oom-scores.conf gives the right") from None
        except FormatError as error:
            raise KernelError(str(error)) from None


def switched_off() -> str | None:
    """Why all delays would stay 0, or None. Kernels before 5.14 have no switch and always measure."""
    try:
        with open(SWITCH) as file:
            on = file.read().strip() != "0"
    except OSError:
        on = True
    if on:
        return None
    return "delays are not measured: kernel.task_delayacct is 0; run sysctl -w kernel.task_delayacct=1"


def main_process(cgroup: str, proc: str = "/proc") -> tuple[int, int] | None:
    """Number and beginning (ticks since boot) of a cgroup's oldest process; where it has none, of those below it."""
    for place in _cgroups(cgroup):
        oldest: tuple[int, int] | None = None
        for pid in _processes(place):
            with contextlib.suppress(GoneError, KernelError), Process(pid, proc) as process:
                stat = process.stat()
                if not stat.ended and (oldest is None or stat.started_ticks < oldest[1]):
                    oldest = (pid, stat.started_ticks)
        if oldest is not None:
            return oldest
    return None


def read(stats: TaskStats, cgroups: Iterable[tuple[str, str]]) -> list[Reading]:
    """For each target (name, its cgroup's directory) whose main process is there. Raises KernelError."""
    found = []
    for target, cgroup in cgroups:
        main = main_process(cgroup)
        if main is not None:
            with contextlib.suppress(GoneError), Process(main[0]) as process:
                reading = Reading(target, *main, stats.of(main[0]))
                # Still there, it is the one that was asked about, and not another that has its number.
                if process.stat().started_ticks == reading.started_ticks:
                    found.append(reading)
    return found


def _cgroups(top: str) -> Iterable[str]:
    waiting = [top]
    for _ in range(MAX_CGROUPS):
        if not waiting:
            return
        place = waiting.pop(0)
        yield place
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            waiting += sorted(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))


def _processes(cgroup: str) -> list[int]:
    """0 stands for a process of another pid namespace."""
    try:
        with open(f"{cgroup}/cgroup.procs", "rb") as file:
            numbers = [int(line) for line in file.read(1 << 16).split() if line.isdigit()]
    except OSError:
        return []
    return [pid for pid in numbers if pid][:MAX_PROCESSES]
