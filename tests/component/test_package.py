"""What people install: source archive and wheel, built, installed into a fresh environment, and run from there."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.running import REPOSITORY

# Where each lies below the environment, for whoever has no checkout.
SHARED = {
    "share/bash-completion/completions/edgeguardctl": "packaging/completion/edgeguardctl.bash",
    "share/edgeguardd/edgeguardd.toml": "packaging/config/edgeguardd.toml",
    "share/edgeguardd/grafana/edgeguardd.json": "packaging/grafana/edgeguardd.json",
    "share/edgeguardd/kubernetes/base/daemonset.yaml": "packaging/kubernetes/base/daemonset.yaml",
    "share/edgeguardd/prometheus/edgeguardd.rules.yml": "packaging/prometheus/edgeguardd.rules.yml",
    "share/edgeguardd/systemd/edgeguardd.service": "systemd/edgeguardd.service",
    "share/edgeguardd/systemd/drop-ins/inference.conf": "systemd/drop-ins/inference.conf",
    "share/edgeguardd/systemd/sysusers.d/edgeguardd.conf": "systemd/sysusers.d/edgeguardd.conf",
    "share/man/man8/edgeguardd.8": "docs/man/edgeguardd.8",
}


def run(*argv: str, cwd: Path) -> str:
    """Its output; a failure shows all that it said."""
    done = subprocess.run(
        argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=110, check=False, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def build(kind: str, source: str, into: Path) -> Path:
    """By the build backend itself: what it stands on is installed here already, so nothing is fetched."""
    run(sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(into), cwd=Path(source))
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", REPOSITORY, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the source archive, as an index's users without a fitting wheel would."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (top,) = unpacked.iterdir()
    return build("wheel", str(top), tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_program_and_what_belongs_to_it(wheel: Path) -> None:
    """Type marker, licence, units, configuration and manual pages, as they are in the checkout; tests are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        contents = {
            place: archive.read(next(name for name in names if name.endswith(f".data/data/{place}")))
            for place in SHARED
        }
    assert "edgeguardd/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]
    for place, origin in SHARED.items():
        assert contents[place] == Path(REPOSITORY, origin).read_bytes(), place


def test_the_extras_are_those_that_are_promised(wheel: Path) -> None:
    """What the pages tell to install is there under its name, and nothing of it is needed by the daemon alone."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))))
    assert {"example", "nvml", "onnx"} <= set(metadata.get_all("Provides-Extra", []))
    always = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    with open(os.path.join(REPOSITORY, "pyproject.toml"), "rb") as file:
        assert len(always) == len(tomllib.load(file)["project"]["dependencies"])
    pages = Path(REPOSITORY, "README.md").read_text() + "".join(
        path.read_text() for path in Path(REPOSITORY, "docs").rglob("*.md")
    )
    asked = set(re.findall(r"(?:edgeguardd|\.)\[(\w+)\]'", pages))
    assert asked <= set(metadata.get_all("Provides-Extra", []))


def test_a_fresh_environment_runs_it(wheel: Path, tmp_path: Path) -> None:
    """pip installs it with an extra, finds nothing amiss, and both commands and the units are in their places."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    run(*pip, "install", "--quiet", f"{wheel}[nvml]", cwd=tmp_path)
    assert "No broken requirements found" in run(*pip, "check", cwd=tmp_path)
    for command in ("edgeguardd", "edgeguardctl"):
        assert run(str(home / "bin" / command), "--version", cwd=tmp_path).split()[1][0].isdigit()
    assert "edgeguardd.toml" in run(str(home / "bin" / "edgeguardctl"), "check-config", "--help", cwd=tmp_path)
    configuration = home / "share" / "edgeguardd" / "edgeguardd.toml"
    run(str(home / "bin" / "edgeguardctl"), "check-config", str(configuration), cwd=tmp_path)
    run(str(home / "bin" / "python"), "-c", "import pynvml, edgeguardd.client.asgi", cwd=tmp_path)
    for place in SHARED:
        assert (home / place).is_file()


# All of the client, in a place where nothing else of ours could be imported; then what it has brought with it.
CLIENT = """
import sys
from edgeguardd.client import AsyncSubscriber, Released, Subscriber
import edgeguardd.client.asgi, edgeguardd.client.onnx
guard = Subscriber("mine", path="/nowhere/s")
guard.on("trim_kv_cache")(lambda command: Released(0))
with guard:
    pass
known = sys.stdlib_module_names | {"__main__", "edgeguardd"}
print(*sorted({name.partition(".")[0] for name in sys.modules} - known))
"""


def test_the_client_alone_needs_one_library(wheel: Path, tmp_path: Path) -> None:
    """Installed without its dependencies, msgspec beside it: both clients work, and have asked for nothing else."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    run(*pip, "install", "--quiet", "--no-deps", str(wheel), cwd=tmp_path)
    run(*pip, "install", "--quiet", "msgspec", cwd=tmp_path)
    said = run(str(home / "bin" / "python"), "-c", CLIENT, cwd=tmp_path)
    assert said.splitlines()[-1] == "msgspec"
    assert wheel.name.endswith("-py3-none-any.whl")
