"""The bytes of one unit file or drop-in -> its assignments, in order, as systemd reads them.

Must not: know a key or a unit type, open files. Upstream: nothing. Downstream: unit, ignores.
What systemd does: config_parse() and parse_line() in src/shared/conf-parser.c, read_line_full() in src/basic/fileio.c.
A line ends at \\n, \\r, NUL, or a run with one of each; a backslash at its end joins the next line, a comment between
the two is left out; there are no comments behind a value. A byte order mark is dropped once. A broken section header, a
line over 1 MiB, and text that is not UTF-8 end the file: what stood before counts, what follows does not.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

MAX_LINE_BYTES = 1024 * 1024  # LONG_LINE_MAX
BLANKS = " \t\n\r"

_BLANKS = BLANKS.encode()
_END_OF_LINE = re.compile(rb"\n\r?\0?|\r\n?\0?|\0")
_UNSAFE = re.compile("[\x00-\x1f\x7f\"'\\\\]")  # string_is_safe()
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Assignment(Struct, frozen=True):
    """One `key=value`; `line` is its last line, as in systemd's own messages."""

    section: str
    key: str
    value: str
    line: int


class Remark(Struct, frozen=True):
    """Something said about a line of a file; line 0 means the file as a whole."""

    file: str
    line: int
    text: str


class UnitText(Struct, frozen=True):
    """What one file says. `broken` tells why systemd gives the file up; None when it reads it to the end."""

    file: str
    headers: tuple[tuple[int, str], ...]
    assignments: tuple[Assignment, ...]
    comments: tuple[tuple[int, str], ...]
    remarks: tuple[Remark, ...]
    broken: Remark | None = None


class _BrokenError(Exception):
    """systemd reads this file no further."""


def parse(data: bytes, file: str) -> UnitText:
    """Read one file. `file` is what remarks call it. Linear in the bytes; nothing is raised, whatever they are."""
    reader = _Reader(file)
    broken = None
    try:
        for number, line in _logical_lines(data, reader.comments):
            reader.take(number, line)
    except _BrokenError as why:
        number, text = why.args
        broken = Remark(file, number, text)
        reader.remarks.append(broken)
    headers, assignments = tuple(reader.headers), tuple(reader.assignments)
    return UnitText(file, headers, assignments, tuple(reader.comments), tuple(reader.remarks), broken)


def _logical_lines(data: bytes, comments: list[tuple[int, str]]) -> Iterator[tuple[int, bytes]]:
    """Lines with their continuations joined, and the number of the last line of each. Comments go to `comments`."""
    pending: list[bytes] = []
    pending_bytes = number = 0
    marked = False
    for raw in _physical_lines(data):
        number += 1
        if len(raw) >= MAX_LINE_BYTES:
            raise _BrokenError(number, "line of 1 MiB or more; systemd reads the file no further")
        if raw.lstrip(_BLANKS)[:1] in (b"#", b";"):
            comments.append((number, raw.decode(errors="replace").strip()))
            continue
        line = raw
        if not marked and line.startswith(_BYTE_ORDER_MARK):
            line, marked = line[len(_BYTE_ORDER_MARK) :], True
        if pending and pending_bytes + len(line) > MAX_LINE_BYTES:
            raise _BrokenError(number, "continued line of more than 1 MiB; systemd reads the file no further")
        backslashes = len(line) - len(line.rstrip(b"\\"))
        if backslashes % 2:
            pending.append(line[:-1] + b" ")
            pending_bytes += len(line)
            continue
        yield number, b"".join((*pending, line))
        pending, pending_bytes = [], 0
    if pending:
        yield number + 1, b"".join(pending)


def _physical_lines(data: bytes) -> Iterator[bytes]:
    start = 0
    for end in _END_OF_LINE.finditer(data):
        yield data[start : end.start()]
        start = end.end()
    if start < len(data):
        yield data[start:]


class _Reader:
    """Takes logical lines; knows the section it is in."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._section: str | None = None
        self.headers: list[tuple[int, str]] = []
        self.assignments: list[Assignment] = []
        self.comments: list[tuple[int, str]] = []
        self.remarks: list[Remark] = []

    def take(self, number: int, line: bytes) -> None:
        try:
            text = line.decode().strip(BLANKS)
        except UnicodeDecodeError:
            raise _BrokenError(number, "not UTF-8; systemd reads the file no further") from None
        if any(_not_a_character(char) for char in text if char > "\ufdcf"):
            raise _BrokenError(number, "not valid Unicode; systemd reads the file no further")
        if not text:
            return
        if text.startswith("["):
            if not text.endswith("]") or text == "[" or _UNSAFE.search(text):
                raise _BrokenError(number, f"invalid section header {text!r}; systemd reads the file no further")
            self._section = text[1:-1]
            self.headers.append((number, self._section))
            return
        key, equals, value = text.partition("=")
        if self._section is None:
            self.remarks.append(Remark(self._file, number, "assignment outside of a section, ignored"))
        elif not equals:
            self.remarks.append(Remark(self._file, number, "no '=' in the line, ignored"))
        elif not key:
            self.remarks.append(Remark(self._file, number, "no key before '=', ignored"))
        else:
            self.assignments.append(Assignment(self._section, key.strip(BLANKS), value.strip(BLANKS), number))


def _not_a_character(char: str) -> bool:
    """Unicode's non-characters, which systemd's unichar_is_valid() refuses."""
    code = ord(char)
    return 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE
