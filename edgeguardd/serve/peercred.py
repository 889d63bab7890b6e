"""Who is at the other end of a Unix socket, as the kernel knows it.

Must not: trust anything the peer says. Upstream: socket. Downstream: connection, daemon.
"""

import socket
import struct

from msgspec import Struct

# struct ucred of unix(7): pid, uid, gid as of connect(2). A pid of 0: the peer is outside our pid namespace.
_UCRED = struct.Struct("iII")


class Peer(Struct, frozen=True):
    """The process that connected. A process that has ended since may have left its pid to another one."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """The credentials of the peer of a connected AF_UNIX socket. Raises OSError when the kernel has none."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid, gid)
