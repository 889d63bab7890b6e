"""ExecStart= and its kin: one value -> commands, with the prefixes and quoting of systemd.

Must not: know which commands mean what to the audit. Upstream: words, specifiers. Downstream: settings.
Source: config_parse_exec() in src/core/load-fragment.c; systemd.service(5), "Command lines".
"""

import re
from collections.abc import Callable

from msgspec import Struct

from edgeguardd.isolate import words

_MAX_FILE_NAME_BYTES = 255
_SEPARATOR = re.compile(r";(?=$|[ \t\n\r])[ \t\n\r]*")
_PLAIN_SEMICOLON = re.compile(r"\\;(?=$|[ \t\n\r])[ \t\n\r]*")
# Prefix -> those that may not have come before it ("!!" is its own word here).
_PREFIXES = {"-": "-", "@": "@", ":": ":", "+": "+!", "!": "+!"}


class Command(Struct, frozen=True):
    """One program to be run. `prefixes` of "-@:+!", `arguments` begin with what the program gets as its name."""

    path: str
    arguments: tuple[str, ...]
    prefixes: str = ""

    def line(self) -> str:
        """The command line as systemd shows it."""
        return " ".join(map(words.quoted, self.arguments))


class RefusedError(ValueError):
    """systemd does not load a unit with this command. The message says why."""


class IgnoredError(ValueError):
    """systemd leaves the assignment out. The message says why."""


def parse(value: str, expand: Callable[[str], str | None]) -> list[Command]:
    """The commands of one assignment. Raises RefusedError or IgnoredError.

    A command whose program cannot be read ends the assignment; those before it stay (config_parse_exec, v252).
    """
    found: list[Command] = []
    at: int | None = 0
    while at is not None:
        try:
            command, at = _one(value, at, expand)
        except IgnoredError:
            if not found:
                raise
            break
        if command is not None:
            found.append(command)
    return found


def _one(value: str, at: int, expand: Callable[[str], str | None]) -> tuple[Command | None, int | None]:
    """The command that begins at `at`, and where the next one does; None for neither."""
    try:
        read = _word(value, at)
    except words.UnbalancedError:
        raise IgnoredError("a quote or an escape is not closed; close it") from None
    if read is None:
        return None, None
    program, at = read
    prefixes, program = _without_prefixes(program)
    try:
        path = _path(program, expand)
        arguments, following = _arguments(value, at, expand)
    except RefusedError:
        if "-" in prefixes:
            return None, None
        raise
    if "@" not in prefixes:
        arguments.insert(0, path)
    if not arguments:
        if "-" in prefixes:
            return None, None
        raise RefusedError('no name for the program behind "@"')
    return Command(_simplified(path), tuple(arguments), prefixes), following


def _without_prefixes(program: str) -> tuple[str, str]:
    prefixes = ""
    while program[:1] in _PREFIXES and program:
        char = program[0]
        if char == "!" and prefixes.count("!") == 1 and "+" not in prefixes:
            pass
        elif any(one in prefixes for one in _PREFIXES[char]):
            break
        prefixes += char
        program = program[1:]
    return prefixes, program


def _path(program: str, expand: Callable[[str], str | None]) -> str:
    path = expand(program)
    if path is None:
        raise RefusedError(f"cannot resolve the specifiers in {program!r}")
    if not path:
        raise RefusedError("no program; write its path")
    if any(ord(char) < 32 or char in "\"'\\\x7f" for char in path):
        raise RefusedError(f"special characters in the path {path!r}")
    if path.endswith("/"):
        raise RefusedError(f"{path!r} is a directory; name the program")
    if not path.startswith("/") and ("/" in path or path in (".", "..") or len(path) > _MAX_FILE_NAME_BYTES):
        raise RefusedError(f"{path!r} is neither an absolute path nor the plain name of a program")
    return path


def _simplified(path: str) -> str:
    """path_simplify: no double slashes, no "/./"."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def _arguments(value: str, at: int, expand: Callable[[str], str | None]) -> tuple[list[str], int | None]:
    """The words up to the end or a ";" of its own, and where the command behind that begins."""
    found: list[str] = []
    while at < len(value):
        end = _SEPARATOR.match(value, at)
        if end is not None:
            return found, end.end()
        plain = _PLAIN_SEMICOLON.match(value, at)
        if plain is not None:
            found.append(";")
            at = plain.end()
            continue
        try:
            read = _word(value, at)
        except words.UnbalancedError:
            raise RefusedError("a quote or an escape is not closed") from None
        if read is None:
            break
        word, at = read
        expanded = expand(word)
        if expanded is None:
            raise RefusedError(f"cannot resolve the specifiers in {word!r}")
        found.append(expanded)
    return found, None


def _word(value: str, at: int) -> tuple[str, int] | None:
    """One word; escapes that are unknown stay as they are (extract_first_word_and_warn)."""
    try:
        return words.first(value, at, unescape=True)
    except words.UnbalancedError:
        return words.first(value, at, unescape=True, relaxed=True)
