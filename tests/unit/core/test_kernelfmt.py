"""Kernel text as values: what is unknown stays unknown, what is wrong is an error, and nothing is invented."""

import pytest

from edgeguardd.core import kernelfmt, kernelkinds, procfmt
from edgeguardd.core.kernelfmt import CpuMax, Pressure, Stall
from edgeguardd.core.model import Counters
from edgeguardd.core.procfmt import Controllers, Membership, Mounts
from edgeguardd.errors import FormatError

MIB = 1024 * 1024


def events(data: bytes) -> Counters:
    return kernelfmt.memory_events(data, "memory.events")


# memory.events


def test_counters_are_found_by_key_in_any_order_between_unknown_ones() -> None:
    """Kernels add keys in the middle; a position means nothing."""
    found = events(b"oom_kill 3\nnew_thing 9\nhigh 1\nlow 0\nworse nope\nmax 2\noom 0\n")
    assert found == Counters(low=0, high=1, max=2, oom=0, oom_kill=3)


@pytest.mark.parametrize("value", [b"-1", b"18446744073709551616", b"nope", b"1.5", b"0x10", b"1 2", b"", "٣".encode()])
def test_a_counter_with_an_impossible_value_is_unknown(value: bytes) -> None:
    """Neither zero nor a guess: the other counters stay."""
    assert events(b"high 4\noom_kill " + value + b"\n") == Counters(high=4)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"high\n", b"high x\n", b"unknown 4\n", b"\0" * 80, b"max"])
def test_a_file_without_any_counter_is_an_error(data: bytes) -> None:
    """An empty memory.events is no cgroup without events: something else is mounted there."""
    with pytest.raises(FormatError, match=r"cannot use memory\.events"):
        events(data)


def test_a_file_cut_in_the_middle_of_a_key_gives_what_is_whole() -> None:
    """The rest is unknown."""
    assert events(b"low 0\nhigh 7\nma") == Counters(low=0, high=7)


def test_a_counter_that_went_back_belongs_to_a_new_cgroup() -> None:
    """Then all that it counts is new, also the counters that did not go back."""
    old = Counters(low=0, high=5, max=51, oom=1, oom_kill=1)
    new = Counters(low=0, high=9, max=2, oom=0, oom_kill=1)
    assert kernelfmt.delta(new, old) == new


def test_a_delta_is_unknown_where_one_reading_is() -> None:
    """A key that appears has an unknown past; a key that is missing has an unknown present."""
    assert kernelfmt.delta(Counters(high=5, max=3), Counters(high=2, oom=1)) == Counters(high=3)


def test_a_reading_without_a_key_does_not_forget_its_last_value() -> None:
    """Else what was counted meanwhile would be lost."""
    base = kernelfmt.latest(Counters(high=6), Counters(high=5, oom_kill=2))
    assert base == Counters(high=6, oom_kill=2)
    assert kernelfmt.delta(Counters(high=6, oom_kill=4), base) == Counters(high=0, oom_kill=2)


def test_unmoved_counters_are_no_move() -> None:
    """Zero and unknown alike."""
    assert not kernelfmt.moved(Counters(high=0, max=None))
    assert kernelfmt.moved(Counters(oom_kill=1))


# memory.stat


def needed(**figures: int) -> int | None:
    whole = {"anon": 0, "file": 0, "shmem": 0, "file_mapped": 0, "kernel": 0, "slab_reclaimable": 0}
    data = "".join(f"{key} {value}\n" for key, value in (whole | figures).items())
    return kernelfmt.needed_bytes(kernelfmt.memory_stat(data.encode()))


def test_clean_unmapped_page_cache_is_not_needed() -> None:
    """Reading a file fills it harmlessly."""
    assert needed(anon=10 * MIB, file=500 * MIB) == 10 * MIB


def test_mapped_weights_are_needed() -> None:
    """Evicting them makes the server slow long before anything counts as out of memory."""
    assert needed(anon=MIB, file=300 * MIB, file_mapped=250 * MIB) == 251 * MIB


def test_mapped_shared_memory_is_not_counted_twice() -> None:
    """It stands in shmem and in file_mapped, but there is only so much `file`."""
    assert needed(file=100 * MIB, shmem=100 * MIB, file_mapped=100 * MIB) == 100 * MIB


def test_a_tmpfs_file_beside_mapped_weights_counts_with_them() -> None:
    """The larger of the two alone would hide the other."""
    assert needed(file=900 * MIB, shmem=300 * MIB, file_mapped=600 * MIB) == 900 * MIB


def test_the_kernel_key_holds_its_parts() -> None:
    """Stacks, page tables and slab are in `kernel`; socket buffers are not; reclaimable slab can be had back."""
    found = needed(
        kernel=50, kernel_stack=10, pagetables=10, percpu=5, slab_unreclaimable=5, slab_reclaimable=20, sock=7
    )
    assert found == 50 - 20 + 7


