"""/proc text -> values: PID/cgroup, cgroups, self/mountinfo, meminfo.

Must not: read files, know which file is read when. Upstream: kernelfmt. Downstream: kernel.*, kernelkinds.
Every function takes the bytes of one file and raises FormatError, and nothing else, whatever they are.
Formats: proc(5), cgroups(7), Documentation/filesystems/proc.rst.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

from edgeguardd.core.kernelfmt import decode, echo, u64
from edgeguardd.errors import FormatError

# /proc/meminfo has no larger true figure: VmallocTotal with five-level page tables is 2^43.6 kB. What is larger is an
# underflow (SwapFree of lxcfs: 18446744073709551488) or "unlimited" divided by 1024 (9007199254740991).
_MEMINFO_MAX_KB = 2**48
_MEMINFO_PARTS = (
    ("MemFree", "MemTotal"),
    ("MemAvailable", "MemTotal"),
    ("SwapFree", "SwapTotal"),
    ("CmaFree", "CmaTotal"),
    ("HighFree", "HighTotal"),
    ("LowFree", "LowTotal"),
)

_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
_DELETED = b" (deleted)"


class Membership(Struct, frozen=True):
    """Where a process lives: /proc/PID/cgroup. Paths are those of the reader's cgroup namespace.

    Bytes that are not UTF-8 are kept as surrogates, so that the path can be opened.
    """

    v2_path: str | None
    deleted: bool
    memory_v1_path: str | None

    @property
    def outside_namespace(self) -> bool:
        """The path leads out of the reader's cgroup namespace (`0::/../..`): it names nothing that can be opened."""
        return self.v2_path is not None and ".." in self.v2_path.split("/")


class Controllers(Struct, frozen=True):
    """The row `memory` of /proc/cgroups. None: no such row, which says nothing.

    A kernel without the v1 memory controller (CONFIG_MEMCG_V1=n) may leave the row out although v2 has it.
    """

    memory_enabled: bool | None
    memory_hierarchy: int | None


class Mounts(Struct, frozen=True):
    """The cgroup mounts of /proc/self/mountinfo, in its order: v2 trees, and v1 trees with the memory controller."""

    cgroup2: tuple[str, ...]
    memory_v1: tuple[str, ...]


class Meminfo(Struct, frozen=True):
    """/proc/meminfo. `values` has each key of the file; None: malformed or implausible. kB, except `without_unit`."""

    values: dict[str, int | None]
    implausible: tuple[str, ...]
    without_unit: tuple[str, ...]

    @property
    def swap_used_kb(self) -> int | None:
        """Swap in use; never negative, None when either figure cannot be believed."""
        total_kb, free_kb = self.values.get("SwapTotal"), self.values.get("SwapFree")
        return None if total_kb is None or free_kb is None else total_kb - free_kb


def membership(data: bytes) -> Membership:
    """/proc/PID/cgroup. Raises FormatError when no line is of its form "id:controllers:path"."""
    v2: bytes | None = None
    memory_v1: bytes | None = None
    lines = 0
    for line in data.split(b"\n"):
        # Only the first two colons separate: a cgroup's name may hold more of them, and blanks, and commas.
        fields = line.split(b":", 2)
        if len(fields) != 3 or not fields[0].isdigit() or not fields[2].startswith(b"/"):
            continue
        lines += 1
        if fields[0] == b"0" and not fields[1]:
            v2 = fields[2]
        elif b"memory" in fields[1].split(b","):
            memory_v1 = fields[2]
    if not lines:
        raise FormatError(f"cannot use /proc/PID/cgroup: no line of it in {echo(data)}; check that /proc is mounted")
    return Membership(
        v2_path=None if v2 is None else _path(v2.removesuffix(_DELETED)),
        deleted=v2 is not None and v2.endswith(_DELETED),
        memory_v1_path=None if memory_v1 is None else _path(memory_v1),
    )


