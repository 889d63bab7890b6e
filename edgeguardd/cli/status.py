"""edgeguardctl status: targets, subscribers and the last commands, once.

Must not: judge the figures. Upstream: daemonlink, statusdoc, remarks. Downstream: edgeguardctl.
"""

import argparse
import json
from collections.abc import Sequence

from edgeguardd.cli import common, daemonlink, remarks, words
from edgeguardd.cli.statusdoc import ScoresRow, Status

# Levels go by GROWABLE, and a beginner takes it for what USED is.
LEGEND = "USED: NEEDED of LIMIT. GROWABLE: in use of what can grow, from rest to LIMIT."


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
        *remarks.daemon(status),
        *remarks.machine(status.machine),
        "",
        *_targets(status),
        "",
        *_subscribers(status),
        "",
        *_commands(status),
        *_scores(status.oom_scores),
    ]


def _targets(status: Status) -> list[str]:
    targets = status.targets
    if not targets:
        return ["No targets: none is configured, and no subscriber has asked for its own cgroup."]
    header = ("TARGET", "LEVEL", "NEEDED", "LIMIT", "USED", "GROWABLE", "GROWTH", "AGE")
    rows = [
        [
            words.name(target.name),
            words.name(target.level),
            words.size(target.needed_bytes),
            words.short_limit(target),
            words.limit_share(target),
            words.share(target.used_ratio),
            words.rate(target.growth_bytes_per_s),
            words.span(target.sample_age_s),
        ]
        for target in targets
    ]
    return [*_remarked(header, rows, [remarks.target(target, status) for target in targets]), LEGEND]


def _subscribers(status: Status) -> list[str]:
    if not status.subscribers:
        return ["No subscribers: nobody can be asked for memory."]
    header = ("NR", "NAME", "ROLE", "TARGET", "PID", "UID", "CONNECTED", "UNSENT")
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
        ]
        for row in status.subscribers
    ]
    supports = [row.supports for row in status.subscribers]
    remarks_of = [[f"supports {words.name(', '.join(found), 100)}"] if found else [] for found in supports]
    return _remarked(header, rows, remarks_of)


def _scores(scores: ScoresRow) -> list[str]:
    """Nothing where there are no rules."""
    if not scores.rules:
        return []
    header = ("OOM SCORE", "VALUE", "IN FORCE", "WRITTEN", "CORRECTED", "FAILED")
    rows = [
        [
            words.name(rule.name),
            str(rule.value),
            *map(str, (rule.in_force, rule.writes, rule.corrections, rule.failures)),
        ]
        for rule in scores.rules
    ]
    whys = [[] if rule.why is None else [words.name(rule.why, remarks.MAX_REASON_CHARS)] for rule in scores.rules]
    found = ["", *_remarked(header, rows, whys)]
    if scores.why is not None:
        found.append(f"  new processes wait for the next look: {words.name(scores.why, remarks.MAX_REASON_CHARS)}")
    return found


def _commands(status: Status) -> list[str]:
    if not status.last_commands:
        return ["No commands have ended yet."]
    *header, _ = words.OUTCOME_HEADER
    rows = [words.outcome(command) for command in status.last_commands[-10:]]
    said = [[f"said: {row[-1]}"] if row[-1] else [] for row in rows]
    return _remarked(header, [row[:-1] for row in rows], said)


def _remarked(header: Sequence[str], rows: Sequence[Sequence[str]], said: Sequence[Sequence[str]]) -> list[str]:
    """A table with lines of their own below its rows: what would make the table wider than a terminal."""
    first, *lines = words.table(header, rows)
    found = [first]
    for line, remarks_below in zip(lines, said, strict=True):
        found += [line, *(f"  {remark}" for remark in remarks_below)]
    return found
