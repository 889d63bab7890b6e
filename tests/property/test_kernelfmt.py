"""No bytes crash a parser, and no reading counts backwards."""

from hypothesis import given
from hypothesis import strategies as st

from edgeguardd.core import kernelfmt
from edgeguardd.core.kernelkinds import KINDS
from edgeguardd.core.model import Counters
from edgeguardd.errors import FormatError

WORDS = st.sampled_from(
    b"low high max oom oom_kill anon file shmem kernel some full aggr avg10=0.00 avg60=1.00 avg300=99.99 total=1 "
    b"0::/ 4:memory:/x (deleted) kB : MemTotal: SwapFree: SwapTotal: memory cgroup2 cgroup - / \\040 \\777 "
    b"0 1 -1 18446744073709551615 18446744073709551616 \xff \0".split(b" ")
) | st.just(b"9" * 5000)
BLANKS = st.sampled_from((b" ", b"\n", b"\t", b"\r\n", b"", b":"))
TEXTS = st.lists(st.tuples(WORDS, BLANKS).map(b"".join), max_size=60).map(b"".join)
FIGURES = st.none() | st.integers(0, kernelfmt.U64_MAX)
STAT_KEYS = st.sampled_from(("anon", "file", "shmem", "file_mapped", "kernel", "slab_reclaimable"))
COUNTERS = st.builds(Counters, *(FIGURES for _ in Counters.__struct_fields__))


@given(st.binary(max_size=300) | TEXTS)
def test_no_bytes_crash_a_parser(data: bytes) -> None:
    """Every kind answers or raises FormatError, whose message starts like all of ours and stays short."""
    for kind, parse in KINDS.items():
        said = "cannot use"
        try:
            assert isinstance(parse(data), dict), kind
        except FormatError as error:
            said = str(error)
        assert said.startswith("cannot use"), kind
        assert len(said) < 500, kind


@given(st.lists(COUNTERS, min_size=2, max_size=8))
def test_no_delta_is_negative_and_the_base_never_forgets(readings: list[Counters]) -> None:
    """Over any sequence of readings, with counters that come, go and fall."""
    base = readings[0]
    for reading in readings[1:]:
        change = kernelfmt.delta(reading, base)
        assert all((getattr(change, name) or 0) >= 0 for name in Counters.__struct_fields__)
        base = kernelfmt.latest(reading, base)
        for name in Counters.__struct_fields__:
            if getattr(reading, name) is not None:
                assert getattr(base, name) == getattr(reading, name)


@given(st.dictionaries(STAT_KEYS, FIGURES))
def test_needed_bytes_never_exceed_what_there_is(stat: dict[str, int | None]) -> None:
    """needed ≤ anon + max(file, shmem) + kernel, and never less than anon + shmem."""
    needed = kernelfmt.needed_bytes(stat)
    if needed is None:
        return
    anon, file, shmem, kernel = (stat.get(key) or 0 for key in ("anon", "file", "shmem", "kernel"))
    assert anon + shmem <= needed <= anon + max(file, shmem) + kernel
