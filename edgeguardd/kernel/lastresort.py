"""What the daemon does itself when nobody answers or nothing helps: reclaim, freeze, signal, restart, kill.

Must not: choose what or when (core does); act on the root, or on a cgroup with this daemon in it. Upstream: freezer,
held, pidsignal, unitrestart, aside. Downstream: daemon.

Each order is a task of its own and is answered by one LastResortEnded, with the outcome as the kernel shows it and the
figures: a thing done, not a thing begun. A freeze has a second one, when it ends.
"""

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from typing import Final, assert_never

from msgspec import Struct

from edgeguardd.core import procfmt
from edgeguardd.core.config import LastResortStep
from edgeguardd.core.events import Event, LastResortEnded
from edgeguardd.core.model import LastResort
from edgeguardd.errors import EdgeguardError, FormatError, KernelError
from edgeguardd.kernel import unitrestart
from edgeguardd.kernel.aside import Aside
from edgeguardd.kernel.cgroupfs import CURRENT, CgroupGoneError, CgroupRoot, shown
from edgeguardd.kernel.freezer import EVENTS, Freezer
from edgeguardd.kernel.held import MIB, HeldCgroup, mib
from edgeguardd.kernel.pidsignal import signal_all
from edgeguardd.state import StateDirectory

RECLAIM: Final = "memory.reclaim"  # 5.19
KILL: Final = "cgroup.kill"  # 5.14

LOOK_AGAIN_S: Final = 0.01
# A killed process still has to free its memory, and a big one takes seconds for it; one in a hung driver never ends.
KILL_WITHIN_S: Final = 30.0
# The kernel is asked for so much at a time, so that there is an end between two pieces: 64 MiB of mapped file took
# 0.4 to 0.6 s on a slow one (6.1).
RECLAIM_PIECE_BYTES: Final = 16 * MIB
RECLAIM_WITHIN_S: Final = 10.0


class Order(Struct, frozen=True):
    """One last resort, as the daemon was told to carry it out."""

    target: str
    path: str
    step: LastResortStep
    unit: str | None
    reclaim_bytes: int | None


