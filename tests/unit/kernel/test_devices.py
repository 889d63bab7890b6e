"""Device memory: three kinds of sources, what each does without its driver, and that none stops or waits."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeguardd.core.config import DeviceSpec
from edgeguardd.core.model import DeviceUsage
from edgeguardd.errors import FormatError
from edgeguardd.kernel.devices import (
    FILE_READ_BYTES,
    NVML_RETRY_READINGS,
    FileSource,
    NvmapSource,
    NvmlSource,
    nvmap_bytes,
    open_source,
)
from tests.support.descriptors import none_left, open_now
from tests.support.fakenvml import FakeNvml

CASES = Path(__file__).parents[2] / "cases/cgroupfiles"
JETSON = (CASES / "60-meminfo-jetson-tx2.txt").read_text()
CLIENTS = """\
CLIENT                        PROCESS      PID        SIZE
user                     llama-server     2041     790528K
user                             Xorg      943      14540K
total                                             805068K
"""


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    """Whatever a source does, it leaves nothing open."""
    before = open_now()
    yield
    none_left(before)


# file


@pytest.mark.parametrize("content", ["3 8", "3 8\n", "  3\n8\n\n", "3\t8"])
def test_a_file_says_used_and_total_bytes(tmp_path: Path, content: str) -> None:
    """With any blanks between, afresh each time, also when it is replaced by another."""
    path = tmp_path / "npu"
    source = FileSource("npu", str(path))
    path.write_text(content)
    assert source.read() == DeviceUsage("npu", 3, 8)
    (tmp_path / "next").write_text(f"{2**63} {2**63}")
    os.replace(tmp_path / "next", path)
    assert source.read() == DeviceUsage("npu", 2**63, 2**63)
    assert source.fault is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not two numbers; write used and total bytes"),
        ("5", "is not two numbers"),
        ("1 2 3", "is not two numbers"),
        ("1.5 2", "is not two numbers"),
        ("-1 2", "is not two numbers"),
        ("1 99999999999999999999", "is not two numbers"),
        ("1 2" + " " * FILE_READ_BYTES, "is not two numbers"),
        ("9 8", "9 of 8 bytes in use is not possible"),
        ("0 0", "0 of 0 bytes in use is not possible"),
    ],
)
def test_a_file_that_says_something_else_is_no_figure(tmp_path: Path, content: str, says: str) -> None:
    """One sentence that names the device; the next good content is taken again."""
    path = tmp_path / "npu"
    path.write_text(content)
    source = FileSource("npu", str(path))
    assert source.read() is None
    assert source.fault is not None
    assert says in source.fault
    assert "device npu" in source.fault
    path.write_text("1 2")
    assert source.read() == DeviceUsage("npu", 1, 2)
    assert source.fault is None


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Missing, a directory: the reason of the system."""
    assert FileSource("npu", str(tmp_path / "none")).read() is None
    source = FileSource("npu", str(tmp_path))
    assert source.read() is None
    assert source.fault == f"cannot read {tmp_path} for device npu: Is a directory; check the path"


def test_a_fifo_never_makes_the_daemon_wait(tmp_path: Path) -> None:
    """Neither without a writer nor with one that is silent."""
    path = tmp_path / "npu"
    os.mkfifo(path)
    source = FileSource("npu", str(path))
    assert source.read() is None
    assert source.fault is not None
    assert "is not two numbers" in source.fault
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert source.read() is None
        assert "Resource temporarily unavailable" in source.fault
    finally:
        os.close(writer)


# nvmap


def proc(tmp_path: Path, meminfo: str) -> str:
    """A /proc with this meminfo."""
    (tmp_path / "meminfo").write_text(meminfo)
    return str(tmp_path)


def test_nvmap_is_in_meminfo_of_older_jetsons(tmp_path: Path) -> None:
    """Out of the RAM of the whole board, which it shares."""
    source = NvmapSource("gpu", proc(tmp_path, JETSON), str(tmp_path / "none"))
    assert source.read() == DeviceUsage("gpu", 805068 * 1024, 8038788 * 1024)
    proc(tmp_path, JETSON.replace("805068 kB", "0 kB"))
    assert source.read() == DeviceUsage("gpu", 0, 8038788 * 1024)


def test_nvmap_is_in_debugfs_of_newer_jetsons(tmp_path: Path) -> None:
    """The total line of the list of clients, which says the same."""
    (tmp_path / "clients").write_text(CLIENTS)
    meminfo = JETSON.replace("NvMapMemUsed", "NvMapOther")
    source = NvmapSource("gpu", proc(tmp_path, meminfo), str(tmp_path / "clients"))
    assert source.read() == DeviceUsage("gpu", 805068 * 1024, 8038788 * 1024)


