"""Target specs -> cgroup paths: the paths that match a glob or a systemd unit, as they come and go.

Must not: read memory files. Upstream: tree. Downstream: targets.
"""

import errno
import fnmatch
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from edgeguardd.kernel.cgroupfs import MAX_DEPTH, MAY_NOT_LOOK, CgroupRoot, shown, target_path
from edgeguardd.kernel.tree import Follower, Place, Tree

# The types of unit that have a cgroup (systemd.resource-control(5)).
_SUFFIXES = (".service", ".scope", ".slice", ".socket", ".mount", ".swap")

# Each directory looked into takes a descriptor and a watch. A node has 250 pods, a desktop user 20 slices.
_MAX_DIRECTORIES = 1024
_MAX_OF_ONE_USER = 64


class Pattern(Protocol):
    """What is looked for."""

    many: bool

    def inside(self, path: str) -> bool:
        """Whether the cgroup at this path can hold matches, so that its entries are looked at."""

    def matches(self, path: str) -> bool:
        """Whether the cgroup at this path is one."""


class Glob:
    """A shell pattern on each component of a path: `*` does not cross a '/', nor match a leading dot."""

    many = True

    def __init__(self, pattern: str) -> None:
        """Raises TargetError for a pattern that is no path below the root."""
        parts = target_path(pattern).split("/")[1:]
        self._parts = [
            re.compile(("" if part.startswith(".") else r"(?!\.)") + fnmatch.translate(part)) for part in parts
        ]

    def inside(self, path: str) -> bool:
        parts = _parts(path)
        return len(parts) < len(self._parts) and self._fits(parts)

    def matches(self, path: str) -> bool:
        parts = _parts(path)
        return len(parts) == len(self._parts) and self._fits(parts)

    def _fits(self, parts: list[str]) -> bool:
        return all(wanted.match(part) for wanted, part in zip(self._parts, parts, strict=False))


class Unit:
    """A systemd unit, in whatever slice it runs; `name@.service` stands for all of its instances.

    Units live in slices, and those of a user in the slices below user@UID.service (systemd.slice(5),
    Documentation "CGROUP_DELEGATION"). A unit whose name could be taken for a file of cgroupfs has "_" put before it
    (cg_escape, src/basic/cgroup-util.c).
    """

    def __init__(self, name: str) -> None:
        """A name without a suffix means a service, as for systemctl."""
        self._name = name if name.endswith(_SUFFIXES) else name + ".service"
        stem, at, suffix = self._name.partition("@.")
        self.many = bool(at)
        self._stem, self._suffix = stem + "@", "." + suffix
        self.usual_path = f"/system.slice/{self._name}"

    def inside(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        return path == "/" or name.endswith(".slice") or _is_user_manager(name)

    def matches(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if self.many:
            return (
                name.startswith(self._stem)
                and name.endswith(self._suffix)
                and len(name) > len(self._stem) + len(self._suffix)
            )
        return name in (self._name, "_" + self._name)


class Search:
    """All cgroups that match a pattern, from now on. `found` and `lost` get their paths.

    `on_fault` gets a sentence about a directory that cannot be listed, `on_full` when there are too many to look into:
    each of them takes a descriptor and a watch.
    """

    def __init__(
        self,
        root: CgroupRoot,
        tree: Tree,
        pattern: Pattern,
        found: Callable[[str], None],
        lost: Callable[[str], None],
        on_fault: Callable[[str], None],
        on_full: Callable[[str], None],
    ) -> None:
        self._root = root
        self._tree = tree
        self._pattern = pattern
        self._found = found
        self._lost = lost
        self._on_fault = on_fault
        self._on_full = on_full
        self._looked_into: Counter[str] = Counter()
        self._inside: dict[str, tuple[Place, Follower]] = {}
        self._closed = False
        self.matches: set[str] = set()

    def start(self) -> None:
        """Look for the first time, and go on looking."""
        self._descend("/")

    def close(self) -> None:
        """Look no more. Nothing is reported as lost."""
        self._closed = True
        for place, follower in self._inside.values():
            self._tree.unfollow(place, follower)
        self._inside.clear()
        self.matches.clear()

    def _descend(self, path: str) -> None:
        owner = _owner(path)
        allowed = _MAX_OF_ONE_USER if owner else _MAX_DIRECTORIES
        if path.count("/") > MAX_DEPTH or self._looked_into[owner] >= allowed:
            self._on_full(
                f"cannot look into all directories below {shown(owner or '/')}: there are more than {allowed}, or more "
                f"than {MAX_DEPTH} levels of them; name targets there by path"
            )
            return
        self._looked_into[owner] += 1
        follower = Follower(self._scan, self._forget_below, self._entry)
        place = self._tree.follow(path, follower)
        self._inside[path] = (place, follower)
        if place.present:
            self._scan(place)

    def _entry(self, place: Place, name: str | None) -> None:
        if name is None:
            self._scan(place)
            return
        full = f"{self._root.full(place.path).rstrip('/')}/{name}"
        self._look(_below(place.path, name), there=os.path.isdir(full) and not os.path.islink(full))

    def _scan(self, place: Place) -> None:
        try:
            with os.scandir(self._root.full(place.path)) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not self._tree.holds(place):
                # Gone meanwhile: what watches its parent says so.
                return
            remedy = "raise LimitNOFILE= of the daemon" if error.errno == errno.EMFILE else MAY_NOT_LOOK
            self._on_fault(f"cannot look into {shown(self._root.full(place.path))}: {error.strerror}; {remedy}")
            return
        there = {_below(place.path, name) for name in names}
        for path in [*self.matches, *self._inside]:
            if path not in there and path != "/" and path.rpartition("/")[0] == place.path.rstrip("/"):
                self._look(path, there=False)
        for path in sorted(there):
            self._look(path, there=True)

    def _look(self, path: str, *, there: bool) -> None:
        if self._closed:
            return
        if not there:
            self._forget(path)
            return
        if path not in self.matches and self._pattern.matches(path):
            self.matches.add(path)
            self._found(path)
        if path not in self._inside and self._pattern.inside(path):
            self._descend(path)

    def _forget(self, path: str) -> None:
        """The cgroup is gone, and with it all below."""
        if path not in self._inside:
            # Nothing below it was looked at.
            if path in self.matches:
                self.matches.discard(path)
                self._lost(path)
            return
        for inside in [known for known in self._inside if known == path or known.startswith(path + "/")]:
            place, follower = self._inside.pop(inside)
            self._looked_into[_owner(inside)] -= 1
            self._tree.unfollow(place, follower)
        for match in [known for known in self.matches if known == path or known.startswith(path + "/")]:
            self.matches.discard(match)
            self._lost(match)

    def _forget_below(self, place: Place) -> None:
        """The directory looked into has vanished. It stays wanted until its parent's entries say that it is gone."""
        for match in [known for known in self.matches if known.startswith(place.path + "/")]:
            self.matches.discard(match)
            self._lost(match)


def rank(path: str) -> tuple[bool, int, str]:
    """Which of several cgroups with a unit's name is the unit: the least. A user's own manager may have any name."""
    return bool(_owner(path)), path.count("/"), path


def _owner(path: str) -> str:
    """The user manager's cgroup that this one is in, where its user may make more; "" for none."""
    parts = path.split("/")
    depth = next((number for number, part in enumerate(parts, 1) if _is_user_manager(part)), 0)
    return "/".join(parts[:depth])


def _is_user_manager(name: str) -> bool:
    return name.startswith("user@") and name.endswith(".service")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
