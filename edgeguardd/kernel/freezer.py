"""Cgroups that the daemon has stopped, each with the time at which it lets it run again.

Must not: choose whom to freeze (lastresort is told). Upstream: state, held. Downstream: lastresort.

    record written ─▶ cgroup.freeze = 1 ─▶ … ─▶ cgroup.freeze = 0 ─▶ record removed
                   asked, its time is up, the daemon stops; after a kill -9: recover() of the next daemon
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from edgeguardd.core.events import Event, LastResortEnded
from edgeguardd.core.model import LastResort
from edgeguardd.errors import EdgeguardError, KernelError
from edgeguardd.kernel.cgroupfs import CgroupGoneError, CgroupRoot, shown
from edgeguardd.kernel.held import HeldCgroup, boot_id, held_again
from edgeguardd.state import StateDirectory, StateError

KIND: Final = "frozen"
LOST: Final = "a cgroup may have stayed frozen: look at each target's cgroup.freeze, and write 0 to it"
FREEZE: Final = "cgroup.freeze"
EVENTS: Final = "cgroup.events"

# A thaw that fails is tried again this often: nobody else would do it.
THAW_AGAIN_S: Final = 1.0


class Frozen(Struct, frozen=True):
    """What is written down before a cgroup is frozen; the key is its path. since: CLOCK_MONOTONIC."""

    target: str
    boot_id: str
    inode: int
    since: float


class _Stopped:
    """One cgroup that we have frozen. `said`: a failed thaw has been told."""

    def __init__(self, cgroup: HeldCgroup, frozen: Frozen) -> None:
        self.cgroup = cgroup
        self.frozen = frozen
        self.timer: asyncio.TimerHandle | None = None
        self.said = False


class Freezer:
    """The frozen cgroups. Each thaw is told as LastResortEnded with outcome thawed; one that fails, once, as failed."""

    def __init__(
        self,
        root: CgroupRoot,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        state: StateDirectory,
        proc: str = "/proc",
    ) -> None:
        self._root = root
        self._loop = loop
        self._emit = emit
        self._clock = clock
        self._state = state
        self._proc = proc
        self._stopped: dict[str, _Stopped] = {}

    def recover(self) -> None:
        """Thaw what a daemon before this one has frozen and not thawed."""
        for path, frozen in self._state.load_all(KIND, Frozen, LOST).items():
            try:
                cgroup = held_again(self._root, path, frozen.inode, frozen.boot_id, self._proc)
            except CgroupGoneError:
                self._forget(path)
            except EdgeguardError as error:
                self._tell(frozen.target, "failed", str(error))
            else:
                self._stopped[path] = _Stopped(cgroup, frozen)
                self.thaw(path, "the daemon that froze it is gone")

    def freeze(self, target: str, path: str, max_freeze_s: float) -> None:
        """Stop a cgroup for at most so long. Its processes stop one by one: see has_stopped. Raises EdgeguardError."""
        with contextlib.ExitStack() as undo:
            cgroup = undo.enter_context(HeldCgroup(self._root, path))
            if cgroup.read(FREEZE).strip() != b"0":
                whose = "we have" if cgroup.path in self._stopped else "somebody else has"
                raise KernelError(f"cannot freeze {shown(path)}: {whose} frozen it already; it has to be thawed first")
            frozen = Frozen(target, boot_id(self._proc), cgroup.inode, self._clock())
            self._state.save(KIND, cgroup.path, frozen, durable=False)
            undo.callback(self._forget, cgroup.path)
            cgroup.write(FREEZE, "1")
            undo.pop_all()
        stopped = _Stopped(cgroup, frozen)
        self._stopped[cgroup.path] = stopped
        stopped.timer = self._loop.call_later(max_freeze_s, self.thaw, cgroup.path, "its time was up")

    def holds(self, path: str) -> bool:
        """Whether we keep this cgroup frozen."""
        return path in self._stopped

    def has_stopped(self, path: str) -> bool:
        """Whether all its processes stand still. Raises KernelError, FormatError."""
        return self._stopped[path].cgroup.flag(EVENTS, "frozen")

    def thaw_target(self, target: str, why: str) -> None:
        """Let what this target had frozen run again. None is fine: it has been told."""
        for path, stopped in list(self._stopped.items()):
            if stopped.frozen.target == target:
                self.thaw(path, why)

    def thaw(self, path: str, why: str) -> None:
        """Let a cgroup run again. One that we do not hold is fine."""
        stopped = self._stopped.get(path)
        if stopped is None:
            return
        if stopped.timer is not None:
            stopped.timer.cancel()
        stood_s = self._clock() - stopped.frozen.since
        try:
            if stopped.cgroup.read(FREEZE).strip() == b"0":
                message = f"{shown(path)} was running again before we thawed it, {stood_s:.2f} s after we froze it"
            else:
                stopped.cgroup.write(FREEZE, "0")
                message = f"{shown(path)} runs again after {stood_s:.2f} s: {why}"
        except CgroupGoneError as error:
            message = str(error)
        except EdgeguardError as error:
            self._try_again(path, stopped, why, str(error))
            return
        del self._stopped[path]
        stopped.cgroup.close()
        self._forget(path)
        self._tell(stopped.frozen.target, "thawed", message)

    def close(self, why: str) -> None:
        """Thaw everything. What cannot be thawed keeps its record for the next daemon."""
        for path in list(self._stopped):
            self.thaw(path, why)
        for stopped in self._stopped.values():
            if stopped.timer is not None:
                stopped.timer.cancel()
            stopped.cgroup.close()
        self._stopped.clear()

    def _try_again(self, path: str, stopped: _Stopped, why: str, fault: str) -> None:
        stopped.timer = self._loop.call_later(THAW_AGAIN_S, self.thaw, path, why)
        if not stopped.said:
            stopped.said = True
            self._tell(stopped.frozen.target, "failed", f"{fault}; tried again every {THAW_AGAIN_S:.0f} s")

    def _forget(self, path: str) -> None:
        """A record that stays nevertheless finds its cgroup gone or running, and does nothing."""
        with contextlib.suppress(StateError):
            self._state.remove(KIND, path)

    def _tell(self, target: str, outcome: str, message: str) -> None:
        self._emit(LastResortEnded(target, LastResort.FREEZE, outcome, message))
