"""The package for a release that is not this machine's: built in a root file system of that release, without a network.

Its libraries are fetched here, as wheels for that release's Python, because a package fits one Python only.
Must not: touch the machine's own packages. Upstream: __main__. Downstream: mmdebstrap, chroot, pip,
packaging/debian/build.sh.
"""

import glob
import os
import subprocess
import sys
import tempfile
import tomllib

from tests.system import image
from tests.system.image import ImageError

PACKAGES = ("build-essential", "debhelper", "fakeroot", "git", "lintian", "python3", "python3-venv")
BUILD = """\
set -e
cd /build
git init --quiet
git add --all
git -c user.name=builder -c user.email=builder@localhost commit --quiet --message="$BUILT_FROM"
packaging/debian/build.sh
"""


def host_suite() -> str:
    """This machine's release."""
    with open("/etc/os-release") as file:
        return dict(line.strip().split("=", 1) for line in file if "=" in line).get("VERSION_CODENAME", "").strip('"')


def build(repository: str, suite: str, out: str) -> str:
    """The path of the package, below `out`. Raises ImageError."""
    base = image.base(os.path.join(repository, image.CACHE), suite, "builder", PACKAGES)
    with tempfile.TemporaryDirectory(dir=out, prefix="builder-") as root:
        image.command(["tar", "--extract", "--file", base, "--directory", root, "--numeric-owner", "--zstd"])
        source = os.path.join(root, "build")
        os.makedirs(source)
        listed = ["git", "-C", repository, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = image.command(listed).split("\0")
        files = [name for name in names if name and os.path.lexists(os.path.join(repository, name))]
        subprocess.run(
            ["cp", "--archive", "--parents", "--target-directory", source, *files], cwd=repository, check=True
        )
        version = image.command(["chroot", root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        wheels(repository, version.strip(), os.path.join(root, "wheels"))
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "BUILT_FROM=" + suite]
        environment += ["PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels", "LC_ALL=C.UTF-8"]
        image.command(["chroot", root, *environment, "bash", "-c", BUILD])
        (package,) = glob.glob(os.path.join(source, ".build/deb/edgeguardd_*.deb"))
        kept = os.path.join(out, os.path.basename(package))
        os.replace(package, kept)
    return kept


def wheels(repository: str, version: str, directory: str) -> None:
    """What the package has inside and what builds it, for this Python."""
    with open(os.path.join(repository, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    image.command([*pip, "wheel", "--wheel-dir", directory, *wanted])
    for path in glob.glob(f"{directory}/*.whl"):
        name, number, *tags = os.path.basename(path).removesuffix(".whl").split("-")
        if tags[-1] != "any":
            # Compiled for this machine's Python.
            os.unlink(path)
            options = ["--no-deps", "--only-binary=:all:", "--python-version", version, "--dest", directory]
            image.command([*pip, "download", *options, f"{name}=={number}"])
    if not os.listdir(directory):
        raise ImageError("no library could be fetched")
