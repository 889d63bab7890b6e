"""The process connector: what its messages mean, and that the filter in the kernel takes the same ones."""

import errno
import random
import socket
import struct
from collections.abc import Iterator

import pytest

from edgeguardd.errors import KernelError
from edgeguardd.kernel import procevents
from edgeguardd.kernel.procevents import FILTER, Kind, OverrunError, ProcEvent, ProcEvents, parse

PORT = 77


def message(what: int, *words: int, idx: int = 1, val: int = 1, ack: int = 0) -> bytes:
    """As the kernel sends it."""
    body = struct.pack("=IIQ", what, 0, 1234) + struct.pack("=6I", *words, *[0] * (6 - len(words)))
    cn = struct.pack("=IIIIHH", idx, val, 5, ack, len(body), 0)
    return struct.pack("=IHHII", 16 + len(cn) + len(body), 3, 0, 0, 0) + cn + body


CASES = [
    (message(0, 0, ack=PORT + 1), ProcEvent(Kind.ACK, PORT, 0)),
    (message(0, 1, ack=PORT + 1), ProcEvent(Kind.ACK, PORT, 1)),
    (message(1, 10, 10, 20, 20), ProcEvent(Kind.FORK, 20, 10)),
    (message(1, 11, 10, 20, 20), ProcEvent(Kind.FORK, 20, 10)),
    (message(1, 10, 10, 21, 10), None),
    (message(2, 20, 20), ProcEvent(Kind.EXEC, 20)),
    (message(0x200, 20, 20, 0x61616161), ProcEvent(Kind.COMM, 20)),
    (message(0x200, 21, 20, 0x61616161), None),
    (message(0x80000000, 20, 20, 0, 17), ProcEvent(Kind.EXIT, 20)),
    (message(0x80000000, 21, 20, 0, 17), None),
    (message(4, 20, 20), None),
    (message(0x40000000, 20, 20), None),
]


@pytest.mark.parametrize(("data", "event"), CASES)
def test_messages_about_processes_are_taken_and_those_about_threads_are_not(
    data: bytes, event: ProcEvent | None
) -> None:
    """A fork's parent is the process, whichever of its threads called fork."""
    assert parse(data) == event


@pytest.mark.parametrize(("data", "event"), CASES)
def test_the_filter_takes_what_the_reader_takes(data: bytes, event: ProcEvent | None) -> None:
    """Run as the kernel runs it: what nobody needs does not wake the daemon."""
    assert bool(run(data)) == (event is not None)


def run(data: bytes) -> int:
    """Classic BPF, as far as the filter needs it."""
    at = accumulator = index = 0
    while True:
        code, yes, no, constant = FILTER[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("!I", data, constant)
            case 0x07:
                index = accumulator
            case 0x15 | 0x1D:
                at += yes if accumulator == (constant if code == 0x15 else index) else no
            case 0x06:
                return constant
            case _:
                raise AssertionError(hex(code))


def test_no_bytes_upset_the_reader() -> None:
    """Cut, foreign, random: an event or None."""
    for data, _ in CASES:
        for end in range(68):
            assert parse(data[:end]) is None
    assert parse(message(1, 10, 10, 20, 20, idx=2)) is None
    assert parse(message(1, 10, 10, 20, 20, val=2)) is None
    chance = random.Random(5)  # noqa: S311  no secret
    for _ in range(500):
        parse(chance.randbytes(chance.randrange(120)))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, ProcEvents]]:
    """A socket that stands for the kernel's, and the reader at its other end."""
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    yield kernel, ProcEvents(ours, PORT)
    kernel.close()
    ours.close()


def test_answers_to_others_are_not_ours(pair: tuple[socket.socket, ProcEvents]) -> None:
    """Everybody who listens hears that somebody else was refused."""
    kernel, events = pair
    kernel.send(message(0, errno.EPERM, ack=PORT + 5))
    kernel.send(message(2, 20, 20))
    kernel.send(message(0, 0, ack=PORT + 1))
    assert list(events.read(10)) == [ProcEvent(Kind.EXEC, 20), ProcEvent(Kind.ACK, PORT, 0)]
    assert list(events.read(10)) == []


def test_so_many_at_once_and_no_more(pair: tuple[socket.socket, ProcEvents]) -> None:
    """A storm is taken in pieces."""
    kernel, events = pair
    for pid in range(5):
        kernel.send(message(2, pid, pid))
    assert [event.pid for event in events.read(3)] == [0, 1, 2]
    assert [event.pid for event in events.read(3)] == [3, 4]


def test_it_takes_its_leave(pair: tuple[socket.socket, ProcEvents]) -> None:
    """Old kernels count listeners and do not notice when one is gone."""
    kernel, events = pair
    events.close()
    assert kernel.recv(4096) == procevents.request(procevents.MCAST_IGNORE, PORT)


class Failing(socket.socket):
    """A socket whose reading fails."""

    code = errno.ENOBUFS

    def recvfrom(self, *_: object) -> tuple[bytes, object]:
        raise OSError(self.code, "because")


def test_an_overrun_is_not_the_end() -> None:
    """ENOBUFS: events are lost, the socket goes on. Anything else ends it, with the reason."""
    with Failing(socket.AF_UNIX, socket.SOCK_DGRAM) as failing:
        with pytest.raises(OverrunError):
            list(ProcEvents(failing, PORT).read(1))
        failing.code = errno.EBADF
        with pytest.raises(KernelError, match="cannot be told of new processes any more"):
            list(ProcEvents(failing, PORT).read(1))
