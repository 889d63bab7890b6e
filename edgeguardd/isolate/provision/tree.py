"""The plan for a cgroup tree without systemd: what is wanted against what is there -> changes.

Must not: look at or change anything (treeio does). Upstream: model. Downstream: treeio.
Rules of the kernel (Documentation/admin-guide/cgroup-v2.rst): a controller comes from the root down, by a word in each
cgroup.subtree_control on the way; whoever passes one on may hold no processes itself, the root excepted.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from edgeguardd.core.systemdvalues import INFINITE
from edgeguardd.isolate.provision.model import (
    SUBTREE,
    SWAP_MAX,
    Change,
    Entry,
    Group,
    Kind,
    kernel_text,
    number_of,
)

THERE = "there"
ON = "on"
_DOMAIN = "domain"


class Place(Struct, frozen=True):
    """One cgroup as it is. `processes`: of its own. `domain`: cgroup.type; None: the root of the whole tree.

    `children`: the names of the cgroups in it. `controllers`: what it has; `passed_on`: what its children have.
    `used_bytes`: memory.current.
    """

    inode: int = 0
    controllers: frozenset[str] = frozenset()
    passed_on: frozenset[str] = frozenset()
    processes: int = 0
    domain: str | None = _DOMAIN
    children: frozenset[str] = frozenset()
    values: Mapping[str, str] = {}
    used_bytes: int = 0


def controllers_of(group: Group) -> list[str]:
    """Those that a group's files belong to."""
    return sorted({file.partition(".")[0] for file in group.values})


def parent(path: str) -> str:
    """The cgroup above."""
    return path.rpartition("/")[0] or "/"


def above(path: str) -> list[str]:
    """The cgroups above, from the root down."""
    found: list[str] = []
    while path != "/":
        path = parent(path)
        found.insert(0, path)
    return found


def faults(group: Group, places: Mapping[str, Place], has_swap: bool) -> list[str]:
    """Why the kernel would not do it."""
    root = places["/"]
    found = [
        f"there is no {one} controller in this tree; enable it (kernel command line: cgroup_enable={one}; in a "
        "container: have it delegated)"
        for one in controllers_of(group)
        if one not in root.controllers
    ]
    for path in above(group.path):
        place = places.get(path)
        if place is None:
            break
        missing = [one for one in controllers_of(group) if one not in place.passed_on]
        if missing and place.domain is not None and place.processes:
            found.append(
                f"{path} would have to pass {' and '.join(missing)} on, and holds {place.processes} processes itself; "
                "move them into a cgroup below it"
            )
        if place.domain not in (None, _DOMAIN, "domain threaded"):
            found.append(f"{path} is {place.domain}, and cannot pass memory on; name a cgroup outside it")
    own = places.get(group.path)
    if own is not None and set(controllers_of(group)) <= own.controllers:
        missing_files = [file for file in group.values if file not in own.values and not _idle(group, file, has_swap)]
        found += [
            f"this kernel has no {file} there; leave it out, or use a newer or fuller kernel" for file in missing_files
        ]
    return found


def changes(
    groups: Sequence[Group], places: Mapping[str, Place], entries: Sequence[Entry], has_swap: bool
) -> tuple[list[Change], list[str]]:
    """What is to be done, in order, and notes: first what is wanted, then what once was and no longer is."""
    found: list[Change] = []
    for group in groups:
        found += _of_group(group, places, has_swap, found)
    back, notes = _back(groups, places, entries)
    return found + back, notes


def _of_group(group: Group, places: Mapping[str, Place], has_swap: bool, before: Sequence[Change]) -> Iterator[Change]:
    planned = {(change.place, change.key) for change in before}
    for path in (*above(group.path), group.path):
        place = places.get(path)
        if place is None and (path, "") not in planned:
            yield Change(Kind.CGROUP, path, "", None, THERE)
        if path == group.path:
            continue
        passed_on = place.passed_on if place is not None else frozenset[str]()
        for one in controllers_of(group):
            if one not in passed_on and (path, f"{SUBTREE} {one}") not in planned:
                yield Change(Kind.CONTROLLER, path, f"{SUBTREE} {one}", None, ON)
    now = places[group.path].values if group.path in places else {}
    for file, number in group.values.items():
        if file not in now:
            if group.path in places and _idle(group, file, has_swap) and "memory.max" in now:
                continue
            yield Change(Kind.FILE, group.path, file, None, kernel_text(file, number))
        elif number_of(file, now[file]) != number:
            yield Change(Kind.FILE, group.path, file, now[file], kernel_text(file, number))


