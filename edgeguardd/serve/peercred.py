"""Who is at the other end of a Unix socket, as the kernel knows it.

Must not: trust anything the peer says. Upstream: socket, /proc. Downstream: connection, daemon.

SO_PEERCRED names the process by a number, and numbers are given again: whoever connects, passes the connection on and
ends may leave its number to a process of somebody else's. So the process's start is noted when the connection is
taken, and whoever asks later where it lives compares that.
"""

import os
import select
import socket
import struct

from msgspec import Struct

from edgeguardd.core import procfmt, scores
from edgeguardd.errors import FormatError

# struct ucred of unix(7): pid, uid, gid as of connect(2). A pid of 0: the peer is outside our pid namespace.
_UCRED = struct.Struct("iII")
# asm-generic/socket.h, since Linux 6.5: a descriptor of the very process that connected. Elsewhere the option has
# another number, or is unknown, and then the number and the user have to do.
_SO_PEERPIDFD = 77
_MAX_BYTES = 8192
ENDED = -1


class Peer(Struct, frozen=True):
    """The process that connected. started: in clock ticks since boot; ENDED: it is not there any more."""

    pid: int
    uid: int
    gid: int
    started: int = ENDED


def peer_of(sock: socket.socket) -> Peer:
    """The credentials of the peer of a connected AF_UNIX socket. Raises OSError when the kernel has none."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid, gid, _started(sock, pid, uid) if pid > 0 else ENDED)


def _started(sock: socket.socket, pid: int, uid: int) -> int:
    pidfd = _pidfd(sock)
    try:
        started = scores.stat(_read(pid, "stat")).started_ticks
        if pidfd is None:
            # The number may have been given again since connect(2), then to no other user's process at least.
            return started if uid in procfmt.uids(_read(pid, "status")) else ENDED
        # A pidfd is readable from the moment its process ends (pidfd_open(2)).
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return ENDED if poll.poll(0) else started
    except (OSError, FormatError):
        return ENDED
    finally:
        if pidfd is not None:
            os.close(pidfd)


def _pidfd(sock: socket.socket) -> int | None:
    """None: the kernel has no such option, or no descriptor is left."""
    try:
        return int(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD))
    except OSError:
        return None


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read(_MAX_BYTES)
