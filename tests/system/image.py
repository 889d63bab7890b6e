"""The guest's disk: a Debian root file system made once, and for each run a disk with package and tests inside.

Must not: be run by anybody but root (mmdebstrap and mke2fs keep owners that way). Upstream: __main__.
Downstream: mmdebstrap, mke2fs.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "zstd": "zstd"}
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "kmod",
    "linux-image-cloud-amd64",
    "procps",
    "prometheus",
    "python3",
    "python3-pytest",
    "systemd-oomd",
    "systemd-sysv",
    "udev",
)
CACHE = ".build/system"
DISK_BYTES = 4 << 30
# Where the guest finds this repository's tests, and the package.
INSIDE = "opt/edgeguardd-tests"

RUN_UNIT = """\
[Unit]
Description=The system tests
After=basic.target dbus.service
[Service]
Type=exec
ExecStart=/bin/bash /opt/edgeguardd-tests/tests/system/guest/run.sh
StandardOutput=journal
StandardError=journal
TimeoutStopSec=5
OOMScoreAdjust=-1000
[Install]
WantedBy=multi-user.target
"""


class ImageError(Exception):
    """The disk cannot be made; the message says what is missing."""


@dataclass(frozen=True)
class Disk:
    """A disk with its kernel: paths on the host."""

    path: str
    kernel: str
    initrd: str


def require_tools() -> None:
    """Install what is missing, as root on Debian; else say it. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError("making the disk needs root; run: sudo make system")
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise ImageError(f"{', '.join(missing)} missing; install what they stand for")
    for argv in (["apt-get", "update", "-q"], ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]):
        ended = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if ended.returncode:
            raise ImageError(f"{' '.join(argv)} failed: {ended.stderr.strip()[-300:]}")


def make(repository: str, suite: str, inside: Mapping[str, str]) -> Disk:
    """A fresh disk with the repository's tests on it, and beside them these: name there -> path. Raises ImageError."""
    cache = os.path.join(repository, CACHE)
    guest = base(cache, suite, "guest", PACKAGES)
    with tempfile.TemporaryDirectory(dir=cache, prefix="root-") as root:
        command(["tar", "--extract", "--file", guest, "--directory", root, "--numeric-owner", "--zstd"])
        home = os.path.join(root, INSIDE)
        os.makedirs(home)
        for name in ("tests", "systemd", "packaging", "docs", "edgeguardd", "pyproject.toml"):
            command(["cp", "-a", os.path.join(repository, name), home])
        for name, path in inside.items():
            command(["cp", "-a", path, os.path.join(home, name)])
        with open(os.path.join(root, "etc/systemd/system/system-tests.service"), "w") as file:
            file.write(RUN_UNIT)
        wants = os.path.join(root, "etc/systemd/system/multi-user.target.wants")
        os.makedirs(wants, exist_ok=True)
        os.symlink("../system-tests.service", os.path.join(wants, "system-tests.service"))
        # Nothing of the guest's own shall wait for a network, ask at a prompt, or run beside the tests.
        for unit in (
            "prometheus.service",
            "prometheus-node-exporter.service",
            "apt-daily.timer",
            "apt-daily-upgrade.timer",
        ):
            mask = os.path.join(root, "etc/systemd/system", unit)
            if os.path.lexists(mask):
                os.unlink(mask)
            os.symlink("/dev/null", mask)
        kernel, initrd = _newest(root, "vmlinuz-*"), _newest(root, "initrd.img-*")
        disk = Disk(os.path.join(cache, "disk.ext4"), os.path.join(cache, "vmlinuz"), os.path.join(cache, "initrd.img"))
        shutil.copy(kernel, disk.kernel)
        shutil.copy(initrd, disk.initrd)
        if os.path.exists(disk.path):
            os.unlink(disk.path)
        command(["mke2fs", "-q", "-t", "ext4", "-d", root, disk.path, str(DISK_BYTES // 1024)])
    return disk


def base(cache: str, suite: str, name: str, packages: Sequence[str]) -> str:
    """A root file system of a release as a tar file; made when its list of packages is new. Raises ImageError."""
    os.makedirs(cache, exist_ok=True)
    mark = hashlib.sha256("\n".join([suite, *packages]).encode()).hexdigest()[:12]
    path = os.path.join(cache, f"{suite}-{name}-{mark}.tar.zst")
    if not os.path.exists(path):
        for old in glob.glob(os.path.join(cache, f"{suite}-{name}-*.tar*")):
            os.unlink(old)
        print(f"making a root file system of Debian {suite} ({name}; about two minutes, once)", flush=True)
        part = os.path.join(cache, f"{suite}-{name}.part.tar.zst")
        command(["mmdebstrap", "--mode=root", "--variant=apt", f"--include={','.join(packages)}", suite, part])
        os.replace(part, path)
    return path


def _newest(root: str, pattern: str) -> str:
    found = sorted(glob.glob(os.path.join(root, "boot", pattern)))
    if not found:
        raise ImageError(f"no /boot/{pattern} in the root file system; remove {CACHE} and run again")
    return found[-1]


def command(argv: list[str]) -> str:
    """Standard output of a command that has to work. Raises ImageError."""
    ended = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode:
        raise ImageError(f"{argv[0]} failed: {(ended.stdout + ended.stderr).strip()[-600:]}")
    return ended.stdout