def _idle(group: Group, file: str, has_swap: bool) -> bool:
    """A swap limit that has nothing to do, where the kernel has no such file."""
    return file == SWAP_MAX and not has_swap and group.values[file] in (0, INFINITE)


def _back(
    groups: Sequence[Group], places: Mapping[str, Place], entries: Sequence[Entry]
) -> tuple[list[Change], list[str]]:
    """What we once did and is not wanted any more is put back; what somebody has changed since is left alone."""
    wanted_files = {(group.path, file) for group in groups for file in group.values}
    needed = {path for group in groups for path in (group.path, *above(group.path))}
    passing = {(path, one) for group in groups for path in above(group.path) for one in controllers_of(group)}
    found: list[Change] = []
    notes: list[str] = []
    leaving = _leaving(entries, needed, places, notes)
    for entry in sorted(entries, key=lambda one: (-len(above(one.place)), one.place)):
        place = places.get(entry.place)
        if place is None or entry.inode not in (0, place.inode):
            continue
        if entry.kind is Kind.FILE and (entry.place, entry.key) not in wanted_files and entry.place not in leaving:
            found += _file_back(entry, place, notes)
        elif entry.kind is Kind.CGROUP and entry.place in leaving:
            found.append(Change(Kind.CGROUP, entry.place, "", THERE, None))
        elif (
            entry.kind is Kind.CONTROLLER
            and entry.place not in leaving
            and (entry.place, entry.key.split()[1]) not in passing
        ):
            found += _controller_back(entry, place, leaving, notes)
    return found, notes


def _leaving(entries: Sequence[Entry], needed: set[str], places: Mapping[str, Place], notes: list[str]) -> set[str]:
    """The cgroups that we made, that are not needed any more, and that hold nothing but each other."""
    leaving: set[str] = set()
    made = [entry for entry in entries if entry.kind is Kind.CGROUP and entry.place not in needed]
    for entry in sorted(made, key=lambda one: -one.place.count("/")):
        place = places.get(entry.place)
        if place is None:
            continue
        if entry.inode not in (0, place.inode):
            notes.append(f"{entry.place} was made anew by somebody else since: left alone")
            continue
        others = [name for name in place.children if f"{entry.place}/{name}" not in leaving]
        if place.processes or others:
            what = f"{place.processes} processes" if place.processes else f"{len(others)} cgroups of others"
            notes.append(f"{entry.place} holds {what}: the cgroup stays, its limits are put back")
        else:
            leaving.add(entry.place)
    return leaving


def _file_back(entry: Entry, place: Place, notes: list[str]) -> Iterator[Change]:
    now = place.values.get(entry.key)
    if now is None or entry.written is None or _same(entry.key, now, entry.before):
        return
    if not _same(entry.key, now, entry.written):
        notes.append(
            f"{entry.key} of {entry.place} is {now}, not the {entry.written} that was written: somebody changed it, "
            "left alone"
        )
        return
    default = DEFAULTS.get(entry.key)
    yield Change(Kind.FILE, entry.place, entry.key, now, entry.before if entry.before is not None else default)


def _controller_back(entry: Entry, place: Place, leaving: set[str], notes: list[str]) -> Iterator[Change]:
    one = entry.key.split()[1]
    if one not in place.passed_on:
        return
    base = "" if entry.place == "/" else entry.place
    others = [name for name in place.children if f"{base}/{name}" not in leaving]
    if others:
        notes.append(f"{entry.place} goes on passing {one} on: {len(others)} other cgroups below it may use it")
    else:
        yield Change(Kind.CONTROLLER, entry.place, entry.key, ON, None)


# What a new cgroup has (cgroup-v2.rst), for files of cgroups that we made but cannot remove.
DEFAULTS = {
    "memory.min": "0",
    "memory.low": "0",
    "memory.high": "max",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.oom.group": "0",
    "cpu.weight": "100",
    "cpu.max": "max 100000",
}


def _same(file: str, one: str, other: str | None) -> bool:
    text = DEFAULTS.get(file) if other is None else other
    return text is not None and number_of(file, one) == number_of(file, text)
