"""What a bridge needs of its machine: descriptors, a place to listen, the server's keeper, cgroups, a key.

Must not: serve. Upstream: supervise, gate, kernel.cgroupfs. Downstream: run.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator

from edgeguardd.bridges import catalog
from edgeguardd.bridges.endpoint import Endpoint
from edgeguardd.bridges.gate import MAX_CONNECTIONS, Gate
from edgeguardd.bridges.supervise import ChildKeeper, CommandKeeper, Keeper, UnitKeeper
from edgeguardd.errors import EdgeguardError, KernelError
from edgeguardd.kernel import cgroupfs
from edgeguardd.logs import get_logger

MAX_KEY_BYTES = 4096
BACKLOG = 512
SPARE_DESCRIPTORS = 64

log = get_logger()


def allow_descriptors() -> None:
    """As many as the gate may need: a client and a server connection for each request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MAX_CONNECTIONS + SPARE_DESCRIPTORS
    if soft < wanted and soft != resource.RLIM_INFINITY:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def keeper_of(args: argparse.Namespace, row: catalog.Row, cgroup_procs: str | None) -> Keeper | None:
    """What stops and starts the server, if the options name it. Raises EdgeguardError when they name two."""
    if not row.keeper:
        return None
    named = [args.unit is not None, args.stop is not None or args.start is not None, bool(args.command)]
    if sum(named) > 1:
        raise EdgeguardError(
            "cannot choose what restarts the server: give one of --unit, --stop and --start, a command"
        )
    if args.unit is not None:
        return UnitKeeper(args.unit)
    if args.command:
        return ChildKeeper(args.command, cgroup_procs, _tell_end, args.url.path)
    if args.stop is None and args.start is None:
        return None
    if args.stop is None or args.start is None:
        raise EdgeguardError("cannot restart the server: --stop and --start belong together; give the other one too")
    return CommandKeeper(args.stop, args.start)


@contextlib.asynccontextmanager
async def listening(gate: Gate, at: Endpoint) -> AsyncIterator[None]:
    """Serve the gate. Raises EdgeguardError."""
    try:
        if at.path is not None:
            _refuse_taken(at.path)
            server = await asyncio.start_unix_server(gate.connection, at.path, backlog=BACKLOG)
            # As open as a port of this host: the directory says who may come.
            os.chmod(at.path, 0o666)  # noqa: S103
        else:
            server = await asyncio.start_server(gate.connection, at.host, at.port, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        raise EdgeguardError(f"cannot listen on {at}: {why}; choose another --listen") from None
    try:
        yield
    finally:
        server.close()
        await gate.close()


def _refuse_taken(path: str) -> None:
    """A socket that a bridge left behind is replaced (asyncio does it). Raises EdgeguardError for anything else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise EdgeguardError(f"cannot listen on unix:{path}: it is no socket; choose another --listen")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        return
    except BlockingIOError:
        pass  # its queue is full: somebody listens
    raise EdgeguardError(f"cannot listen on unix:{path}: somebody does already; stop that, or choose another --listen")


def _tell_end(status: int) -> None:
    log.warning("bridge_server_ended", exit_status=status)


def cgroup_root(given: str | None) -> cgroupfs.CgroupRoot | None:
    """Where cgroup v2 is; None: it cannot be used here, and nothing be measured."""
    try:
        return cgroupfs.find_root(given)
    except KernelError:
        return None


def api_key(path: str | None) -> str | None:
    """The key in a file. Raises EdgeguardError."""
    if path is None:
        return None
    try:
        with open(path) as file:
            key = file.read(MAX_KEY_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise EdgeguardError(f"cannot read {path}: {error}; correct --api-key-file") from None
    if not key.isascii() or not key.isprintable():
        raise EdgeguardError(f"cannot use {path}: a key is one line of ASCII; correct it")
    return key
