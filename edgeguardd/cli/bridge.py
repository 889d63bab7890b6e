"""edgeguardctl bridge: stand between edgeguardd and an inference server that knows nothing of it.

Must not: import a bridge before it is to run. Upstream: bridges.catalog, bridges.endpoint. Downstream: edgeguardctl.

A settings file holds the same options as the command line, and is checked by the same parser.
"""

import argparse
import os
import shlex
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from edgeguardd.bridges import catalog
from edgeguardd.bridges.endpoint import endpoint
from edgeguardd.cli import common, daemonlink
from edgeguardd.core import configkinds as kinds
from edgeguardd.core.config import LogConfig
from edgeguardd.core.confignames import check_cgroup_path, check_unit
from edgeguardd.core.model import Level
from edgeguardd.errors import ConfigError

MAX_FILE_BYTES = 64 * 1024
SERVER_KEY = "server"
COMMAND_KEY = "command"
MOST_S = 86_400.0
LEVELS = tuple(level.word for level in Level if level is not Level.NORMAL)

Adder = Callable[..., Any]
EXIT_STATUS = "Exit status: 0 stopped as asked; 1 it cannot work, a sentence says why; 2 wrong usage or settings."


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "bridge",
        help="let edgeguardd's commands reach a server that knows nothing of it",
        description="Subscribe to edgeguardd in the name of an inference server and carry out what it asks by the "
        "server's own calls, behind a gate that refuses requests when told to. docs/how-to/bridges.md says what each "
        "server can give up and what it needs for that.",
        epilog=EXIT_STATUS,
    )
    parser.add_argument(
        "--settings",
        metavar="FILE",
        help='a TOML file with the options below as keys, and server = "NAME"; instead of naming the server here',
    )
    servers = parser.add_subparsers(dest="server", metavar="SERVER")
    for name, row in catalog.SERVERS.items():
        _add_server(servers, name, row)
    parser.set_defaults(run=run, server=None)


def run(args: argparse.Namespace) -> int:
    """Carry out the command; returns the exit status. Raises EdgeguardError."""
    if (args.settings is None) == (args.server is None):
        servers = ", ".join(catalog.SERVERS)
        raise ConfigError([f"cannot start a bridge: give either --settings FILE, or the server's name: {servers}"])
    if args.settings is not None:
        args = read_settings(args.settings)
    if args.listen is not None and args.gate == "external":
        raise ConfigError(["cannot start a bridge: --listen is a gate; give it or --gate external, not both"])
    import asyncio  # noqa: PLC0415 - heavy, and only this command needs it

    from edgeguardd import logs  # noqa: PLC0415
    from edgeguardd.bridges.run import serve  # noqa: PLC0415

    logs.configure(LogConfig(args.log_format))
    args.socket = daemonlink.socket_path(args)
    args.name = args.name or f"{args.server}-bridge"
    args.state = args.state or _own_state_file()
    asyncio.run(serve(args))
    return common.OK


def _own_state_file() -> str | None:
    """In the directory that systemd made for this service (RuntimeDirectory=); None elsewhere."""
    directory = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return f"{directory}/taken" if directory.startswith("/") else None


