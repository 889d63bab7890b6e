"""Memory that no cgroup is charged for: a GPU's own, NvMap's share of a Jetson's RAM, or what a file says.

Must not: judge figures, run programs, end the daemon: a device that cannot be read is a sentence, and is tried again.
Upstream: core.procfmt; NVIDIA's own library, imported only when a device of that kind is configured.
Downstream: machine.
"""

import contextlib
import importlib
import os
from abc import ABC, abstractmethod
from types import ModuleType

from edgeguardd.core import kernelfmt, procfmt
from edgeguardd.core.config import DeviceSpec
from edgeguardd.core.model import DeviceUsage
from edgeguardd.errors import EdgeguardError, FormatError, KernelError

# Two 64-bit numbers and the blanks around them.
FILE_READ_BYTES = 256
# /proc/meminfo has 1.6 KB; NvMap's list of clients one line of 60 bytes for each process that uses the GPU.
LIST_READ_BYTES = 64 * 1024

NVMAP_CLIENTS = "/sys/kernel/debug/nvmap/iovmm/clients"

# A missing library or driver costs a search through the file system: look again once a minute at the usual interval.
NVML_RETRY_READINGS = 60


class Source(ABC):
    """One device. `fault`: why the last reading gave nothing, in a sentence; None: it did give something."""

    def __init__(self, name: str) -> None:
        """`name` is what the configuration calls the device."""
        self.name = name
        self.fault: str | None = None

    def read(self) -> DeviceUsage | None:
        """The figures now. Never raises for what the device or its driver does, and never waits for long."""
        try:
            used_bytes, total_bytes = self._figures()
            if not 0 <= used_bytes <= total_bytes or total_bytes == 0:
                raise FormatError(
                    f"cannot use device {self.name}: {used_bytes} of {total_bytes} bytes in use is not possible; "
                    "check where the figures come from"
                )
        except EdgeguardError as error:
            self.fault = str(error)
            return None
        self.fault = None
        return DeviceUsage(self.name, used_bytes, total_bytes)

    def close(self) -> None:
        """Let go of the device. Twice is fine."""
        self.fault = None

    @abstractmethod
    def _figures(self) -> tuple[int, int]:
        """Used and total bytes. Raises EdgeguardError."""