class LastResorts:
    """Carries orders out, one of each kind and target at a time."""

    def __init__(
        self,
        root: CgroupRoot,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        state: StateDirectory,
        *,
        proc: str = "/proc",
        systemctl: tuple[str, ...] = unitrestart.SYSTEMCTL,
    ) -> None:
        """`clock` is monotonic seconds; `systemctl` is where the program may be."""
        self._root = root
        self._loop = loop
        self._emit = emit
        self._clock = clock
        self._proc = proc
        self._systemctl = systemctl
        self._freezer = Freezer(root, loop, emit, clock, state, proc)
        self._tasks: dict[tuple[str, LastResort], asyncio.Task[None]] = {}
        self._closing = False

    def recover(self) -> None:
        """Thaw what a daemon before this one has left frozen."""
        self._freezer.recover()

    def run(
        self, target: str, path: str, step: LastResortStep, unit: str | None = None, reclaim_bytes: int | None = None
    ) -> None:
        """Begin. `path` is the target's cgroup, `unit` its service, for restart; reclaim_bytes is for reclaim."""
        key = (target, step.action)
        if key in self._tasks or self._closing:
            why = "the daemon stops" if self._closing else "the one before is still under way"
            message = f"cannot {step.action} {shown(path)}: {why}; wait for its outcome"
            self._emit(LastResortEnded(target, step.action, "failed", message))
            return
        self._tasks[key] = self._loop.create_task(self._run(Order(target, path, step, unit, reclaim_bytes)))

    def thaw(self, target: str) -> None:
        """End a freeze. One that has ended already has been told."""
        self._freezer.thaw_target(target, "no more needed")

    async def close(self) -> None:
        """End what is under way, thaw everything, leave no child and no descriptor. Twice is fine."""
        self._closing = True
        # What has just been ordered has to begin to be ended, and answered.
        await asyncio.sleep(0)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._freezer.close("the daemon stops")

    async def _run(self, order: Order) -> None:
        outcome, message = "failed", f"cannot {order.step.action} {shown(order.path)}: it was interrupted; see the log"
        try:
            message = await self._carry_out(order)
            outcome = "done"
        except EdgeguardError as error:
            message = str(error)
        finally:
            # First, for the answer may bring the next order.
            del self._tasks[(order.target, order.step.action)]
            self._emit(LastResortEnded(order.target, order.step.action, outcome, message))

    async def _carry_out(self, order: Order) -> str:
        """What came of it. Raises EdgeguardError when it did not work."""
        match order.step.action:
            case LastResort.RESTART:
                return await self._restart(order)
            case LastResort.RECLAIM:
                work = self._reclaim
            case LastResort.FREEZE:
                work = self._freeze
            case LastResort.SIGNAL:
                work = self._signal
            case LastResort.KILL:
                work = self._kill
            case _:
                assert_never(order.step.action)
        with self._others(order) as cgroup:
            return await work(order, cgroup)

    @contextlib.contextmanager
    def _others(self, order: Order) -> Iterator[HeldCgroup]:
        """The order's cgroup. Raises KernelError for the root and for each that this process is in, however deep."""
        with HeldCgroup(self._root, order.path) as cgroup:
            what = f"cannot {order.step.action} {shown(cgroup.path)}"
            if cgroup.path == "/":
                raise KernelError(f"{what}: it is the root of the tree; name the server's own cgroup")
            if os.getpid() in cgroup.processes():
                raise KernelError(f"{what}: this daemon itself runs in it; give the server a cgroup of its own")
            yield cgroup

    # One after the other

    async def _reclaim(self, order: Order, cgroup: HeldCgroup) -> str:
        size_bytes = order.reclaim_bytes
        if size_bytes is None or size_bytes <= 0:
            raise KernelError(f"cannot reclaim from {shown(cgroup.path)}: there is nothing to be freed")
        before_bytes, started = cgroup.number(CURRENT), self._clock()
        work = Reclaim(cgroup.open_to_write(RECLAIM), size_bytes)
        aside = Aside(work)
        try:
            in_time = await self._until(lambda: aside.ended, RECLAIM_WITHIN_S)
        finally:
            work.stop = True
        # Of a piece that takes longer still, the thread sees the end; its bytes are not in these figures.
        after_bytes = cgroup.number(CURRENT)
        figures = (
            f"{mib(before_bytes - after_bytes)} of {mib(size_bytes)} in {self._clock() - started:.2f} s, "
            f"memory.current {mib(before_bytes)} to {mib(after_bytes)}"
        )
        if not in_time:
            raise KernelError(f"cannot reclaim enough from {shown(cgroup.path)}: {figures}; it is too slow here")
        number = aside.result()
        if number:
            # EAGAIN: less was found than asked for (cgroup-v2.rst, memory.reclaim).
            found = "no more could be dropped" if number == errno.EAGAIN else os.strerror(number)
            raise KernelError(f"cannot reclaim enough from {shown(cgroup.path)}: {found}: {figures}; add swap or zram")
        return f"reclaimed from {shown(cgroup.path)}: {figures}"

    async def _freeze(self, order: Order, cgroup: HeldCgroup) -> str:
        started, path, max_s = self._clock(), cgroup.path, order.step.max_freeze_s
        self._freezer.freeze(order.target, path, max_s)
        ended = await self._until(lambda: not self._freezer.holds(path) or self._freezer.has_stopped(path), max_s + 1.0)
        if not ended or not self._freezer.holds(path):
            raise KernelError(
                f"cannot freeze {shown(path)}: not all processes had stopped when it was thawed, "
                f"{self._clock() - started:.2f} s later; one may hang in a driver"
            )
        return (
            f"{_counted(len(cgroup.processes()))} of {shown(path)} stopped after {self._clock() - started:.2f} s, "
            f"for at most {max_s:g} s"
        )

    async def _signal(self, order: Order, cgroup: HeldCgroup) -> str:
        name = order.step.signal
        try:
            number = signal.Signals[name]
        except KeyError:
            raise KernelError(f"cannot signal {shown(cgroup.path)}: {name!r} is no signal; write SIGTERM") from None
        self._freezer.thaw(cgroup.path, f"it has to act on {name}")
        given = signal_all(cgroup, number)
        if given.refused:
            raise KernelError(
                f"cannot signal all of {shown(cgroup.path)}: {name} reached {_counted(given.reached)} and not "
                f"{given.refused} more; run the daemon as root and in the host's pid namespace"
            )
        if not given.reached:
            raise KernelError(f"cannot signal {shown(cgroup.path)}: no process is in it; start the server")
        return f"{name} reached {_counted(given.reached)} of {shown(cgroup.path)}"

    async def _restart(self, order: Order) -> str:
        """Also when the service has ended and its cgroup is gone: then it is wanted most."""
        with contextlib.suppress(CgroupGoneError), self._others(order) as cgroup:
            self._freezer.thaw(cgroup.path, "it is to be restarted")
        unit = order.step.unit or order.unit
        if unit in self._own_units():
            raise KernelError(f"cannot restart {unit}: this daemon itself runs in it; name the server's own service")
        started = self._clock()
        name = await unitrestart.restart_unit(unit, self._systemctl)
        return f"{name} was restarted in {self._clock() - started:.2f} s"

    async def _kill(self, order: Order, cgroup: HeldCgroup) -> str:
        """With cgroup.kill nothing escapes by forking; without it the killing is repeated until nothing is left."""
        count, started = len(cgroup.processes()), self._clock()
        at_once = cgroup.has(KILL)
        if at_once:
            cgroup.write(KILL, "1")

        def emptied() -> bool:
            if _is_empty(cgroup):
                return True
            if not at_once:
                signal_all(cgroup, signal.SIGKILL)
            return False

        if not await self._until(emptied, KILL_WITHIN_S):
            raise KernelError(
                f"cannot kill {shown(cgroup.path)}: {_counted(len(cgroup.processes()))} still there after "
                f"{KILL_WITHIN_S:.0f} s; see the kernel log"
            )
        self._freezer.thaw(cgroup.path, f"{order.target} was killed")
        return f"{_counted(count)} of {shown(cgroup.path)} killed, all gone after {self._clock() - started:.2f} s"

    async def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Whether the condition came true in time. Raises what it raises."""
        until = self._loop.time() + within_s
        while not condition():
            if self._loop.time() > until:
                return False
            await asyncio.sleep(LOOK_AGAIN_S)
        return True

    def _own_units(self) -> set[str]:
        """The names in this process's own cgroup path: its unit, and those around it."""
        try:
            with open(f"{self._proc}/self/cgroup", "rb") as file:
                return set((procfmt.membership(file.read()).v2_path or "").split("/"))
        except (OSError, FormatError):
            return set()


class Reclaim:
    """The work of one reclaim, piece by piece, for a thread of its own. `stop`: no further piece."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        """`fd` is memory.reclaim, and is closed at the end."""
        self.stop = False
        self._fd = fd
        self._left_bytes = size_bytes

    def __call__(self) -> int:
        """0 when all was reclaimed, else the error number of the piece that was not."""
        try:
            while self._left_bytes > 0 and not self.stop:
                piece_bytes = min(self._left_bytes, RECLAIM_PIECE_BYTES)
                os.pwrite(self._fd, str(piece_bytes).encode(), 0)
                self._left_bytes -= piece_bytes
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            os.close(self._fd)
        return 0


def _is_empty(cgroup: HeldCgroup) -> bool:
    """Whether no process is left in it, or it has been removed since."""
    try:
        return not cgroup.flag(EVENTS, "populated")
    except CgroupGoneError:
        return True


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
