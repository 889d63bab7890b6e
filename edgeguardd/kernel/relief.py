"""Raising memory.high for the length of a trim, and putting it back whatever happens.

Must not: choose when or how far (core.relief does), wait for reclaim. Upstream: state, held, aside. Downstream: daemon.

    record written ─▶ memory.high raised ─▶ … ─▶ memory.high put back ─▶ record removed
                   kill -9 anywhere here: recover() of the next daemon puts it back

The old value is written only where the raised one still stands: what somebody else has written meanwhile is theirs.
That is read in the system call before the write, and no kernel can do both at once: who writes between these two loses,
and finds what stood there before the trim.
A record holds for one cgroup, by inode, and for one run of the kernel; so it need not survive a power cut, and is
written without fsync, which on a busy flash disk would hold the trim up for longer than the throttling does.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from edgeguardd.core.events import Event, LimitPutBack, LimitRaised, ReliefFailed
from edgeguardd.errors import EdgeguardError, KernelError
from edgeguardd.kernel.aside import Aside
from edgeguardd.kernel.cgroupfs import CURRENT, HIGH, CgroupGoneError, CgroupRoot, shown
from edgeguardd.kernel.held import HeldCgroup, boot_id, held_again, mib
from edgeguardd.state import StateDirectory, StateError

KIND: Final = "lifted"
LOST: Final = "a memory.high may have stayed lifted: compare each one with its unit (edgeguardctl audit), and set it"

# The kernel sets the limit before it reclaims (memory_high_write, mm/memcontrol.c), so that it is in force as soon as
# the thread has entered the call: 0.3 to 6 ms measured on 6.1 with one CPU. The rest is for a machine in trouble.
IN_FORCE_WITHIN_S: Final = 0.25
LOOK_AGAIN_S: Final = 0.0005

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_AGAIN = "it is tried again at the next occasion, at the latest when the daemon starts"


class Lifted(Struct, frozen=True):
    """What is written down before a limit is raised; the key is the cgroup's path. old_bytes None: "max".

    raised_at is CLOCK_MONOTONIC, which is the same for every process of one run of the kernel.
    """

    target: str
    boot_id: str
    inode: int
    old_bytes: int | None
    raised_bytes: int
    raised_at: float


class _Raised:
    """One cgroup whose limit is ours. `writing`: a write that had not reached the kernel when it was last looked at."""

    def __init__(self, cgroup: HeldCgroup, lifted: Lifted) -> None:
        self.cgroup = cgroup
        self.lifted = lifted
        self.writing: Aside[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a value of ours may still come to stand."""
        return self.writing is not None and not self.writing.ended


