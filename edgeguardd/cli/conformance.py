"""edgeguardctl conformance: play the daemon against a client in any language, and say which rule it breaks.

Must not: know a rule; the cases are data. Upstream: conformance. Downstream: edgeguardctl.
"""

import argparse
from collections.abc import Iterable, Sequence

import msgspec

from edgeguardd.cli import common
from edgeguardd.conformance.cases import CASES
from edgeguardd.conformance.outcome import Outcome, Result
from edgeguardd.conformance.script import Case
from edgeguardd.core.text import printable

TIMEOUT_S = 5.0
JOBS = 4
# Of what was really said, under a case that failed.
SHOWN_LINES = 6
MAX_LINE_CHARS = 240
MAX_WHY_CHARS = 1000
MAX_TIMEOUT_S = 3600.0

_WORDS = {Outcome.PASSED: "ok  ", Outcome.FAILED: "FAIL", Outcome.LEFT_OUT: "-   "}


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "conformance",
        help="test a client of any language against the protocol",
        description="Start a program once for each transcript of docs/reference/protocol.md, play the daemon on a "
        "socket of its own ($EDGEGUARDD_SOCKET), and say what the program did wrong. What the program has to do is "
        "told in docs/how-to/write-a-client.md.",
        epilog="Exit status: 0 every case that was played has passed; 1 one has not, or none could be played; 2 wrong "
        "usage.",
    )
    add_argument = parser.add_argument
    add_argument("--list", action="store_true", help="only print the cases and their rules")
    add_argument(
        "--only", metavar="CASE,…", type=_names, action="extend", help="only these cases; may be given many times"
    )
    add_argument(
        "--protocol-only",
        action="store_true",
        help="the program does not keep the test contract: leave out the cases that need it, and commands that it "
        "does not support",
    )
    add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=TIMEOUT_S,
        help=f"how long the program may take for what has no deadline of its own (default: {TIMEOUT_S:g})",
    )
    add_argument("--jobs", metavar="N", type=common.count, default=JOBS, help=f"cases at once (default: {JOBS})")
    add_argument(
        "--exec",
        metavar="PROGRAM [ARG …]",
        nargs=argparse.REMAINDER,
        help="the program with its arguments; all that follows is its own",
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    cases = [case for case in CASES if not args.only or case.name in args.only]
    if args.list:
        return _list(cases, as_json=args.json)
    if not args.exec:
        args.usage_error("cannot test nothing: name the program with --exec PROGRAM [ARG …], or use --list")
    from edgeguardd.conformance.play import play_all  # noqa: PLC0415 - the other commands start without threads

    results = play_all(
        cases, args.exec, timeout_s=args.timeout, strict=not args.protocol_only, jobs=min(args.jobs, len(cases))
    )
    return _json(results, args.exec) if args.json else _text(results)


def _list(cases: Sequence[Case], *, as_json: bool) -> int:
    if as_json:
        rows = [{"name": case.name, "rule": case.rule, "needs_contract": case.needs_contract} for case in cases]
        print(msgspec.json.encode({"cases": rows}).decode())
        return common.OK
    width = max(len(case.name) for case in cases)
    for case in cases:
        print(f"{case.name.ljust(width)}  {case.rule}{' [contract]' if case.needs_contract else ''}")
    return common.OK


def _text(results: Iterable[Result]) -> int:
    done = []
    for result in results:
        done.append(result)
        line = f"{_WORDS[result.outcome]}  {result.name}"
        print(f"{line}: {printable(result.why, MAX_WHY_CHARS)}" if result.why else line, flush=True)
        if result.outcome is Outcome.FAILED:
            print(f"      Rule: {result.rule}")
            for heard in result.heard[-SHOWN_LINES:]:
                print(f"      {printable(heard, MAX_LINE_CHARS)}")
    counted = [f"{sum(result.outcome is outcome for result in done)} {outcome.value}" for outcome in Outcome]
    print(", ".join(counted))
    return _status(done)


def _json(results: Iterable[Result], argv: Sequence[str]) -> int:
    done = list(results)
    counts = {outcome.name.lower(): sum(result.outcome is outcome for result in done) for outcome in Outcome}
    print(msgspec.json.encode({"program": argv, **counts, "cases": done}).decode())
    return _status(done)


def _status(done: Sequence[Result]) -> int:
    """Nothing played proves nothing."""
    played = [result for result in done if result.outcome is not Outcome.LEFT_OUT]
    return common.OK if played and all(result.outcome is Outcome.PASSED for result in played) else common.FAILED


def _names(word: str) -> list[str]:
    known = {case.name for case in CASES}
    found = [part.strip() for part in word.split(",") if part.strip()]
    for part in found:
        if part not in known:
            raise argparse.ArgumentTypeError(f"cannot play {part!r}: no such case; see --list")
    return found


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: write seconds, more than 0, at most {MAX_TIMEOUT_S:g}")
    return seconds
