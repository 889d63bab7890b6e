"""edgeguardctl health: whether the daemon runs, is ready, and sees, in one line and an exit status; for scripts.

Must not: judge anything: the daemon's /readyz and /healthz do. Upstream: daemonlink. Downstream: edgeguardctl.
"""

import argparse
import re
import time

from edgeguardd.cli import common, daemonlink
from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError

AGAIN_S = 0.25
MAX_WAIT_S = 3600.0
MAX_ANSWER_CHARS = 200
GRACE_S = 1.0  # for the answer, when the time to wait is over
# Where to ask, and how the body begins if that is edgeguardd and all is well: pages.py.
PAGES = (("/readyz", b"ready"), ("/healthz", b"ok"))


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "health",
        parents=[daemonlink.options(http=True)],
        help="say whether the daemon is ready and sees, for scripts and container health checks",
        description="Ask /readyz, then /healthz: every target that exists is watched, and the last samples are fresh.",
        epilog="Exit status: 0 it is; 1 it is not, or there is no answer.",
    )
    parser.add_argument(
        "--wait", metavar="SECONDS", type=_seconds, default=0.0, help="how long it may take to become so (default: 0)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    address, port = daemonlink.http_address(args)
    until = time.monotonic() + args.wait
    while True:
        try:
            _ask(address, port, until + GRACE_S)
        except EdgeguardError:
            if time.monotonic() >= until:
                raise
            time.sleep(AGAIN_S)
        else:
            print("ready: every target that exists is watched, the last samples are fresh")
            return common.OK


def _ask(address: str, port: int, until: float) -> None:
    for path, word in PAGES:
        left_s = max(0.1, until - time.monotonic())
        status, body = daemonlink.get(address, port, path, min(daemonlink.ANSWER_S, left_s))
        if status == 200 and re.fullmatch(word + rb"(;[^\n]*)?\n", body):
            continue
        where = f"{daemonlink.host(address)}:{port}"
        said = printable(body.decode("utf-8", "replace").strip(), MAX_ANSWER_CHARS) or "nothing more"
        if status == 200:
            raise EdgeguardError(
                f"cannot tell whether the daemon is ready: {path} of {where} says 200, {said}, which is not "
                "edgeguardd's answer; is that its port?"
            )
        raise EdgeguardError(
            f"cannot rely on the daemon at {where}: {path} says {status}, {said}; see its log, and edgeguardctl status"
        )


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"{word}: a number of seconds from 0 to {MAX_WAIT_S:g}")
    return seconds
