"""What both commands share: reading the configuration file, addresses as options, errors as sentences.

Must not: know a command, import what only one command needs. Upstream: core.configparse. Downstream: cli.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from edgeguardd.core import configtable as table
from edgeguardd.core.config import Config
from edgeguardd.core.configparse import MAX_FILE_BYTES, read
from edgeguardd.errors import ConfigError, EdgeguardError

DEFAULT_CONFIG = "/etc/edgeguardd/edgeguardd.toml"

OK = 0
FAILED = 1
UNUSABLE = 2  # wrong usage, or a configuration that cannot be used


def read_config(path: str | None) -> Config:
    """The configuration in a file ("-": standard input). None: the default file, which may be missing.

    Raises ConfigError with every fault, or with the one why the file cannot be read.
    """
    named = DEFAULT_CONFIG if path is None else path
    try:
        if named == "-":
            return read(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "standard input")
        with open(named, "rb") as file:
            return read(file.read(MAX_FILE_BYTES + 1), named)
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError([f"cannot read {named}: there is no such file; name one, or none for the defaults"]) from None
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ConfigError([f"cannot read {named}: {why}; name a file that can be read"]) from None


def config_path(path: str | None) -> str | None:
    """The file that read_config(path) reads; None when there is none and the defaults hold."""
    if path is None:
        return DEFAULT_CONFIG if os.path.exists(DEFAULT_CONFIG) else None
    return path


def guarded(program: str, command: Callable[[], int]) -> int:
    """Run a command and turn its errors into one sentence a line and an exit status. No traceback but for defects."""
    try:
        status = command()
        sys.stdout.flush()
    except ConfigError as error:
        return _refused(program, error, UNUSABLE)
    except EdgeguardError as error:
        return _refused(program, error, FAILED)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read has seen enough (`| head`). Python would complain once more when it flushes at exit.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return OK
    return status


def _refused(program: str, error: EdgeguardError, status: int) -> int:
    for sentence in str(error).splitlines():
        print(f"{program}: {sentence}", file=sys.stderr)
    return status


def socket_path(word: str) -> str:
    """An argparse type: a socket's path."""
    path: str = _checked(table.SOCKET_PATH.parse, word)
    return path


def directory(word: str) -> str:
    """An argparse type: a directory's absolute path."""
    path: str = _checked(table.DIRECTORY.parse, word)
    return path


def http_address(word: str) -> tuple[str, int]:
    """An argparse type: ADDRESS:PORT, an IPv6 address in brackets."""
    address, colon, port = word.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or (":" in address) != address.startswith("["):
        raise argparse.ArgumentTypeError(
            f"cannot use {word!r}: it is not ADDRESS:PORT; write 127.0.0.1:9464 or [::1]:9464"
        )
    return _checked(table.ADDRESS.parse, address.strip("[]")), _checked(table.PORT.parse, int(port))


def count(word: str) -> int:
    """An argparse type: how many, from 1 on."""
    if not (word.isascii() and word.isdigit() and 0 < int(word) < 2**31):
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: it is no count; write a number from 1 on")
    return int(word)


def _checked(parse: Callable[[object], Any], word: object) -> Any:
    try:
        return parse(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: {error}") from None
