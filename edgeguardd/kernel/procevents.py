"""The kernel's process connector: who forks, starts a program, takes another name, or ends; at once.

Must not: know what the events are for. Upstream: NETLINK_CONNECTOR. Downstream: kernel.scores.
Why not pyroute2's ProcEventSocket: docs/adr/0015. Formats: include/uapi/linux/cn_proc.h, connector.h, netlink.h.

    nlmsghdr (16 bytes) | cn_msg (20) | what, cpu, timestamp (16) | what this kind of event has
"""

import contextlib
import ctypes
import errno
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from msgspec import Struct

from edgeguardd.errors import KernelError

NETLINK_CONNECTOR: Final = 11
CN_IDX_PROC, CN_VAL_PROC = 1, 1
NLMSG_DONE: Final = 3
MCAST_LISTEN, MCAST_IGNORE = 1, 2
# Room for some 5,000 events that have not been read; needs CAP_NET_ADMIN, as the connector itself.
SO_RCVBUFFORCE: Final = 33
BUFFER_BYTES: Final = 4 << 20
SO_ATTACH_FILTER: Final = 26
MAX_MESSAGE_BYTES: Final = 4096

_HEADER = struct.Struct("=IHHII")
_CONNECTOR = struct.Struct("=IIIIHH")
_OPERATION = struct.Struct("=I")
_EVENT = struct.Struct("=I12x4I")
_EVENT_AT: Final = _HEADER.size + _CONNECTOR.size

REMEDY: Final = (
    "the drop-in oom-scores.conf gives the daemon what it needs; in a container, run it in the host's namespaces"
)


class Kind(IntEnum):
    """Kinds of events. ACK answers the request to listen."""

    ACK = 0
    FORK = 1
    EXEC = 2
    COMM = 0x200
    EXIT = 0x80000000


class ProcEvent(Struct, frozen=True):
    """One event about one process. `other`: FORK the parent's number, ACK the error number, else 0.

    An ACK has in `pid` the number of the request that it answers: everybody hears the answers to everybody.
    """

    kind: Kind
    pid: int
    other: int = 0


class OverrunError(Exception):
    """Events were lost: more came than the socket holds (ENOBUFS, netlink(7))."""


