"""`edgeguardd put-back`: what a daemon that died has left is put back, with no daemon to do it."""

import time
from pathlib import Path

import pytest

from edgeguardd.cli.edgeguardd import main
from edgeguardd.core.events import Event, LimitRaised
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.relief import Relief
from edgeguardd.state import StateDirectory
from tests.support.faketree import MIB, FakeTree


def config(path: Path, tree: FakeTree) -> str:
    """A file that names this tree and a state directory beside it."""
    file = path / "edgeguardd.toml"
    file.write_text(f'cgroup_root = "{tree.path}"\nstate_directory = "{path / "state"}"\n')
    return str(file)


def lifted(path: Path) -> tuple[FakeTree, Path]:
    """A cgroup whose memory.high a daemon has lifted from 20 to 30 MiB before it was killed."""
    (path / "tree").mkdir()
    tree = FakeTree(path / "tree")
    llm = tree.cgroup("/llm", high_bytes=20 * MIB, max_bytes=40 * MIB)
    told: list[Event] = []
    state = StateDirectory(str(path / "state"), pytest.fail)
    relief = Relief(CgroupRoot(tree.path), state, told.append, time.monotonic)
    relief.raise_limit("llm", "/llm", 20 * MIB, 30 * MIB)
    relief.close()
    assert [type(event) for event in told] == [LimitRaised]
    return tree, Path(llm.path, "memory.high")


def test_a_lifted_limit_is_put_back_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Said in a sentence; the second time there is nothing left to do or to say."""
    tree, high = lifted(tmp_path)
    assert high.read_text().strip() == str(30 * MIB)
    assert main(["put-back", "--config", config(tmp_path, tree)]) == 0
    assert high.read_text().strip() == str(20 * MIB)
    assert "memory.high of /llm is 20.0 MiB again" in capsys.readouterr().out
    assert main(["put-back", "--config", config(tmp_path, tree)]) == 0
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_put_back_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit status 1, and the record stays for the next daemon."""
    tree, high = lifted(tmp_path)
    high.write_text("nonsense")
    assert main(["put-back", "--config", config(tmp_path, tree)]) == 1
    assert "memory.high" in capsys.readouterr().err
    high.write_text(f"{30 * MIB}\n")
    assert main(["put-back", "--config", config(tmp_path, tree)]) == 0
    assert high.read_text().strip() == str(20 * MIB)
