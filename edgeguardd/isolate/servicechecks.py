"""What rules ask about a service apart from its memory: who is killed first, restart, sandbox, what it really runs.

Must not: read files. Upstream: findings, effective. Downstream: rules.
"""

import re
from collections.abc import Iterator

from edgeguardd.core.systemdvalues import INFINITE, shown_span
from edgeguardd.isolate import effective as force
from edgeguardd.isolate.commands import Command
from edgeguardd.isolate.findings import Answer, Subject, failed, judge, passed

_LEAST_HIGH_SCORE = 500
_DEFAULT_RESTART_US = 100_000
# Programs that ask somebody else to run the work, and the words that make them do so. What they start is in another
# cgroup: that of a container, or of another unit.
_CLIENTS = {
    "docker": ("run", "start", "up", "compose", "exec", "create"),
    "podman": ("run", "start", "up", "compose", "exec", "play", "kube", "pod"),
    "nerdctl": ("run", "start", "up", "compose", "exec", "create"),
    "docker-compose": ("up", "run", "start"),
    "podman-compose": ("up", "run", "start"),
    "ctr": ("run", "start", "task", "tasks", "c", "container", "containers"),
    "crictl": ("run", "runp", "start"),
    "kubectl": ("run", "apply", "create"),
    "lxc": ("start", "exec", "launch"),
    "lxc-start": (),
    "incus": ("start", "exec", "launch"),
    "machinectl": ("start", "shell"),
    "systemd-run": (),
    "systemctl": ("start", "restart"),
}
_WRAPPERS = (
    *("sh", "bash", "dash", "zsh", "ash", "busybox", "sudo", "doas", "env", "nice", "ionice", "chrt", "taskset"),
    *("timeout", "flock", "setpriv", "stdbuf", "unshare"),
)
# Options with which the container stays in the unit's own cgroup, and those that limit it by themselves.
_STAYS = re.compile(r"--cgroups(=|\s+)(split|disabled|no-conmon)\b")
_LIMITED_THERE = re.compile(r"(?:^|\s)(?:--memory|-m|--cgroup-parent|--slice|-p\s*Memory\w+)(?:=|\s)")
# A path that is writable although ProtectSystem=strict makes it read-only; what lies deeper is the service's own.
_WHOLE_TREES = frozenset(
    ("/", "/usr", "/etc", "/boot", "/efi", "/bin", "/sbin", "/lib", "/lib64", "/root", "/home", "/var")
)


def score_high(subject: Subject) -> Answer:
    """OOMScoreAdjust= makes the unit the first to go."""
    score = subject.unit.values["OOMScoreAdjust"]
    if score is None:
        return failed("OOMScoreAdjust is not set: the kernel picks by size alone", "OOMScoreAdjust")
    if score >= _LEAST_HIGH_SCORE:
        return passed(f"OOMScoreAdjust is {score}", "OOMScoreAdjust")
    if score > 0:
        return judge(f"OOMScoreAdjust is {score}, less than {_LEAST_HIGH_SCORE}", "OOMScoreAdjust")
    return failed(f"OOMScoreAdjust is {score}: others are killed before it", "OOMScoreAdjust")


def critical_protected(subject: Subject) -> Answer:
    """A unit that must live is guarded, and comes back."""
    unit = subject.unit
    missing: list[str] = []
    score = unit.values["OOMScoreAdjust"]
    if score is None or score >= 0:
        missing.append("OOMScoreAdjust below 0")
    if not any(force.applied_guarantee(unit, key) for key in ("MemoryMin", "MemoryLow")):
        missing.append("MemoryMin or MemoryLow")
    if unit.kind == "service" and unit.values["Restart"] not in ("always", "on-failure", "on-abnormal"):
        missing.append("Restart")
    if missing:
        return failed(f"it must live, and lacks {', '.join(missing)}", "OOMScoreAdjust")
    if score == -1000:
        return judge("OOMScoreAdjust is -1000: never killed, even if it is what leaks", "OOMScoreAdjust")
    return passed("it has a score below 0, a guarantee, and comes back", "OOMScoreAdjust")


def oom_policy(subject: Subject) -> Answer:
    """After a kill the unit ends as a whole, so that it is started anew."""
    policy = force.oom_policy(subject.unit)
    if policy != "continue":
        return passed(f"OOMPolicy is {policy}", "OOMPolicy")
    if subject.unit.values["Delegate"] is not None:
        return judge("OOMPolicy is continue, as for a unit that manages its own cgroups", "OOMPolicy")
    return failed(
        "OOMPolicy is continue: after a kill what is left of it runs on, and nobody starts it anew", "OOMPolicy"
    )


def no_new_privileges(subject: Subject) -> Answer:
    """NoNewPrivileges=yes."""
    if subject.shown["NoNewPrivileges"]:
        return passed("NoNewPrivileges is yes", "NoNewPrivileges")
    return failed("NoNewPrivileges is no", "NoNewPrivileges")


def protect_system(subject: Subject) -> Answer:
    """ProtectSystem=strict."""
    word = subject.shown["ProtectSystem"]
    return (passed if word == "strict" else failed)(f"ProtectSystem is {word}", "ProtectSystem")


