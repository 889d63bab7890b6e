"""Claiming the place of a Unix socket in the file system, and leaving it clean.

Must not: accept connections; touch a socket that systemd made. Upstream: config. Downstream: subscribers,
pressurewatch.

One lock file beside the socket (`PATH.lock`, flock) says who owns the place, so that of two daemons started at once
one wins, and a socket file left behind by a kill -9 can be removed without fear. Both files go when the owner stops.

Where only the last directory of the path is missing, as /run/edgeguardd is after each boot, it is made, and removed at
a clean stop if it is empty then.
"""

import contextlib
import errno
import fcntl
import grp
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence

from edgeguardd.core.config import SocketConfig, WatchSpec
from edgeguardd.core.text import printable
from edgeguardd.errors import ServeError

# sizeof(sun_path) in unix(7), less the NUL at its end.
MAX_PATH_BYTES = 107
MAX_GID = 2**32 - 2  # 2^32 - 1 means "no group" to the kernel
LOCK_SUFFIX = ".lock"
# Everybody may come as far as the socket, whose own mode and group say who may connect.
DIRECTORY_MODE = 0o755
# A lock file that its owner removes between our open and our flock is opened again; twice in a row is unheard of.
_LOCK_TRIES = 10
# struct ucred (unix(7)): pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")

# {table} is the table of the configuration that says where the socket is.
_REMEDIES = {
    errno.ENOENT: "create its directory and what that is in (mkdir -p), or set {table} path",
    errno.ENOTDIR: "a part of the path is not a directory; set {table} path",
    errno.EACCES: "run as a user who may write there, or set {table} path",
    errno.EPERM: "run as a user who may write there, or set {table} path",
    errno.EROFS: "set {table} path to a file system that can be written",
    errno.ENOSPC: "make room on that file system",
    errno.EADDRINUSE: "somebody else has just taken it; stop that or set {table} path",
    errno.EMFILE: "let the daemon open more files (systemd: LimitNOFILE=, else ulimit -n)",
    errno.ENFILE: "let the machine open more files (sysctl fs.file-max)",
}


class _Cannot(Exception):  # noqa: N818  it becomes a ServeError, which is told where
    """Why, and the remedy with {table} in it."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why, remedy)
        self.why, self.remedy = why, remedy


class Claim:
    """A bound socket that does not listen yet, and the duty to remove its file."""

    def __init__(self, path: str, sock: socket.socket, place: contextlib.ExitStack) -> None:
        """`place`: gives the place free, once the file is gone."""
        found = os.stat(path)
        self.sock = sock
        self._path = path
        self._place = place
        self._inode = (found.st_dev, found.st_ino)

    def stands(self) -> bool:
        """Whether the file is still the one that was made; what cannot be told counts as so."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return (found.st_dev, found.st_ino) == self._inode

    def remove_file(self) -> None:
        """Unlink the socket file, if it is still the one that was made.

        One that cannot be (the directory became read-only) stays: the next start takes it for what it is, stale, and
        nothing else of the daemon's stop may fail for it.
        """
        with contextlib.suppress(OSError):
            found = os.stat(self._path, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == self._inode:
                os.unlink(self._path)

    def unlock(self) -> None:
        """Close the socket if it is still open, and let another daemon take the place. Call it last."""
        self._place.close()


def refuse_second(config: SocketConfig) -> None:
    """Raises ServeError where another process has the place. Changes nothing: for whoever has not begun yet."""
    with _told_as_error(config):
        if _is_locked(config.path) or (_is_socket(config.path) and _is_live(config.path)):
            raise _taken(config.path)


def claim(config: SocketConfig | WatchSpec) -> Claim:
    """Bind the socket with its mode and group. Raises ServeError, and then leaves nothing behind."""
    with _told_as_error(config):
        return _claim(config.path, config.mode, config.group)


@contextlib.contextmanager
def _told_as_error(config: SocketConfig | WatchSpec) -> Iterator[None]:
    """Raises ServeError with the remedy for what is in the way."""
    table = "[socket]" if isinstance(config, SocketConfig) else "[[pressure_watch]]"
    try:
        yield
    except (_Cannot, OSError) as fault:
        if isinstance(fault, _Cannot):
            why, remedy = fault.why, fault.remedy
        else:
            why = os.strerror(fault.errno or 0)
            remedy = _REMEDIES.get(fault.errno or 0, "set {table} path to another place")
        raise ServeError(f"cannot listen on {config.path}: {why}; {remedy.replace('{table}', table)}") from None


def _claim(path: str, mode: int, group: str | None) -> Claim:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise _Cannot(f"the path has more than {MAX_PATH_BYTES} bytes", "set a shorter {table} path")
    gid = _gid_of(group)
    with contextlib.ExitStack() as place:
        if _make_directory(path):
            place.callback(_remove_directory, path)
        lock_fd = _lock(path)
        place.callback(_unlock, path, lock_fd)
        _remove_stale(path)
        sock = place.enter_context(_bind(path, mode, gid))
        return Claim(path, sock, place.pop_all())


def listening_unix(sockets: Sequence[socket.socket]) -> socket.socket | None:
    """The first listening AF_UNIX stream socket among those that systemd passed."""
    return next((sock for sock in sockets if _listens(sock)), None)


def listening_at(sockets: Sequence[socket.socket], path: str) -> socket.socket | None:
    """The one that listens at this path."""
    return next((sock for sock in sockets if _listens(sock) and sock.getsockname() == path), None)


def _listens(sock: socket.socket) -> bool:
    return (
        sock.family == socket.AF_UNIX
        and sock.type == socket.SOCK_STREAM
        and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    )


def _gid_of(group: str | None) -> int:
    """The group's number; -1 ("leave it") when none is given."""
    if group is None:
        return -1
    if group.isdecimal():
        if int(group) > MAX_GID:
            raise _Cannot(f"there is no group {group}", f"set {{table}} group to one of at most {MAX_GID}")
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        remedy = f"create it (groupadd --system {group}) or set {{table}} group"
        raise _Cannot(f"there is no group {group!r}", remedy) from None


def _make_directory(path: str) -> bool:
    """Make the socket's directory where it alone is missing. Whether it was made; raises OSError."""
    directory = os.path.dirname(path)
    if os.path.isdir(directory):
        return False
    try:
        os.mkdir(directory)
    except FileExistsError:  # another daemon was faster, or it is no directory, which the lock will tell
        return False
    os.chmod(directory, DIRECTORY_MODE)  # whatever the umask
    return True


def _remove_directory(path: str) -> None:
    """Remove the directory that was made; one that somebody else uses as well is not empty, and stays."""
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def _lock(path: str) -> int:
    """The descriptor of the locked lock file. Raises _Cannot when another process holds it, OSError otherwise."""
    lock_path = path + LOCK_SUFFIX
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for _ in range(_LOCK_TRIES):
        try:
            fd = os.open(lock_path, flags, 0o600)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
                raise
            raise _Cannot(f"{lock_path}, its lock, is no plain file", "remove that") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(lock_path)):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise _taken(path) from None
        except FileNotFoundError:
            pass
        os.close(fd)
    raise _taken(path)


