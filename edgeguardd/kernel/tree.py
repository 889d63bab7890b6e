"""Which of the wanted cgroups exist right now: follows paths through removal and re-creation.

Must not: read memory files. Upstream: treewatch, cgroupfs. Downstream: resolve, targets.

Every wanted path is a Place, linked to the places of its ancestors. A place that exists holds its directory open, so
that its inode number cannot be given to another one: equal numbers mean the same cgroup. Each place with wanted places
or wanted entries below it is watched, so the nearest existing directory of a path that does not exist yet is too, and
the watches descend as it appears.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator

from msgspec import Struct

from edgeguardd.errors import KernelError
from edgeguardd.kernel.cgroupfs import MAY_NOT_LOOK, CgroupRoot, opened, shown
from edgeguardd.kernel.treewatch import DirWatch, TreeWatch

_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Follower(Struct, eq=False):
    """Who wants to know. `vanished` is called while the old directory is still open; `entry` gets the name of an entry
    that may have come or gone, or None for "look at all of them"."""

    appeared: Callable[["Place"], None]
    vanished: Callable[["Place"], None]
    entry: Callable[["Place", str | None], None] | None = None


class Place:
    """One wanted path. `dir_fd` is None while no cgroup is there."""

    __slots__ = ("dir_fd", "followers", "identity", "kids", "name", "parent", "path", "watch")

    def __init__(self, path: str, name: str, parent: "Place | None") -> None:
        self.path = path
        self.name = name
        self.parent = parent
        self.dir_fd: int | None = None
        self.identity: tuple[int, int] | None = None
        self.kids: dict[str, Place] = {}
        self.followers: list[Follower] = []
        self.watch: DirWatch | None = None

    @property
    def present(self) -> bool:
        """Whether a cgroup is there."""
        return self.dir_fd is not None

    @property
    def wants_watch(self) -> bool:
        """Whether somebody has to know what comes and goes directly below."""
        return bool(self.kids) or any(follower.entry is not None for follower in self.followers)

    def ancestors(self) -> Iterator["Place"]:
        """The places above, from the nearest to the root."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


