"""What `make` says to people at the end of a verb, with what it calls played by something quick."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.running import REPOSITORY

BUILD = """#!/bin/sh
echo "N: some hint of lintian's"
echo "running with root privileges is not recommended!" >&2
{build}
"""
# A package of nothing, as dpkg-deb makes it.
CONTROL = (
    "Package: edgeguardd\nVersion: 1.2.3~dev4\nArchitecture: all\nMaintainer: nobody <n@example.com>\nDescription: x\n"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile, and room for a build."""
    if shutil.which("dpkg-deb") is None or shutil.which("make") is None:
        pytest.skip("no dpkg-deb or no make here")
    shutil.copy(f"{REPOSITORY}/Makefile", tmp_path)
    (tmp_path / "packaging/debian").mkdir(parents=True)
    (tmp_path / "tree/DEBIAN").mkdir(parents=True)
    (tmp_path / "tree/DEBIAN/control").write_text(CONTROL)
    (tmp_path / ".build/deb").mkdir(parents=True)
    return tmp_path


def made(checkout: Path, build: str) -> "subprocess.CompletedProcess[str]":
    """`make deb`, whose build is this shell script."""
    script = checkout / "packaging/debian/build.sh"
    script.write_text(BUILD.format(build=build))
    script.chmod(0o755)
    return subprocess.run(
        ["make", "--no-print-directory", "deb"], cwd=checkout, capture_output=True, text=True, check=False, timeout=60
    )


def test_make_deb_says_what_it_made_and_what_comes_next(checkout: Path) -> None:
    """Path, version, size, the command; nothing of what the build said on the way."""
    deb = ".build/deb/edgeguardd_1.2.3~dev4_all.deb"
    done = made(checkout, f"dpkg-deb --build --root-owner-group tree {deb} >/dev/null\necho {deb}")
    assert (done.returncode, done.stderr) == (0, "")
    *_, what, then = done.stdout.splitlines()
    path, _, rest = what.partition(": version ")
    assert path == deb
    version, _, size = rest.partition(", ")
    assert version == "1.2.3~dev4"
    assert size[:1].isdigit()
    assert then == f"next: sudo apt-get install ./{deb}"
    assert "lintian" not in done.stdout


def test_a_build_that_fails_fails_make_and_says_why(checkout: Path) -> None:
    """All of what was said, on standard error."""
    done = made(checkout, "echo 'E: edgeguardd: some error'; exit 1")
    assert done.returncode != 0
    assert "some hint of lintian's" in done.stderr
    assert "E: edgeguardd: some error" in done.stderr
    assert "next:" not in done.stdout
