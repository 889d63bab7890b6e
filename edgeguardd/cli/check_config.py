"""edgeguardctl check-config [FILE]: every fault of a configuration at once, each with its line and its remedy.

Must not: judge anything but whether what is named is there on this machine. Upstream: core.configparse,
core.configcheck, core.configtext. Downstream: edgeguardctl.
"""

import argparse
import grp
from collections.abc import Iterator

from edgeguardd.cli import common
from edgeguardd.core import configcheck, configtext
from edgeguardd.core.config import Config
from edgeguardd.errors import ConfigError


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "check-config",
        help="check a configuration file",
        description="Check a configuration file: print every fault with its line and what to write instead, or how "
        "many targets it names and what in it is doubtful. The daemon is not asked and nothing is changed.",
        epilog="Exit status: 0 it can be used; 1 it cannot.",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"the file, - for standard input; without it {common.DEFAULT_CONFIG}"
    )
    parser.add_argument("--config", metavar="FILE", help="the same, as other commands take it")
    shows = parser.add_mutually_exclusive_group()
    shows.add_argument("--show", action="store_true", help="print the configuration in force, every key written out")
    shows.add_argument(
        "--example", action="store_true", help="check nothing; print every key at its default, with what it means"
    )
    parser.set_defaults(run=run, usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status."""
    if args.file is not None and args.config is not None:
        args.usage_error(f"cannot check two files at once: write {args.file}, or --config {args.config}")
    file = args.config if args.file is None else args.file
    if args.example:
        print(configtext.example(), end="")
        return common.OK
    try:
        config = common.read_config(file)
    except ConfigError as error:
        print(error)
        return common.FAILED
    if args.show:
        print(configtext.render(config), end="")
        return common.OK
    named = common.config_path(file) or f"{common.DEFAULT_CONFIG} (missing, so the defaults)"
    if named == common.STANDARD_INPUT:
        named = "standard input"
    print(f"{named}: ok, {len(config.targets)} target{'' if len(config.targets) == 1 else 's'}")
    for warning in (*configcheck.warnings(config), *_missing_here(config)):
        print(f"{named}: warning: {warning}")
    return common.OK


def _missing_here(config: Config) -> Iterator[str]:
    """What the file names and this machine does not have; the file may be meant for another one."""
    group = config.socket.group
    if group is None or group.isdecimal():
        return
    try:
        grp.getgrnam(group)
    except KeyError:
        yield f"there is no group {group} here, and edgeguardd will not start without it; groupadd --system {group}"
