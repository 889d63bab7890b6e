"""edgeguardctl doctor: whether this machine is fit for edgeguardd, each point with its verdict and its remedy.

Must not: judge (isolate.doctor does), change anything. Upstream: isolate, daemonlink. Downstream: edgeguardctl.
"""

import argparse
import http.client
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable
from typing import Any

from edgeguardd.cli import common, daemonlink
from edgeguardd.core.config import Config
from edgeguardd.core.text import printable
from edgeguardd.errors import EdgeguardError

MAX_SENTENCE_CHARS = 1000
HERE = "/"


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "doctor",
        parents=[daemonlink.options(http=True, socket=True)],
        help="check whether this machine is fit for edgeguardd",
        description="Check the kernel, its cgroups, PSI, swap, systemd, rights, the board's peculiarities, other "
        "daemons that act on memory pressure, and the running daemon. Each point is OK, WARN (guarding is coarser, "
        "slower or riskier) or FAIL (nothing can be guarded), with the exact remedy. Nothing is changed.",
        epilog="Exit status: 0 no FAIL (with --strict: and no WARN); 1 otherwise. Run it as the daemon's user, root.",
    )
    parser.add_argument("--json", action="store_true", help="print findings and facts as one JSON object")
    parser.add_argument("--strict", action="store_true", help="let a WARN fail as well")
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=os.path.abspath,
        default=HERE,
        help="examine the machine whose /proc, /sys, /etc, /run and /boot lie below DIR; no daemon is asked",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.isolate.doctor import checks, gather  # noqa: PLC0415 - only this command needs it
    from edgeguardd.isolate.doctor.diagnosis import Verdict  # noqa: PLC0415

    if not os.path.isdir(args.root):
        raise EdgeguardError(f"cannot examine {args.root}: it is no directory; name one with proc, sys and etc in it")
    config = daemonlink.config(args)
    facts = gather.gather(
        args.root,
        state_directory=config.state_directory,
        cgroup_root=config.cgroup_root,
        devices=tuple(device.kind for device in config.machine.devices),
        daemon=_ask(args, config) if args.root == HERE else None,
    )
    findings = checks.examine(facts)
    verdict = checks.worst(findings)
    print(_json(verdict, findings, facts) if args.json else "\n".join(_page(findings)))
    bad = {Verdict.FAIL, Verdict.WARN} if args.strict else {Verdict.FAIL}
    return common.FAILED if verdict in bad else common.OK


def _page(findings: Iterable[Any]) -> list[str]:
    """One line a finding, its remedy below, and the sum."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<4}  {finding.check}: {printable(finding.says, MAX_SENTENCE_CHARS)}")
        if finding.remedy is not None:
            lines.append(f"      do: {printable(finding.remedy, MAX_SENTENCE_CHARS)}")
    counts = Counter(str(finding.verdict) for finding in findings)
    return [*lines, f"{counts['OK']} OK, {counts['WARN']} WARN, {counts['FAIL']} FAIL"]


def _json(verdict: str, findings: Iterable[Any], facts: Any) -> str:
    """Everything, ASCII, so that no name in it acts on a terminal."""
    from msgspec import to_builtins  # noqa: PLC0415

    return json.dumps(
        {
            "verdict": str(verdict),
            "counts": {word: sum(finding.verdict == word for finding in findings) for word in ("OK", "WARN", "FAIL")},
            "findings": [to_builtins(finding) for finding in findings],
            "facts": to_builtins(facts),
        },
        indent=2,
    )


def _ask(args: argparse.Namespace, config: Config) -> Any:
    """What the running daemon answers; each way that fails is a fact as well."""
    from edgeguardd.isolate.doctor.facts import DaemonFacts  # noqa: PLC0415

    path = daemonlink.socket_path(args)
    known: dict[str, Any] = {"socket": path, "socket_fault": _socket_fault(path)}
    if args.http is None and not config.http.enabled:
        return DaemonFacts(off=True, **known)
    address, port = daemonlink.http_address(args)
    known["http"] = f"http://{daemonlink.host(address)}:{port}/"
    try:
        status = daemonlink.decoded(daemonlink.fetch(address, port))
        health_code, health = daemonlink.get(address, port, "/healthz")
        ready_code, _ = daemonlink.get(address, port, "/readyz")
    except EdgeguardError as error:
        return DaemonFacts(http_fault=_why(str(error)), **known)
    return DaemonFacts(
        version=status.version,
        healthy=health_code == http.client.OK,
        health_text=health.decode(errors="replace").strip(),
        ready=ready_code == http.client.OK,
        **known,
    )


def _why(sentence: str) -> str:
    """The reason of "cannot X: why; remedy": the remedy is doctor's own."""
    return sentence.partition(": ")[2].partition(";")[0] or sentence


def _socket_fault(path: str) -> str | None:
    """Why nobody can connect to the subscriber socket; None: one can."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(daemonlink.ANSWER_S)
        try:
            peer.connect(path)
        except OSError as error:
            return (os.strerror(error.errno) if error.errno else str(error)).lower()
    return None
