"""edgeguardctl watch: the state of the daemon, again and again: live in a terminal, as lines anywhere else.

Must not: draw (watchviews does), or ask more often than needed: a level line of the daemon's calls for the next look,
else the interval does. Upstream: daemonlink. Downstream: edgeguardctl.
"""

import argparse
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

from edgeguardd.cli import common, daemonlink
from edgeguardd.cli.statusdoc import Status
from edgeguardd.core import wire
from edgeguardd.core.model import Role
from edgeguardd.errors import EdgeguardError, ProtocolError

# Level lines that come close together are answered by one look: at most ten a second.
TOGETHER_S = 0.1


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "watch",
        parents=[daemonlink.options(http=True, socket=True)],
        help="the same, live",
        description="Show memory against the marks, levels, subscribers and the last commands, live; as lines where "
        "the output is no terminal. Ends with Ctrl-C.",
        epilog="Exit status: 0 ended by an interrupt or after --count; 1 the daemon did not answer at the start.",
    )
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="SECONDS", help="between looks (default: 1)")
    parser.add_argument("--count", type=common.count, metavar="N", help="end after N looks")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.cli import watchviews  # noqa: PLC0415 - imports rich

    address = daemonlink.http_address(args)
    watcher = Watcher(address, daemonlink.socket_path(args))
    first = watcher.look()
    if isinstance(first, str):
        raise EdgeguardError(first)
    live = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with watchviews.Live() if live else watchviews.Lines() as view:
            view.show(first, [])
            looks = 1
            while args.count is None or looks < args.count:
                levels = watcher.wait(args.interval)
                view.show(watcher.look(), levels)
                looks += 1
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        watcher.close()
    return common.OK


class Watcher:
    """Looks at /status, and hears of level changes as an observer where it may use the socket."""

    def __init__(self, address: tuple[str, int], socket_path: str) -> None:
        self._address = address
        self._socket_path = socket_path
        self._link: daemonlink.Link | None = None
        self._observe()

    def look(self) -> Status | str:
        """The status now, or the sentence that says why there is none."""
        try:
            return daemonlink.decoded(daemonlink.fetch(*self._address))
        except EdgeguardError as error:
            return str(error)

    def wait(self, interval_s: float) -> list[wire.LevelLine]:
        """Wait for the interval, or less when a level changes; the changes that came."""
        if self._link is None or self._link.closed:
            time.sleep(interval_s)
            self._observe()
            return []
        lines = self._link.receive(interval_s)
        if lines:
            time.sleep(TOGETHER_S)
            lines += self._link.receive(0)
        return [message for line in lines if (message := _level_line(line)) is not None]

    def close(self) -> None:
        """Leave."""
        if self._link is not None:
            self._link.close()

    def _observe(self) -> None:
        self.close()
        try:
            self._link = daemonlink.Link(self._socket_path, wire.Hello(name="edgeguardctl watch", role=Role.OBSERVER))
        except EdgeguardError:
            self._link = None  # not in the socket's group, or the daemon is away: the interval alone has to do


def _level_line(line: bytes) -> wire.LevelLine | None:
    try:
        message = wire.decode_server(line)
    except ProtocolError:
        return None
    return message if isinstance(message, wire.LevelLine) else None


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _interval(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: it is no interval; write seconds from 0.1 to 3600")
    return seconds
