"""Faults below the daemon's kernel layer, at any call into the kernel, and its death at any point: put in place from
outside, in a process of the tests.

Must not: be imported by the product, or change what a call does that is not to fail. Upstream: afflicted.
Downstream: the modules of edgeguardd, which see these objects where they have written `os`, `select`, `open`.
"""

import errno
import os
import random
import select
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

# Calls that asyncio and asyncinotify make for the daemon: no line of its source shows them.
# What each may answer, by its manual page; asyncio takes any other for a defect of its own.
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_SHORT = (*_NO_MORE, errno.ENOBUFS)
LIBRARY = {
    "socket.accept": (*_SHORT, errno.ECONNABORTED),
    "socket.recv": (errno.ECONNRESET, errno.ENOMEM, errno.ETIMEDOUT),
    "socket.send": (errno.EPIPE, errno.ECONNRESET, errno.ENOBUFS, errno.ENOMEM),
    "epoll.register": (errno.ENOMEM, errno.ENOSPC),
    "inotify.new": (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    "inotify.add_watch": (errno.ENOSPC, errno.ENOMEM, errno.EACCES, errno.ENOENT),
}

# Calls that only a shortage can fail: they open nothing that could be missing or forbidden.
SHORTAGES = {
    **dict.fromkeys(("select.epoll", "os.pipe", "os.dup"), _NO_MORE),
    "socket.socket": _SHORT,
    "os.pidfd_open": (*_NO_MORE, errno.ESRCH),
}

# Whose close can fail: files of a disk. Those of kernfs and procfs have no way to (no flush in their file_operations).
CLOSE_FAILS_IN = ("edgeguardd.state", "edgeguardd.segments")


@dataclass
class Plan:
    """What is to happen at which site. `odds` of each call at each of `sites` to fail with `number`."""

    sites: frozenset[str] = frozenset()
    number: int = errno.EIO
    odds: float = 1.0
    chance: random.Random = field(default_factory=random.Random)


class Afflictions:
    """What is wrong in this process. The control thread changes it, every other thread meets it."""

    def __init__(self) -> None:
        self.plan = Plan()
        self.calls: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.doom: dict[str, int] = {}
        # Orders of the engine's that are not carried out: a defect, planted to see whether it is noticed.
        self.lost: set[str] = set()
        self.gap_s = 0.0
        self.pressure_directory: str | None = None

    def fail(self, sites: Iterable[str], number: int, odds: float, seed: int) -> None:
        """From now on calls at these sites fail, each with this probability."""
        self.plan = Plan(frozenset(sites), number, odds, random.Random(seed))  # noqa: S311 - dito

    def meet(self, key: str) -> None:
        """A call is about to be made at this site. Raises OSError if it is to fail; does not return if it is to die."""
        self.calls[key] += 1
        plan = self.plan
        if key in plan.sites and plan.chance.random() < plan.odds:
            self.hits[key] += 1
            plausible = LIBRARY.get(key) or SHORTAGES.get(key.rpartition(":")[2])
            number = plan.number if plausible is None or plan.number in plausible else plan.chance.choice(plausible)
            raise OSError(number, os.strerror(number))

    def die_at(self, point: str, nth: int) -> None:
        """SIGKILL for this process when this point is passed for the nth time from now on."""
        self.doom[point] = nth

    def pass_by(self, point: str) -> None:
        """A point at which death may wait."""
        left = self.doom.get(point)
        if left is None:
            return
        self.doom[point] = left - 1
        if left <= 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Gate:
    """Stands where a module of the daemon has written `os` (or select, fcntl, …)."""

    def __init__(self, real: Any, module: str, afflictions: Afflictions, known: frozenset[str]) -> None:
        self._real = real
        self._module = module
        self._afflictions = afflictions
        self._known = known
        self._wrapped: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        call = f"{self._real.__name__}.{name}"
        if call not in self._known:
            return found
        if name not in self._wrapped:
            self._wrapped[name] = self._guarded(call, found)
        return self._wrapped[name]

    def _guarded(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        return guarded(call, real, self._module, self._afflictions)


def guarded(call: str, real: Callable[..., Any], module: str, afflictions: Afflictions) -> Callable[..., Any]:
    """`real`, failing where and when it is to, and a point of death before and after each call."""

    def called(*args: Any, **named: Any) -> Any:
        key = f"{module}:{sys._getframe(1).f_lineno}:{call}"
        afflictions.pass_by(f"before {key}")
        if call == "os.close":
            real(*args, **named)
            if module in CLOSE_FAILS_IN:
                afflictions.meet(key)
            return None
        afflictions.meet(key)
        done = real(*args, **named)
        afflictions.pass_by(f"after {key}")
        return done

    return called


class Epoll:
    """A select.epoll whose calls may fail."""

    def __init__(self, afflictions: Afflictions, key: str) -> None:
        self._afflictions = afflictions
        afflictions.meet(key)
        self._real = select.epoll()

    @property
    def closed(self) -> bool:
        """As of select.epoll."""
        return self._real.closed

    def register(self, fd: int, events: int) -> None:
        """As of select.epoll."""
        self._afflictions.meet("epoll.register")
        self._real.register(fd, events)

    def unregister(self, fd: int) -> None:
        """As of select.epoll."""
        self._real.unregister(fd)

    def poll(self, timeout: float = -1, most: int = -1) -> list[tuple[int, int]]:
        """As of select.epoll."""
        return self._real.poll(timeout, most)

    def fileno(self) -> int:
        """As of select.epoll."""
        return self._real.fileno()

    def close(self) -> None:
        """As of select.epoll."""
        self._real.close()


def place(afflictions: Afflictions, module: ModuleType, known: frozenset[str]) -> None:
    """Put gates where this module has written the names of gates."""
    name = module.__name__
    for gate in ("os", "select", "socket", "fcntl", "resource"):
        real = getattr(module, gate, None)
        if getattr(real, "__name__", None) == gate:
            setattr(module, gate, Gate(real, name, afflictions, known))
    if "open" in known:
        vars(module)["open"] = guarded("open", open, name, afflictions)
    if "select.epoll" in known:
        vars(vars(module)["select"])["epoll"] = lambda: Epoll(
            afflictions, f"{name}:{sys._getframe(1).f_lineno}:select.epoll"
        )


class PressureFiles:
    """An `os` to which PSI is files in a directory, for kernels without it; it is there while `on` is in there."""

    __name__ = "os"

    def __init__(self, afflictions: Afflictions) -> None:
        self._afflictions = afflictions
        self._fds: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _vanished(self) -> bool:
        return not os.path.exists(f"{self._afflictions.pressure_directory}/on")

    def open(self, path: str, flags: int, *, dir_fd: int | None = None) -> int:
        """As os.open."""
        if self._afflictions.pressure_directory is None:
            return os.open(path, flags, dir_fd=dir_fd)
        if self._vanished():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        fd = os.open(f"{self._afflictions.pressure_directory}/memory.pressure", flags)
        self._fds.add(fd)
        return fd

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """As os.pread."""
        if fd in self._fds and self._vanished():
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return os.pread(fd, size, offset)

    def close(self, fd: int) -> None:
        """As os.close."""
        self._fds.discard(fd)
        os.close(fd)


def place_in_libraries(afflictions: Afflictions) -> None:
    """The calls that libraries make for the daemon. Only while something is to fail do they differ at all."""
    import asyncinotify  # noqa: PLC0415  only in the process that is afflicted

    def meeting(key: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            # The pair of sockets through which a loop wakes itself is no connection to anybody, and cannot break.
            if not sys._getframe(1).f_code.co_name.endswith("_self"):
                afflictions.meet(key)
            return real(*args, **named)

        return called

    for name in ("accept", "recv", "send"):
        setattr(socket.socket, name, meeting(f"socket.{name}", getattr(socket.socket, name)))
    for key, name in (("new", "__init__"), ("add_watch", "add_watch")):
        setattr(asyncinotify.Inotify, name, meeting(f"inotify.{key}", getattr(asyncinotify.Inotify, name)))


def place_clock(afflictions: Afflictions) -> None:
    """Monotonic time with a gap in it, as after the machine was suspended."""
    real = time.monotonic

    def monotonic() -> float:
        return real() + afflictions.gap_s

    vars(time)["monotonic"] = monotonic
