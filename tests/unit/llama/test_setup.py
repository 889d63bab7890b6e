"""What can be said of setting up without building anything."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.running import REPOSITORY


def setup(directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with this cache directory and no way to reach anything."""
    nowhere = {"PIP_NO_INDEX": "1", "LLAMA_DIR": str(directory), **environment}
    return subprocess.run(
        [f"{REPOSITORY}/tests/llama/setup.sh"],
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_setting_up_twice_does_nothing_the_second_time(tmp_path: Path) -> None:
    """With both files there, nothing is fetched, built or said."""
    (tmp_path / "llama-server").write_bytes(b"")
    (tmp_path / "llama-server").chmod(0o755)
    (tmp_path / "model.gguf").write_bytes(b"")
    done = setup(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_who_has_a_server_and_a_model_builds_none(tmp_path: Path) -> None:
    """Files named in the environment are used as they are."""
    done = setup(tmp_path, LLAMA_SERVER="/usr/bin/llama-server", LLAMA_MODEL="/srv/model.gguf")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_file_is_named_before_anything_is_started(tmp_path: Path) -> None:
    """The message says what makes it."""
    argv = ["-m", "tests.llama", "--program", str(tmp_path / "none"), "--model", str(tmp_path / "none")]
    done = subprocess.run([sys.executable, *argv], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == f"cannot find {tmp_path}/none: tests/llama/setup.sh makes it\n"
