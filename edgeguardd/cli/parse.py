"""edgeguardctl parse KIND [FILE]: what the daemon makes of a kernel file, as JSON.

Must not: know a format (core.kernelkinds does). Upstream: core.kernelkinds. Downstream: edgeguardctl.
Exit status: 0 the file was understood; 1 it was not, or could not be read (the JSON says what the daemon would make of
that, one sentence on standard error says why); 2 wrong usage.
"""

import argparse
import errno
import json
import os
import sys

from edgeguardd.core.kernelkinds import KINDS, Json, kind_of, read_error
from edgeguardd.errors import FormatError

# No kernel file of these kinds comes near it; a device or an endless pipe named by mistake ends here.
MAX_FILE_BYTES = 4 * 1024 * 1024


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "parse",
        help="show what the daemon makes of a kernel file, as JSON",
        description="Parse a kernel file as the daemon does and print the outcome as JSON.",
        epilog="Exit status: 0 parsed; 1 it could not be, and the JSON says why; 2 wrong usage.",
    )
    parser.add_argument("kind", nargs="?", metavar="KIND", help="memory.events, /proc/meminfo, …; --list shows all")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the file; '-' or nothing: standard input")
    parser.add_argument("--list", action="store_true", help="list the kinds, one a line")
    parser.add_argument(
        "--read-error",
        metavar="ERRNO",
        help="show what a read that fails with this error (EOPNOTSUPP, 95, …) means for the kind; reads no file",
    )
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    if args.list:
        print("\n".join(sorted(KINDS)))
        return 0
    parser: argparse.ArgumentParser = args.parser
    if args.kind is None:
        parser.error("cannot parse: no KIND given; see --list")
    kind = kind_of(args.kind)
    if kind is None:
        parser.error(f"cannot parse {args.kind!r}: no such kind; see --list")
    if args.read_error is not None:
        return _report_errno(kind, args.read_error, parser)
    try:
        data = _read(args.file)
    except OSError as error:
        return _unread(kind, error.errno or 0, f"cannot read {args.file}: {error.strerror or error}; check the path")
    try:
        _print(KINDS[kind](data))
    except FormatError as error:
        return _failed(str(error))
    return 0


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(MAX_FILE_BYTES)
    with open(file, "rb") as stream:
        return stream.read(MAX_FILE_BYTES)


def _report_errno(kind: str, word: str, parser: argparse.ArgumentParser) -> int:
    number = _errno(word)
    if number is None:
        parser.error(f"cannot use --read-error {word!r}: no such error; give a name such as ENODEV, or its number")
    return _unread(kind, number, f"cannot read {kind}: {os.strerror(number)}; see errno(3)")


def _errno(word: str) -> int | None:
    """ "ENODEV", "19" or "ENODEV (19) on read" -> 19."""
    name = (word.split() or [""])[0]
    if name.isascii() and name.isdigit() and len(name) < 5:
        return int(name)
    known: object = getattr(errno, name, None) if name.startswith("E") else None
    return known if isinstance(known, int) else None


def _unread(kind: str, number: int, sentence: str) -> int:
    meaning = read_error(kind, number)
    if meaning is None:
        return _failed(sentence)
    _print(meaning)
    print(sentence, file=sys.stderr)
    return 1


def _failed(sentence: str) -> int:
    _print({"error": True, "message": sentence})
    print(sentence, file=sys.stderr)
    return 1


def _print(value: Json) -> None:
    # ASCII, so that names which are not UTF-8 print on every terminal and stay valid JSON.
    print(json.dumps(value, indent=1))
