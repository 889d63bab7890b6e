"""/dev/kmsg read record by record: sizes, overruns, permissions."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from edgeguardd.errors import KernelError
from edgeguardd.kernel import kmsg
from edgeguardd.kernel.kmsg import Kmsg
from tests.support.fakekmsg import FakeKmsg


@pytest.fixture
def device() -> Iterator[FakeKmsg]:
    """A stand-in for the device."""
    with contextlib.closing(FakeKmsg()) as fake:
        yield fake


def test_records_come_one_by_one_and_without_waiting(device: FakeKmsg) -> None:
    """What is there, at most so many, and nothing when there is nothing; dictionary lines are left out."""
    device.records.append(b"6,0,1,-;first\n SUBSYSTEM=usb\n DEVICE=+usb:1-1\n")
    for number in range(1, 5):
        device.write(f"message {number}")
    with contextlib.closing(device.open()) as log:
        assert list(log.records(2)) == [b"6,0,1,-;first", b"4,1,1000001,-;message 1"]
        assert len(list(log.records(100))) == 3
        assert list(log.records(100)) == []
        assert (log.last_seq, log.lost) == (4, 0)


def test_overwritten_records_are_counted(device: FakeKmsg) -> None:
    """The next sequence number tells how many the kernel has dropped."""
    device.records = [b"6,7,1,-;a\n", b"6,10,1,-;b\n", b"6,11,1,-;c\n"]
    with contextlib.closing(device.open()) as log:
        assert len(list(log.records(100))) == 3
        assert log.lost == 2


def test_reading_goes_on_behind_a_record(device: FakeKmsg) -> None:
    """What was read before is left out and is no loss; what is missing since is one."""
    device.records = [b"6,5,1,-;old\n", b"6,6,1,-;old\n", b"6,9,1,-;new\n"]
    with contextlib.closing(device.open()) as log:
        log.last_seq = 6
        assert list(log.records(100)) == [b"6,9,1,-;new"]
        assert log.lost == 2


def test_a_record_without_a_number_is_passed_on(device: FakeKmsg) -> None:
    """Whatever it is, the readers behind look at it."""
    device.records = [b"garbage\n", b";\n", b"6,x,1,-;y\n"]
    with contextlib.closing(device.open()) as log:
        assert list(log.records(100)) == [b"garbage", b";", b"6,x,1,-;y"]
        assert log.last_seq is None


@pytest.mark.parametrize("kind", ["missing", "directory", "file", "device"])
def test_what_is_no_kernel_log_is_refused(kind: str, tmp_path: os.PathLike[str]) -> None:
    """Containers have all sorts of things there; each is one sentence with a remedy."""
    path = os.path.join(tmp_path, "kmsg")
    match kind:
        case "directory":
            os.mkdir(path)
        case "file":
            with open(path, "w"):
                pass
        case "device":
            path = "/dev/null"
        case _:
            pass
    with pytest.raises(KernelError) as caught:
        Kmsg.open(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"cannot read {path}: ")
    assert "; " in sentence


def test_an_error_while_reading_is_one_sentence() -> None:
    """The descriptor went bad under its reader."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        log = Kmsg(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
        with contextlib.closing(log), pytest.raises(KernelError, match="cannot read /dev/kmsg"):
            list(log.records(1))


def test_the_boot_has_a_name() -> None:
    """The kernel gives each boot a random one."""
    assert len(kmsg.boot_id()) == 36