class ProcEvents:
    """A socket that has asked to be told. The answer is an ACK; where none comes, no event does."""

    def __init__(self, sock: socket.socket, port: int) -> None:
        """`open` makes one; tests give a socket of their own, and a port as a netlink socket would have it."""
        self._socket = sock
        self._port = port

    @staticmethod
    def open() -> "ProcEvents":
        """Ask the kernel. Raises KernelError."""
        try:
            sock = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_CONNECTOR
            )
        except OSError as error:
            raise KernelError(f"cannot be told of new processes: {error.strerror} (AF_NETLINK); {REMEDY}") from None
        try:
            # What concerns threads, users and sessions does not wake the daemon. Without the filter it is only slower.
            with contextlib.suppress(OSError):
                _attach(sock)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
            sock.bind((0, CN_IDX_PROC))
            # The kernel gives each netlink socket a port number of its own.
            port = int(sock.getsockname()[0])
            sock.send(request(MCAST_LISTEN, port))
        except OSError as error:
            sock.close()
            raise KernelError(f"cannot be told of new processes: {error.strerror}; {REMEDY}") from None
        return ProcEvents(sock, port)

    @property
    def fd(self) -> int:
        """For the event loop: readable when there are events."""
        return self._socket.fileno()

    def read(self, at_most: int) -> Iterator[ProcEvent]:
        """Events that are there, at most so many messages. Raises OverrunError, KernelError."""
        for _ in range(at_most):
            try:
                data, sender = self._socket.recvfrom(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    raise OverrunError from None
                raise KernelError(f"cannot be told of new processes any more: {error.strerror}; {REMEDY}") from None
            # Anybody may send to a netlink socket; only the kernel has the number 0.
            if sender and sender[0] != 0:
                continue
            event = parse(data)
            if event is not None and (event.kind is not Kind.ACK or event.pid == number_of(self._port)):
                yield event

    def close(self) -> None:
        """Listen no longer. Kernels before 6.6 count listeners and do not notice when one dies."""
        with contextlib.suppress(OSError):
            self._socket.send(request(MCAST_IGNORE, self._port))
        self._socket.close()


def request(operation: int, port: int) -> bytes:
    """The message that turns events on or off."""
    body = _CONNECTOR.pack(CN_IDX_PROC, CN_VAL_PROC, 0, number_of(port), _OPERATION.size, 0) + _OPERATION.pack(
        operation
    )
    return _HEADER.pack(_HEADER.size + len(body), NLMSG_DONE, 0, 0, port) + body


def number_of(port: int) -> int:
    """What a request goes by: its `ack`. The answer has one more there; its `seq` is the kernel's own (cn_proc.c)."""
    return port & 0x7FFFFFFF


def parse(data: bytes) -> ProcEvent | None:
    """One message, whatever it is. None: it is not about a process as a whole, or nothing that is known here."""
    if len(data) < _EVENT_AT + _EVENT.size:
        return None
    index, value, _, answers, *_ = _CONNECTOR.unpack_from(data, _HEADER.size)
    if (index, value) != (CN_IDX_PROC, CN_VAL_PROC):
        return None
    what, first, second, third, fourth = _EVENT.unpack_from(data, _EVENT_AT)
    match what:
        case Kind.ACK:
            return ProcEvent(Kind.ACK, answers - 1, first)
        case Kind.FORK:  # parent_pid, parent_tgid, child_pid, child_tgid; a new thread has its process's tgid
            return ProcEvent(Kind.FORK, fourth, second) if third == fourth else None
        case Kind.EXEC | Kind.COMM | Kind.EXIT:  # process_pid, process_tgid
            return ProcEvent(Kind(what), second) if first == second else None
        case _:
            return None


# Classic BPF (Documentation/networking/filter.rst): what this refuses is never put into the socket's buffer.
_LD_ABS, _TAX, _JEQ, _JEQ_X, _RET = 0x20, 0x07, 0x15, 0x1D, 0x06
_WHAT_AT, _PID_AT, _TGID_AT, _CHILD_PID_AT, _CHILD_TGID_AT = 36, 52, 56, 60, 64
# code, rows to skip if equal, rows to skip if not, constant
FILTER: Final = (
    (_LD_ABS, 0, 0, _WHAT_AT),
    # A load takes the bytes for a number in the network's order; the kernel wrote it in the machine's.
    (_JEQ, 13, 0, socket.ntohl(Kind.ACK)),
    (_JEQ, 12, 0, socket.ntohl(Kind.EXEC)),
    (_JEQ, 2, 0, socket.ntohl(Kind.FORK)),
    (_JEQ, 5, 0, socket.ntohl(Kind.COMM)),
    (_JEQ, 4, 8, socket.ntohl(Kind.EXIT)),
    # A fork that makes a process, not a thread.
    (_LD_ABS, 0, 0, _CHILD_PID_AT),
    (_TAX, 0, 0, 0),
    (_LD_ABS, 0, 0, _CHILD_TGID_AT),
    (_JEQ_X, 5, 4, 0),
    # Of a process as a whole, not of a thread.
    (_LD_ABS, 0, 0, _PID_AT),
    (_TAX, 0, 0, 0),
    (_LD_ABS, 0, 0, _TGID_AT),
    (_JEQ_X, 1, 0, 0),
    (_RET, 0, 0, 0),
    (_RET, 0, 0, 0xFFFFFFFF),
)


def _attach(sock: socket.socket) -> None:
    packed = b"".join(struct.pack("=HBBI", *row) for row in FILTER)
    held = ctypes.create_string_buffer(packed)
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(FILTER), ctypes.addressof(held)))
