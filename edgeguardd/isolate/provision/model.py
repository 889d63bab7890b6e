"""What provisioning is about, as values: groups that are wanted, what was found of them, changes, and records.

Must not: look at or change anything. Upstream: core.systemdvalues. Downstream: all of provision.
"""

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.errors import EdgeguardError

MIN: Final = "memory.min"
LOW: Final = "memory.low"
HIGH: Final = "memory.high"
MAX: Final = "memory.max"
SWAP_MAX: Final = "memory.swap.max"
OOM_GROUP: Final = "memory.oom.group"
CPU_WEIGHT: Final = "cpu.weight"
CPU_MAX: Final = "cpu.max"
SUBTREE: Final = "cgroup.subtree_control"

# Kernel file -> the setting of systemd that writes it.
PROPERTIES: Final = {
    MIN: "MemoryMin",
    LOW: "MemoryLow",
    HIGH: "MemoryHigh",
    MAX: "MemoryMax",
    SWAP_MAX: "MemorySwapMax",
    OOM_GROUP: "OOMPolicy",
    CPU_WEIGHT: "CPUWeight",
    CPU_MAX: "CPUQuota",
}
SIZES: Final = (MIN, LOW, HIGH, MAX, SWAP_MAX)


class ProvisionError(EdgeguardError):
    """It cannot be provisioned; nothing was changed, or what was is changed back, as the message says."""


class Machine(Struct, frozen=True):
    """What amounts refer to, and what can be promised."""

    memory_bytes: int
    page_bytes: int
    has_swap: bool


class Group(Struct, frozen=True):
    """One slice or service that is wanted. `above`: the slices around it, outermost first.

    `values`: kernel file -> number; INFINITE is "max". cpu.max is microseconds in 100 ms. `lines`: the drop-in's, in
    order. `moves`: its slice is given, so that a service may have to be restarted to get there.
    """

    name: str
    above: tuple[str, ...]
    values: Mapping[str, int]
    lines: tuple[tuple[str, str], ...]
    moves: bool = False

    @property
    def path(self) -> str:
        """Its cgroup below the root, as systemd would place it."""
        return "/" + "/".join((*self.above, self.name))

    @property
    def is_slice(self) -> bool:
        """Whether it holds others."""
        return self.name.endswith(".slice")


class Found(Struct, frozen=True):
    """What is there of a group. path None: it has no cgroup now. `values`: kernel file -> its text.

    `faults`: why it cannot be provisioned at all. `current_bytes`: what it uses, of which `droppable_bytes` are page
    cache.
    """

    path: str | None = None
    values: Mapping[str, str] = {}
    current_bytes: int = 0
    droppable_bytes: int = 0
    faults: tuple[str, ...] = ()


class Kind(enum.StrEnum):
    """What a change is about."""

    CGROUP = "cgroup"  # a directory of the tree: absent or there
    CONTROLLER = "controller"  # a word in cgroup.subtree_control
    FILE = "file"  # a kernel file's text
    DROP_IN = "drop_in"  # a file of systemd's; key is its path
    SLICE = "slice"  # a slice that is started, so that it has a cgroup
    RELOAD = "reload"  # systemctl daemon-reload
    LIVE = "live"  # a kernel file that does not have what systemd was told


class Change(Struct, frozen=True):
    """One thing that is done: at `place` (a cgroup path, a unit), `key`, from `before` to `after`; None is absent."""

    kind: Kind
    place: str
    key: str
    before: str | None
    after: str | None

    def reversed(self) -> "Change":
        """What takes it back."""
        return Change(self.kind, self.place, self.key, self.after, self.before)


class Entry(Struct, frozen=True):
    """What a record keeps of one change. `inode`: the cgroup that it was made in; 0 where that does not matter."""

    kind: Kind
    place: str
    key: str
    before: str | None
    written: str | None
    inode: int = 0


class Record(Struct, frozen=True):
    """What was there before, for --undo. `boot_id`: kernel files hold for one run of the kernel."""

    backend: str
    boot_id: str
    entries: tuple[Entry, ...] = ()


class Plan(Struct, frozen=True):
    """What is to be done, in order, what stands in the way, and what is worth saying."""

    changes: tuple[Change, ...] = ()
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def kernel_text(file: str, number: int) -> str:
    """A value as the kernel file shows it."""
    word = "max" if number == INFINITE else str(number)
    return f"{word} 100000" if file == CPU_MAX else word


def number_of(file: str, text: str) -> int | None:
    """What a kernel file's text means; None for what cannot be read."""
    words = text.split()
    if not words:
        return None
    if words[0] == "max":
        return INFINITE
    if not (words[0].isascii() and words[0].isdigit()):
        return None
    number = int(words[0][:20])
    if file == CPU_MAX and len(words) == 2 and words[1].isdigit() and int(words[1]):
        return number * 100_000 // int(words[1])
    return number


def size_text(number: int) -> str:
    """Bytes for people: exact, and short where that is exact too."""
    if number == INFINITE:
        return "no limit"
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if number >= 1 << power and number % (1 << power) == 0 and (number < 1 << 20 or power > 10):
            return f"{number >> power}{unit}"
    return f"{number / (1 << 20):.1f}M" if number >= 1 << 20 else f"{number} bytes"
