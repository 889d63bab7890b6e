"""What the asking process may do, and how many files it may open: checks of doctor.

Must not: read. Upstream: facts. Downstream: checks.
"""

from collections.abc import Iterator

from edgeguardd.isolate.doctor.diagnosis import Finding, Verdict
from edgeguardd.isolate.doctor.facts import Attempt, Facts

# capabilities(7)
CAP_SYS_RESOURCE = 24

# A target takes about 11 descriptors.
LEAST_OPEN_FILES = 1024
LEAST_INOTIFY_INSTANCES = 16


def findings(facts: Facts) -> Iterator[Finding]:
    """Each right that something stands on."""
    for attempt, what, need in (
        (facts.read_events, "read memory.events", "nothing can be watched"),
        (facts.write_high, "write memory.high", "no relief, and provision cannot set limits"),
        (facts.score, "write oom_score_adj", "no scores can be kept in force"),
        (facts.kernel_log, "read the kernel log", "kills are counted and not explained"),
        (facts.state_directory, "write the state directory", "no relief, no recording, nothing survives a restart"),
    ):
        if attempt is not None:
            yield _right(facts, attempt, what, need)
    yield _lowering(facts)
    yield from _room(facts)


def _right(facts: Facts, attempt: Attempt, what: str, need: str) -> Finding:
    check = f"may {what}"
    if attempt.why_not is None:
        return Finding(check, Verdict.OK, attempt.path)
    verdict = Verdict.FAIL if what == "read memory.events" else Verdict.WARN
    return Finding(check, verdict, f"no: {attempt.path}: {attempt.why_not}: {need}", _remedy(facts, attempt, what))


def _remedy(facts: Facts, attempt: Attempt, what: str) -> str:
    if facts.user not in (0, None):
        return "run the daemon as root, or doctor as the user that the daemon runs as: this one is uid " + str(
            facts.user
        )
    if "read-only" in (attempt.why_not or ""):
        return "mount it read-write: systemd ReadWritePaths=, docker run -v /sys/fs/cgroup:/sys/fs/cgroup:rw"
    if what == "read the kernel log":
        return (
            "give the daemon CAP_SYSLOG and /dev/kmsg: systemd/drop-ins/kernel-log.conf into "
            "/etc/systemd/system/edgeguardd.service.d (in containers: --cap-add SYSLOG --device /dev/kmsg)"
        )
    if what == "write the state directory":
        return f"make {attempt.path} and let the daemon write there (systemd: StateDirectory=edgeguardd)"
    return "run the daemon as root on the host, without a sandbox that takes this from it"


def _lowering(facts: Facts) -> Finding:
    if CAP_SYS_RESOURCE in facts.capabilities:
        return Finding("may lower oom_score_adj", Verdict.OK, "CAP_SYS_RESOURCE is there")
    remedy = "run the daemon as root with CAP_SYS_RESOURCE (systemd: AmbientCapabilities= or CapabilityBoundingSet=)"
    says = "no: without CAP_SYS_RESOURCE a score can only be raised, and PSI triggers are coarser"
    return Finding("may lower oom_score_adj", Verdict.WARN, says, remedy)


def _room(facts: Facts) -> Iterator[Finding]:
    files, instances = facts.open_files, facts.inotify_instances
    if files is not None and files < LEAST_OPEN_FILES:
        says = f"at most {files}, and a target takes about 11"
        yield Finding(
            "open files", Verdict.WARN, says, "raise the hard limit (systemd: LimitNOFILE=65536, else ulimit -Hn)"
        )
    if instances is not None and instances < LEAST_INOTIFY_INSTANCES:
        says = f"at most {instances} inotify instances a user: new cgroups may only be found by polling"
        remedy = "sysctl -w fs.inotify.max_user_instances=128, and the same in a file of /etc/sysctl.d"
        yield Finding("inotify", Verdict.WARN, says, remedy)
