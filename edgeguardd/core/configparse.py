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
from edgeguardd.core.configreader import Reader, Tree
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError

# Room for 4,096 targets; tomllib takes seconds for more than this.
MAX_FILE_BYTES = 1024 * 1024

_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def read(text: str | bytes, source: str) -> Config:
    """The configuration in a TOML text. `source` names it in every fault. Raises ConfigError."""
    try:
        decoded = _decoded(text)
        return parse(_tree(decoded), key_lines(decoded))
    except ConfigError as error:
        raise ConfigError([f"{source}: {problem}" for problem in error.problems]) from None


def parse(tree: Tree, lines: Mapping[Path, int] | None = None) -> Config:
    """The configuration in a TOML tree; `lines` tells where each key stands. Raises ConfigError with every fault."""
    reader = Reader(lines or {})
    config = reader.config(tree)
    if reader.problems:
        raise ConfigError([problem for _, problem in sorted(reader.problems, key=lambda found: found[0])])
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
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(["cannot read brackets nested this deep; no key needs more than three"]) from None
    except ValueError as error:  # TOMLDecodeError, and int()'s own for numbers of thousands of digits
        raise ConfigError([_syntax_problem(str(error))]) from None


def _syntax_problem(message: str) -> str:
    remedy = "mend it, or compare it with the commented example"
    found = _SYNTAX.fullmatch(message)
    if not found:
        return f"cannot read this as TOML: {printable(message, 200)}; {remedy}"
    what, line, column = found.groups()
    what = printable(what[:1].lower() + what[1:], 200)
    if line is None:
        return f"cannot read this as TOML: {what} at the end; {remedy}"
    return f"line {line}: cannot read this as TOML: {what} at column {column}; {remedy}"
