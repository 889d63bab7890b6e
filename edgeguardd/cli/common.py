"""What both commands share: reading the configuration file, addresses as options, errors as sentences.

Must not: know a command, import what only one command needs. Upstream: core.configparse. Downstream: cli.
"""

import argparse
import errno
import io
import os
import stat
import sys
from collections.abc import Callable
from typing import Any, Final

from edgeguardd.core import configtable as table
from edgeguardd.core.config import Config
from edgeguardd.core.configparse import MAX_FILE_BYTES, read
from edgeguardd.core.text import printable
from edgeguardd.errors import ConfigError, EdgeguardError

DEFAULT_CONFIG = "/etc/edgeguardd/edgeguardd.toml"
STANDARD_INPUT = "-"
MAX_SHOWN_CHARS = 4096  # PATH_MAX: a path is shown whole

OK = 0
FAILED = 1
UNUSABLE = 2  # wrong usage, or a configuration that cannot be used

# What the surroundings lack, and what to do; any other OSError that nobody expected is a defect.
_REMEDIES = {
    errno.EMFILE: "allow more open files (systemd: LimitNOFILE=, else ulimit -n)",
    errno.ENFILE: "allow the machine more open files (sysctl fs.file-max)",
    errno.ENOSPC: "make room where the output goes",
    errno.EDQUOT: "make room where the output goes",
    errno.EIO: "see what became of the terminal or disk that the output goes to",
}


def read_config(path: str | None) -> Config:
    """The configuration in a file ("-": standard input). None: the default file, which may be missing.

    Never waits for a file: a daemon that reloads would stand still with it. Raises ConfigError with every fault, or
    with the one why the file cannot be read.
    """
    named = DEFAULT_CONFIG if path is None else path
    if named == STANDARD_INPUT:
        return read(_standard_input(), "standard input")
    shown = printable(named, MAX_SHOWN_CHARS)
    try:
        return read(_regular_file(named), shown)
    except FileNotFoundError:
        if path is None:
            return Config()
        raise ConfigError([f"cannot read {shown}: there is no such file; name one, or none for the defaults"]) from None
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ConfigError([f"cannot read {shown}: {why}; name a file that can be read"]) from None


def _regular_file(path: str) -> bytes:
    """What a file holds, as far as a configuration may go. Raises OSError; ConfigError for a pipe, a device or such."""
    # O_NONBLOCK: opening a FIFO that nobody writes to, or a file under a lease (open(2)), would wait.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, path)
        if not stat.S_ISREG(mode):
            shown = printable(path, MAX_SHOWN_CHARS)
            raise ConfigError([f"cannot read {shown}: it is not a regular file; name one, or pipe it in with -"])
        return file.read(MAX_FILE_BYTES + 1)


def _standard_input() -> bytes:
    if sys.stdin is None:
        raise ConfigError(["cannot read standard input: it is closed; name a file, or pipe one in"])
    return sys.stdin.buffer.read(MAX_FILE_BYTES + 1)


def config_path(path: str | None) -> str | None:
    """The file that read_config(path) reads; None when there is none and the defaults hold."""
    if path is None:
        return DEFAULT_CONFIG if os.path.exists(DEFAULT_CONFIG) else None
    return path


def guarded(program: str, command: Callable[[], int]) -> int:
    """Run a command and turn its errors into one sentence a line and an exit status. No traceback but for defects."""
    _occupy_standard_descriptors()
    _say_what_can_be_said()
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
        # Whoever read has seen enough (`| head`).
        _discard_output()
        return OK
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        _discard_output()
        return _refused(program, EdgeguardError(f"cannot go on: {os.strerror(error.errno or 0)}; {remedy}"), FAILED)
    return status


def _occupy_standard_descriptors() -> None:
    """Put /dev/null where standard input, output or error was closed (`>&-`).

    Else the next descriptor gets that number, and what some library writes to standard error ends in a socket. Python
    says None for a closed stream; output goes nowhere then, but closed input stays None: there is nothing to read.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(nowhere, fd)
    if nowhere > 2:
        os.close(nowhere)
    else:
        os.set_inheritable(nowhere, True)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def _say_what_can_be_said() -> None:
    """Names come from strangers: what the terminal's encoding lacks is shown escaped, and ends nothing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Send what is still unwritten nowhere: Python would complain once more when it flushes at exit."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


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


MAX_COUNT: Final = 2**31 - 1


def count(word: str) -> int:
    """An argparse type: how many, from 1 on."""
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(MAX_COUNT)) and 0 < int(word) <= MAX_COUNT):
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: it is no count; write a number from 1 to {MAX_COUNT}")
    return int(word)


def _checked(parse: Callable[[object], Any], word: object) -> Any:
    try:
        return parse(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: {error}") from None