class Relief:
    """The raised limits. Each call does its work and tells the outcome before it returns."""

    def __init__(
        self,
        root: CgroupRoot,
        state: StateDirectory,
        emit: Callable[[Event], None],
        clock: Callable[[], float],
        proc: str = "/proc",
    ) -> None:
        """`clock` is monotonic seconds, `proc` is where procfs is."""
        self._root = root
        self._state = state
        self._emit = emit
        self._clock = clock
        self._proc = proc
        self._raised: dict[str, _Raised] = {}
        self._stopping = False

    def recover(self) -> None:
        """Put back what a daemon before this one has raised and not put back. Call it before anything is sampled."""
        for path, lifted in self._state.load_all(KIND, Lifted, LOST).items():
            try:
                cgroup = held_again(self._root, path, lifted.inode, lifted.boot_id, self._proc)
            except CgroupGoneError as error:
                self._end(path, lifted, "gone", str(error))
            except EdgeguardError as error:
                self._emit(LimitPutBack(lifted.target, "failed", str(error)))
            else:
                self._return(_Raised(cgroup, lifted))

    def raise_limit(self, target: str, path: str, from_bytes: int, to_bytes: int) -> None:
        """Write down, raise, tell LimitRaised; or tell ReliefFailed, and then memory.high is as it was.

        `path` is the target's cgroup, from_bytes what memory.high was when this was decided.
        """
        try:
            raised = self._raise(target, path, from_bytes, to_bytes)
        except EdgeguardError as error:
            self._emit(ReliefFailed(target, str(error)))
            return
        self._raised[target] = raised
        self._emit(LimitRaised(target, from_bytes, raised.lifted.raised_bytes))

    def put_back(self, target: str) -> None:
        """Write the old value where the raised one still stands, and tell LimitPutBack.

        `failed` leaves the record: the next put_back, put_back_all or recover tries again.
        """
        raised = self._raised.get(target)
        if raised is None:
            self._emit(LimitPutBack(target, "gone", f"nothing is raised for {target}"))
            return
        self._return(raised)

    def raised_at(self) -> dict[str, float]:
        """Target -> since when its limit has been raised, as the clock told it."""
        return {target: raised.lifted.raised_at for target, raised in self._raised.items()}

    def put_back_all(self) -> None:
        """Put every limit back: the daemon stops. From here on none is raised, though the engine may ask for it."""
        self._stopping = True
        for target in list(self._raised):
            self.put_back(target)

    def close(self) -> None:
        """Let go of every descriptor. What is still raised stays so, with its record."""
        for raised in self._raised.values():
            raised.cgroup.close()
        self._raised.clear()

    # Up

    def _raise(self, target: str, path: str, from_bytes: int, to_bytes: int) -> _Raised:
        if self._stopping:
            raise KernelError(f"cannot raise memory.high of {shown(path)}: the daemon stops; start it again")
        with contextlib.ExitStack() as undo:
            cgroup = undo.enter_context(HeldCgroup(self._root, path))
            self._refuse_twice(target, cgroup)
            old_bytes, raised_bytes = _require(cgroup, from_bytes, to_bytes)
            raised = _Raised(
                cgroup, Lifted(target, boot_id(self._proc), cgroup.inode, old_bytes, raised_bytes, self._clock())
            )
            self._state.save(KIND, cgroup.path, raised.lifted, durable=False)
            undo.callback(self._forget, cgroup.path)
            if not _write(raised, old_bytes, raised_bytes):
                raise KernelError(
                    f"cannot raise memory.high of {shown(path)}: somebody else has just changed it; "
                    "leave it alone while the daemon is at it"
                )
            undo.pop_all()
        return raised

    def _forget(self, path: str) -> None:
        """Nothing was raised. A record that stays nevertheless finds the old value in place, and does nothing."""
        with contextlib.suppress(StateError):
            self._state.remove(KIND, path)

    def _refuse_twice(self, target: str, cgroup: HeldCgroup) -> None:
        """A limit raised twice would never come back: the second record's old value would be the first's raised one."""
        for other, raised in list(self._raised.items()):
            if other != target and raised.cgroup.path != cgroup.path:
                continue
            if raised.cgroup.gone:
                self._return(raised)
            else:
                raise KernelError(
                    f"cannot raise memory.high of {shown(cgroup.path)}: it is still raised for {other}; "
                    "it has to be put back first"
                )

    # Down

    def _return(self, raised: _Raised) -> None:
        lifted = raised.lifted
        try:
            outcome, message = self._put_back(raised)
        except CgroupGoneError as error:
            outcome, message = "gone", str(error)
        except EdgeguardError as error:
            if self._raised.setdefault(lifted.target, raised) is not raised:
                raised.cgroup.close()
            self._emit(LimitPutBack(lifted.target, "failed", str(error)))
            return
        raised.cgroup.close()
        if self._raised.get(lifted.target) is raised:
            del self._raised[lifted.target]
        self._end(raised.cgroup.path, lifted, outcome, message)

    def _put_back(self, raised: _Raised) -> tuple[str, str]:
        """Outcome and sentence. Raises CgroupGoneError; KernelError or FormatError when it has to be tried again."""
        lifted, what = raised.lifted, f"memory.high of {shown(raised.cgroup.path)}"
        stood_s = self._clock() - lifted.raised_at
        if raised.busy:
            raise KernelError(f"cannot put {what} back: the last write has not reached the kernel; {_AGAIN}")
        now_bytes = raised.cgroup.limit(HIGH)
        if now_bytes == lifted.old_bytes:
            return "restored", f"{what} stood at {mib(now_bytes)} again, though we had not put it back"
        if now_bytes == lifted.raised_bytes:
            _write(raised, lifted.raised_bytes, lifted.old_bytes)
            now_bytes = raised.cgroup.limit(HIGH)
            if now_bytes == lifted.raised_bytes:
                raise KernelError(f"cannot put {what} back: it is still {mib(now_bytes)}; {_AGAIN}")
        if now_bytes != lifted.old_bytes:
            return "changed", f"{what} is {mib(now_bytes)}, not the {mib(lifted.raised_bytes)} we had raised it to"
        return "restored", f"{what} is {mib(now_bytes)} again, after {stood_s:.2f} s at {mib(lifted.raised_bytes)}"

    def _end(self, path: str, lifted: Lifted, outcome: str, message: str) -> None:
        """It is not ours any more: forget the record, then tell."""
        try:
            self._state.remove(KIND, path)
        except StateError as error:
            message = f"{message}; {error}"
        self._emit(LimitPutBack(lifted.target, outcome, message))


