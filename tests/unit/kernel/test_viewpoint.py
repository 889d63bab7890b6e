"""A daemon in a container: what /proc tells relative to the container's cgroup, found in the host's tree."""

import os
from pathlib import Path

import pytest

from edgeguardd.errors import TargetError
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.viewpoint import Viewpoint

POD = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"
OWN = f"{POD}/cri-containerd-own.scope"
UP = "/.." * OWN.count("/")


def viewpoint(path: Path, shown_root: str, own: str = "/", lives_in: str | None = OWN, more: str = "") -> Viewpoint:
    """Of a process in `lives_in`, with the tree mounted so that its root is shown as `shown_root`."""
    tree = path / "tree"
    for below_root in (OWN + own.rstrip("/"), f"{POD}/cri-containerd-other.scope", "/system.slice/ssh.service"):
        (tree / below_root[1:]).mkdir(parents=True)
        (tree / below_root[1:] / "cgroup.procs").write_text("1\n2\n")
    if lives_in is not None:
        (tree / lives_in[1:] / own.strip("/") / "cgroup.procs").write_text(f"7\n{os.getpid()}\n")
    (path / "self").mkdir()
    (path / "self" / "cgroup").write_text(f"0::{own}\n")
    (path / "self" / "mountinfo").write_text(
        f"30 1 0:26 {shown_root} {tree} rw - cgroup2 cgroup2 rw\n31 1 0:27 / /proc rw - proc proc rw\n{more}"
    )
    return Viewpoint(CgroupRoot(str(tree)), str(path))


@pytest.mark.parametrize(
    ("told", "is_at"),
    [
        ("/../cri-containerd-other.scope", f"{POD}/cri-containerd-other.scope"),
        (f"{UP}/system.slice/ssh.service", "/system.slice/ssh.service"),
        (UP, "/"),
        ("/", OWN),
        ("/deeper", f"{OWN}/deeper"),
        ("/../../../x", "/kubepods.slice/x"),
    ],
)
def test_in_a_cgroup_namespace_of_its_own(tmp_path: Path, told: str, is_at: str) -> None:
    """A neighbour, the host's services, the root, itself: each is where the host has it."""
    assert viewpoint(tmp_path, UP).located(told) == is_at


def test_the_process_may_live_below_the_root_of_its_namespace(tmp_path: Path) -> None:
    """As with an init system inside the container."""
    assert viewpoint(tmp_path, UP, own="/init.scope").located("/../x") == f"{POD}/x"


def test_in_the_namespace_of_the_host_nothing_changes(tmp_path: Path) -> None:
    """And what is no kernel's tree is taken as it is."""
    assert viewpoint(tmp_path, "/").located("/a/b c") == "/a/b c"
    assert Viewpoint(CgroupRoot(str(tmp_path)), str(tmp_path / "nothing")).located("/a") == "/a"


def test_a_part_of_the_tree_can_be_mounted(tmp_path: Path) -> None:
    """Paths begin where it does; what lies outside is refused with the remedy."""
    seen = viewpoint(tmp_path, "/kubepods.slice")
    assert seen.located("/kubepods.slice/pod1") == "/pod1"
    with pytest.raises(TargetError, match=r"cannot guard /system.slice: it is not in the cgroup tree at .*hostPath"):
        seen.located("/system.slice")


def test_outside_of_what_is_mounted(tmp_path: Path) -> None:
    """A container's own view, or a part of the tree beside it, holds no path of a neighbour."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for path, shown_root in ((tmp_path / "a", "/"), (tmp_path / "b", "/../x")):
        with pytest.raises(TargetError, match="--cgroupns host -v /sys/fs/cgroup"):
            viewpoint(path, shown_root).located("/../../y")


def test_a_process_that_does_not_find_itself_says_so(tmp_path: Path) -> None:
    """Only for paths that need it: those of the host lead all the way up."""
    seen = viewpoint(tmp_path, UP, lives_in=None)
    assert seen.located(f"{UP}/x") == "/x"
    with pytest.raises(TargetError, match=r"cannot find its own cgroup .* host's pid namespace"):
        seen.located("/../cri-containerd-other.scope")


def test_the_later_of_two_mounts_on_one_place_counts(tmp_path: Path) -> None:
    """The first is covered by it."""
    over = f"32 1 0:26 / {tmp_path}/tree rw - cgroup2 cgroup2 rw\n"
    assert viewpoint(tmp_path, UP, more=over).located("/x") == "/x"
