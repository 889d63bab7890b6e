"""The form of a recording: gzipped JSON Lines, each file a segment that can be replayed by itself.

    {"type": "header", …}                      which daemon, which run, when, under which configuration
    {"type": "checkpoint", "state": …}         the engine as it stood when the segment began
    [now, {"type": "SampleTaken", …}]          every event since, with the time it was handled at (monotonic seconds)
    {"type": "clock", …}                       the wall clock was set: from here on it stands so to the monotonic one

Must not: open files, read a clock, thin out: the engine's growth estimates come from every sample (docs/adr/0008).
Upstream: events, checkpoint. Downstream: recorder (writes), replay and the command line (read).
A crash or a full disk can cut a segment anywhere; what comes before the cut is read, and `damage` says so.
"""

import contextlib
import json
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from edgeguardd.core import checkpoint
from edgeguardd.core.config import Config
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import Event
from edgeguardd.errors import EdgeguardError

FORMAT = 1

# A checkpoint of 256 targets with their subscribers takes 2 MiB; a longer line is no recording of ours.
MAX_LINE_BYTES = 32 << 20

_GZIP = 16 + zlib.MAX_WBITS
# A thousandfold of this is the most that comes of it at once.
_PACKED_BYTES = 4096
_OPENING_LINES = 2


class RecordingError(EdgeguardError):
    """A file is no recording, or of a version that this one cannot read."""


class Clock(Struct, frozen=True, tag="clock", tag_field="type"):
    """Wall clock (seconds since 1970) and monotonic clock (seconds) at one moment."""

    wall_s: float
    monotonic_s: float

    def wall(self, now: float) -> float:
        """The wall clock at a monotonic time."""
        return self.wall_s + now - self.monotonic_s


class Header(Struct, frozen=True, tag="header", tag_field="type"):
    """The first line. `run` is one start of the daemon; its segments are numbered, not always without a gap."""

    format: int
    version: str
    run: str
    segment: int
    boot_id: str | None
    clock: Clock
    config: Config


class _Checkpoint(Struct, frozen=True, tag="checkpoint", tag_field="type"):
    state: Any


class _Format(Struct, frozen=True):
    """What every version's header has."""

    type: str
    format: int


_encoder = msgspec.json.Encoder()
_format_decoder = msgspec.json.Decoder(_Format)
_header_decoder = msgspec.json.Decoder(Header)
_checkpoint_decoder = msgspec.json.Decoder(_Checkpoint)
_event_decoder: "msgspec.json.Decoder[tuple[float, Event]]" = msgspec.json.Decoder(tuple[float, Event])
_clock_decoder = msgspec.json.Decoder(Clock)


# Writing


def beginning(header: Header, engine: Engine) -> bytes:
    """The first two lines of a segment. Raises TypeError where the engine cannot be carried over."""
    state = checkpoint.encode(engine)
    return _line(header) + _line({"type": "checkpoint", "state": state})


def event_line(event: Event, now: float) -> bytes:
    """One event as one line."""
    return _line((now, event))


def clock_line(clock: Clock) -> bytes:
    """The wall clock was set."""
    return _line(clock)