def _require(cgroup: HeldCgroup, from_bytes: int, to_bytes: int) -> tuple[int, int]:
    """The value that stands there and the one to write. Raises KernelError when they do not fit; and as limit does."""
    what = f"cannot raise memory.high of {shown(cgroup.path)}"
    old_bytes, raised_bytes = cgroup.limit(HIGH), _rounded(to_bytes)
    if old_bytes is None or old_bytes != _rounded(from_bytes):
        raise KernelError(
            f"{what}: it is {mib(old_bytes)} now, not the {mib(from_bytes)} of the last sample; "
            "leave it alone while the daemon is at it"
        )
    if raised_bytes <= old_bytes:
        raise KernelError(f"{what}: {mib(to_bytes)} is not above the {mib(old_bytes)} it has; allow more relief")
    return old_bytes, raised_bytes


def _rounded(size_bytes: int) -> int:
    """As the kernel keeps a limit: whole pages, rounded down (page_counter_memparse, mm/page_counter.c)."""
    return size_bytes // PAGE_BYTES * PAGE_BYTES


def _write(raised: _Raised, from_bytes: int | None, limit_bytes: int | None) -> bool:
    """Write memory.high without reclaiming in this thread. Raises CgroupGoneError, KernelError.

    False: something else than from_bytes stands there by now, and stays.

    On 6.1 a write below memory.current reclaims in the writer, O_NONBLOCK or not: 0.3 to 0.6 s for 64 MiB of mapped
    file were measured. So that is left to a thread, and waited for only until the value stands.
    """
    cgroup, text = raised.cgroup, "max" if limit_bytes is None else str(limit_bytes)
    reclaims = limit_bytes is not None and cgroup.number(CURRENT) > limit_bytes
    fd = cgroup.open_to_write(HIGH) if reclaims else None
    # Nothing that takes time may come between this and the write.
    if cgroup.limit(HIGH) != from_bytes:
        if fd is not None:
            os.close(fd)
        return False
    if fd is None:
        cgroup.write(HIGH, text)
        return True
    writing = Aside(lambda: cgroup.write_and_close(fd, HIGH, text))
    until = time.monotonic() + IN_FORCE_WITHIN_S
    while not writing.ended and not _stands(cgroup, limit_bytes):
        if time.monotonic() > until:
            raised.writing = writing
            return True
        time.sleep(LOOK_AGAIN_S)
    if writing.ended:
        writing.result()
    return True


def _stands(cgroup: HeldCgroup, limit_bytes: int | None) -> bool:
    """Whether memory.high is seen to have this value."""
    try:
        return cgroup.limit(HIGH) == limit_bytes
    except EdgeguardError:
        return False
