"""The whole machine: RAM that is still available, swap, pressure and devices, read at an interval and when tasks wait.

Must not: judge figures (core.machine does), end the daemon. Upstream: core.procfmt, pressure, devices.
Downstream: daemon, which gets MachineSampled through `emit`.
"""

import asyncio
import os
from collections.abc import Callable, Mapping

from msgspec import Struct

from edgeguardd.core import looks, procfmt
from edgeguardd.core.config import MachineConfig
from edgeguardd.core.events import Event, MachineSampled
from edgeguardd.core.model import DeviceUsage, MachineSample
from edgeguardd.errors import EdgeguardError, FormatError, KernelError
from edgeguardd.kernel import beats
from edgeguardd.kernel.devices import Source, open_source
from edgeguardd.kernel.pressure import PressureFile, StallAlarm

# /proc/meminfo has 1.6 KB on 6.18.
READ_BYTES = 16384
# What ram_of asks for.
RAM_KEYS = frozenset(
    (
        b"MemTotal",
        b"MemAvailable",
        b"MemFree",
        b"Cached",
        b"Buffers",
        b"SReclaimable",
        b"Shmem",
        b"SwapTotal",
        b"SwapFree",
    )
)

# Faults are said once each; what is remembered of them is bounded.
_MAX_SAID = 64


