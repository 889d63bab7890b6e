"""Where a peer lives: from its pid to a cgroup path, or one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeguardd.errors import TargetError
from edgeguardd.kernel import peers
from tests.support.descriptors import none_left, open_now


def proc(path: Path, content: bytes) -> str:
    """A directory that stands in for /proc and says this of our own process."""
    own = path / str(os.getpid())
    own.mkdir()
    (own / "cgroup").write_bytes(content)
    return str(path)


def test_the_path_is_that_of_cgroup_v2(tmp_path: Path) -> None:
    """With blanks, colons and commas in it."""
    assert peers.cgroup_of(os.getpid(), proc(tmp_path, b"1:name=systemd:/x\n0::/a b:c,d\n")) == "/a b:c,d"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"4:memory:/x\n", "it is in no cgroup v2"),
        (b"0::/x (deleted)\n", "its cgroup was removed"),
        (b"", "cannot use /proc/PID/cgroup"),
    ],
)
def test_a_place_that_cannot_be_guarded_is_said(tmp_path: Path, content: bytes, says: str) -> None:
    """Each with its own reason."""
    with pytest.raises(TargetError, match=says):
        peers.cgroup_of(os.getpid(), proc(tmp_path, content))


def test_the_real_proc_answers_for_ourselves() -> None:
    """A path wherever cgroup v2 exists, also on a hybrid machine."""
    with open("/proc/self/cgroup") as file:
        lines = file.read().splitlines()
    v2 = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    if not v2:
        pytest.skip("this process is in no cgroup v2")
    assert peers.cgroup_of(os.getpid()) == v2[0]


def test_a_process_that_has_ended_is_gone() -> None:
    """Waited for or not: a zombie has no cgroup to guard."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TargetError, match="connect again"):
        peers.cgroup_of(ended.pid)
    ended.wait()
    with pytest.raises(TargetError, match="connect again"):
        peers.cgroup_of(ended.pid)


@pytest.mark.parametrize("pid", [0, -1])
def test_a_peer_of_another_pid_namespace_is_told_so(pid: int) -> None:
    """SO_PEERCRED says 0 for it; the sentence says what to change, where containers are started."""
    with pytest.raises(TargetError, match=r"outside this daemon's pid namespace; .*hostPID.*--pid host.*allow_uids"):
        peers.cgroup_of(pid)


def test_no_descriptor_is_left() -> None:
    """However it ends."""
    before = open_now()
    for pid in (os.getpid(), 0, 2**22 - 1):
        try:
            peers.cgroup_of(pid)
        except TargetError:
            continue
    none_left(before)
