"""edgeguardd: the daemon's command. Options go over the configuration file, at the start and at every reload.

Must not: import the daemon before it is to run, so that --help and --check stay quick. Upstream: common.
Downstream: daemon.run.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import msgspec

from edgeguardd import __version__
from edgeguardd.cli import common
from edgeguardd.cli.parser import Parser
from edgeguardd.core.config import Config
from edgeguardd.errors import ConfigError
from edgeguardd.kernel import heap
from edgeguardd.standins import without_unused


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status."""
    args = parser().parse_args(argv)
    return common.guarded("edgeguardd", lambda: int(args.run(args)))


def parser() -> argparse.ArgumentParser:
    """The command line of edgeguardd."""
    top = Parser(
        prog="edgeguardd",
        description="Ask inference servers to give memory back before the kernel takes it.",
        epilog="Exit status: 0 stopped as asked; 1 failed; 2 wrong usage or a configuration that cannot be used.",
    )
    top.add_argument("--version", action="version", version=f"edgeguardd {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run_parser = commands.add_parser(
        "run",
        help="run the daemon until SIGTERM",
        description="Run the daemon in the foreground until SIGTERM or SIGINT; SIGHUP reads the configuration again. "
        "SIGPIPE is ignored; any other signal does what it does to every program: SIGUSR1 or SIGQUIT end it at once, "
        "and the next start puts back what it had lifted. Options go over the configuration file.",
    )
    add = run_parser.add_argument
    add("--config", metavar="FILE", help=f"the configuration; without it {common.DEFAULT_CONFIG}, if that exists")
    add("--socket", metavar="PATH", type=common.socket_path, help="the subscriber socket, for [socket] path")
    add("--http", metavar="ADDRESS:PORT|off", type=_http, help="the HTTP address, for [http]; off serves none")
    add("--log-format", choices=("auto", "json", "text"), help="the form of log lines, for [log] format")
    add("--cgroup-root", metavar="DIR", type=common.directory, help="where cgroup v2 is mounted, for cgroup_root")
    add("--check", action="store_true", help="only check the configuration, then exit")
    run_parser.set_defaults(run=run)
    back_parser = commands.add_parser(
        "put-back",
        help="put back what a daemon that died has left lifted or frozen",
        description="Put back memory.high where a daemon that died has left it lifted, and thaw what it has left "
        "frozen, when no other daemon is to do so: the next one does it by itself. Refused beside a running one. "
        "Silent when there is nothing.",
    )
    back_parser.add_argument("--config", metavar="FILE", help="the configuration of the daemon that died")
    back_parser.set_defaults(run=put_back)
    return top


def run(args: argparse.Namespace) -> int:
    """Check the configuration, then hand over to the daemon. Raises EdgeguardError."""

    def load() -> Config:
        if args.config == common.STANDARD_INPUT:
            # At its end by now, it would read as an empty file: every target dropped.
            raise ConfigError(["cannot reload standard input: it can be read once; restart, or name a file"])
        return with_options(common.read_config(args.config), args)

    config = with_options(common.read_config(args.config), args)
    if args.check:
        missing = "" if common.config_path(args.config) else f": {common.DEFAULT_CONFIG} is missing, so the defaults"
        print(f"edgeguardd: the configuration is ok{missing}")
        return common.OK
    # A machine-wide setting of some other program's: with it, the metrics library would keep figures in files there.
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(name, None)
    heap.bound()
    with without_unused():
        from edgeguardd import daemon, logs  # noqa: PLC0415 - 20 MiB and 0.3 s that only a running daemon is to pay

    output = logs.configure(config.log, sys.stderr)
    return daemon.run(config, load, common.config_path(args.config), output)


def put_back(args: argparse.Namespace) -> int:
    """What systemd runs after a daemon that died. Raises EdgeguardError."""
    from edgeguardd import leftovers  # noqa: PLC0415 - see above

    try:
        config = common.read_config(args.config)
    except ConfigError:
        # It may be why the daemon died; where the records are by default is the best that is known then.
        config = Config()
    done, failed = leftovers.put_back(config)
    for sentence in done:
        print(f"edgeguardd: {sentence}")
    for sentence in failed:
        print(f"edgeguardd: {sentence}", file=sys.stderr)
    return common.FAILED if failed else common.OK


def with_options(config: Config, args: argparse.Namespace) -> Config:
    """The configuration with the command line's options in place of its own values."""
    replace = msgspec.structs.replace
    if args.socket is not None:
        config = replace(config, socket=replace(config.socket, path=args.socket))
    if args.http == "off":
        config = replace(config, http=replace(config.http, enabled=False))
    elif args.http is not None:
        address, port = args.http
        config = replace(config, http=replace(config.http, enabled=True, address=address, port=port))
    if args.log_format is not None:
        config = replace(config, log=replace(config.log, format=args.log_format))
    if args.cgroup_root is not None:
        config = replace(config, cgroup_root=args.cgroup_root)
    return config


def _http(word: str) -> tuple[str, int] | str:
    return word if word == "off" else common.http_address(word)