class Packer:
    """Makes the bytes of one segment."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(level=6, wbits=_GZIP)

    def add(self, lines: bytes) -> bytes:
        """What to append to the file: all lines so far can be read back, wherever it ends after that."""
        return self._packer.compress(lines) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        """The end that says: nothing is missing before the next segment."""
        return self._packer.flush(zlib.Z_FINISH)


def _line(value: object) -> bytes:
    try:
        return _encoder.encode(value) + b"\n"
    except UnicodeEncodeError:
        # A cgroup's name may be no UTF-8, and is then text with lone surrogates: JSON can say them, msgspec will not.
        return json.dumps(msgspec.to_builtins(value)).encode("ascii") + b"\n"


# Reading


class Segment:
    """One file, read as far as it goes. `damage` says after events() what was wrong with it; None: nothing.

    complete: after events(), whether it was ended in order, so that no event is missing before the next segment.
    """

    def __init__(self, content: bytes, name: str) -> None:
        """Read the header and the checkpoint. Raises RecordingError where there are none."""
        self.name = name
        self.damage: str | None = None
        self.complete = False
        self._content = content
        lines = self._unpack()
        try:
            self.header = self._header(next(lines))
            self._checkpoint = next(lines)
        except StopIteration:
            raise RecordingError(f"cannot read {name}: {self._shortness()}") from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise RecordingError(f"cannot read {name}: it is no recording ({str(error)[:200]})") from None

    def engine(self) -> Engine:
        """The engine as it stood when the segment began, a new one each time. Raises RecordingError."""
        try:
            return checkpoint.decode(self.state())
        except checkpoint.CheckpointError as error:
            raise self._no_beginning(error) from None

    def state(self) -> checkpoint.Json:
        """The checkpoint as JSON values. Raises RecordingError."""
        try:
            return _decoded(_checkpoint_decoder, self._checkpoint).state
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._no_beginning(error) from None

    def events(self) -> Iterator[tuple[float, Event] | Clock]:
        """The events with their times, in order, and the clock where it was set."""
        for number, line in enumerate(self._unpack(), 1):
            if number <= _OPENING_LINES:
                continue
            try:
                record = _decoded(_event_decoder if line.startswith(b"[") else _clock_decoder, line)
            except (msgspec.MsgspecError, ValueError) as error:
                self.damage = f"line {number} is no event of this version: {str(error)[:200]}"
                self.complete = False
                return
            yield record

    def _no_beginning(self, error: Exception) -> RecordingError:
        remedy = f"replay it with edgeguardd {self.header.version}, which wrote it"
        return RecordingError(f"cannot begin with {self.name}: {str(error)[:300]}; {remedy}")

    def _shortness(self) -> str:
        return self.damage or "it is cut before its first event; go on with the segment after it"

    def _header(self, line: bytes) -> Header:
        spoken = _decoded(_format_decoder, line)
        if spoken.type != "header" or spoken.format != FORMAT:
            raise ValueError(f"its format is {spoken.format}, and {FORMAT} is what this version reads")
        header: Header = _decoded(_header_decoder, line)
        return header

    def _unpack(self) -> Iterator[bytes]:
        """The whole lines. A line without its end is what a crash left, and is passed over."""
        self.damage, self.complete = None, False
        waiting: list[bytes] = []
        for piece in self._pieces():
            waiting.append(piece)
            if b"\n" in piece:
                *lines, rest = b"".join(waiting).split(b"\n")
                waiting = [rest]
                yield from lines
            elif sum(map(len, waiting)) > MAX_LINE_BYTES:
                self.damage = f"a line has over {MAX_LINE_BYTES} bytes"
                return

    def _pieces(self) -> Iterator[bytes]:
        """The content unpacked, up to where it is damaged and no byte less."""
        unpacker = zlib.decompressobj(wbits=_GZIP)
        for at in range(0, len(self._content), _PACKED_BYTES):
            packed = self._content[at : at + _PACKED_BYTES]
            before = unpacker.copy()
            try:
                yield unpacker.decompress(packed)
            except zlib.error as error:
                self.damage = f"it is damaged, or no gzip file ({error})"
                yield _up_to_damage(before, packed)
                return
            if unpacker.eof:
                self.complete = True
                return


def _up_to_damage(unpacker: "zlib._Decompress", packed: bytes) -> bytes:
    """What the bytes before the first bad one give; zlib itself would keep none of it."""
    found = []
    with contextlib.suppress(zlib.error):
        for at in range(len(packed)):
            found.append(unpacker.decompress(packed[at : at + 1]))  # noqa: PERF401  kept when the next one is bad
    return b"".join(found)


def _decoded(decoder: "msgspec.json.Decoder[Any]", line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Lone surrogates, see _line.
        return msgspec.convert(_parsed(line), decoder.type)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(str(line, "utf-8"))  # given bytes, it would guess at UTF-16 and take it
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
