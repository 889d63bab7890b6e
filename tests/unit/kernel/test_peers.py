"""Where a peer lives: from its pid to a cgroup path, or one sentence."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from edgeguardd.errors import TargetError
from edgeguardd.kernel import peers
from edgeguardd.serve.peercred import ENDED, peer_of
from tests.support.descriptors import none_left, open_now
from tests.support.wait import eventually


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


def test_a_number_that_was_given_again_is_another_process(tmp_path: Path) -> None:
    """Who connects is known by its start as well: a later process of the same number is a stranger."""
    place = proc(tmp_path, b"0::/llm\n")
    (tmp_path / str(os.getpid()) / "stat").write_bytes(b"7 (a) b) S" + b" 1" * 18 + b" 4711 0\n")
    assert peers.cgroup_of(os.getpid(), place, started=4711) == "/llm"
    for started in (4712, -1):
        with pytest.raises(TargetError, match="it has ended; connect again"):
            peers.cgroup_of(os.getpid(), place, started=started)


def test_a_connection_that_was_passed_on_does_not_lend_its_rights() -> None:
    """The process that connected ends, somebody else has its connection, and the kernel gives its number again."""
    here, there = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="eg-", dir="/tmp") as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/s")
        listener.listen()
        child = os.fork()
        if child == 0:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(f"{place}/s")
                socket.send_fds(there, [b"x"], [connection.fileno()])
                there.recv(1)
                os._exit(0)
        _, (passed_on,), _, _ = socket.recv_fds(here, 1, 1)
        with listener.accept()[0] as accepted:
            peer = peer_of(accepted)
            assert (peer.pid, peer.uid) == (child, os.geteuid())
            assert peer.started > 0
            here.send(b"x")
            os.waitpid(child, 0)
            with pytest.raises(TargetError, match="connect again"):
                peers.cgroup_of(peer.pid, started=peer.started)
            assert peer_of(accepted).started == ENDED
            # Two processes of one number are told apart by their start, which the kernel says in ticks (proc(5)).
            tick_s = 1 / os.sysconf("SC_CLK_TCK")
            eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) > (peer.started + 2) * tick_s)
            again = given_again(child)
            if again is None:
                pytest.skip("the kernel lets nobody here choose a number (ns_last_pid)")
            with again:
                assert again.pid == child
                with pytest.raises(TargetError, match="it has ended; connect again"):
                    peers.cgroup_of(peer.pid, started=peer.started)
                if has_peer_pidfd(accepted):
                    assert peer_of(accepted).started == ENDED
                again.kill()
        os.close(passed_on)
    here.close()
    there.close()


def given_again(pid: int) -> "subprocess.Popen[bytes] | None":
    """A process that has this number; None where that cannot be had."""
    for _ in range(50):
        try:
            with open("/proc/sys/kernel/ns_last_pid", "w") as last:
                last.write(str(pid - 1))
        except OSError:
            return None
        started = subprocess.Popen(["sleep", "60"])
        if started.pid == pid:
            return started
        started.kill()
        started.wait()
    return None


def has_peer_pidfd(connection: socket.socket) -> bool:
    """Linux 6.5 and newer tell the very process."""
    try:
        os.close(connection.getsockopt(socket.SOL_SOCKET, 77))
    except OSError:
        return False
    return True
