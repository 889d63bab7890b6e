"""TOML text -> Config, or every fault at once with its line.

Must not: open files (cli.common does), read values (configreader does). Upstream: configreader, configlines.
Downstream: cli, daemon (through `load`).
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from edgeguardd.core.config import Config
from edgeguardd.core.configlines import Path, key_lines
from edgeguardd.core.configreader import MAX_PROBLEMS, Reader, TooManyProblems, Tree
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError

# Room for 4,096 targets; tomllib takes seconds for more than this.
MAX_FILE_BYTES = 1024 * 1024

# tomllib takes quadratic time for a key of many parts: hours for one that fills a file.
MAX_PARTS = 64

_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)
# TOML has no such numbers; whoever writes one means an octal mode.
_LEADING_ZERO = re.compile(r"=\s*(0[0-9]+)\s*(?:#.*)?")
_REMEDY = "mend it, or compare it with what `edgeguardctl check-config --example` prints"


def read(text: str | bytes, source: str) -> Config:
    """The configuration in a TOML text. `source` names it in every fault. Raises ConfigError."""
    try:
        decoded = _decoded(text)
        return parse(_tree(decoded), key_lines(decoded))
    except ConfigError as error:
        raise ConfigError([f"{source}: {problem}" for problem in error.problems]) from None


def parse(tree: Tree, lines: Mapping[Path, int] | None = None) -> Config:
    """The configuration in a TOML tree; `lines` tells where each key stands.

    Raises ConfigError with every fault, or with the first MAX_PROBLEMS.
    """
    reader = Reader(lines or {})
    more: list[str] = []
    try:
        config = reader.config(tree)
    except TooManyProblems:
        more = [f"cannot list more than {MAX_PROBLEMS} faults; mend these first, or name the right file"]
    if reader.problems:
        raise ConfigError([problem for _, problem in sorted(reader.problems, key=lambda found: found[0])] + more)
    return config


def _decoded(text: str | bytes) -> str:
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError([f"cannot read a configuration of over {MAX_FILE_BYTES} bytes; is it the right file?"])
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise ConfigError(
                [f"line {line}: cannot read byte {error.start} as UTF-8; save the file as UTF-8"]
            ) from None
    if text.startswith("\ufeff"):
        raise ConfigError(["line 1: cannot read a byte order mark; save the file as UTF-8 without one"])
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ConfigError([f"line {line}: cannot read a NUL character; is it a text file?"])
    return text.replace("\r\n", "\n")


def _tree(text: str) -> dict[str, Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.partition("=")[0].partition("#")[0].count(".") >= MAX_PARTS:
            raise ConfigError(
                [f"line {number}: cannot read a key of over {MAX_PARTS} parts; none needs more than three"]
            )
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(["cannot read brackets nested this deep; no key needs more than three"]) from None
    except ValueError as error:  # TOMLDecodeError, and int()'s own for numbers of thousands of digits
        raise ConfigError([_syntax_problem(text, str(error))]) from None


def _syntax_problem(text: str, message: str) -> str:
    found = _SYNTAX.fullmatch(message)
    if not found:
        return f"cannot read this as TOML: {printable(message, 200)}; {_REMEDY}"
    what, line, column = found.groups()
    what = printable(what[:1].lower() + what[1:], 200)
    if line is None:
        # What is not closed began with the last key or item that there is.
        line = max(key_lines(text).values(), default=1)
        return f"line {line}: cannot read this as TOML: the file ends before what begins here does: {what}; {_REMEDY}"
    if number := _LEADING_ZERO.search(text.split("\n")[int(line) - 1]):
        remedy = f'write a file mode in quotes, "{printable(number[1], 20)}", and any other number without the 0'
        return f"line {line}: cannot read this as TOML: a number cannot begin with 0; {remedy}"
    return f"line {line}: cannot read this as TOML: {what} at column {column}; {_REMEDY}"
