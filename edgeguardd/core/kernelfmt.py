"""cgroup file text -> values: memory.events, memory.stat, limits, numbers, PSI.

Must not: read files, know which file is read when. Upstream: model. Downstream: kernel.cgroupfs, kernelkinds, procfmt.
Every function takes the bytes of one file and raises FormatError, and nothing else, whatever they are. Unknown keys are
skipped; a known key that is missing or unreadable is None (unknown), never 0.
Formats: Documentation/admin-guide/cgroup-v2.rst, Documentation/accounting/psi.rst.
"""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from edgeguardd.core.model import Counters
from edgeguardd.errors import FormatError

U64_MAX = 2**64 - 1
MAX_ECHO_BYTES = 40

# cgroup v1 says "unlimited" as the largest page count times the page size. On 64 bits that is 2^63 - 1 rounded down to
# a page, whatever the page size, and nobody owns 4 EiB; on 32 bits it is 2^31 - 1 pages (PAGE_COUNTER_MAX,
# include/linux/page_counter.h).
_V1_UNLIMITED_64 = 2**62
_V1_UNLIMITED_32 = frozenset((2**31 - 1) * page for page in (4096, 8192, 16384, 65536))

_COUNTERS = frozenset(name.encode() for name in Counters.__struct_fields__)
# What needed_bytes and refaults read. The rest of memory.stat (60 keys on 6.x) is not turned into numbers.
_KERNEL_PARTS = ("kernel_stack", "pagetables", "percpu", "vmalloc", "slab_unreclaimable")
_STAT_WANTED = {
    key.encode(): key
    for key in (
        *("anon", "file", "shmem", "file_mapped", "kernel", "sock", "slab_reclaimable"),
        *("workingset_refault", "workingset_refault_anon", "workingset_refault_file"),
        *_KERNEL_PARTS,
    )
}

_AVERAGE = re.compile(rb"\d{1,3}\.\d{1,2}")


