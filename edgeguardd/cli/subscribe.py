"""edgeguardctl subscribe: the JSON lines that a subscriber gets, printed; commands acked if asked to.

Must not: give memory back; an ack of "done" from here is a claim for trying things out. Upstream: daemonlink.
Downstream: edgeguardctl.
"""

import argparse
import json
import sys

import msgspec

from edgeguardd.cli import common, daemonlink
from edgeguardd.core import wire
from edgeguardd.core.model import AckEffect, AckStatus, Action, Role
from edgeguardd.errors import EdgeguardError, ProtocolError

NO_ACK = "none"
# For people: a program that reads the lines has no use for it.
OBSERVER = (
    "edgeguardctl: an observer gets levels only; for commands and their outcome take `edgeguardctl watch`, to be asked "
    "like a server --role inference"
)


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "subscribe",
        parents=[daemonlink.options(socket=True)],
        help="print what a subscriber gets, and ack commands if asked to",
        description="Connect as a subscriber and print each line the daemon sends, as it comes. Observers, the "
        "default, get levels only; who is asked for what, and what came of it, is in `edgeguardctl watch`. With "
        "--role inference this command is asked for memory like a server, and what it leaves unanswered counts as "
        "failed. Pings are answered and not printed.",
        epilog="Exit status: 0 as many lines as wanted, an interrupt, or the daemon said bye; 1 refused or cut off.",
    )
    add_argument = parser.add_argument
    add_argument("--name", default="edgeguardctl", help="the name to say hello with (default: edgeguardctl)")
    add_argument("--target", help="the target; observers see all without it, servers the cgroup they live in")
    add_argument("--role", choices=[role.value for role in Role], help="default: observer, or inference with --ack")
    add_argument(
        "--supports",
        type=_actions,
        metavar="ACTION,…",
        help="the commands to claim support for (default: trim_kv_cache,reduce_batch,reject_requests)",
    )
    add_argument(
        "--ack",
        choices=[NO_ACK, *(status.value for status in AckStatus)],
        help="answer each command so (default: none, no answer)",
    )
    add_argument("--count", type=common.count, metavar="N", help="end after N lines")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    hello = _hello(args)
    link = daemonlink.Link(daemonlink.socket_path(args), hello)
    if hello.role is Role.OBSERVER and sys.stderr.isatty():
        print(OBSERVER, file=sys.stderr)
    try:
        return _follow(link, None if args.ack in {None, NO_ACK} else AckStatus(args.ack), args.count)
    except KeyboardInterrupt:
        return common.OK
    finally:
        link.close()


def _follow(link: daemonlink.Link, ack: AckStatus | None, count: int | None) -> int:
    printed = 0
    while count is None or printed < count:
        lines = link.receive()
        for line in lines[: None if count is None else count - printed]:
            print(_ascii(line), flush=True)
            printed += 1
            message = _understood(line)
            if isinstance(message, wire.CommandLine) and ack is not None:
                link.send(_answer(message, ack))
            elif isinstance(message, wire.Bye):
                return common.OK
            elif isinstance(message, wire.ErrorLine) and wire.closes(message.code):
                raise EdgeguardError(f"cannot subscribe: the daemon refused ({message.code}); its line says why")
        if link.closed and not lines:
            raise EdgeguardError("cannot go on: the daemon closed the connection without a bye; see its log")
    return common.OK


def _hello(args: argparse.Namespace) -> wire.Hello:
    role = Role(args.role) if args.role else Role.OBSERVER if args.ack is None else Role.INFERENCE
    target = args.target or (None if role is Role.OBSERVER else "self")
    hello = wire.Hello(name=args.name, role=role, target=target)
    if args.supports is not None:
        hello = msgspec.structs.replace(hello, supports=args.supports)
    wire.decode_client(wire.encode(hello))  # refuses a name that the daemon would refuse, before it is connected to
    return hello


def _answer(command: wire.CommandLine, status: AckStatus) -> wire.Ack:
    effect = AckEffect.LOGICAL if status is AckStatus.DONE else None
    return wire.Ack(command.seq, status, effect=effect, message="answered by edgeguardctl subscribe")


def _understood(line: bytes) -> wire.ServerMessage | None:
    try:
        return wire.decode_server(line)
    except ProtocolError:
        return None


def _ascii(line: bytes) -> str:
    """The line in ASCII, so that no name in it acts on the terminal; the JSON means the same."""
    try:
        return json.dumps(json.loads(line))
    except (ValueError, RecursionError):
        return json.dumps({"unreadable": line[:1024].decode("ascii", "backslashreplace")})


def _actions(word: str) -> tuple[str, ...]:
    known = [action.value for action in Action if action is not Action.RESTORE]
    found = tuple(part.strip() for part in word.split(",") if part.strip())
    for part in found:
        if part not in known:
            raise argparse.ArgumentTypeError(f"cannot use {part!r}: no such action; choose from {', '.join(known)}")
    return found
