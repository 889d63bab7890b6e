"""structlog, set up for a daemon that must never wait for its own log: one line a fact, bounded, safe to print.

Must not: block the loop, raise into the caller, let a peer's text act on a terminal. Upstream: whoever logs.
Downstream: standard error. Lines that cannot be written (full pipe, closed, full disk) are dropped and counted.
"""

import json
import logging
import math
import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, NoReturn, TextIO, cast

from edgeguardd.core.config import LogConfig
from edgeguardd.core.text import printable

# structlog imports rich where it is installed, for coloured tracebacks: a hundred modules that no line of this log
# needs. While it is imported, and only then, empty modules stand in their place; structlog takes that for "missing".
_STAND_INS = ("rich", "rich.console", "rich.pretty", "rich.traceback")
if "rich" in sys.modules:
    import structlog
else:
    sys.modules.update(dict.fromkeys(_STAND_INS, ModuleType("rich")))
    try:
        import structlog
    finally:
        for _name in _STAND_INS:
            del sys.modules[_name]
    # This module alone is content with the empty one, and would stumble over it when asked for a traceback.
    vars(structlog.tracebacks)["rich"] = None

# A pipe takes up to PIPE_BUF bytes as a whole (pipe(7)), and when poll(2) calls it writable, without waiting: Linux
# does so while a whole page is free (fs/pipe.c, pipe_poll).
MAX_LINE_BYTES = select.PIPE_BUF
MAX_VALUE_CHARS = 512
MAX_TRACEBACK_CHARS = 2400
MAX_ITEMS = 32

# So many lines of one event about one target in a window; what goes beyond is counted, and told when the window ends.
LINES_PER_WINDOW = 20
WINDOW_S = 10.0
MAX_WINDOWS = 8192

SEVERITIES = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_RESERVED = frozenset({"time", "severity", "event", "exception"})

Record = dict[str, Any]
Write = Callable[[bytes], int]


def get_logger() -> Any:
    """A structlog logger. Usable at import time: it obeys the configure() that comes later."""
    return structlog.get_logger()