class FileSource(Source):
    """A file of two numbers, used and total bytes, that somebody else keeps up to date."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self._path = path

    def _figures(self) -> tuple[int, int]:
        # Opened each time: who writes it may do so by renaming a new one over it.
        data = _read(self._path, FILE_READ_BYTES, self.name)
        numbers = [kernelfmt.u64(word) for word in data.split()]
        if len(data) == FILE_READ_BYTES or len(numbers) != 2 or None in numbers:
            raise FormatError(
                f"cannot use {self._path} for device {self.name}: {kernelfmt.echo(data)} is not two numbers; "
                "write used and total bytes, such as 1073741824 8589934592"
            )
        used_bytes, total_bytes = numbers
        return used_bytes or 0, total_bytes or 0


class NvmapSource(Source):
    """What GPU and cameras of a Jetson hold of its RAM, which they share with the CPU.

    Older kernels say it as NvMapMemUsed in /proc/meminfo, the later ones only in a file of debugfs; where both are
    there they mean the same. The total is the machine's.
    """

    def __init__(self, name: str, proc: str = "/proc", clients: str = NVMAP_CLIENTS) -> None:
        super().__init__(name)
        self._meminfo = f"{proc}/meminfo"
        self._clients = clients

    def _figures(self) -> tuple[int, int]:
        values = procfmt.meminfo(_read(self._meminfo, LIST_READ_BYTES, self.name)).values
        total_kb, used_kb = values.get("MemTotal"), values.get("NvMapMemUsed")
        if total_kb is None:
            raise FormatError(
                f"cannot use {self._meminfo} for device {self.name}: no MemTotal; check that it is procfs"
            )
        if used_kb is not None:
            return used_kb * 1024, total_kb * 1024
        try:
            return nvmap_bytes(_read(self._clients, LIST_READ_BYTES, self.name), self._clients), total_kb * 1024
        except KernelError as error:
            raise KernelError(
                f"{error}; and {self._meminfo} has no NvMapMemUsed: run as root on a Jetson with debugfs mounted"
            ) from None


class NvmlSource(Source):
    """The memory of an NVIDIA card, through NVIDIA's own library and its binding nvidia-ml-py."""

    def __init__(self, name: str, index: int, library: str = "pynvml") -> None:
        """`library`: the module that speaks NVML; imported at the first reading."""
        super().__init__(name)
        self._index = index
        self._library = library
        self._nvml: ModuleType | None = None
        self._card: object = None
        self._refusal: KernelError | None = None
        self._skip = 0

    def close(self) -> None:
        super().close()
        nvml, self._nvml, self._card = self._nvml, None, None
        if nvml is not None:
            # A driver that is gone cannot be left in good order.
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()

    def _figures(self) -> tuple[int, int]:
        if self._refusal is not None and self._skip > 0:
            self._skip -= 1
            raise self._refusal
        try:
            nvml = self._nvml or self._open()
            memory = nvml.nvmlDeviceGetMemoryInfo(self._card)
            found = int(memory.used), int(memory.total)
        except ImportError:
            raise self._refuse("nvidia-ml-py is not installed; run pip install 'edgeguardd[nvml]'") from None
        # The binding raises classes of its own, plain OSErrors of the loader, and whatever a driver made of it.
        except Exception as error:  # a card that is lost must not cost the guard
            self.close()
            text = " ".join(str(error).split()) or type(error).__name__
            raise self._refuse(
                f'{text}; see what `nvidia-smi -i {self._index}` says; a Jetson has kind = "nvmap"'
            ) from None
        self._refusal = None
        return found

    def _open(self) -> ModuleType:
        nvml = importlib.import_module(self._library)
        nvml.nvmlInit()
        self._nvml = nvml
        self._card = nvml.nvmlDeviceGetHandleByIndex(self._index)
        return nvml

    def _refuse(self, why: str) -> KernelError:
        self._refusal = KernelError(f"cannot read device {self.name} through NVML: {why}")
        self._skip = NVML_RETRY_READINGS - 1
        return self._refusal


def open_source(spec: DeviceSpec, proc: str = "/proc") -> Source:
    """The source of one [[machine.device]]. Nothing is opened before the first reading."""
    match spec.kind:
        case "nvml":
            return NvmlSource(spec.name, spec.index)
        case "nvmap":
            return NvmapSource(spec.name, proc)
        case "file":
            return FileSource(spec.name, spec.path or "")
        case _:
            raise ValueError(f"unknown kind of device: {spec.kind}")


def nvmap_bytes(data: bytes, name: str) -> int:
    """The total of NvMap's list of clients: the line "total", which ends in kilobytes as "805068K".

    Raises FormatError, which names the file `name`. (nvmap_debug_iovmm_clients_show, drivers/video/tegra/nvmap)
    """
    for line in data.splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0] == b"total" and fields[1].endswith(b"K"):
            total_kb = kernelfmt.u64(fields[1][:-1])
            if total_kb is not None:
                return total_kb * 1024
    raise FormatError(f"cannot use {name}: no line of the total in {kernelfmt.echo(data)}; is it NvMap's list?")


def _read(path: str, limit: int, device: str) -> bytes:
    """The first `limit` bytes of a file. Raises KernelError, also where reading would have to wait."""
    try:
        # O_NONBLOCK: neither a FIFO without a writer nor a terminal may stop the daemon.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            data = b""
            while len(data) < limit and (piece := os.read(fd, limit - len(data))):
                data += piece
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(f"cannot read {path} for device {device}: {error.strerror}; check the path") from None
    return data
