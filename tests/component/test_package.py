"""What people install is the wheel: built, installed into a fresh environment, and run from there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.running import REPOSITORY


def test_the_wheel_holds_the_program_and_nothing_else(tmp_path: Path) -> None:
    """Type marker and licence are in; tests are not; both commands run from it."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), REPOSITORY],
        check=True,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "edgeguardd/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests")]
    entries = next((tmp_path / "site").glob("*.dist-info/entry_points.txt")).read_text()
    assert "edgeguardd = edgeguardd.cli.edgeguardd:main" in entries
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for module in ("edgeguardd", "edgeguardd.cli.edgeguardctl"):
        shown = subprocess.run(
            [sys.executable, "-m", module, "--version"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.split()[1][0].isdigit()