def configure(config: LogConfig, stream: TextIO | None = None) -> "Output":
    """Send all logs, the standard library's included, to `stream` (None: standard error). May be called again."""
    stream = sys.stderr if stream is None else stream
    output = Output(_writer(stream), _json_line if _wants_json(config.format, stream) else _text_line)
    structlog.configure(
        processors=[output.take],
        wrapper_class=structlog.make_filtering_bound_logger(SEVERITIES[config.level]),
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(logging.WARNING)
    return output


class Output:
    """Where all lines end. `dropped_lines` could not be written, `suppressed_lines` were too many of one event."""

    def __init__(
        self, write: Write, render: Callable[[Record], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.dropped_lines = 0
        self.suppressed_lines = 0
        self._write = write
        self._render = render
        self._clock = clock
        self._untold_drops = 0
        self._torn = False
        self._windows: dict[tuple[str, str], _Window] = {}
        self._next_end = math.inf

    def take(self, _logger: object, method: str, fields: Any) -> NoReturn:
        """The one structlog processor: everything is done here, so structlog has nothing left to write."""
        try:
            self.line(method, dict(fields))
        except Exception:  # the daemon must outlive any defect of its own log
            self._drop()
        raise structlog.DropEvent

    def line(self, severity: str, fields: Record) -> None:
        """Write one line, unless its event has had its share of this window."""
        event = str(fields.pop("event", ""))
        now = self._clock()
        if now >= self._next_end:
            self.tell_suppressed(now)
        if self._may_write((event, str(fields.get("target", ""))), now):
            self._emit(severity, event, fields)

    def tell_suppressed(self, now: float) -> None:
        """Close the windows that have ended, with one line for each that had more than its share."""
        ended = [(key, window) for key, window in self._windows.items() if now >= window.end]
        for key, window in ended:
            del self._windows[key]
            if window.suppressed:
                self._emit("warning", "lines_suppressed", {"of": key[0], "target": key[1], "lines": window.suppressed})
        self._next_end = min((window.end for window in self._windows.values()), default=math.inf)

    def _may_write(self, key: tuple[str, str], now: float) -> bool:
        if key not in self._windows and len(self._windows) >= MAX_WINDOWS:
            key = ("others", "")
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now + WINDOW_S)
            self._next_end = min(self._next_end, window.end)
        window.lines += 1
        if window.lines <= LINES_PER_WINDOW:
            return True
        window.suppressed += 1
        self.suppressed_lines += 1
        return False

    def _emit(self, severity: str, event: str, fields: Record) -> None:
        record: Record = {"time": _time_now(), "severity": severity, "event": printable(event, 64)}
        exc_info = fields.pop("exc_info", None)
        for key, value in fields.items():
            record[f"{key}_" if key in _RESERVED else printable(key, 64)] = _clean(value)
        if exc_info:
            record["exception"] = _traceback(exc_info)
        if self._untold_drops:
            record["dropped_before"] = self._untold_drops
        self._put(_fitting(record, self._render))

    def _put(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line
        try:
            written = self._write(line)
        except (OSError, ValueError):  # no room, no reader, no disk; ValueError: the stream object is closed
            self._drop()
            return
        self._torn = written < len(line)
        if self._torn:
            self._drop()
        else:
            self._untold_drops = 0

    def _drop(self) -> None:
        self.dropped_lines += 1
        self._untold_drops += 1


class _Window:
    """What one event about one target has written since a time."""

    __slots__ = ("end", "lines", "suppressed")

    def __init__(self, end: float) -> None:
        self.end = end
        self.lines = 0
        self.suppressed = 0


class _Forward(logging.Handler):
    """The standard library's loggers (asyncio above all) into the same lines."""

    def emit(self, record: logging.LogRecord) -> None:
        write = get_logger().error if record.levelno >= logging.ERROR else get_logger().warning
        write("library_message", logger=record.name, message=_Message(record), exc_info=record.exc_info)


class _Message:
    """A library's message, put together only where its failure is caught."""

    def __init__(self, record: logging.LogRecord) -> None:
        self._record = record

    def __str__(self) -> str:
        return self._record.getMessage()


def _wants_json(format_: str, stream: TextIO | None) -> bool:
    """auto: JSON exactly when journald reads the stream, as JOURNAL_STREAM says (systemd.exec(5))."""
    if format_ != "auto":
        return format_ == "json"
    try:
        found = os.fstat(stream.fileno()) if stream is not None else None
    except (OSError, ValueError):
        return False
    return found is not None and os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _writer(stream: TextIO | None) -> Write:
    """Writes bytes at once or raises. O_NONBLOCK would do it too, but also to whoever shares the terminal."""
    try:
        fd = -1 if stream is None else stream.fileno()
    except (OSError, ValueError):  # an io.StringIO or the like: it never blocks
        return lambda line: len(line) if cast(TextIO, stream).write(line.decode()) else 0
    poller = select.poll()
    if fd >= 0:
        poller.register(fd, select.POLLOUT)

    def write(line: bytes) -> int:
        if fd >= 0 and not poller.poll(0):
            raise BlockingIOError
        return os.write(fd, line)

    return write


def _time_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _clean(value: object) -> Any:
    """A value that JSON can say, of bounded size, with nothing in it that a terminal acts on."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() <= 64:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean_text(item) for item in list(value)[:MAX_ITEMS]]
    return _clean_text(value)


def _clean_text(value: object) -> str:
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:  # whatever __str__ does, the other fields of the line are still wanted
        text = f"<unprintable {type(value).__name__}>"
    return printable(text, MAX_VALUE_CHARS)


def _traceback(exc_info: Any) -> str:
    """The end of a traceback, where the error is."""
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    error = exc_info if isinstance(exc_info, BaseException) else sys.exception()
    if error is None:
        return ""
    text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARS:]
    return "\n".join(printable(line, MAX_VALUE_CHARS) for line in text.rstrip("\n").split("\n"))


def _fitting(record: Record, render: Callable[[Record], bytes]) -> bytes:
    """The record as one line of bounded length: the longest fields are halved until it fits."""
    line = render(record)
    while len(line) > MAX_LINE_BYTES:
        longest = max(record.keys() - _RESERVED | record.keys() & {"exception"}, key=lambda key: len(str(record[key])))
        text = str(record[longest])
        if len(text) < 32:
            del record[longest]
        else:
            record[longest] = (
                "…" + text[len(text) // 2 + 1 :] if longest == "exception" else text[: len(text) // 2] + "…"
            )
        line = render(record)
    return line


def _json_line(record: Record) -> bytes:
    return (json.dumps(record, ensure_ascii=False) + "\n").encode()


def _text_line(record: Record) -> bytes:
    head = f"{record['time']} {record['severity']:<7} {record['event']}"
    pairs = [f"{key}={_text_value(value)}" for key, value in record.items() if key not in _RESERVED]
    trace = [f"    {line}" for line in record["exception"].split("\n")] if "exception" in record else []
    return ("\n".join([" ".join([head, *pairs]), *trace]) + "\n").encode()


def _text_value(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if value and not any(char in value for char in ' "='):
        return value
    return '"' + value.replace('"', '\\"') + '"'
