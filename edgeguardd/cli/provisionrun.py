"""What `edgeguardctl provision` does: choose the back end, plan, show, run.

Must not: know what is refused or how it is done (isolate.provision does). Upstream: isolate.provision. Downstream:
cli.provision.
"""

import argparse
import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator

from edgeguardd.cli import common
from edgeguardd.core.config import Config
from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.errors import ConfigError
from edgeguardd.isolate import livecgroup
from edgeguardd.isolate.provision import shown, wanted
from edgeguardd.isolate.provision.model import Group, Machine, Plan, ProvisionError
from edgeguardd.isolate.provision.refusals import Request
from edgeguardd.isolate.provision.run import Backend, Provisioning
from edgeguardd.isolate.provision.systemd import SystemdBackend
from edgeguardd.isolate.provision.treeio import TreeBackend
from edgeguardd.kernel.cgroupfs import find_root
from edgeguardd.kernel.held import boot_id
from edgeguardd.state import StateDirectory

SYSTEMD_RUNS = "/run/systemd/system"  # sd_booted(3)
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def run(args: argparse.Namespace) -> int:
    """Provision, or undo; returns the exit status. Raises EdgeguardError."""
    config = common.read_config(args.config)
    machine = _machine()
    groups = () if args.undo else wanted.groups(config.provision, machine)
    if not groups and not args.undo:
        why = "no [[provision.slice]] and no [[provision.service]]"
        raise ConfigError(
            [f"cannot provision anything: {why}; write one (edgeguardctl size --toml prints both), or --undo"]
        )
    backend = _backend(config, machine, args)
    reserve = wanted.resolve(config.provision.reserve, machine)
    request = Request(groups, {}, machine, reserve, config.provision.overcommit, args.force)
    state = StateDirectory(config.provision.state_directory, lambda sentence: print(f"edgeguardctl: {sentence}"))
    with _alone(config.provision.state_directory, args.dry_run):
        provisioning = Provisioning(backend, state, request, boot_id())
        plan = provisioning.plan()
        _show(plan, backend)
        if args.dry_run:
            return _dry(plan, args)
        if not plan.changes and not plan.refusals:
            provisioning.run(plan)
            print(_nothing(groups, args))
            return common.OK
        with _interruptible():
            outcome = provisioning.run(plan)
    for note in outcome.notes:
        if note not in plan.notes:
            print(f"note: {note}")
    done = "put back" if args.undo else "set and read back"
    print(f"done: {len(outcome.changes)} changes, {done}")
    return common.OK


def _machine() -> Machine:
    memory = livecgroup.memory_bytes()
    if memory is None:
        raise ProvisionError("cannot tell how much memory there is: no MemTotal in /proc/meminfo; mount procfs")
    return Machine(memory, os.sysconf("SC_PAGESIZE"), livecgroup.has_swap() is True)


def _backend(config: Config, machine: Machine, args: argparse.Namespace) -> Backend:
    runs = os.path.isdir(SYSTEMD_RUNS)
    which = config.provision.backend
    if which == "systemd" or (which == "auto" and runs):
        if not runs:
            raise ProvisionError('cannot provision through systemd: it does not run here; write backend = "cgroup"')
        return SystemdBackend(find_root(config.cgroup_root).path, machine, args.wait, runtime=args.runtime)
    if args.runtime:
        raise ProvisionError("cannot do with --runtime: a cgroup tree lasts until the next boot anyhow; leave it out")
    if runs and config.cgroup_root is None:
        raise ProvisionError(
            'cannot provision the cgroup tree: systemd runs here and it is its; write backend = "systemd", or set '
            "cgroup_root to a cgroup that a unit with Delegate=yes has"
        )
    return TreeBackend(find_root(config.cgroup_root).path, machine, args.wait)


@contextlib.contextmanager
def _alone(state_directory: str, dry: bool) -> Iterator[None]:
    """One at a time: two at once would each take the other's work for what was there before."""
    if dry:
        yield
        return
    try:
        os.makedirs(state_directory, mode=0o700, exist_ok=True)
        lock = os.open(f"{state_directory}/provision.lock", _LOCK_FLAGS, 0o600)
    except OSError as error:
        raise ProvisionError(
            f"cannot write into {state_directory}: {error.strerror}; run this as root, or set provision.state_directory"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ProvisionError("cannot provision now: another edgeguardctl provision is at it; wait for it") from None
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and a terminal that is closed are Ctrl-C: what was done is taken back."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(plan: Plan, backend: Backend) -> None:
    if plan.changes:
        print(f"{backend.where}:")
    for line in shown.diff(plan.changes):
        print(line)
    for note in plan.notes:
        print(f"note: {note}")


def _dry(plan: Plan, args: argparse.Namespace) -> int:
    if plan.refusals:
        raise ProvisionError("\n".join(plan.refusals))
    print(f"dry run: {len(plan.changes)} changes would be made" if plan.changes else _nothing((), args))
    return common.OK


def _nothing(groups: tuple[Group, ...], args: argparse.Namespace) -> str:
    if args.undo:
        return "nothing to put back"
    limits = sum(number != INFINITE for group in groups for number in group.values.values())
    return f"nothing to change: all is as wanted{f', {limits} values read back' if limits else ''}"