def test_a_machine_that_is_no_jetson_says_what_is_missing(tmp_path: Path) -> None:
    """Both places, and what to do."""
    source = NvmapSource("gpu", proc(tmp_path, "MemTotal: 100 kB\n"), str(tmp_path / "none"))
    assert source.read() is None
    assert source.fault is not None
    assert "none for device gpu: No such file or directory" in source.fault
    assert "has no NvMapMemUsed: run as root on a Jetson" in source.fault


def test_meminfo_without_a_total_is_no_figure(tmp_path: Path) -> None:
    """A share of nothing says nothing."""
    source = NvmapSource("gpu", proc(tmp_path, "NvMapMemUsed: 5 kB\n"))
    assert source.read() is None
    assert source.fault is not None
    assert "no MemTotal" in source.fault


def test_the_list_of_clients_may_end_in_notes() -> None:
    """And a client may be called total: its line has more fields."""
    text = CLIENTS.replace("user                             Xorg", "total                            Xorg")
    assert nvmap_bytes(text.encode() + b"\nNote: SIZE may count shared buffers twice.\n", "clients") == 805068 * 1024


@pytest.mark.parametrize("text", [b"", b"total\n", b"total 5\n", b"total -5K\n", b"total K\n", b"\xff\xfe"])
def test_a_list_without_its_total_is_an_error_that_names_the_file(text: bytes) -> None:
    """Cut, empty, or something else."""
    with pytest.raises(FormatError, match="cannot use /d/clients: no line of the total"):
        nvmap_bytes(text, "/d/clients")


# nvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The binding with one card, whose memory is 3 of 8 bytes used."""
    fake = FakeNvml()
    fake.cards[0] = (3, 8)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_card_is_opened_once_and_read_each_time(nvml: FakeNvml) -> None:
    """And let go at the end."""
    source = NvmlSource("gpu", 0)
    assert nvml.calls == []
    assert source.read() == DeviceUsage("gpu", 3, 8)
    nvml.cards[0] = (5, 8)
    assert source.read() == DeviceUsage("gpu", 5, 8)
    assert nvml.calls.count("nvmlInit") == 1
    source.close()
    source.close()
    assert nvml.initialised == 0


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
def test_a_driver_that_fails_is_said_and_tried_again_later(nvml: FakeNvml, call: str) -> None:
    """Not at each reading: looking for a driver costs. Nothing is left initialised meanwhile."""
    source = NvmlSource("gpu", 0)
    nvml.broken[call] = "Driver Not\nLoaded"
    assert source.read() is None
    assert source.fault == (
        "cannot read device gpu through NVML: Driver Not Loaded; see what `nvidia-smi -i 0` says; "
        'a Jetson has kind = "nvmap"'
    )
    assert nvml.initialised == 0
    calls = len(nvml.calls)
    nvml.broken.clear()
    for _ in range(NVML_RETRY_READINGS - 1):
        assert source.read() is None
        assert source.fault is not None
    assert len(nvml.calls) == calls
    assert source.read() == DeviceUsage("gpu", 3, 8)
    assert source.read() == DeviceUsage("gpu", 3, 8)
    source.close()
    assert nvml.initialised == 0


def test_a_card_that_is_not_there_is_said(nvml: FakeNvml) -> None:
    """In the driver's own words."""
    source = NvmlSource("gpu", 1)
    assert source.read() is None
    assert source.fault is not None
    assert "Invalid Argument; see what `nvidia-smi -i 1` says" in source.fault


def test_a_driver_that_does_not_even_shut_down_stops_nobody(nvml: FakeNvml) -> None:
    """The card fell off the bus."""
    source = NvmlSource("gpu", 0)
    assert source.read() is not None
    nvml.broken = dict.fromkeys(["nvmlDeviceGetMemoryInfo", "nvmlShutdown"], "GPU is lost")
    assert source.read() is None
    source.close()


def test_without_the_binding_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional, and not looked for until a device needs it."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    source = NvmlSource("gpu", 0)
    assert source.read() is None
    assert source.fault == (
        "cannot read device gpu through NVML: nvidia-ml-py is not installed; run pip install 'edgeguardd[nvml]'"
    )


# All of them


def test_each_kind_has_its_source(tmp_path: Path, nvml: FakeNvml) -> None:
    """The name is the configuration's."""
    path = tmp_path / "npu"
    path.write_text("1 2")
    assert open_source(DeviceSpec("a", "file", path=str(path))).read() == DeviceUsage("a", 1, 2)
    assert open_source(DeviceSpec("b", "nvml")).read() == DeviceUsage("b", 3, 8)
    nvmap = open_source(DeviceSpec("c", "nvmap"), proc(tmp_path, JETSON)).read()
    assert nvmap is not None
    assert nvmap.name == "c"
    with pytest.raises(ValueError, match="unknown kind of device: tpu"):
        open_source(DeviceSpec("d", "tpu"))