class Stall(Struct, frozen=True):
    """One line of a PSI file: percent of time stalled over 10, 60 and 300 s, and the total in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


class Pressure(Struct, frozen=True):
    """A PSI file. Old kernels have no `full` for cpu, irq has no `some`; a line that is not there is None."""

    some: Stall | None
    full: Stall | None


class CpuMax(Struct, frozen=True):
    """cpu.max: microseconds of CPU time in each period; a quota of None is "max"."""

    quota_us: int | None
    period_us: int


# The sampling path


def memory_events(data: bytes, name: str) -> Counters:
    """memory.events or memory.events.local. Raises FormatError, which names the file `name`, when it has no counter."""
    found = {key.decode(): u64(value) for key, value in pairs(data) if key in _COUNTERS}
    if all(value is None for value in found.values()):
        raise FormatError(f"cannot use {name}: no counter in {echo(data)}; check what is mounted there")
    return Counters(**found)


def delta(new: Counters, old: Counters) -> Counters:
    """By how much each counter moved: never negative; None where either reading does not know the counter.

    A counter that went back belongs to a new cgroup, so all of its counts are new.
    """
    both = _both(new, old)
    if any(now is not None and was is not None and now < was for now, was in both):
        return new
    return Counters(*(None if now is None or was is None else now - was for now, was in both))


def latest(new: Counters, old: Counters) -> Counters:
    """The last known value of each counter: what the next delta counts from when a reading lacked a key."""
    return Counters(*(was if now is None else now for now, was in _both(new, old)))


def moved(change: Counters) -> bool:
    """Whether a delta holds any count."""
    return any(getattr(change, name) for name in Counters.__struct_fields__)


def memory_stat(data: bytes) -> dict[str, int | None]:
    """The keys of memory.stat that needed_bytes and refaults read; absent keys are left out."""
    found: dict[str, int | None] = {}
    # Read at each sample of each target: spelt out, this takes half the time of `pairs`.
    for line in data.splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0] in _STAT_WANTED:
            found[_STAT_WANTED[fields[0]]] = u64(fields[1])
    return found


def needed_bytes(stat: Mapping[str, int | None]) -> int | None:
    """What cannot be dropped for free: anon + shmem + mapped file + unreclaimable kernel memory.

    None when a figure that the sum stands on is missing (a cut file): unknown, not 0.

    `file` holds both shmem and mapped file, and a mapped shmem page counts in `shmem` and in `file_mapped`
    (NR_FILE_MAPPED counts every mapped page that is not anon: mm/rmap.c). How much the two overlap is not told, so
    their sum is cut at `file`, which holds them both. Where shared memory is mapped and page cache is around, that
    reads up to the smaller of the two too high. The larger of the two would read too low where a tmpfs file lies
    beside mapped weights, and a word too early costs a trim, one too late a kill.
    """
    anon, file, shmem, mapped = (stat.get(key) for key in ("anon", "file", "shmem", "file_mapped"))
    kernel = _unreclaimable_kernel_bytes(stat)
    if anon is None or file is None or shmem is None or mapped is None or kernel is None:
        return None
    return anon + max(shmem, min(shmem + mapped, file)) + kernel


def _unreclaimable_kernel_bytes(stat: Mapping[str, int | None]) -> int | None:
    """Kernel memory that reclaim cannot give back, network buffers included.

    `kernel` (5.18) is all that is charged as kernel memory: slab of both kinds, stacks, page tables, percpu, vmalloc,
    zswap (MEMCG_KMEM in mm/memcontrol.c). Socket buffers are charged apart and are only in `sock`. Older kernels name
    parts; those that they do not name cannot be known.
    """
    sock = stat.get("sock") or 0
    kernel = stat.get("kernel")
    if kernel is not None:
        reclaimable = stat.get("slab_reclaimable")
        return None if reclaimable is None else max(0, kernel - reclaimable) + sock
    if stat.get("slab_unreclaimable") is None:
        return None
    return sock + sum(stat.get(key) or 0 for key in _KERNEL_PARTS)


def refaults(stat: Mapping[str, int | None]) -> int | None:
    """Pages that were evicted and had to be read again, since the cgroup was made. None: the kernel does not tell.

    Split into anon and file from 5.9 on.
    """
    anon, file = stat.get("workingset_refault_anon"), stat.get("workingset_refault_file")
    if anon is not None and file is not None:
        return anon + file
    return stat.get("workingset_refault")


def limit(data: bytes, name: str) -> int | None:
    """memory.max and its kind: bytes (or a count), None for "max". Raises FormatError, which names the file `name`."""
    text = data.strip()
    return None if text == b"max" else _number(text, name, 'neither a number nor "max"')


def number(data: bytes, name: str) -> int:
    """memory.current and its kind: one u64. Raises FormatError, which names the file `name`."""
    return _number(data.strip(), name, "not a number")


# Everything else


def flat_keyed(data: bytes, name: str) -> dict[str, int | None]:
    """Any file of "key value" lines; a value that is no u64 is None. Raises FormatError when no line is one."""
    found = {decode(key): u64(value) for key, value in pairs(data)}
    if not found:
        raise FormatError(f"cannot use {name}: no 'key value' line in {echo(data)}; check what is mounted there")
    return found


def v1_limit(data: bytes, name: str) -> int | None:
    """memory.limit_in_bytes and its kind; None: unlimited. Raises FormatError, which names the file `name`."""
    value = number(data, name)
    return None if value >= _V1_UNLIMITED_64 or value in _V1_UNLIMITED_32 else value


def cpu_max(data: bytes) -> CpuMax:
    """cpu.max: quota and period. Raises FormatError."""
    fields = data.split()
    if len(fields) != 2:
        raise FormatError(f"cannot use cpu.max: {echo(data)} is not two fields; check what is mounted there")
    return CpuMax(limit(fields[0], "cpu.max"), number(fields[1], "cpu.max"))


def pressure(data: bytes, name: str) -> Pressure | None:
    """A PSI file; None: the format of the patches before 4.20, which is not supported.

    A line that is cut or garbled is None. Raises FormatError when no line can be read.
    """
    lines = {fields[0]: fields[1:] for fields in (line.split() for line in data.splitlines()) if fields}
    some, full = _stall(lines.get(b"some", [])), _stall(lines.get(b"full", []))
    if some is not None or full is not None:
        return Pressure(some, full)
    if b"aggr" in lines:
        return None
    raise FormatError(f"cannot use {name}: no whole line of pressure in {echo(data)}; check what is mounted there")


def words(data: bytes) -> tuple[str, ...]:
    """cgroup.controllers and its kind: names separated by blanks. Never raises; none is ()."""
    return tuple(decode(word) for word in data.split())


# The words that all of them are made of


def pairs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The lines of exactly two words; blanks, tabs, carriage returns and empty lines do not matter."""
    for line in data.splitlines():
        fields = line.split()
        if len(fields) == 2:
            yield fields[0], fields[1]


def u64(text: bytes) -> int | None:
    """The number; None when it is negative, larger than 64 bits, or no number."""
    if not text.isdigit() or len(text) > 20:
        return None
    value = int(text)
    return value if value <= U64_MAX else None


def decode(word: bytes) -> str:
    """Text for people: what is not UTF-8 is replaced."""
    return word.decode("utf-8", "replace")


def echo(data: bytes) -> str:
    """The beginning of the bytes, safe to print."""
    return repr(data[:MAX_ECHO_BYTES])[1:] + ("…" if len(data) > MAX_ECHO_BYTES else "")


def _both(new: Counters, old: Counters) -> list[tuple[int | None, int | None]]:
    return [(getattr(new, name), getattr(old, name)) for name in Counters.__struct_fields__]


def _number(text: bytes, name: str, fault: str) -> int:
    value = u64(text)
    if value is None:
        what = "it is empty" if not text else f"{echo(text)} is {fault}"
        raise FormatError(f"cannot use {name}: {what}; check what is mounted there")
    return value


def _stall(fields: list[bytes]) -> Stall | None:
    found = {key: value for key, _, value in (field.partition(b"=") for field in fields)}
    averages = [found.get(key, b"") for key in (b"avg10", b"avg60", b"avg300")]
    total_us = u64(found.get(b"total", b""))
    if total_us is None or not all(_AVERAGE.fullmatch(average) for average in averages):
        return None
    avg10, avg60, avg300 = (float(average) for average in averages)
    return Stall(avg10, avg60, avg300, total_us)
