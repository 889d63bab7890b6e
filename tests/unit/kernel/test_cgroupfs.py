"""One cgroup's files, and finding the tree: what is missing, what is broken, and the sentence that says so."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeguardd.core.model import Counters
from edgeguardd.errors import FormatError, KernelError, TargetError
from edgeguardd.kernel import cgroupfs
from edgeguardd.kernel.cgroupfs import CgroupGoneError, Node, find_root, normal_path, shown
from tests.support.descriptors import none_left, open_now
from tests.support.faketree import MIB, FakeCgroup, FakeTree


class Opened:
    """A node of a fake cgroup, with the directory that it is opened in."""

    def __init__(self, tree: FakeTree, cgroup: FakeCgroup) -> None:
        self.tree = tree
        self.cgroup = cgroup
        self.dir_fd = os.open(cgroup.path, os.O_PATH | os.O_DIRECTORY)
        self.nodes: list[Node] = []

    def node(self, *, own: bool = True) -> Node:
        node = Node(self.cgroup.path, self.dir_fd, self.cgroup.below_root, own=own)
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        os.close(self.dir_fd)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """A cgroup with limits; every descriptor is closed after the test or the test fails."""
    before = open_now()
    tree = FakeTree(tmp_path)
    found = Opened(tree, tree.cgroup("/job", high_bytes=80 * MIB, max_bytes=100 * MIB))
    yield found
    found.close()
    none_left(before)


def test_figures_come_from_all_files(opened: Opened) -> None:
    """Needed bytes without the page cache, limits, swap, refaults."""
    opened.cgroup.usage(30 * MIB, file=50 * MIB, workingset_refault_anon=1, workingset_refault_file=2)
    opened.cgroup.write("memory.swap.current", "4096\n")
    usage = opened.node().usage()
    assert usage.path == "/job"
    assert (usage.current_bytes, usage.needed_bytes) == (80 * MIB, 30 * MIB)
    assert (usage.high_bytes, usage.max_bytes) == (80 * MIB, 100 * MIB)
    assert (usage.swap_bytes, usage.swap_max_bytes, usage.refaulted_bytes) == (
        4096,
        None,
        3 * os.sysconf("SC_PAGE_SIZE"),
    )


def test_every_reading_is_a_fresh_one(opened: Opened) -> None:
    """Limits change at run time, swap is added later: nothing is kept from the reading before."""
    node = opened.node()
    assert node.usage().max_bytes == 100 * MIB
    assert node.counters() == Counters(0, 0, 0, 0, 0, 0)
    opened.cgroup.limits(max_bytes=7 * MIB)
    opened.cgroup.events(oom_kill=3)
    assert node.usage().max_bytes == 7 * MIB
    assert node.counters() == Counters(0, 0, 0, 0, 3, 0)


def test_files_that_a_kernel_may_lack_are_unknown(opened: Opened) -> None:
    """No swap accounting, no memory.high: no error."""
    for name in ("memory.swap.current", "memory.swap.max", "memory.high"):
        opened.cgroup.unlink(name)
    usage = opened.node().usage()
    assert (usage.swap_bytes, usage.swap_max_bytes, usage.high_bytes) == (None, None, None)
    assert usage.max_bytes == 100 * MIB


@pytest.mark.parametrize("content", ["", "anon 5\n", "garbage", "anon 1\nfile 2\nshmem"])
def test_a_cut_memory_stat_leaves_needed_bytes_unknown_and_says_why(opened: Opened, content: str) -> None:
    """The other figures stand."""
    node = opened.node()
    opened.cgroup.write("memory.stat", content)
    usage = node.usage()
    assert usage.needed_bytes is None
    assert usage.max_bytes == 100 * MIB
    assert node.fault is not None
    assert f"{opened.cgroup.path}/memory.stat" in node.fault
    opened.cgroup.usage(5)
    assert node.usage().needed_bytes == 5
    assert node.fault is None


@pytest.mark.parametrize("name", ["memory.stat", "memory.swap.current", "memory.swap.max"])
def test_an_unreadable_side_file_costs_its_own_figure_only(opened: Opened, name: str) -> None:
    """And its name is in the fault."""
    opened.cgroup.break_file(name)
    node = opened.node()
    assert node.usage().current_bytes == 0
    assert node.fault is not None
    assert name in node.fault


@pytest.mark.parametrize("name", ["memory.current", "memory.max", "memory.high"])
@pytest.mark.parametrize("content", ["", "-1\n", "12 MB\n"])
def test_a_garbled_figure_that_decides_is_an_error(opened: Opened, name: str, content: str) -> None:
    """A wrong limit would make every judgement wrong. The sentence names the file."""
    opened.cgroup.write(name, content)
    with pytest.raises(FormatError, match=f"{opened.cgroup.path}/{name}"):
        opened.node().usage()


def test_an_unreadable_file_is_an_error_that_names_it(opened: Opened) -> None:
    """Here: a directory in its place, which gives EISDIR."""
    opened.cgroup.break_file("memory.max")
    with pytest.raises(KernelError, match=r"cannot read .*/job/memory\.max: Is a directory; "):
        opened.node().usage()


def test_a_fifo_in_place_of_a_file_stops_nobody(opened: Opened) -> None:
    """Opening it would wait for a writer for ever."""
    opened.cgroup.unlink("memory.current")
    os.mkfifo(opened.cgroup.path + "/memory.current")
    with pytest.raises(KernelError, match=r"memory\.current: Illegal seek"):
        opened.node().usage()


def test_a_symbolic_link_in_place_of_a_file_is_not_followed(opened: Opened) -> None:
    """Cgroupfs has none; somebody else put it there."""
    opened.cgroup.unlink("memory.max")
    os.symlink("/etc/hostname", opened.cgroup.path + "/memory.max")
    with pytest.raises(KernelError, match=r"cannot open .*memory\.max"):
        opened.node().usage()


def test_a_cgroup_without_the_controller_says_what_to_write(opened: Opened) -> None:
    """And leaves no descriptor behind, which the fixture checks."""
    opened.cgroup.unlink("memory.current")
    with pytest.raises(KernelError, match=r"the memory controller is not enabled here; write \+memory to"):
        opened.node()


def test_a_file_longer_than_its_read_is_cut_at_a_whole_line(opened: Opened) -> None:
    """Half a number is a wrong number."""
    lines = "".join(f"key_{number:05} 1\n" for number in range(cgroupfs.STAT_READ_BYTES // 12))
    opened.cgroup.write("memory.stat", lines + "anon 123456789\n")
    assert opened.node().usage().needed_bytes is None


def test_the_dead_descriptor_of_a_removed_cgroup_is_told_apart(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENODEV is for ever; it is no fault of the target."""
    node = opened.node()

    def pread(*_: object) -> bytes:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(os, "pread", pread)
    for read in (node.counters, node.usage):
        with pytest.raises(CgroupGoneError, match="the cgroup was removed"):
            read()