def uids(data: bytes) -> frozenset[int]:
    """/proc/PID/status: the user numbers of a process, the real one and those in force. Raises FormatError."""
    line = next((line for line in data.split(b"\n") if line.startswith(b"Uid:")), b"")
    found = frozenset(int(word) for word in line.split()[1:] if word.isdigit() and len(word) <= 10)
    if not found:
        raise FormatError(f"cannot use /proc/PID/status: no Uid in {echo(data)}; check that /proc is mounted")
    return found


def controllers(data: bytes) -> Controllers:
    """/proc/cgroups. Raises FormatError when it has no row at all."""
    rows = [fields for fields in (line.split() for line in data.splitlines()) if len(fields) == 4]
    rows = [fields for fields in rows if fields[1].isdigit() and fields[3] in (b"0", b"1")]
    if not rows:
        raise FormatError(f"cannot use /proc/cgroups: no row in {echo(data)}; check that /proc is mounted")
    for name, hierarchy, _, enabled in rows:
        if name == b"memory":
            return Controllers(enabled == b"1", u64(hierarchy))
    return Controllers(None, None)


def mounts(data: bytes) -> Mounts:
    """/proc/PID/mountinfo: the mount points of cgroup v2 and of the v1 memory controller. Never raises."""
    cgroup2: list[str] = []
    memory_v1: list[str] = []
    for _, point, kind, options in _mounted(data):
        if kind == b"cgroup2":
            cgroup2.append(point)
        elif kind == b"cgroup" and b"memory" in options.split(b","):
            memory_v1.append(point)
    return Mounts(tuple(cgroup2), tuple(memory_v1))


def cgroup2_roots(data: bytes) -> dict[str, str]:
    """/proc/PID/mountinfo: mount point of cgroup v2 -> the cgroup that is mounted there, as our namespace sees it.

    "/.." for each level that it lies above the namespace's own root (cgroup_show_path, kernel/cgroup/cgroup.c). Of two
    mounts on one point the later one covers the other. Never raises.
    """
    return {point: root for root, point, kind, _ in _mounted(data) if kind == b"cgroup2"}


def _mounted(data: bytes) -> Iterator[tuple[str, str, bytes, bytes]]:
    """Root, mount point, type and options of each mount."""
    for line in data.split(b"\n"):
        before, separator, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ")
        if separator and len(fields) >= 6 and len(kind) >= 3:
            yield _path(_unescaped(fields[3])), _path(_unescaped(fields[4])), kind[0], kind[2]


def _unescaped(field: bytes) -> bytes:
    return _OCTAL.sub(lambda match: bytes((int(match[1], 8),)), field)


def meminfo(data: bytes, keys: frozenset[bytes] | None = None) -> Meminfo:
    """/proc/meminfo, or of its fifty lines those with these keys. A malformed or implausible line is None.

    Raises FormatError when there is none of them.
    """
    values: dict[str, int | None] = {}
    implausible: list[str] = []
    without_unit: list[str] = []
    for line in data.splitlines():
        key, _, rest = line.partition(b":")
        if keys is not None and key.strip() not in keys:
            continue
        name, fields = decode(key.strip()), rest.split()
        if not name:
            continue
        value = u64(fields[0]) if fields and fields[1:] in ([], [b"kB"]) else None
        if value is not None and len(fields) == 1:
            without_unit.append(name)
        if value is not None and value >= _MEMINFO_MAX_KB:
            implausible.append(name)
            value = None
        values[name] = value
    if not values:
        raise FormatError("cannot use /proc/meminfo: it is empty; check that /proc is mounted")
    for part, whole in _MEMINFO_PARTS:
        part_kb, whole_kb = values.get(part), values.get(whole)
        if part_kb is not None and whole_kb is not None and part_kb > whole_kb:
            implausible.append(part)
            values[part] = None
    return Meminfo(values, tuple(implausible), tuple(without_unit))


def _path(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