def test_kernels_before_5_18_name_parts_only() -> None:
    """Then the parts are added up."""
    data = b"anon 1000\nfile 0\nshmem 0\nfile_mapped 0\n"
    parts = b"kernel_stack 10\nslab_reclaimable 99\nslab_unreclaimable 5\nsock 2\n"
    assert kernelfmt.needed_bytes(kernelfmt.memory_stat(data + parts)) == 1017
    assert kernelfmt.needed_bytes(kernelfmt.memory_stat(data)) is None


@pytest.mark.parametrize("missing", ["anon", "file", "shmem", "file_mapped", "slab_reclaimable"])
def test_needed_bytes_of_a_cut_file_are_unknown(missing: str) -> None:
    """Not zero, and not the sum of what happens to be there."""
    stat = {"anon": 1, "file": 1, "shmem": 1, "file_mapped": 1, "kernel": 1, "slab_reclaimable": 1}
    assert kernelfmt.needed_bytes(stat) is not None
    del stat[missing]
    assert kernelfmt.needed_bytes(stat) is None


def test_refaults_are_those_of_both_kinds() -> None:
    """Split since 5.9, one figure before, unknown where there is none."""
    assert kernelfmt.refaults({"workingset_refault_anon": 2, "workingset_refault_file": 3}) == 5
    assert kernelfmt.refaults({"workingset_refault": 4}) == 4
    assert kernelfmt.refaults({"workingset_refault_anon": 2}) is None


# Limits and numbers


def test_max_is_no_limit() -> None:
    """And a number is one."""
    assert kernelfmt.limit(b"max\n", "memory.max") is None
    assert kernelfmt.limit(b"  42  \r\n", "memory.max") == 42
    assert kernelfmt.limit(b"0\n", "memory.max") == 0


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"-1\n", b"maximum\n", b"4 2\n", b"1e9\n", b"9" * 21, b"9" * 5000, b"\xff"]
)
def test_a_limit_that_is_none_is_an_error(data: bytes) -> None:
    """An unreadable limit is neither 0 nor unlimited. The message names the file and shows little of it."""
    with pytest.raises(FormatError) as caught:
        kernelfmt.limit(data, "memory.high")
    assert str(caught.value).startswith("cannot use memory.high: ")
    assert len(str(caught.value)) < 400


def test_max_is_no_number() -> None:
    """memory.current never says "max"."""
    with pytest.raises(FormatError, match=r"memory\.current"):
        kernelfmt.number(b"max\n", "memory.current")


@pytest.mark.parametrize(
    "value",
    [
        9223372036854771712,  # 4 KiB pages
        9223372036854759424,  # 16 KiB pages
        9223372036854710272,  # 64 KiB pages
        9223372036854775807,  # before page counters
        18446744073709551615,
        8796093018112,  # 32 bits
    ],
)
def test_v1_unlimited_is_recognised_on_every_page_size(value: int) -> None:
    """There is not one constant for it."""
    assert kernelfmt.v1_limit(f"{value}\n".encode(), "memory.limit_in_bytes") is None


def test_a_v1_limit_is_a_limit() -> None:
    """Large ones too."""
    assert kernelfmt.v1_limit(b"8796093022208\n", "memory.limit_in_bytes") == 8796093022208


def test_cpu_max_is_two_fields() -> None:
    """One alone is an error, not a default."""
    assert kernelfmt.cpu_max(b"50000 100000\n") == CpuMax(50000, 100000)
    for data in (b"", b"max\n", b"max max\n", b"1 2 3\n"):
        with pytest.raises(FormatError):
            kernelfmt.cpu_max(data)


def test_flat_keyed_files_keep_every_key() -> None:
    """A value that is no number is unknown."""
    assert kernelfmt.flat_keyed(b"a 1\nb x\n", "cgroup.stat") == {"a": 1, "b": None}
    with pytest.raises(FormatError, match=r"cgroup\.stat"):
        kernelfmt.flat_keyed(b"\n", "cgroup.stat")


# PSI

SOME = b"some avg10=1.00 avg60=2.50 avg300=0.01 total=7\n"


def test_a_pressure_line_that_is_cut_is_unknown() -> None:
    """The whole one stays."""
    assert kernelfmt.pressure(SOME + b"full avg10=0.0", "memory.pressure") == Pressure(Stall(1.0, 2.5, 0.01, 7), None)


@pytest.mark.parametrize("data", [b"", b"some\n", SOME[:20], b"some avg10=nan avg60=0.00 avg300=0.00 total=1\n"])
def test_a_pressure_file_without_a_whole_line_is_an_error(data: bytes) -> None:
    """It is not a file of zeros."""
    with pytest.raises(FormatError, match=r"io\.pressure"):
        kernelfmt.pressure(data, "io.pressure")