def test_an_ancestor_counts_its_own_events_only(opened: Opened) -> None:
    """Its memory.events repeats the kills of every other cgroup below it; before 5.2 there is nothing better."""
    opened.cgroup.events(oom_kill=9)
    opened.cgroup.events(local=True, max=4)
    assert opened.node(own=False).counters() == Counters(0, 0, 4, 0, 0, 0)
    opened.cgroup.unlink("memory.events.local")
    assert opened.node(own=False).counters() == Counters(0, 0, 0, 0, 9, 0)
    opened.cgroup.unlink("memory.events")
    assert opened.node(own=False).counters() is None


# Finding the tree

V2_MOUNT = "31 23 0:28 / {0} rw,relatime - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
ROWS = "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t95\t{0}\n"


def found(tree: FakeTree, mountinfo: str, **files: str) -> str:
    """The path that find_root finds with this /proc."""
    return find_root(None, tree.proc({"self/mountinfo": mountinfo, **files})).path


def test_the_tree_with_the_memory_controller_is_found(tmp_path: Path) -> None:
    """Wherever it is mounted, and also when another one without the controller comes first."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "cgroup.controllers").write_text("hugetlb\n")
    (tmp_path / "good").mkdir()
    tree = FakeTree(tmp_path / "good")
    mountinfo = V2_MOUNT.format(tmp_path / "empty") + V2_MOUNT.format(tree.path)
    assert found(tree, mountinfo) == tree.path


@pytest.mark.parametrize(
    ("mountinfo", "files", "says"),
    [
        (V1_MOUNT, {}, "runs cgroup v1 .*systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all"),
        (V2_MOUNT + V1_MOUNT, {}, "is hybrid, .*systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all"),
        (V2_MOUNT, {"cgroups": ROWS.format(0)}, "switched off at boot; put cgroup_enable=memory .*cmdline.txt"),
        (V2_MOUNT, {"cmdline": "quiet cgroup_disable=cpu,memory x\n"}, "remove cgroup_disable=memory"),
        (V2_MOUNT, {"cgroups": ROWS.format(1), "cmdline": "quiet\n"}, "has no memory controller; .*CONFIG_MEMCG"),
        ("", {}, "no cgroup v2 tree is mounted; .*mount -t cgroup2"),
    ],
)
def test_a_machine_that_cannot_be_watched_gets_one_sentence_with_the_kernel_parameter(
    tmp_path: Path, mountinfo: str, files: dict[str, str], says: str
) -> None:
    """One cause, one remedy."""
    (tmp_path / "v2").mkdir()
    tree = FakeTree(tmp_path / "v2")
    (tmp_path / "v2" / "cgroup.controllers").write_text("cpu pids\n")
    with pytest.raises(KernelError, match=f"cannot watch memory: .*{says}") as caught:
        found(tree, mountinfo.format(tree.path), **files)
    assert "\n" not in str(caught.value)


def test_no_procfs_is_said(tmp_path: Path) -> None:
    """Rather than "no cgroups"."""
    with pytest.raises(KernelError, match="mount procfs on"):
        find_root(None, str(tmp_path))


def test_a_configured_root_is_taken_as_it_is(tmp_path: Path) -> None:
    """Unless it is no directory, no cgroup tree, or a real tree without the controller."""
    with pytest.raises(KernelError, match="not a directory; correct it"):
        find_root(str(tmp_path / "none"))
    with pytest.raises(KernelError, match=r"no cgroup v2 tree, .*; name where cgroup v2 is mounted"):
        find_root(str(tmp_path))
    tree = FakeTree(tmp_path)
    assert find_root(str(tmp_path) + "/").path == str(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(KernelError, match="has no memory controller"):
        find_root(str(tmp_path), tree.proc({"self/mountinfo": ""}))


# Paths


def test_a_path_has_one_spelling() -> None:
    """Doubled and trailing slashes do not make another target."""
    assert normal_path("//a/./b//") == "/a/b"
    assert normal_path("/") == "/"
    assert normal_path("/..a/b..") == "/..a/b.."


@pytest.mark.parametrize("path", ["", "a/b", "/a/../b", "/..", "/a\0b", "/" + "a/" * 4096])
def test_a_path_outside_the_tree_is_refused(path: str) -> None:
    """Nothing outside the cgroup root is ever opened."""
    with pytest.raises(TargetError, match="not a path inside this daemon's cgroup tree"):
        normal_path(path)


def test_a_path_is_printable_in_events() -> None:
    """Whatever bytes the name holds: logs, JSON and terminals get plain text."""
    assert shown("/system.slice/a b,c.service") == "/system.slice/a b,c.service"
    assert shown("/x\udcff\n\x1b[2J").isprintable()
    shown("/x\udcff").encode()
