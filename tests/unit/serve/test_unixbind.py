"""Claiming the socket's place in the file system."""

import contextlib
import grp
import os
import resource
import shutil
import socket
import stat
from collections.abc import Iterator

import pytest

from edgeguardd.core.config import SocketConfig
from edgeguardd.errors import ServeError
from edgeguardd.serve.unixbind import MAX_PATH_BYTES, Claim, claim, listening_unix, refuse_second
from tests.support.subscribers import no_leaked_descriptors, short_dir

# Any user but root, who may write anywhere.
NOBODY = 65534


@pytest.fixture
def directory() -> Iterator[str]:
    with no_leaked_descriptors(), short_dir() as path:
        yield path


def release(claimed: Claim) -> None:
    claimed.sock.close()
    claimed.remove_file()
    claimed.unlock()


def refusal(path: str, group: str | None = None) -> str:
    """What is said when the path cannot be had. It is one sentence with a remedy."""
    with pytest.raises(ServeError) as caught:
        claim(SocketConfig(path=path, group=group))
    text = str(caught.value)
    assert text.startswith(f"cannot listen on {path}: ")
    assert ";" in text
    assert "\n" not in text
    return text


def left_by_a_dead_owner(path: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> None:
    with socket.socket(socket.AF_UNIX, kind) as sock:
        sock.bind(path)


def test_a_free_place_is_taken_and_left_clean(directory: str) -> None:
    """The socket has its mode, is locked while it is owned, and leaves nothing behind."""
    path = f"{directory}/s"
    claimed = claim(SocketConfig(path=path, mode=0o620))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o620
    assert sorted(os.listdir(directory)) == ["s", "s.lock"]
    release(claimed)
    assert os.listdir(directory) == []


def test_the_umask_is_as_it_was(directory: str) -> None:
    """Binding changes the process's umask for a moment only."""
    before = os.umask(0o027)
    try:
        release(claim(SocketConfig(path=f"{directory}/s")))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_the_group_is_set_by_name_and_by_number(directory: str) -> None:
    """The socket's file belongs to the configured group."""
    path = f"{directory}/s"
    own = grp.getgrgid(os.getgid())
    for group in (own.gr_name, str(own.gr_gid)):
        claimed = claim(SocketConfig(path=path, group=group))
        assert os.stat(path).st_gid == own.gr_gid
        release(claimed)


def test_an_unknown_group_is_named(directory: str) -> None:
    """A group that does not exist is said, with what to do, before anything is made."""
    assert "no group 'nosuchgroup'" in refusal(f"{directory}/s", group="nosuchgroup")
    assert os.listdir(directory) == []


@pytest.mark.parametrize("number", [2**32 - 1, 2**32, 99999999999, 10**30])
def test_a_number_that_no_group_can_have_is_said(directory: str, number: int) -> None:
    """One sentence, before anything is made: the kernel would take one of them for "leave it as it is"."""
    assert f"there is no group {number};" in refusal(f"{directory}/s", group=str(number))
    assert os.listdir(directory) == []


def test_too_few_descriptors_are_said_with_the_remedy_for_that(directory: str) -> None:
    """Another path would not help."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        said = refusal(f"{directory}/s")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)
    assert "LimitNOFILE=" in said
    assert "[socket] path" not in said


def test_a_socket_left_by_a_killed_daemon_is_replaced(directory: str) -> None:
    """A socket file that nobody listens on is stale."""
    path = f"{directory}/s"
    left_by_a_dead_owner(path)
    release(claim(SocketConfig(path=path)))


def test_a_lock_left_by_a_killed_daemon_is_taken_over(directory: str) -> None:
    """A lock file that nobody holds is no obstacle."""
    path = f"{directory}/s"
    with open(f"{path}.lock", "w"):
        pass
    release(claim(SocketConfig(path=path)))
    assert os.listdir(directory) == []


def test_of_two_daemons_the_second_is_refused(directory: str) -> None:
    """While one owns the place, even before it listens, another one cannot take it."""
    path = f"{directory}/s"
    claimed = claim(SocketConfig(path=path))
    inode = os.stat(path).st_ino
    assert "another process listens there" in refusal(path)
    assert os.stat(path).st_ino == inode
    release(claimed)


def test_what_is_in_the_place_of_the_lock_is_named(directory: str) -> None:
    """Not the socket, which could be there."""
    os.mkdir(f"{directory}/s.lock")
    with pytest.raises(ServeError, match=r"/s: \S+/s\.lock, its lock, is no plain file; remove that$"):
        claim(SocketConfig(path=f"{directory}/s"))


def test_a_live_owner_without_a_lock_is_left_alone(directory: str) -> None:
    """A program that knows nothing of our lock keeps its socket."""
    path = f"{directory}/s"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(path)
        owner.listen()
        assert "another process listens there" in refusal(path)
        assert sorted(os.listdir(directory)) == ["s"]


def test_an_owner_with_a_full_backlog_is_alive(directory: str) -> None:
    """A connect that would block means a busy owner, not a dead one."""
    path = f"{directory}/s"
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(path)
        owner.listen(0)
        waiting = []
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                waiting[-1].connect(path)
        except BlockingIOError:
            pass
        assert "another process listens there" in refusal(path)
        for sock in waiting:
            sock.close()


def test_a_datagram_socket_in_use_is_left_alone(directory: str) -> None:
    """A live socket of another type is somebody's as well; a dead one is stale."""
    path = f"{directory}/s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as owner:
        owner.bind(path)
        assert "another process listens there" in refusal(path)
    release(claim(SocketConfig(path=path)))


@pytest.mark.parametrize("state", ["free", "left", "too long", "a file", "no directory"])
def test_who_looks_before_it_begins_refuses_only_for_another_process(directory: str, state: str) -> None:
    """Whatever else is in the way is told by who claims the place; nothing is changed."""
    path = f"{directory}/{'x' * MAX_PATH_BYTES if state == 'too long' else 'no/s' if state == 'no directory' else 's'}"
    if state == "left":
        left_by_a_dead_owner(path)
    elif state == "a file":
        with open(path, "w"):
            pass
    before = os.listdir(directory)
    refuse_second(SocketConfig(path=path))
    assert os.listdir(directory) == before


@pytest.mark.parametrize("listens", [True, False])
def test_who_looks_before_it_begins_is_told_of_the_first(directory: str, listens: bool) -> None:
    """By its process, once it listens; while it starts, by its lock alone."""
    path = f"{directory}/s"
    claimed = claim(SocketConfig(path=path))
    if listens:
        claimed.sock.listen()
    with pytest.raises(ServeError, match=f"with pid {os.getpid()}; " if listens else "another process listens there; "):
        refuse_second(SocketConfig(path=path))
    release(claimed)


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_what_is_not_a_socket_is_never_removed(directory: str, what: str) -> None:
    """A file, a directory and a link (even one to a socket) stay, and are named as the obstacle."""
    path = f"{directory}/s"
    if what == "file":
        with open(path, "w") as file:
            file.write("precious")
    elif what == "directory":
        os.mkdir(path)
    else:
        left_by_a_dead_owner(f"{directory}/other")
        os.symlink(f"{directory}/other", path)
    before = os.lstat(path)
    assert "not a socket" in refusal(path)
    assert os.lstat(path).st_ino == before.st_ino
    assert not os.path.exists(f"{path}.lock")


def test_a_missing_directory_is_made_and_removed(directory: str) -> None:
    """/run is empty after each boot: where the parent is there, nobody has to prepare anything, whatever the umask."""
    path = f"{directory}/run/s"
    before = os.umask(0o077)
    try:
        claimed = claim(SocketConfig(path=path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(f"{directory}/run").st_mode) == 0o755
    release(claimed)
    assert os.listdir(directory) == []


def test_a_directory_that_was_there_stays(directory: str) -> None:
    """Somebody made it, and may count on it."""
    os.mkdir(f"{directory}/run")
    release(claim(SocketConfig(path=f"{directory}/run/s")))
    assert os.listdir(directory) == ["run"]


def test_a_directory_that_somebody_else_uses_as_well_stays(directory: str) -> None:
    """Only an empty one is removed."""
    claimed = claim(SocketConfig(path=f"{directory}/run/s"))
    other = claim(SocketConfig(path=f"{directory}/run/other"))
    release(claimed)
    assert sorted(os.listdir(f"{directory}/run")) == ["other", "other.lock"]
    release(other)
    assert os.listdir(directory) == ["run"]


def test_a_start_that_fails_leaves_no_directory(directory: str) -> None:
    """What was made on the way is removed again."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        said = refusal(f"{directory}/run/s")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files" in said
    assert os.listdir(directory) == []


def test_a_missing_parent_is_named(directory: str) -> None:
    """A tree that is missing as a whole is a slip of the pen, more likely than a place to be made."""
    assert "create its directory and what that is in (mkdir -p)" in refusal(f"{directory}/no/where/s")
    assert os.listdir(directory) == []


def test_a_directory_that_may_not_be_made_is_named(directory: str) -> None:
    """Not as root, the parent belongs to root."""
    uid = os.geteuid()
    os.chmod(directory, 0o500)
    try:
        if uid == 0:
            os.seteuid(NOBODY)
        assert "Permission denied; run as a user who may write there" in refusal(f"{directory}/run/s")
    finally:
        os.seteuid(uid)
        os.chmod(directory, 0o700)


def test_a_file_in_the_place_of_the_directory_is_named(directory: str) -> None:
    """A path below a file says so."""
    with open(f"{directory}/file", "w"):
        pass
    assert "not a directory" in refusal(f"{directory}/file/s")


def test_a_path_too_long_for_the_kernel_is_named(directory: str) -> None:
    """The limit is said, and the longest path works."""
    longest = f"{directory}/" + "x" * (MAX_PATH_BYTES - len(directory) - 1)
    release(claim(SocketConfig(path=longest)))
    assert f"more than {MAX_PATH_BYTES} bytes" in refusal(longest + "x")


def test_a_directory_without_permission_is_named(directory: str) -> None:
    """A directory that may not be written says who could."""
    os.chmod(directory, 0o500)
    uid = os.geteuid()
    try:
        if uid == 0:
            os.seteuid(NOBODY)
        assert "run as a user who may write there" in refusal(f"{directory}/s")
    finally:
        os.seteuid(uid)
        os.chmod(directory, 0o700)


def test_a_link_in_the_place_of_the_lock_is_not_followed(directory: str) -> None:
    """Whoever can make links beside the socket cannot have us write to the file of another."""
    path = f"{directory}/s"
    os.symlink(f"{directory}/target", f"{path}.lock")
    refusal(path)
    assert not os.path.exists(f"{directory}/target")


def test_a_socket_that_somebody_replaced_is_not_removed(directory: str) -> None:
    """At the end only the socket that was made is unlinked."""
    path = f"{directory}/s"
    claimed = claim(SocketConfig(path=path))
    os.unlink(path)
    left_by_a_dead_owner(path)
    release(claimed)
    assert os.listdir(directory) == ["s"]


@pytest.mark.parametrize("what", ["read-only", "gone", "a file"])
def test_a_directory_that_cannot_be_written_any_more_does_not_stop_the_stop(directory: str, what: str) -> None:
    """The files stay where they cannot be removed, which the next start takes as stale; nothing is raised."""
    place = f"{directory}/run"
    os.mkdir(place)
    claimed = claim(SocketConfig(path=f"{place}/s"))
    uid = os.geteuid()
    try:
        if what == "read-only":
            os.chmod(place, 0o500)
            if uid == 0:
                os.seteuid(NOBODY)
        else:
            shutil.rmtree(place)
            if what == "a file":
                with open(place, "w"):
                    pass
        release(claimed)
    finally:
        os.seteuid(uid)
    if what == "read-only":
        os.chmod(place, 0o700)
        release(claim(SocketConfig(path=f"{place}/s")))
        assert os.listdir(place) == []


def test_only_a_listening_stream_socket_is_taken_from_systemd() -> None:
    """Of several passed sockets the first that fits is used."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_INET) as tcp,
        socket.socket(socket.AF_UNIX) as unbound,
        socket.socket(socket.AF_UNIX) as fits,
    ):
        fits.bind("")
        fits.listen()
        assert listening_unix([datagrams, tcp, unbound, fits]) is fits
        assert listening_unix([datagrams, tcp, unbound]) is None