class Ram(Struct, frozen=True):
    """What /proc/meminfo says, in bytes. `estimated`: the kernel does not tell what is available, we reckon it."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int | None
    swap_free_bytes: int | None
    estimated: bool


class DeviceStatus(Struct, frozen=True):
    """One configured device: its last reading, or why there is none."""

    name: str
    kind: str
    used_bytes: int | None
    total_bytes: int | None
    degraded: str | None


class MachineStatus(Struct, frozen=True):
    """The machine as status and metrics show it.

    `psi`: "trigger", "polled" or "absent", as for targets. `degraded`: why the last reading gave no sample.
    """

    enabled: bool
    interval_s: float
    sample_age_s: float | None
    psi: str
    estimated: bool
    degraded: str | None
    sample: MachineSample | None
    devices: tuple[DeviceStatus, ...]


class Machine:
    """Reads the machine from start to close. All of it happens on the loop's thread."""

    def __init__(
        self,
        config: MachineConfig,
        loop: asyncio.AbstractEventLoop,
        emit: Callable[[Event], None],
        clock: Callable[[], float] | None = None,
        proc: str = "/proc",
        *,
        on_fault: Callable[[str], None] | None = None,
    ) -> None:
        """`clock`: monotonic seconds, the loop's if left out. `proc`: where procfs is.

        `on_fault` gets, once each, the sentences about what cannot be read.
        """
        self._config = config
        self._loop = loop
        self._emit = emit
        self._clock = clock or loop.time
        self._proc = proc
        self._on_fault = on_fault
        self._said: set[str] = set()
        self._meminfo_fd: int | None = None
        pressure = f"{proc}/pressure/memory"
        self._pressure = PressureFile(pressure, pressure)
        self._alarm = StallAlarm(self._pressure, loop, self._clock, self.sample_now, self._say)
        self._sources: list[Source] = []
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._estimated = False
        self._degraded: str | None = None
        self._sample: MachineSample | None = None
        self._sampled_at: float | None = None

    def start(self) -> None:
        """Take the first sample, and go on from there; nothing, if the configuration does not want the machine read."""
        if self._config.enabled and not self._running:
            self._running = True
            self._sources = [open_source(spec, self._proc) for spec in self._config.devices]
            self._tick()

    def apply(self, config: MachineConfig) -> None:
        """Put another configuration in force, with a sample at once. What stays the same is not touched."""
        if config == self._config and self._running == config.enabled:
            return
        was, self._config = self._config, config
        if not config.enabled or not self._running:
            self._stop()
            self.start()
            return
        if config.devices != was.devices:
            self._close_sources()
            self._sources = [open_source(spec, self._proc) for spec in config.devices]
        self._tick()

    def sample_now(self) -> None:
        """Read and tell at once."""
        if not self._running:
            return
        try:
            ram = self._ram()
        except EdgeguardError as error:
            self._degraded = str(error)
            self._say(self._degraded)
            return
        self._degraded = None
        self._estimated = ram.estimated
        some_us = self._pressure.some_us()
        if self._pressure.fault is not None:
            self._say(self._pressure.fault)
        self._alarm.follow(self._config.psi_ratio, some_us)
        self._sampled_at = self._clock()
        self._sample = MachineSample(
            ram.total_bytes,
            ram.available_bytes,
            ram.swap_total_bytes,
            ram.swap_free_bytes,
            some_us,
            self._devices(),
        )
        self._emit(MachineSampled(self._sample))

    def status(self, now: float | None = None) -> MachineStatus:
        """The row for status and metrics."""
        at = self._clock() if now is None else now
        last = {device.name: device for device in (() if self._sample is None else self._sample.devices)}
        return MachineStatus(
            enabled=self._running,
            interval_s=self.interval_s,
            sample_age_s=None if self._sampled_at is None else round(max(0.0, at - self._sampled_at), 3),
            psi=self._alarm.mode,
            estimated=self._estimated,
            degraded=self._degraded,
            sample=self._sample,
            devices=tuple(
                _device_status(source, spec.kind, last.get(source.name))
                for source, spec in zip(self._sources, self._config.devices, strict=False)
            ),
        )

    @property
    def interval_s(self) -> float:
        """How often the machine is read now: more often when what is available comes near a mark."""
        return looks.interval_s(self._config, self._sample)

    def close(self) -> None:
        """Stop, tell nothing, leave no descriptor. Twice is fine."""
        self._stop()

    def _stop(self) -> None:
        self._running = False
        self._cancel_timer()
        self._alarm.close()
        self._pressure.close()
        self._close_meminfo()
        self._close_sources()
        self._sample = self._sampled_at = self._degraded = None

    def _tick(self) -> None:
        try:
            self.sample_now()
        finally:
            # Whatever became of the sample: a machine that is not looked at any more has no guard.
            self._set_timer()

    def _set_timer(self) -> None:
        self._cancel_timer()
        if self._running:
            self._timer = self._loop.call_at(beats.due(self._loop.time(), self.interval_s), self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Reading

    def _ram(self) -> Ram:
        path = f"{self._proc}/meminfo"
        try:
            # Kept open: in a crisis there may be no descriptor left.
            if self._meminfo_fd is None:
                self._meminfo_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            data = os.pread(self._meminfo_fd, READ_BYTES, 0)
        except OSError as error:
            # lxcfs, which shows a container its own figures, leaves dead descriptors behind when it is restarted.
            self._close_meminfo()
            raise KernelError(f"cannot read {path}: {error.strerror}; mount procfs on {self._proc}") from None
        return ram_of(procfmt.meminfo(data, RAM_KEYS).values)

    def _devices(self) -> tuple[DeviceUsage, ...]:
        found = []
        for source in self._sources:
            usage = source.read()
            if usage is not None:
                found.append(usage)
            elif source.fault is not None:
                self._say(source.fault)
        return tuple(found)

    def _close_meminfo(self) -> None:
        if self._meminfo_fd is not None:
            os.close(self._meminfo_fd)
            self._meminfo_fd = None

    def _close_sources(self) -> None:
        for source in self._sources:
            source.close()
        self._sources = []

    def _say(self, sentence: str) -> None:
        if sentence not in self._said and len(self._said) < _MAX_SAID:
            self._said.add(sentence)
            if self._on_fault is not None:
                self._on_fault(sentence)


def ram_of(meminfo: Mapping[str, int | None]) -> Ram:
    """The figures of /proc/meminfo (kB; None: implausible) in bytes. Raises FormatError when they say too little.

    Where MemAvailable is missing (before 3.14) or implausible (lxcfs), free memory, page cache, buffers and reclaimable
    slab less shared memory stand in for it. That reads too high by what reclaim has to leave: the zones' low
    watermarks, and the part of cache and slab that is in use. It is still the order of magnitude that marks are about.
    """
    total_kb = meminfo.get("MemTotal")
    if not total_kb:
        raise FormatError("cannot use /proc/meminfo: no usable MemTotal; check that /proc is procfs")
    told_kb = meminfo.get("MemAvailable")
    available_kb = _estimate_kb(meminfo, total_kb) if told_kb is None else told_kb
    if available_kb is None:
        raise FormatError("cannot use /proc/meminfo: neither MemAvailable nor MemFree; check that /proc is procfs")
    swap_total_kb, swap_free_kb = meminfo.get("SwapTotal"), meminfo.get("SwapFree")
    return Ram(
        total_bytes=total_kb * 1024,
        available_bytes=available_kb * 1024,
        swap_total_bytes=None if swap_total_kb is None else swap_total_kb * 1024,
        swap_free_bytes=None if swap_free_kb is None else swap_free_kb * 1024,
        estimated=told_kb is None,
    )


def _estimate_kb(meminfo: Mapping[str, int | None], total_kb: int) -> int | None:
    free_kb = meminfo.get("MemFree")
    if free_kb is None:
        return None
    droppable_kb = sum(meminfo.get(key) or 0 for key in ("Cached", "Buffers", "SReclaimable"))
    return min(total_kb, max(free_kb, free_kb + droppable_kb - (meminfo.get("Shmem") or 0)))


def _device_status(source: Source, kind: str, last: DeviceUsage | None) -> DeviceStatus:
    return DeviceStatus(
        name=source.name,
        kind=kind,
        used_bytes=None if last is None else last.used_bytes,
        total_bytes=None if last is None else last.total_bytes,
        degraded=source.fault,
    )