def read_settings(path: str) -> argparse.Namespace:
    """The options in a settings file. Raises ConfigError, which names the file and the key."""
    try:
        with open(path, "rb") as file:
            tree = tomllib.loads(file.read(MAX_FILE_BYTES).decode())
    except OSError as error:
        raise ConfigError([f"cannot read {path}: {(error.strerror or '').lower()}; name a settings file"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError([f"cannot read {path}: it is no TOML ({error}); correct it"]) from None
    server = tree.pop(SERVER_KEY, None)
    if not isinstance(server, str) or server not in catalog.SERVERS:
        raise ConfigError(
            [f"cannot use {path}: {SERVER_KEY} is none of {', '.join(catalog.SERVERS)}; write one of them"]
        )
    parser = _SettingsParser(prog=path, add_help=False, allow_abbrev=False, parents=[daemonlink.options(socket=True)])
    _add_options(parser, server, catalog.SERVERS[server])
    parser.set_defaults(server=server)
    return parser.parse_args(_words(path, tree))


class _SettingsParser(argparse.ArgumentParser):
    """Says what is wrong with a file, not with a command line."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError([f"cannot use {self.prog}: {message}"])


def _words(path: str, tree: Mapping[str, Any]) -> list[str]:
    """The tree as a command line says it."""
    words: list[str] = []
    for key, value in tree.items():
        if key == COMMAND_KEY:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool) or not isinstance(item, str | int | float):
                raise ConfigError([f"cannot use {path}: {key} is neither text nor a number; write it as one"])
            # In one word, so that a value that begins with "-" is none of the options.
            words.append(f"--{key}={item}")
    command = tree.get(COMMAND_KEY, [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise ConfigError([f'cannot use {path}: {COMMAND_KEY} is no array of texts; write ["llama-server", "-m", "…"]'])
    return [*words, "--", *command] if command else words


def _add_server(servers: Any, name: str, row: catalog.Row) -> None:
    parser = servers.add_parser(
        name,
        parents=[daemonlink.options(socket=True)],
        help=row.doc,
        description=row.doc,
        epilog=EXIT_STATUS,
        allow_abbrev=False,
    )
    _add_options(parser, name, row)


def _add_options(parser: argparse.ArgumentParser, name: str, row: catalog.Row) -> None:
    add_argument = parser.add_argument
    add_argument("--url", metavar="URL", type=_url, default=row.url, help=f"the server (default: {row.url})")
    add_argument(
        "--target",
        metavar="NAME",
        default="self",
        help="the target it serves (default: self, the bridge's own cgroup)",
    )
    add_argument("--name", metavar="NAME", help=f"what logs and status call the bridge (default: {name}-bridge)")
    _add_gate(parser.add_argument_group("the gate").add_argument)
    _add_work(parser.add_argument_group("what may take how long, and how far it goes").add_argument)
    _add_place(parser.add_argument_group("where the server is").add_argument)
    if row.keeper:
        group = parser.add_argument_group("what stops and starts it: --unit, or these, or a command").add_argument
        group("--stop", metavar="COMMAND", type=_command, help="stops it; split like a shell does, run without one")
        group("--start", metavar="COMMAND", type=_command, help="starts it")
        group(COMMAND_KEY, metavar="COMMAND", nargs="*", help="after --: the server as a child of the bridge")
    if row.options:
        group = parser.add_argument_group(f"for {name}").add_argument
        for option in row.options:
            _add_own(group, option)
    add_argument("--log-format", choices=("auto", "json", "text"), default="auto", help="the form of log lines")


def _add_gate(add_argument: Adder) -> None:
    add_argument("--listen", metavar="URL", type=_url, help="where clients come in: http://ADDRESS:PORT or unix:/PATH")
    add_argument(
        "--gate",
        choices=("own", "external"),
        default="own",
        help="external: another proxy refuses by asking edgeguardd",
    )
    add_argument(
        "--places",
        metavar="N",
        type=common.count,
        help="requests inside at once (default: what the server says, else as many as come)",
    )
    add_argument(
        "--patience", metavar="TIME", type=_duration, default=10.0, help="how long a request waits for a place (10s)"
    )
    add_argument(
        "--retry-after", metavar="SECONDS", type=common.count, default=2, help="when those refused may come again (2)"
    )


def _add_work(add_argument: Adder) -> None:
    add_argument("--drain", metavar="TIME", type=_duration, default=60.0, help="those inside get this to end (60s)")
    add_argument(
        "--within",
        metavar="TIME",
        type=_duration,
        default=120.0,
        help="a release, an unload, a load gets this (120s)",
    )
    add_argument("--call-within", metavar="TIME", type=_duration, default=5.0, help="one call of the server's API (5s)")
    add_argument(
        "--release-from",
        choices=LEVELS,
        default=Level.HIGH.word,
        help="below this level a trim first does only what costs no request anything (default: high)",
    )
    add_argument(
        "--worth",
        metavar="SIZE",
        type=_size,
        default=32 * 1024 * 1024,
        help="what has to have grown before a trim shuts the gate for it (32M)",
    )


def _add_place(add_argument: Adder) -> None:
    add_argument("--unit", metavar="UNIT", type=_unit, help="its systemd unit: measured, and restarted if need be")
    add_argument(
        "--cgroup", metavar="PATH", type=_cgroup, help="its cgroup below the root, where there is no unit: measured"
    )
    add_argument("--cgroup-root", metavar="DIR", type=common.directory, help="where cgroup v2 is mounted, if not found")
    add_argument("--api-key-file", metavar="FILE", help="a file with the key that the server's API wants")
    add_argument(
        "--state",
        metavar="FILE",
        help="keeps what was unloaded, for a bridge that died (default: in $RUNTIME_DIRECTORY)",
    )


def _add_own(add_argument: Adder, option: catalog.Option) -> None:
    more: dict[str, Any] = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
    if option.many:
        more["action"] = "append"
    add_argument(f"--{option.name}", default=option.default, help=option.doc, **more)


def _checked(parse: Callable[[Any], Any], word: object) -> Any:
    try:
        return parse(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot use {word!r}: {error}") from None


def _url(word: str) -> Any:
    return _checked(endpoint, word)


def _duration(word: str) -> float:
    seconds: float = _checked(kinds.duration(MOST_S).parse, _number(word))
    return seconds


def _size(word: str) -> int:
    found: int = _checked(kinds.size().parse, _number(word))
    return found


def _number(word: str) -> object:
    """A bare number as TOML would read it; anything else as it is."""
    if not (word.isascii() and word.replace(".", "", 1).isdigit() and len(word) < 20):
        return word
    return float(word) if "." in word else int(word)


def _command(word: str) -> list[str]:
    words: list[str] = _checked(shlex.split, word)
    if not words:
        raise argparse.ArgumentTypeError("cannot use an empty command: name a program")
    return words


def _unit(word: str) -> str:
    _checked(check_unit, word)
    return word


def _cgroup(word: str) -> str:
    _checked(check_cgroup_path, word)
    return word
