"""Which line of a TOML text each key stands on: tomllib does not say, and an error without a line helps nobody.

Must not: judge the text. It is for text that tomllib has taken already; on anything else it stops early and
tells the lines found so far. Upstream: nothing. Downstream: configparse.
"""

import contextlib
import re

Path = tuple[str | int, ...]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_INLINE_BLANK = re.compile(r"[ \t]*")
_PLAIN_VALUE = re.compile(r"[^,\]}#\n]*")
# The four kinds of strings; the triple ones first. A multi-line string may end in up to five quotes.
_STRING = re.compile(
    r"""
      "{3}  (?: [^"\\] | \\. | "(?!"") )*+ "{3,5}
    | '{3}  (?: [^'] | '(?!'') )*+         '{3,5}
    | "     (?: [^"\\\n] | \\. )*+          "
    | '     [^'\n]*                       '
    """,
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b"}


def key_lines(text: str) -> dict[Path, int]:
    """For each key path its line, counted from 1: ("target", 0, "path"). Array items have a path of their own."""
    scan = _Scan(text)
    with contextlib.suppress(_OddError, RecursionError):
        scan.document()
    return scan.lines


class _OddError(Exception):
    """The text is no TOML that this scan understands."""


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._items: dict[Path, int] = {}  # arrays of tables, and how many tables each has so far
        self._counted_to = 0
        self._line = 1

    def document(self) -> None:
        table: Path = ()
        while self._skip(_BLANK) < len(self.text):
            if self.text.startswith("[[", self.at):
                table = self._header(2)
            elif self.text.startswith("[", self.at):
                table = self._header(1)
            else:
                self._pair(table)

    def _header(self, brackets: int) -> Path:
        line = self._line_now()
        self.at += brackets
        path: Path = ()
        parts = self._key()
        for number, part in enumerate(parts):
            path = (*path, part)
            if brackets == 2 and number == len(parts) - 1:
                self._items[path] = self._items.get(path, 0) + 1
            if path in self._items:
                path = (*path, self._items[path] - 1)
            self.lines.setdefault(path, line)
        self._skip(_INLINE_BLANK)
        self._take("]" * brackets)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line_now()
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self._skip(_INLINE_BLANK)
        self._take("=")
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_INLINE_BLANK)
            if self.text[self.at : self.at + 1] in {'"', "'"}:
                parts.append(_unquoted(self._match(_STRING)))
            else:
                parts.append(self._match(_BARE_KEY))
            self._skip(_INLINE_BLANK)
            if not self.text.startswith(".", self.at):
                return parts
            self.at += 1

    def _value(self, path: Path) -> None:
        self._skip(_BLANK)
        match self.text[self.at : self.at + 1]:
            case "[":
                self._array(path)
            case "{":
                self._table(path)
            case '"' | "'":
                self._match(_STRING)
            case _:
                self._match(_PLAIN_VALUE)

    def _array(self, path: Path) -> None:
        self.at += 1
        number = 0
        while self._more("]"):
            self.lines.setdefault((*path, number), self._line_now())
            self._value((*path, number))
            number += 1

    def _table(self, path: Path) -> None:
        self.at += 1
        while self._more("}"):
            self._pair(path)

    def _more(self, end: str) -> bool:
        """Whether another item follows; eats the comma before it, or the closing bracket."""
        self._skip(_BLANK)
        if self.text.startswith(",", self.at):
            self.at += 1
            self._skip(_BLANK)
        if self.text.startswith(end, self.at):
            self.at += 1
            return False
        if self.at >= len(self.text):
            raise _OddError
        return True

    def _skip(self, blank: re.Pattern[str]) -> int:
        found = blank.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if not found or found.end() == self.at:
            raise _OddError
        self.at = found.end()
        return found[0]

    def _take(self, mark: str) -> None:
        if not self.text.startswith(mark, self.at):
            raise _OddError
        self.at += len(mark)

    def _line_now(self) -> int:
        self._line += self.text.count("\n", self._counted_to, self.at)
        self._counted_to = self.at
        return self._line


def _unquoted(string: str) -> str:
    """What a quoted key spells."""
    if string.startswith("'"):
        return string[1:-1]
    return _ESCAPE.sub(_unescaped, string[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    short, long, char = found.groups()
    if char is not None:
        return _ESCAPES.get(char, char)
    code = int(short or long, 16)
    return chr(code) if code <= 0x10FFFF else "?"
