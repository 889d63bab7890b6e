"""What a running edgeguardd says of itself: checks of doctor.

Must not: ask it (the command does). Upstream: facts. Downstream: checks.
"""

from collections.abc import Iterator

from edgeguardd.isolate.doctor.diagnosis import Finding, Verdict
from edgeguardd.isolate.doctor.facts import DaemonFacts, Facts


def findings(facts: Facts) -> Iterator[Finding]:
    """Nothing where no daemon was asked, as for a copy of another machine."""
    if facts.daemon is not None:
        yield _http(facts.daemon)
        yield _socket(facts.daemon)


def _http(daemon: DaemonFacts) -> Finding:
    check = "daemon health"
    if daemon.off:
        return Finding(check, Verdict.OK, "not asked: [http] enabled is false")
    if daemon.http_fault is not None:
        remedy = "start it: systemctl enable --now edgeguardd, or edgeguardd run; else correct [http] address and port"
        return Finding(check, Verdict.WARN, f"no answer from {daemon.http}: {daemon.http_fault}", remedy)
    who = f"edgeguardd {daemon.version} on {daemon.http}"
    if daemon.healthy is False:
        remedy = "see its log (journalctl -u edgeguardd); restart it: systemctl restart edgeguardd"
        return Finding(check, Verdict.FAIL, f"{who} is not healthy: {daemon.health_text}", remedy)
    if daemon.ready is False:
        return Finding(check, Verdict.WARN, f"{who} is not ready", "wait for its start, or see its log")
    return Finding(check, Verdict.OK, f"{who}: healthy and ready")


def _socket(daemon: DaemonFacts) -> Finding:
    check = "daemon socket"
    if daemon.socket_fault is None:
        return Finding(check, Verdict.OK, f"{daemon.socket} takes subscribers")
    remedy = "start the daemon, or correct [socket] path"
    if "permission" in daemon.socket_fault:
        remedy = 'set [socket] group = "…" and put the server\'s user into that group'
    return Finding(check, Verdict.WARN, f"{daemon.socket}: {daemon.socket_fault}", remedy)
