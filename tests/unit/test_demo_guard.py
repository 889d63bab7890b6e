"""The guard of the demo is a guest on the machine: what an installed daemon keeps there is not its business."""

from pathlib import Path

from edgeguardd.core.configparse import read
from tests.demo.guard import Guard
from tests.llama.guard import Guard as LlamaGuard


def test_its_state_lies_in_its_own_directory(tmp_path: Path) -> None:
    """Neither does it take over what /var/lib/edgeguardd holds, nor leave anything there."""
    Guard(str(tmp_path), print)
    assert state_directory(tmp_path) == f"{tmp_path}/state"
    LlamaGuard(str(tmp_path), "/llama", print)
    assert state_directory(tmp_path) == f"{tmp_path}/state"


def state_directory(directory: Path) -> str:
    return read((directory / "edgeguardd.toml").read_bytes(), "edgeguardd.toml").state_directory
