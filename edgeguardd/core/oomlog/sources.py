"""Raw lines of any container of logs to lines with their dress off: plain text, JSON of many makers, journal exports.

Must not: know what a message means, keep more than one record. Upstream: dress. Downstream: collector.
A log that has nothing to do with memory goes through `SCREEN` alone, one pass of a regular expression a line.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from edgeguardd.core.oomlog.dress import KERNEL_FACILITY, Line, undress

# A kernel record has at most 1 KiB (printk.h, PRINTKRB_RECORD_MAX), escaped 4 KiB; the rest is dress.
MAX_LINE_BYTES: Final = 16 * 1024
# A journal record may carry the environment of its writer.
MAX_JSON_BYTES: Final = 256 * 1024
MAX_FIELDS: Final = 64

# What a line must have to be looked at while no report is open.
SCREEN: Final = re.compile(
    rb"oom|OOM|emory|[Kk]ill|total_vm|panic|SIG(?:TERM|KILL)|victim proc|Mem-Info|[Ss]ys[Rr]q"
    rb'|\[ *\d+\] +\d+ +\d+ +\d+ +\d+|"MESSAGE" ?: ?\['
)
# As text sequences and server-sent events have it, too, and as a row of an array.
_JSON_STARTS = re.compile(rb'[\s\x1e,\[]{0,64}(?:data: ?)?\{ ?"')
_OPENS_RECORD = re.compile(rb"__CURSOR=|\[s=[0-9a-f]{8}|^\s*[{\[]\s*$|^\s*\},?\s*\{\s*$|\"dmesg\"")

# Journal fields that are used, and those of other makers that hold the message, the best first.
_JOURNAL_FIELDS: Final = frozenset(
    {
        *(
            "MESSAGE",
            "_TRANSPORT",
            "SYSLOG_IDENTIFIER",
            "SYSLOG_FACILITY",
            "PRIORITY",
            "_PID",
            "SYSLOG_PID",
            "_HOSTNAME",
        ),
        *("_SOURCE_MONOTONIC_TIMESTAMP", "__REALTIME_TIMESTAMP", "__CURSOR"),
    }
)
_DMESG_FIELDS: Final = frozenset({"pri", "time", "msg", "caller"})
_MESSAGE_FIELDS: Final = ("MESSAGE", "message", "msg", "log", "text", "textPayload", "line", "body", "_MSG", "Message")
_NESTED_FIELDS: Final = ("jsonPayload", "_source", "event", "fields")

_EXPORT = re.compile(r"\s*([A-Z_][A-Z0-9_]{2,63})=(.*)", re.DOTALL)
_PRETTY = re.compile(r'\s*"(\w{1,64})"\s*:\s*(.*?),?\s*')
_VERBOSE_HEAD = re.compile(r"(.{10,60}?) \[s=[0-9a-f]{8}")
# A process's name can hold a newline, but not this much after it: 15 bytes are "\nKilled process" and no more.
_NEXT_MESSAGE = re.compile(
    r"\\n(?=Killed process \d)|\n(?=Killed process \d)|\n(?=(?:Memory cgroup out|Out) of memory: )"
)


class Sources:
    """The lines in raw lines, one log at a time."""

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._in_record = False

    def feed(self, raw: bytes, *, everything: bool = False) -> Iterator[Line]:
        """The lines in one raw line without its newline; without `everything` only those that can matter."""
        if not (everything or self._in_record or SCREEN.search(raw) or _OPENS_RECORD.search(raw)):
            return
        for part in raw.split(b"\r") if b"\r" in raw else (raw,):
            if part or everything:
                yield from self._part(part)

    def end(self) -> Iterator[Line]:
        """The log is over: what the last record held."""
        yield from self._record_ends()

    def _part(self, part: bytes) -> Iterator[Line]:
        if _JSON_STARTS.match(part) and part.rstrip(b", \r]")[-1:] == b"}":
            value = _json(part[:MAX_JSON_BYTES])
            if value is not None:
                yield from _from_fields(value)
                return
        text = part[:MAX_LINE_BYTES].decode("utf-8", "surrogateescape")
        if _OPENS_RECORD.search(part[:200]):
            yield from self._record_ends()
            self._in_record = True
        if self._in_record:
            if self._field(text):
                return
            yield from self._record_ends()
            if _is_frame(text):
                return
        yield from _split(text)

    def _field(self, text: str) -> bool:
        """Whether this line belongs to the open record: a field of a journal export, or of JSON over several lines."""
        if text.strip() in ("{", "[", "},{", "}, {") or '"dmesg"' in text:
            return True
        if found := _EXPORT.fullmatch(text):
            self._keep(found[1], found[2], _JOURNAL_FIELDS)
            return True
        if found := _PRETTY.fullmatch(text):
            self._keep(found[1], _json_value(found[2]), _JOURNAL_FIELDS | _DMESG_FIELDS)
            return True
        if found := _VERBOSE_HEAD.match(text):
            self._fields.setdefault("outer", found[1])
            return True
        return False

    def _keep(self, key: str, value: Any, known: frozenset[str]) -> None:
        if key in known and value is not None and len(self._fields) < MAX_FIELDS:
            self._fields.setdefault(key, value)

    def _record_ends(self) -> Iterator[Line]:
        fields, self._fields, self._in_record = self._fields, {}, False
        if fields:
            yield from _from_fields(fields)


def _is_frame(text: str) -> bool:
    """A line that only closes a record."""
    return text.strip() in ("", "}", "},", "]", "]}", "},{", "--")


def _split(text: str) -> Iterator[Line]:
    """Lines that something wrapped into one with an escaped newline: `…or sacrifice child\\nKilled process 1 (x)…`."""
    first, *others = _NEXT_MESSAGE.split(text)
    line = undress(first)
    yield line
    for other in others:
        yield msgspec.structs.replace(line, text=other)


def _json(part: bytes) -> dict[str, Any] | None:
    start = part.find(b"{")
    try:
        value = msgspec.json.decode(part[start:].rstrip(b", ]\r"))
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _json_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        return None


def _from_fields(fields: dict[str, Any]) -> Iterator[Line]:
    """The lines in one JSON object or journal record."""
    if isinstance(fields.get("dmesg"), list):
        for row in fields["dmesg"]:
            if isinstance(row, dict):
                yield from _from_fields(row)
        return
    message = _message(fields)
    if message is None:
        return
    for part in message.rstrip("\n").split("\n") if "_TRANSPORT" not in fields and "pri" not in fields else (message,):
        for line in _split(part[:MAX_LINE_BYTES]):
            _describe(line, fields)
            yield line


def _message(fields: dict[str, Any]) -> str | None:
    for key in _MESSAGE_FIELDS:
        value = fields.get(key)
        if isinstance(value, str):
            return value
        # The journal writes what is no UTF-8 as a list of bytes.
        if isinstance(value, list) and all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value).decode("utf-8", "surrogateescape")
    for key in _NESTED_FIELDS:
        if isinstance(fields.get(key), dict) and (found := _message(fields[key])) is not None:
            return found
    return None


def _describe(line: Line, fields: dict[str, Any]) -> None:
    """What the fields say about a message's writer and time."""
    line.dressed = True
    if isinstance(fields.get("outer"), str):
        line.outer = fields["outer"]
    if "pri" in fields and isinstance(fields["pri"], int):
        line.facility, line.level = fields["pri"] >> 3, fields["pri"] & 7
        line.seconds = float(fields["time"]) if isinstance(fields.get("time"), int | float) else None
        return
    transport = fields.get("_TRANSPORT")
    if transport is not None and transport != "kernel":
        line.facility = _number(fields.get("SYSLOG_FACILITY")) or 3
    elif transport == "kernel":
        line.facility = _number(fields.get("SYSLOG_FACILITY"), KERNEL_FACILITY)
    line.level = _number(fields.get("PRIORITY"), line.level)
    if isinstance(fields.get("SYSLOG_IDENTIFIER"), str):
        line.program = fields["SYSLOG_IDENTIFIER"]
        line.program_pid = _number(fields.get("_PID"), _number(fields.get("SYSLOG_PID")))
    if isinstance(fields.get("_HOSTNAME"), str):
        line.host = fields["_HOSTNAME"]
    source_us = _number(fields.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    if source_us is not None and line.from_kernel:
        line.seconds = source_us / 1_000_000
    for key in ("time", "timestamp", "@timestamp", "__REALTIME_TIMESTAMP"):
        if line.outer is None and isinstance(fields.get(key), str):
            line.outer = fields[key]


def _number(value: Any, default: int | None = None) -> int | None:
    """A field's whole number; journals write them as text."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return default