def _is_locked(path: str) -> bool:
    """Whether another process has the lock. One that cannot be looked at is told by who claims it."""
    try:
        fd = os.open(path + LOCK_SUFFIX, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _is_socket(path: str) -> bool:
    """Whether one is there; what else may be in the way is told by who claims the place."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _unlock(path: str, lock_fd: int) -> None:
    """Remove the lock file while it is still locked, so that nobody's fresh one is removed; then let go."""
    with contextlib.suppress(OSError):  # gone, or its directory is: an unlocked file that stays is harmless
        os.unlink(path + LOCK_SUFFIX)
    os.close(lock_fd)


def _remove_stale(path: str) -> None:
    """Remove the socket file of an owner that is no more. Raises _Cannot when there is anything else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _Cannot("it exists and is not a socket", "move it away or set {table} path")
    if _is_live(path):
        raise _taken(path)
    os.unlink(path)


def _is_live(path: str) -> bool:
    """Whether somebody listens. A full backlog (EAGAIN) is somebody; so is a socket of another type."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            raise
        except OSError:
            return True
        return True


def _bind(path: str, mode: int, gid: int) -> socket.socket:
    """The socket with its file. Raises OSError, and then leaves neither."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Nobody can connect before listen(2), whatever the mode; the umask only keeps the window tidy.
        umask = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(umask)
        try:
            # Not where it has it already: the shipped unit's sandbox forbids even asking.
            if gid not in (-1, os.stat(path).st_gid):
                os.chown(path, -1, gid)
            os.chmod(path, mode)
        except BaseException:  # an interrupt too must not leave a socket that anybody may connect to; it goes on
            os.unlink(path)
            raise
    except BaseException:  # whatever it was: nobody else has this descriptor, to close it
        sock.close()
        raise
    return sock


def _taken(path: str) -> _Cannot:
    who = _listener(path)
    why = "another process listens there" + ("" if who is None else f", {who}")
    return _Cannot(why, "stop it (is edgeguardd running already?) or set {table} path")


def _listener(path: str) -> str | None:
    """The process that listens, by name and number; None where it does not say, as while it starts.

    The credentials of a listening socket are those of whoever called listen(2) last (unix_listen, net/unix/af_unix.c):
    the daemon's, also where systemd has made the socket.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError:
            return None
    pid, _, _ = _CREDENTIALS.unpack(credentials)
    if pid <= 0:  # of another pid namespace
        return None
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return f"{printable(file.read(64).decode('utf-8', 'replace').strip(), 16)} with pid {pid}"
    except OSError:
        return f"pid {pid}"
