"""Keeps the memory of the process as small after weeks as after start: bounds for the C library's allocator, a garbage
collector that does not take what start-up made for a reason to wait, and room at hand for what a busy hour needs.

Must not: raise; what a C library does not know (musl has no mallopt) is left as it is. Upstream: cli.edgeguardd,
daemon. Downstream: mallopt(3), malloc_trim(3), gc.
"""

import ctypes
import gc

# malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# glibc's own default, set by hand so that it stays: by itself it grows to the largest block that was ever freed (a page
# of metrics, a packer's window), and from then on such blocks are cut out of the heap, which shrinks only at its end.
_MMAP_BYTES = 128 << 10
# Above what is held back below.
_TRIM_BYTES = 1 << 20

# What a daemon with 30 targets that come and go and 20 subscribers has taken beyond its start after an hour, and half
# as much again: 1.1 MiB of small objects, 0.1 MiB of others. Larger objects than _SMALL_BYTES are the C library's
# (SMALL_REQUEST_THRESHOLD, Objects/obmalloc.c); of the smaller ones one is kept in each stretch, for Python gives back
# an arena (1 MiB, 256 KiB before 3.10) of which nothing is in use.
_SMALL_ROOM_BYTES = 2 << 20
_LARGE_ROOM_BYTES = 256 << 10
_SMALL_BYTES = 512
_STRETCH_BYTES = 128 << 10

_kept: list[bytes] = []


def bound() -> None:
    """Before there are threads: large blocks go back to the kernel when freed, and all threads share one heap."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    for name, figure in ((_M_MMAP_THRESHOLD, _MMAP_BYTES), (_M_TRIM_THRESHOLD, _TRIM_BYTES), (_M_ARENA_MAX, 1)):
        mallopt(name, figure)


def settle() -> None:
    """After start: what it made lives as long as the daemon, so the collector need not walk it in a crisis.

    A full collection is put off until a quarter as many objects are new as the last one left (gc_collect_generations,
    Modules/gcmodule.c of 3.11); the second one, which finds nothing, makes that a quarter of what is not frozen.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
    _make_room()


def _make_room() -> None:
    """Touch, before memory is locked, what will be wanted when there is none: pages at hand need not be found."""
    size = _SMALL_BYTES - bytes.__basicsize__
    small = [bytes(size) for _ in range(_SMALL_ROOM_BYTES // _SMALL_BYTES)]
    _kept[:] = small[:: _STRETCH_BYTES // _SMALL_BYTES]
    block = _MMAP_BYTES // 2
    large = [b"\1" * block for _ in range(_LARGE_ROOM_BYTES // block)]
    del small, large
