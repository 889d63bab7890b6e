"""edgeguardctl status: targets, subscribers and the last commands, once.

Must not: judge the figures. Upstream: daemonlink, statusdoc. Downstream: edgeguardctl.
"""

import argparse
import json

from edgeguardd.cli import common, daemonlink, words
from edgeguardd.cli.statusdoc import MachineRow, Status, TargetRow

MAX_REASON_CHARS = 400


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "status",
        parents=[daemonlink.options(http=True)],
        help="show targets, subscribers and the last commands",
        description="Show targets with their memory and level, subscribers, and the last commands with their outcome.",
        epilog="Exit status: 0 the daemon answered; 1 it did not.",
    )
    parser.add_argument("--json", action="store_true", help="print the daemon's own JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    body = daemonlink.fetch(*daemonlink.http_address(args))
    if args.json:
        # ASCII, so that no name in it acts on the terminal; the JSON means the same.
        print(json.dumps(daemonlink.tree(body), indent=2))
    else:
        print("\n".join(page(daemonlink.decoded(body))))
    return common.OK


def page(status: Status) -> list[str]:
    """The whole answer as lines for people."""
    path = status.config.path
    head = (
        f"edgeguardd {words.name(status.version)}, up {words.span(status.uptime_s)}, "
        f"{'ready' if status.ready else 'not ready'}, worst level {words.name(status.worst_level)}, "
        f"configuration {'defaults' if path is None else words.name(path)}"
    )
    return [
        head,
        *_machine(status.machine),
        "",
        *_targets(status.targets),
        "",
        *_subscribers(status),
        "",
        *_commands(status),
    ]


def _machine(machine: MachineRow) -> list[str]:
    """The machine's memory, and why its level is what it is; nothing where it is not read."""
    if machine.sample is None:
        return [] if machine.degraded is None else [f"machine: cannot be read: {words.name(machine.degraded, 200)}"]
    line = (
        f"machine {words.name(machine.level)}: {words.size(machine.sample.available_bytes)} of "
        f"{words.size(machine.sample.total_bytes)} available"
    )
    line += "".join(
        f", {words.name(device.name)} {words.size(device.used_bytes)} of {words.size(device.total_bytes)} in use"
        for device in machine.devices
    )
    if machine.level != "normal" and machine.reason:
        line += f", because {words.name(machine.reason, MAX_REASON_CHARS)}"
    return [line]


def _targets(targets: list[TargetRow]) -> list[str]:
    if not targets:
        return ["No targets: none is configured, and no subscriber has asked for its own cgroup."]
    header = ("TARGET", "LEVEL", "NEEDED", "LIMIT", "USED", "HEADROOM", "GROWTH", "SAMPLED")
    rows = [
        [
            words.name(target.name),
            words.name(target.level),
            words.size(target.needed_bytes),
            words.limit(target),
            words.share(target.used_ratio),
            words.size(target.headroom_bytes),
            words.rate(target.growth_bytes_per_s),
            "-" if target.sample_age_s is None else f"{words.span(target.sample_age_s)} ago",
        ]
        for target in targets
    ]
    first, *lines = words.table(header, rows)
    found = [first]
    for line, target in zip(lines, targets, strict=True):
        found += [line, *(f"  {remark}" for remark in _remarks(target))]
    return found


def _remarks(target: TargetRow) -> list[str]:
    """Lines below a target that is not simply at rest."""
    remarks = [remark] if (remark := words.state(target, MAX_REASON_CHARS)) else []
    if target.level != "normal" and target.reason is not None:
        remarks.append(f"because {words.name(target.reason, MAX_REASON_CHARS)}")
    kills = target.counters.oom_kill if target.counters else None
    if kills:
        remarks.append(f"{kills} processes killed by the kernel so far")
    return remarks + [
        f"waiting {words.span(command.age_s)} for #{command.seq} {words.name(command.action)} "
        f"({words.name(command.status)} by subscriber {command.subscriber})"
        for command in target.outstanding
    ]


def _subscribers(status: Status) -> list[str]:
    if not status.subscribers:
        return ["No subscribers: nobody can be asked for memory."]
    header = ("SUBSCRIBER", "NAME", "ROLE", "TARGET", "PID", "UID", "CONNECTED", "UNSENT", "SUPPORTS")
    rows = [
        [
            str(row.subscriber),
            words.name(row.name),
            words.name(row.role),
            "all" if row.target is None else words.name(row.target),
            "-" if row.pid is None else str(row.pid),
            "-" if row.uid is None else str(row.uid),
            words.span(row.connected_s),
            str(row.outbox_lines),
            words.name(" ".join(row.supports)) or "-",
        ]
        for row in status.subscribers
    ]
    return words.table(header, rows)


def _commands(status: Status) -> list[str]:
    if not status.last_commands:
        return ["No commands have ended yet."]
    return words.table(words.OUTCOME_HEADER, [words.outcome(command) for command in status.last_commands[-10:]])
