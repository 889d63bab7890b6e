"""The cgroup tree as a back end: reads it, carries changes out in it, one kernel file at a time.

Must not: decide what is to be done (tree does), mount anything, move processes. Upstream: tree, kernel.held.
Downstream: run.
"""

import os
from collections.abc import Sequence

from edgeguardd.isolate.provision import tree
from edgeguardd.isolate.provision.lowering import Patience, in_steps
from edgeguardd.isolate.provision.model import (
    HIGH,
    MAX,
    SUBTREE,
    SWAP_MAX,
    Change,
    Entry,
    Found,
    Group,
    Kind,
    Machine,
    Plan,
    ProvisionError,
    number_of,
    size_text,
)
from edgeguardd.isolate.provision.model import PROPERTIES as FILES
from edgeguardd.isolate.provision.refusals import Request, refusals
from edgeguardd.isolate.provision.tree import Place
from edgeguardd.kernel.cgroupfs import CgroupGoneError, CgroupRoot
from edgeguardd.kernel.held import HeldCgroup

_CURRENT = "memory.current"
_MAX_FILE_BYTES = 65536


class TreeBackend:
    """One cgroup v2 tree."""

    name = "cgroup"

    def __init__(self, root: str, machine: Machine, wait_s: float) -> None:
        """`root`: where cgroup v2 is mounted, or the cgroup below which this is delegated."""
        self.where = f"the cgroup tree at {root}"
        self._root = root.rstrip("/") or "/"
        self._machine = machine
        self._patience = Patience(wait_s)
        self._force = False

    def plan(self, groups: Sequence[Group], entries: Sequence[Entry], request: Request) -> Plan:
        """Look, and say what is to be done."""
        self._force = request.force
        places = self._places([*(group.path for group in groups), *(entry.place for entry in entries)])
        found = {group.name: self._found(group, places) for group in groups}
        refused = refusals(Request(groups, found, *_rest(request)))
        changes, notes = tree.changes(groups, places, entries, self._machine.has_swap)
        if not request.force:
            refused += [why for change in changes if (why := self._too_low(change, groups)) is not None]
        used = {path: place.used_bytes for path, place in places.items()}
        high = {path: place.values[HIGH] for path, place in places.items() if HIGH in place.values}
        stepped = in_steps(changes, used, high, self._machine.page_bytes)
        return Plan(tuple(stepped), tuple(refused), tuple(notes))

    def apply(self, change: Change) -> None:
        """Carry one change out. Raises EdgeguardError, and then nothing of it is done."""
        match change.kind:
            case Kind.CGROUP:
                self._make_or_remove(change)
            case Kind.CONTROLLER:
                sign = "-" if change.after is None else "+"
                self._write(change.place, SUBTREE, sign + change.key.split()[1])
            case _:
                self._set(change)

    def finish(self) -> None:
        """Nothing is left over."""

    def inode(self, change: Change) -> int:
        """Of the cgroup that a change is in; 0: there is none yet."""
        try:
            return os.stat(self._full(change.place)).st_ino
        except OSError:
            return 0

    # Looking

    def _places(self, paths: Sequence[str]) -> dict[str, Place]:
        wanted = {"/", *(path for one in paths for path in (one, *tree.above(one)))}
        return {path: place for path in sorted(wanted) if (place := self._place(path)) is not None}

    def _place(self, path: str) -> Place | None:
        full = self._full(path)
        try:
            inode = os.stat(full).st_ino
            children = frozenset(entry.name for entry in os.scandir(full) if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            if path == "/":
                raise ProvisionError(f"cannot look into {full}: {error.strerror}; mount cgroup v2 there") from None
            return None
        domain = _text(f"{full}/cgroup.type")
        return Place(
            inode=inode,
            controllers=_words(_text(f"{full}/cgroup.controllers")),
            passed_on=_words(_text(f"{full}/{SUBTREE}")),
            processes=len((_text(f"{full}/cgroup.procs") or "").split()),
            domain=domain.strip() if domain is not None else None,
            children=children,
            values={file: text.strip() for file in FILES if (text := _text(f"{full}/{file}")) is not None},
            used_bytes=self._used(path),
        )

    def _found(self, group: Group, places: dict[str, Place]) -> Found:
        place = places.get(group.path)
        faults = tuple(tree.faults(group, places, self._machine.has_swap))
        if place is None:
            return Found(faults=faults)
        stat = dict(line.split() for line in (_text(f"{self._full(group.path)}/memory.stat") or "").splitlines())
        droppable = int(stat.get("active_file", 0)) + int(stat.get("inactive_file", 0))
        return Found(group.path, place.values, self._used(group.path), droppable, faults)

    def _too_low(self, change: Change, groups: Sequence[Group]) -> str | None:
        """A limit that is put back, and would be below what is in use by now."""
        if change.kind is not Kind.FILE or change.key not in (HIGH, MAX) or change.after is None:
            return None
        if any(group.path == change.place and change.key in group.values for group in groups):
            return None
        limit, used = number_of(change.key, change.after), self._used(change.place)
        if limit is None or used <= limit:
            return None
        return (
            f"cannot put {change.key} of {change.place} back to {size_text(limit)}: it uses {size_text(used)}, "
            f"{size_text(used - limit)} more; have it use less, or give --force to lower it in steps"
        )

    def _used(self, path: str) -> int:
        text = _text(f"{self._full(path)}/{_CURRENT}") or ""
        return int(text) if text.strip().isdigit() else 0

    # Changing

    def _make_or_remove(self, change: Change) -> None:
        full = self._full(change.place)
        try:
            if change.after is None:
                os.rmdir(full)
            else:
                os.mkdir(full)
        except FileExistsError:
            return
        except FileNotFoundError:
            if change.after is not None:
                raise ProvisionError(f"cannot make {full}: the cgroup above it is gone; run this again") from None
        except OSError as error:
            verb = "remove" if change.after is None else "make"
            raise ProvisionError(f"cannot {verb} {full}: {error.strerror}; {_remedy(error)}") from None

    def _set(self, change: Change) -> None:
        text = tree.DEFAULTS.get(change.key) if change.after is None else change.after
        if text is None:
            return
        if change.key == SWAP_MAX and not self._machine.has_swap and not self._has(change.place, SWAP_MAX):
            return
        limit = number_of(change.key, text)
        now = number_of(change.key, _text(f"{self._full(change.place)}/{change.key}") or "max")
        lowers = limit is not None and (now is None or limit < now)
        if limit is None or not lowers or change.key not in (HIGH, MAX):
            self._write(change.place, change.key, text)
            return
        used_bytes = self._used(change.place)
        if used_bytes > limit and (change.key == MAX or not self._force):
            raise ProvisionError(
                f"cannot set {change.key} of {change.place} to {size_text(limit)}: it has come to use "
                f"{size_text(used_bytes)} meanwhile; run this again"
            )
        self._write(change.place, change.key, text)
        if change.key == HIGH and used_bytes > limit:
            self._patience.wait(change.place, limit, lambda: self._used(change.place))

    def _write(self, path: str, name: str, text: str) -> None:
        try:
            with HeldCgroup(CgroupRoot(self._root), path) as cgroup:
                cgroup.write(name, text)
        except CgroupGoneError as error:
            raise ProvisionError(f"{error}; run this again") from None

    def _has(self, path: str, name: str) -> bool:
        return os.path.exists(f"{self._full(path)}/{name}")

    def _full(self, path: str) -> str:
        return self._root if path == "/" else ("" if self._root == "/" else self._root) + path


def _rest(request: Request) -> tuple[Machine, int, bool, bool]:
    return request.machine, request.reserve_bytes, request.overcommit, request.force


def _remedy(error: OSError) -> str:
    return "run this as root, or have the tree delegated" if error.errno in (1, 13, 30) else "see the kernel log"


def _words(text: str | None) -> frozenset[str]:
    return frozenset((text or "").split())


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return None
