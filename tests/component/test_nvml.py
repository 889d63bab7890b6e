"""NVIDIA's own binding, nvidia-ml-py, over a library made for the test: the calls are the right ones, the types fit.

Skipped by name without the binding (extra `nvml`) or a C compiler. No test here needs a card.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.running import REPOSITORY

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]

# What the daemon calls of libnvidia-ml.so.1: one card with 5 of 8 GiB in use; asking for another is error 2.
LIBRARY = """
typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlInitWithFlags(unsigned flags) { return flags; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "Invalid Argument"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) { *card = &nvmlShutdown; return index ? 2 : 0; }
int nvmlDeviceGetMemoryInfo(void *card, memory_t *memory) {
    if (card != &nvmlShutdown) return 2;
    memory->total = 8ULL << 30; memory->used = 5ULL << 30; memory->free = 3ULL << 30;
    return 0;
}
"""

PROGRAM = """
import json, sys
from edgeguardd.kernel.devices import NvmlSource
found = []
for index in (0, 1):
    source = NvmlSource("gpu", index)
    usage = source.read()
    found.append([usage and [usage.used_bytes, usage.total_bytes], source.fault])
    source.close()
print(json.dumps(found))
"""


def read_cards(directory: Path) -> list[tuple[list[int] | None, str | None]]:
    """What a process that finds its libraries in this directory reads of cards 0 and 1: figures and fault each."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(directory),
        "PYTHONPATH": os.pathsep.join([REPOSITORY, *sys.path]),
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return [tuple(row) for row in json.loads(ended.stdout)]


def test_the_real_binding_reads_a_card(tmp_path: Path) -> None:
    """Used and total bytes; a card that is not there in the driver's words."""
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True, timeout=60
    )
    present, absent = read_cards(tmp_path)
    assert present == ([5 << 30, 8 << 30], None)
    assert absent[0] is None
    assert "cannot read device gpu through NVML: Invalid Argument; " in str(absent[1])


def test_a_machine_without_the_driver_is_told_so(tmp_path: Path) -> None:
    """The binding is there, its library is not."""
    for figures, fault in read_cards(tmp_path):
        if figures is not None:
            pytest.skip("this machine has an NVIDIA driver")
        assert "cannot read device gpu through NVML: " in str(fault)
        assert "Not Found" in str(fault)