def capabilities_bounded(subject: Subject) -> Answer:
    """CapabilityBoundingSet= is less than all."""
    if subject.shown["CapabilityBoundingSet"] != "all":
        return passed(f"bounded to {subject.shown['CapabilityBoundingSet'] or 'none'}", "CapabilityBoundingSet")
    if subject.shown["NoNewPrivileges"] and (
        subject.shown["DynamicUser"] or subject.shown["User"] not in ("", "root", "0")
    ):
        return judge("all capabilities, but no root and no new privileges", "CapabilityBoundingSet")
    return failed("all capabilities are in the bounding set", "CapabilityBoundingSet")


def write_paths(subject: Subject) -> Answer | None:
    """ReadWritePaths= does something, and not too much."""
    given = [path.lstrip("-+") for path in subject.unit.values["ReadWritePaths"]]
    if not given:
        return None
    whole = sorted(_WHOLE_TREES & set(given))
    if whole:
        return failed(
            f"ReadWritePaths has {', '.join(whole)}: what ProtectSystem protects is writable again", "ReadWritePaths"
        )
    if subject.shown["ProtectSystem"] != "strict":
        return judge(
            f"ReadWritePaths beside ProtectSystem={subject.shown['ProtectSystem']}: most was writable anyway",
            "ReadWritePaths",
        )
    return passed(f"writable: {' '.join(given)}", "ReadWritePaths")


def restart_with_pause(subject: Subject) -> Answer:
    """Restart=on-failure, with a RestartSec= of its own."""
    word, pause = subject.unit.values["Restart"], subject.unit.values["RestartSec"]
    if word == "always":
        return judge("Restart is always: it also comes back after a clean end", "Restart")
    if word != "on-failure":
        return failed(f"Restart is {word}: it does not come back after every failure", "Restart")
    if pause <= _DEFAULT_RESTART_US:
        return failed(f"RestartSec is {shown_span(pause)}: five starts in a second, and systemd gives up", "RestartSec")
    return passed(f"Restart is on-failure after {shown_span(pause)}", "Restart")


def restart_ends(subject: Subject) -> Answer | None:
    """The start limit can be reached, so that a unit that cannot start is seen to have failed."""
    given = subject.unit.values
    pause, burst, interval = given["RestartSec"], given["StartLimitBurst"], given["StartLimitIntervalSec"]
    if given["Restart"] == "no":
        return None
    if pause == INFINITE:
        return failed("RestartSec is infinity: it never comes back", "RestartSec")
    if interval == 0 or burst == 0:
        return judge("no start limit: it is started again for ever", "StartLimitIntervalSec")
    if pause * burst >= interval:
        return judge(
            f"{burst} starts take at least {shown_span(pause * burst)}, the limit counts {shown_span(interval)}: "
            "it is started again for ever",
            "RestartSec",
        )
    return passed(f"at most {burst} starts in {shown_span(interval)}", "StartLimitBurst")


def runs_here(subject: Subject) -> Answer | None:
    """The work is done in the unit's own cgroup, not by a container engine that it only asks."""
    for command in subject.unit.values["ExecStart"]:
        client = next(_clients(command), None)
        if client is None:
            continue
        line = " ".join(command.arguments)
        if _STAYS.search(line):
            return passed(f"{client} keeps the container in the unit's cgroup", "ExecStart")
        if _LIMITED_THERE.search(line):
            return judge(
                f"{client} runs it elsewhere, with limits of its own; the unit's limits are the client's", "ExecStart"
            )
        return failed(f"{client} runs it elsewhere: the unit's limits are only on the client", "ExecStart")
    return None


def _clients(command: Command) -> Iterator[str]:
    """Programs in a command line that only ask somebody else; also behind a shell, sudo and their kin."""
    words = [
        inner for word in (command.path, *command.arguments[1:]) for inner in re.split(r"[\s;&|()]+", word) if inner
    ]
    wrapped = words[:1] and words[0].rpartition("/")[2] in _WRAPPERS
    for place, word in enumerate(words if wrapped else words[:1]):
        asks = _CLIENTS.get(word.rpartition("/")[2])
        if asks is not None and (not asks or any(later in asks for later in words[place + 1 :])):
            yield word.rpartition("/")[2]


def sandboxed(subject: Subject) -> Answer | None:
    """No "+" before the program: that runs it without sandbox, user and capabilities."""
    given = subject.unit.values["ExecStart"]
    if not given:
        return None
    bare = next((command for command in given if "+" in command.prefixes), None)
    if bare is not None:
        return failed(f'"+" before {bare.path}: it runs as root and without the sandbox', "ExecStart")
    return passed("the sandbox holds for it", "ExecStart")


def settings_accepted(subject: Subject) -> Answer:
    """systemd takes every line."""
    ignored = subject.unit.ignored
    if not ignored:
        return passed("systemd takes every line")
    first = ignored[0]
    more = f", and {len(ignored) - 1} more" if len(ignored) > 1 else ""
    return failed(f"{first.file}:{first.line}: {first.text}{more}")