class Tree:
    """All places. `polling`: some watch is not to be had, so somebody has to call check_all now and then."""

    def __init__(self, root: CgroupRoot, watch: TreeWatch, on_fault: Callable[[str], None]) -> None:
        """`on_fault` gets a sentence when a directory cannot be opened. Raises KernelError when it is the root."""
        self._root = root
        self._watch = watch
        self._on_fault = on_fault
        self._top = Place("/", "", None)
        try:
            self._top.dir_fd = os.open(root.path, _OPEN & ~os.O_NOFOLLOW)
        except OSError as error:
            remedy = "raise LimitNOFILE= of the daemon" if error.errno == errno.EMFILE else "check cgroup_root"
            raise KernelError(f"cannot open {root.path}: {error.strerror}; {remedy}") from None
        self.polling = False

    def follow(self, path: str, follower: Follower) -> Place:
        """Tell the follower of every change from now on. What is there now is in the place returned, untold."""
        place = self._top
        for name in filter(None, path.split("/")):
            place = self._kid(place, name)
        place.followers.append(follower)
        self._arm(place)
        return place

    def unfollow(self, place: Place, follower: Follower) -> None:
        """Tell it nothing any more, and let go of what nobody else wants."""
        if follower in place.followers:
            place.followers.remove(follower)
        self._let_go(place)

    def check(self, place: Place) -> None:
        """Compare the place, and all on the way to it, with what is there now."""
        for above in reversed(list(place.ancestors())):
            self._check(above)
        self._check(place)

    def holds(self, place: Place) -> bool:
        """Whether what is there now is what the place holds open. Tells nobody: that comes with check, or inotify."""
        return place.present and self._identity(place) == place.identity

    def check_all(self) -> None:
        """Compare every place and entry with what is there now, and try again for the watches that are missing."""
        self.polling = False
        self._check_below(self._top)

    def close(self) -> None:
        """Close every descriptor. The followers are not told."""
        self._close(self._top)

    def _kid(self, place: Place, name: str) -> Place:
        kid = place.kids.get(name)
        if kid is None:
            kid = Place(f"{place.path.rstrip('/')}/{name}", name, place)
            place.kids[name] = kid
            # Watch first, look after: what comes in between is then seen twice, not never.
            self._arm(place)
            self._check(kid)
        return kid

    def _let_go(self, place: Place) -> None:
        """Drop the place if nobody wants it, and those above it for whose sake nobody asked."""
        while place.parent is not None and not place.followers and not place.kids:
            self._release(place)
            if place.parent.kids.get(place.name) is place:
                del place.parent.kids[place.name]
            place = place.parent
        if not place.wants_watch:
            self._disarm(place)

    def _check(self, place: Place) -> None:
        if place.parent is None:
            return
        now = self._identity(place)
        if now == place.identity:
            return
        if place.present:
            self._vanish(place)
        # Who was told may have looked again, and opened what is there now; or have been the last who wanted to know.
        if now is not None and not place.present and place.parent.kids.get(place.name) is place:
            self._appear(place)

    def _check_below(self, place: Place) -> None:
        self._arm(place)
        for kid in list(place.kids.values()):
            self._check(kid)
            self._check_below(kid)
        if place.present:
            self._tell_entry(place, None)

    def _identity(self, place: Place) -> tuple[int, int] | None:
        """Device and inode of what is at the place now; None: no directory.

        Where that cannot be seen, what the place holds stays: what has not been seen to go would come back as a new
        cgroup, and all that it ever counted as news. Once it can be seen again, it is compared.
        """
        if place.parent is None or place.parent.dir_fd is None:
            return None
        try:
            found = os.stat(place.name, dir_fd=place.parent.dir_fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.polling = True
            self._on_fault(f"cannot look for {shown(self._root.full(place.path))}: {error.strerror}; {MAY_NOT_LOOK}")
            return place.identity
        return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None

    def _appear(self, place: Place) -> None:
        assert place.parent is not None  # noqa: S101  the root is always there
        try:
            dir_fd, found = opened(place.name, _OPEN, place.parent.dir_fd)
        except OSError as error:
            # One that has gone between two looks is nothing to tell of. One that is there still, nobody would tell of.
            if error.errno != errno.ENOENT or self._identity(place) is not None:
                self.polling = True
                self._on_fault(
                    f"cannot open {shown(self._root.full(place.path))}: {error.strerror}; "
                    "raise LimitNOFILE= of the daemon if it ran out of descriptors"
                )
            return
        place.dir_fd, place.identity = dir_fd, (found.st_dev, found.st_ino)
        self._arm(place)
        if self._told(place, lambda follower: follower.appeared(place)):
            for kid in list(place.kids.values()):
                self._check(kid)

    def _vanish(self, place: Place) -> None:
        for kid in list(place.kids.values()):
            if kid.present:
                self._vanish(kid)
        if self._told(place, lambda follower: follower.vanished(place)):
            self._release(place)

    def _told(self, place: Place, tell: Callable[[Follower], None]) -> bool:
        """Tell every follower. False: what one of them did had the place change again, and the others know of that.

        Each opening makes an identity of its own, so the same object means that nothing was opened or closed meanwhile.
        """
        identity = place.identity
        for follower in list(place.followers):
            if follower in place.followers:
                tell(follower)
            if place.identity is not identity:
                return False
        return True

    def _release(self, place: Place) -> None:
        self._disarm(place)
        if place.dir_fd is not None:
            os.close(place.dir_fd)
        place.dir_fd = place.identity = None

    def _arm(self, place: Place) -> None:
        if not place.present or not place.wants_watch:
            return
        if place.watch is not None and place.watch.watch is not None:
            return
        place.watch = self._watch.add(self._root.full(place.path), lambda name: self._changed(place, name))
        self.polling = self.polling or place.watch is None

    def _disarm(self, place: Place) -> None:
        if place.watch is not None:
            self._watch.remove(place.watch)
            place.watch = None

    def _changed(self, place: Place, name: str) -> None:
        kid = place.kids.get(name)
        if kid is not None:
            self._check(kid)
        self._tell_entry(place, name)

    def _tell_entry(self, place: Place, name: str | None) -> None:
        for follower in list(place.followers):
            if follower.entry is not None:
                follower.entry(place, name)

    def _close(self, place: Place) -> None:
        for kid in place.kids.values():
            self._close(kid)
        self._release(place)
