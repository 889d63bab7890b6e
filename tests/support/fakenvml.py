"""A stand-in for NVIDIA's binding, the module pynvml: the five calls that the daemon makes, without a driver.

Must not: use the code under test. Upstream: tests. Downstream: nobody. tests/component/test_nvml.py has the real one.
"""

from types import ModuleType


class NVMLError(Exception):
    """What the binding raises."""


class Memory:
    """What nvmlDeviceGetMemoryInfo returns."""

    def __init__(self, used: int, total: int) -> None:
        self.used = used
        self.total = total


class FakeNvml(ModuleType):
    """`cards`: used and total bytes by index. `broken`: the name of a call -> what it says instead of working."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.cards: dict[int, tuple[int, int]] = {}
        self.broken: dict[str, str] = {}
        self.initialised = 0
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.broken:
            raise NVMLError(self.broken[name])

    def nvmlInit(self) -> None:  # noqa: N802  the binding's names
        self._called("nvmlInit")
        self.initialised += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._called("nvmlShutdown")
        self.initialised -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> object:  # noqa: N802
        self._called("nvmlDeviceGetHandleByIndex")
        if index not in self.cards:
            raise NVMLError("Invalid Argument")
        return ("card", index)

    def nvmlDeviceGetMemoryInfo(self, card: tuple[str, int]) -> Memory:  # noqa: N802
        self._called("nvmlDeviceGetMemoryInfo")
        return Memory(*self.cards[card[1]])
