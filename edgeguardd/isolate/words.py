"""A value -> its words, quoted and escaped as systemd has it, and a command line written out again.

Must not: know a key or a specifier. Upstream: nothing. Downstream: commands, settings.
Sources: extract_first_word() in src/basic/extract-word.c; cunescape_one(), shell_maybe_quote() in src/basic/escape.c.
"""

import re

BLANKS = " \t\n\r"

_LETTERS = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, '"': 34, "'": 39, "s": 32}
_CODED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})", re.ASCII)
_PLAIN = re.compile(r"[^ \t\n\r'\"\\]+")
_INSIDE = {"'": re.compile(r"[^'\\]+"), '"': re.compile(r'[^"\\]+')}
# shell_maybe_quote: what makes systemd put quotes around a word, and what it then escapes.
_NEEDS_QUOTES = re.compile(r"[\x00-\x20\x7f\"\\`$*?\['()<>|&;!]")
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"\\`$]")


class UnbalancedError(ValueError):
    """A quote is open at the end, or an escape is none that is known."""


def split(text: str, *, tolerant: bool = False, open_quotes: bool = False) -> list[str]:
    """The words of a list, quotes removed. Raises UnbalancedError; if tolerant, answers those before the open quote.

    With `open_quotes` the end of the text closes a quote.
    """
    words: list[str] = []
    at = 0
    try:
        while (found := first(text, at, unescape=False, open_quotes=open_quotes)) is not None:
            word, at = found
            words.append(word)
    except UnbalancedError:
        if not tolerant:
            raise
    return words


def first(
    text: str, at: int, *, unescape: bool, relaxed: bool = False, open_quotes: bool = False
) -> tuple[str, int] | None:
    """The word that begins at or after `at`, and where the next begins; None for none. Raises UnbalancedError.

    With `unescape` the escapes of C are resolved; `relaxed` keeps those that are unknown. Without, a backslash only
    protects the character behind it from being a quote or a blank and is dropped.
    """
    while at < len(text) and text[at] in BLANKS:
        at += 1
    if at == len(text):
        return None
    parts: list[str] = []
    quote = ""
    while at < len(text):
        char = text[at]
        if char == "\\":
            part, at = _escape(text, at + 1, quote, unescape=unescape, relaxed=relaxed)
            parts.append(part)
        elif quote and char == quote:
            quote, at = "", at + 1
        elif not quote and char in "'\"":
            quote, at = char, at + 1
        elif not quote and char in BLANKS:
            break
        else:
            found = (_INSIDE[quote] if quote else _PLAIN).match(text, at)
            end = at + 1 if found is None else found.end()
            parts.append(text[at:end])
            at = end
    if quote and not open_quotes:
        raise UnbalancedError
    while at < len(text) and text[at] in BLANKS:
        at += 1
    return "".join(parts), at


def quoted(word: str) -> str:
    """The word as systemd shows it in a command line: in double quotes when a shell would need them."""
    if word and not _NEEDS_QUOTES.search(word):
        return word
    return '"' + _ESCAPED.sub(lambda found: _shown(found[0]), word) + '"'


def _shown(char: str) -> str:
    """A character behind a backslash: control characters as C has them (cescape_char)."""
    if char.isprintable():
        return "\\" + char
    letter = next((letter for letter, code in _LETTERS.items() if code == ord(char)), None)
    return f"\\{letter}" if letter is not None else f"\\{ord(char):03o}"


def _escape(text: str, at: int, quote: str, *, unescape: bool, relaxed: bool) -> tuple[str, int]:
    """What stands behind a backslash: its meaning, and where it ends."""
    if at == len(text):
        if relaxed and not quote:
            return "\\", at
        raise UnbalancedError
    char = text[at]
    if not unescape:
        return char, at + 1
    if char in _LETTERS:
        return chr(_LETTERS[char]), at + 1
    coded = _CODED.match(text, at)
    if coded is not None:
        code = int(coded[4], 8) if coded[4] else int(coded[1] or coded[2] or coded[3], 16)
        if 0 < code <= 255 or (0 < code < 0x110000 and not coded[4] and not 0xD800 <= code < 0xE000):
            return chr(code), coded.end()
    if relaxed:
        return "\\" + char, at + 1
    raise UnbalancedError