# /proc


def test_a_cgroup_name_may_hold_colons_commas_blanks_and_raw_bytes() -> None:
    """Only the first two colons separate; bytes that are not UTF-8 survive so that the path can be opened."""
    found = procfmt.membership(b"0::/a:b,c d/\xff\n")
    assert found == Membership("/a:b,c d/\udcff", deleted=False, memory_v1_path=None)
    assert found.v2_path is not None
    assert found.v2_path.encode("utf-8", "surrogateescape") == b"/a:b,c d/\xff"


def test_a_named_v1_hierarchy_is_not_the_memory_controller() -> None:
    """`name=memory` is somebody's label; `cpu,memory` are co-mounted controllers."""
    assert procfmt.membership(b"3:name=memory:/x\n0::/y\n").memory_v1_path is None
    assert procfmt.membership(b"3:cpu,memory:/x\n").memory_v1_path == "/x"


def test_a_path_out_of_the_namespace_is_told() -> None:
    """It names nothing that can be opened here."""
    assert procfmt.membership(b"0::/../other\n").outside_namespace
    assert not procfmt.membership(b"0::/..a/b..\n").outside_namespace


@pytest.mark.parametrize("data", [b"", b"0::\n", b"0:/x\n", b"x::/a\n", b"\n"])
def test_a_membership_without_a_line_is_an_error(data: bytes) -> None:
    """It is not the root cgroup."""
    with pytest.raises(FormatError):
        procfmt.membership(data)


def test_a_missing_memory_row_says_nothing() -> None:
    """Kernels without the v1 controller may leave it out although v2 has it."""
    assert procfmt.controllers(b"#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t1\t1\n") == Controllers(
        None, None
    )
    assert procfmt.controllers(b"memory 4 13 1\n") == Controllers(True, 4)
    with pytest.raises(FormatError):
        procfmt.controllers(b"#subsys_name\thierarchy\tnum_cgroups\tenabled\n")


def test_mounts_are_found_with_their_escapes_and_optional_fields() -> None:
    """A blank in a mount point is written as \\040; optional fields stand before the separator."""
    data = (
        b"22 27 0:21 / /proc rw - proc proc rw\n"
        b"41 31 0:38 / /mnt/with\\040blank rw shared:9 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
        b"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        b"36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        b"cut 31 0:33 / /x - cgroup2\n"
    )
    assert procfmt.mounts(data) == Mounts(("/mnt/with blank",), ("/sys/fs/cgroup/memory",))


def test_meminfo_figures_that_cannot_be_are_unknown() -> None:
    """More free than there is, an underflow, a strange unit: each is unknown, and swap in use is never negative."""
    found = procfmt.meminfo(
        b"MemTotal: 1000 kB\nMemAvailable: 2000 kB\nSwapTotal: 10 kB\nSwapFree: 18446744073709551488 kB\nShmem: 3 MB\n"
    )
    assert found.values == {"MemTotal": 1000, "MemAvailable": None, "SwapTotal": 10, "SwapFree": None, "Shmem": None}
    assert found.implausible == ("SwapFree", "MemAvailable")
    assert found.swap_used_kb is None


def test_swap_in_use_is_total_minus_free() -> None:
    """When both can be believed."""
    assert procfmt.meminfo(b"SwapTotal: 10 kB\nSwapFree: 4 kB\n").swap_used_kb == 6


def test_the_address_space_of_vmalloc_is_believed() -> None:
    """With five-level page tables it is 12.8 PB."""
    assert procfmt.meminfo(b"VmallocTotal:   13743895347199 kB\n").values == {"VmallocTotal": 13743895347199}


# The table of kinds


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("memory.events", "memory.events"),
        ("/sys/fs/cgroup/system.slice/memory.max", "memory.max"),
        ("/proc/self/cgroup", "/proc/PID/cgroup"),
        ("/proc/4711/cgroup", "/proc/PID/cgroup"),
        ("/proc/self/mountinfo", "/proc/PID/mountinfo"),
        ("/proc/pressure/io", "/proc/pressure/io"),
        ("memory.nothing", None),
        ("", None),
    ],
)
def test_a_kind_is_known_by_its_name_or_by_a_path(word: str, kind: str | None) -> None:
    """What one has at hand when looking at a machine."""
    assert kernelkinds.kind_of(word) == kind


@pytest.mark.parametrize("kind", sorted(kernelkinds.KINDS))
def test_no_kind_takes_an_empty_file_for_an_answer(kind: str) -> None:
    """Empty is an error for each but lists of words and mounts, which may be empty."""
    if kind in ("cgroup.controllers", "cgroup.subtree_control", "/proc/PID/mountinfo"):
        assert not any(kernelkinds.KINDS[kind](b"").values())
    else:
        with pytest.raises(FormatError, match="cannot use "):
            kernelkinds.KINDS[kind](b"")
