"""Logs to OOM reports: files of any size, packed ones too, standard input, and the running kernel's log.

Must not: understand a line (core.oomlog does), hold more than a chunk. Upstream: files, kernel.kmsg, core.oomlog.
Downstream: cli.oomviews.
"""

import bz2
import codecs
import contextlib
import errno
import gzip
import lzma
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Final

from edgeguardd.core.oomlog.collector import Collector
from edgeguardd.core.oomlog.report import Report
from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError
from edgeguardd.kernel.kmsg import Kmsg

Readable = IO[bytes] | gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile

STANDARD_INPUT: Final = "-"
CHUNK_BYTES: Final = 1 << 18
# A line longer than this is no line of a log; its rest is left out.
MAX_CARRIED_BYTES: Final = 1 << 20
# After so long without a record a report has all that it will get: the reaper's line comes within milliseconds.
QUIET_S: Final = 0.5
MAX_RECORDS: Final = 1024

_PACKED: Final[tuple[tuple[bytes, Callable[[IO[bytes]], Readable]], ...]] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_JOURNAL: Final = b"LPKSHHRH"
_BYTE_ORDERS: Final = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def reports(path: str, collector: Collector) -> Iterator[Report]:
    """The reports in a file ("-": standard input), each as soon as it is over. Raises EdgeguardError."""
    with _opened(path) as file:
        for raw in _lines(_chunks(file, path)):
            collector.feed(raw)
            yield from collector.take()
    yield from collector.end()


def follow(collector: Collector, log: Kmsg, *, wait_s: float | None = None) -> Iterator[Report]:
    """The reports of the running kernel, without end; with `wait_s`, until nothing has come for so long."""
    poller = select.poll()
    poller.register(log.fd, select.POLLIN)
    open_reports = False
    while True:
        idle_s = QUIET_S if open_reports else wait_s
        if not poller.poll(None if idle_s is None else idle_s * 1000):
            yield from collector.flush()
            if not open_reports:
                return
            open_reports = False
            continue
        for record in log.records(MAX_RECORDS):
            collector.feed(record)
            open_reports = True
        yield from collector.take()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Readable]:
    """The file, unpacked. Raises EdgeguardError."""
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise EdgeguardError("cannot read standard input: it is closed; name a file, or pipe one in")
        yield sys.stdin.buffer
        return
    shown = printable(path, 4096)
    try:
        raw = open(os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC), "rb")  # noqa: SIM115  closed below
    except OSError as error:
        raise EdgeguardError(
            f"cannot read {shown}: {os.strerror(error.errno or 0)}; name a log that can be read"
        ) from None
    with raw:
        if stat.S_ISDIR(os.fstat(raw.fileno()).st_mode):
            raise EdgeguardError(
                f"cannot read {shown}: it is a directory; name a file, or journalctl -k | edgeguardctl oom -"
            )
        start = raw.peek(16)[:16] if hasattr(raw, "peek") else b""
        if start.startswith(_JOURNAL):
            raise EdgeguardError(
                f"cannot read {shown}: it is a binary journal; run journalctl -k -o short-monotonic --file FILE | "
                "edgeguardctl oom -"
            )
        if start.startswith(_ZSTD):
            raise EdgeguardError(f"cannot read {shown}: it is packed with zstd; run zstdcat FILE | edgeguardctl oom -")
        for magic, unpack in _PACKED:
            if start.startswith(magic):
                with unpack(raw) as file:
                    yield file
                return
        yield raw


def _chunks(file: Readable, path: str) -> Iterator[bytes]:
    """Pieces of the file, UTF-16 (a log redirected by PowerShell) as UTF-8. Raises EdgeguardError."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    while True:
        try:
            chunk = file.read(CHUNK_BYTES)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno == errno.EINTR:
                continue
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise EdgeguardError(f"cannot read {printable(path, 4096)}: {why}; name a whole log") from None
        if not chunk:
            return
        if first:
            first = False
            for mark, name in _BYTE_ORDERS:
                if chunk.startswith(mark):
                    decoder = codecs.getincrementaldecoder(name)(errors="replace")
        yield chunk if decoder is None else decoder.decode(chunk).encode("utf-8", "replace")


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their newline; one that is too long is cut."""
    carried = b""
    skipping = False
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        if not rest:
            if not skipping and len(carried) < MAX_CARRIED_BYTES:
                carried += first
            else:
                skipping = True
            continue
        yield carried if skipping else carried + first
        yield from rest[:-1]
        carried, skipping = rest[-1], False
    if carried:
        yield carried
