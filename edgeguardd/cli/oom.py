"""edgeguardctl oom: kernel OOM reports, told in plain words or as JSON.

Must not: read or understand a log itself. Upstream: oomviews. Downstream: edgeguardctl.
"""

import argparse

EPILOG = """\
Exit status: 0 the log was read, whatever it holds; 1 it could not be read. FILE may be a log in any style: dmesg with
or without -T, -x, -r, -H or -J, journalctl in any output format, syslog, a serial console's capture, kubectl's or
docker's; packed with gzip, bzip2 or xz too.
"""


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "oom",
        help="explain the kernel's OOM reports in a log",
        description="Tell each OOM of a log: who was killed, whose limit was met, who used what, why this process died "
        "and what to change. Without FILE, the running kernel's own log.",
        epilog=EPILOG,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the log; - for standard input")
    parser.add_argument("--follow", action="store_true", help="wait for new reports of the running kernel, from now on")
    parser.add_argument(
        "--json",
        action="store_true",
        help='print {"events": [...]}, one event a killed process; with --follow one such line a report',
    )
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    from edgeguardd.cli import oomviews  # noqa: PLC0415 - the readers of all log styles, which other commands do without

    if args.follow and args.file is not None:
        args.parser.error(
            "cannot follow a file: --follow reads the running kernel's log; tail -F FILE | … oom - does it"
        )
    return oomviews.run(args)
