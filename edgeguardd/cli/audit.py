"""edgeguardctl audit UNIT|FILE|--all: rules on units as systemd merges them, and on what the kernel really has.

Must not: read a unit (auditrun does). Upstream: auditrun. Downstream: edgeguardctl.
"""

import argparse

from edgeguardd.cli import common


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "audit",
        help="check units against rules of isolation and OOM protection",
        description="Check systemd units, as systemd merges their files, against rules of isolation and OOM "
        "protection; where a unit runs, also what systemd and the kernel have. Rules: docs/reference/audit-rules.md.",
        epilog="Exit status: 0 no rule of the asked severity is broken; 1 one is, or a unit does not load; 2 it could "
        "not be audited.",
    )
    option = parser.add_argument
    option("units", nargs="*", metavar="UNIT|FILE", help="a unit's name, or the path of its file")
    option("--all", action="store_true", help="every service and slice in the search path")
    option("--search-path", metavar="DIR:DIR", help="folders with unit files, highest precedence first; for CI")
    option("--root", metavar="DIR", default="/", help="take the search path below this directory: an image, a chroot")
    option("--user", action="store_true", help="units of the user manager")
    option(
        "--memtotal-kb",
        metavar="N",
        type=common.count,
        help="memory that percentages refer to; without it, this machine's",
    )
    option(
        "--systemd-version",
        metavar="N",
        type=common.count,
        help="read files as this version does; without it, the installed one's way, else 252's",
    )
    option("--rules-file", metavar="FILE", help="own rules, roles, severities and ignores (TOML)")
    option(
        "--format",
        choices=("text", "json", "junit", "sarif"),
        default="text",
        help="text, or json, junit, sarif for programs",
    )
    option("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    option(
        "--fail-on",
        choices=("error", "warning", "note", "never"),
        default="error",
        help="the least severity that makes the exit status 1",
    )
    option("--brief", action="store_true", help="in text: only units with broken rules")
    option(
        "--cgroup-root",
        metavar="DIR",
        help="compare with the cgroups here; without it /sys/fs/cgroup, for units of this machine",
    )
    option("--rules", action="store_true", help="list the rules, and do nothing else")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.cli import auditrun  # noqa: PLC0415 - all of isolate, which other commands do without

    return auditrun.run(args)
