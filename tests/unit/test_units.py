"""The unit files: what systemd would say of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.running import REPOSITORY

ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", ["edgeguardd-bridge@.service"])
def test_systemd_understands_every_line(tmp_path: Path, name: str) -> None:
    """A line that it would ignore is a fault here: a sandbox that is misspelt is none."""
    text = Path(REPOSITORY, "systemd", name).read_text()
    program = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert program.startswith("ExecStart=/usr/bin/edgeguardctl bridge --settings /etc/edgeguardd/bridges/%i.toml")
    tmp_path.joinpath(name).write_text(text.replace("ExecStart=/usr/bin/edgeguardctl", "ExecStart=/bin/true"))
    instance = name.replace("@.", "@llama.")
    done = subprocess.run(
        [ANALYZE or "", "verify", "--man=no", str(tmp_path / instance)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
