"""From the paths of /proc/PID/cgroup to the paths of the tree that is mounted.

Must not: read memory files, decide what is guarded. Upstream: /proc/self, the tree's directories. Downstream: targets.

On a plain host the two are the same. A container usually has a cgroup namespace of its own: /proc/PID/cgroup is told
relative to the container's cgroup ("/../../other.scope"), while the host's tree is mounted from its root. Kubernetes
has no switch for it (containerd and CRI-O give the host's namespace to privileged containers alone), so a daemon in a
DaemonSet has to translate: mountinfo says how many levels up the tree's root is, and the directory that far below the
root which holds this very process says what they are called.
"""

import os

from edgeguardd.core import procfmt
from edgeguardd.errors import FormatError, TargetError
from edgeguardd.kernel.cgroupfs import MAX_PATH_CHARS, CgroupRoot, shown

# A node with 500 containers has some 1,000 directories to the depth of a container; each is read in 20 µs.
_MAX_DIRECTORIES = 20_000
_MAX_BYTES = 1 << 20


class Viewpoint:
    """Where this process stands in the tree, found out once: neither a namespace's root nor a mount changes."""

    def __init__(self, root: CgroupRoot, proc: str = "/proc") -> None:
        """Never raises: what cannot be found out is said by `located`, to whom it concerns."""
        self._root = root
        self._proc = proc
        # The tree's root as our namespace sees it: components to go up, then components to go down.
        self._above, self._below = _split(_shown_root(root.path, proc))
        # Our namespace's root in the tree; None: not asked for, or not to be found.
        self._home: list[str] | None = None
        self._looked = False

    def located(self, path: str) -> str:
        """The tree's path of a cgroup that /proc shows at `path`. Raises TargetError for one outside of the tree."""
        ups, names = _split(path)
        if not self._above:
            # The tree shows the namespace, or something inside it.
            if ups or names[: len(self._below)] != self._below:
                raise TargetError(f"cannot guard {shown(path)}: {self._outside()}")
            return "/" + "/".join(names[len(self._below) :])
        if self._below or ups > self._above:
            raise TargetError(f"cannot guard {shown(path)}: {self._outside()}")
        if ups == self._above:
            return "/" + "/".join(names)
        return "/" + "/".join([*self._own_place(path)[: self._above - ups], *names])

    def _own_place(self, path: str) -> list[str]:
        if not self._looked:
            self._looked = True
            self._home = self._find_home()
        if self._home is None:
            raise TargetError(
                f"cannot guard {shown(path)}: this daemon cannot find its own cgroup in {self._root.path}; "
                "run it in the host's pid namespace and mount the host's whole cgroup tree there"
            )
        return self._home

    def _find_home(self) -> list[str] | None:
        """The cgroup as many levels below the tree's root as the namespace's is, which holds this process."""
        try:
            with open(f"{self._proc}/self/cgroup", "rb") as file:
                own = procfmt.membership(file.read(_MAX_BYTES)).v2_path or "/"
        except (OSError, FormatError):
            return None
        mine = str(os.getpid()).encode()
        level = [""]
        looked_at = 0
        for _ in range(self._above):
            level = [f"{path}/{name}" for path in level for name in _directories(self._root.full(path or "/"))]
            looked_at += len(level)
            if looked_at > _MAX_DIRECTORIES:
                return None
        for path in level:
            if mine in _processes(self._root.full(path + own.rstrip("/"))):
                return path.split("/")[1:]
        return None

    def _outside(self) -> str:
        return (
            f"it is not in the cgroup tree at {self._root.path}; mount the host's whole tree there (Docker: --cgroupns "
            "host -v /sys/fs/cgroup:/sys/fs/cgroup; Kubernetes: hostPath /sys/fs/cgroup)"
        )


def _shown_root(tree: str, proc: str) -> str:
    """The root of the tree as our cgroup namespace sees it; "/" for what is no mounted cgroup v2 (plain files)."""
    try:
        with open(f"{proc}/self/mountinfo", "rb") as file:
            roots = procfmt.cgroup2_roots(file.read())
    except OSError:
        return "/"
    real = os.path.realpath(tree)
    around = [point for point in roots if real == point or real.startswith(point.rstrip("/") + "/")]
    nearest = max(around, key=len, default=None)
    return "/" if nearest is None else f"{roots[nearest]}/{real[len(nearest) :]}"


def _split(path: str) -> tuple[int, list[str]]:
    """How many levels a path goes up first, and the names that it then goes down by."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return ups, parts[ups:]


def _directories(full_path: str) -> list[str]:
    try:
        with os.scandir(full_path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _processes(full_path: str) -> list[bytes]:
    if len(full_path) > MAX_PATH_CHARS:
        return []
    try:
        with open(f"{full_path}/cgroup.procs", "rb") as file:
            return file.read(_MAX_BYTES).split()
    except OSError:
        return []
