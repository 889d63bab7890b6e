"""Measurements in a Debian guest in QEMU: systemd, PSI and real memory.high, on a processor that is emulated.

The disk is the one of the system tests, from the same root file system, made once; what it measures with comes on a
second disk, a tar file: this repository's Python, the libraries for the guest's Python, the C loop. Nothing that a run
does stays on the disk (-snapshot). What was found comes back over a serial port, a line a measurement.

Must not: know what is measured. Upstream: parts. Downstream: tests.system.image, qemu-system-x86_64, bench/in_guest.sh.
"""

import contextlib
import glob
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from tests.bench.probes import Found, ProbeError, Tell
from tests.support.running import REPOSITORY
from tests.system import builder, image

SUITE = "bookworm"
# Of that release.
PYTHON = "3.11"
HOME = os.path.join(REPOSITORY, ".build", "bench")
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "in_guest.sh")
INSIDE = "/opt/bench"
DISK_BYTES = 3 << 30
MEMORY_MIB = 1024
# The first of a run boots; each line of a measurement pushes this forward.
SILENT_S = 240.0
POLL_S = 0.1
FOUND, FAILED = "found: ", "failed: "
UNIT = f"""\
[Unit]
Description=Measurements
After=basic.target dbus.service systemd-oomd.service
[Service]
Type=exec
ExecStart=/bin/sh -c 'mkdir -p {INSIDE} && tar -xf /dev/vdb -C {INSIDE} && exec /bin/sh {INSIDE}/in_guest.sh'
StandardOutput=journal
OOMScoreAdjust=-900
[Install]
WantedBy=multi-user.target
"""
# Nothing of the guest's own shall run beside a measurement.
MASKED = ("prometheus", "prometheus-node-exporter", "apt-daily.timer", "apt-daily-upgrade.timer", "man-db.timer")


class Measured(NamedTuple):
    """What a boot brought, and why something is missing, a sentence each."""

    found: list[Found]
    missing: list[str]


def measure(probes: Sequence[Sequence[str]], loop: str, tell: Tell) -> Measured:
    """Each (module, option…), one after the other in one boot; `loop`: the C program. Raises ProbeError."""
    try:
        image.require_tools()
        disk = _disk()
        with tempfile.TemporaryDirectory(prefix="edgeguardd-bench-", dir="/var/tmp") as directory:
            code = _code(directory, probes, loop)
            tell(f"guest: booting Debian {SUITE} in QEMU, emulated, for {', '.join(each[0] for each in probes)}")
            return _run(disk, code, directory, tell)
    except image.ImageError as error:
        raise ProbeError(str(error)) from None


def _disk() -> image.Disk:
    """Made when the root file system or the unit is new."""
    base = image.base(os.path.join(REPOSITORY, image.CACHE), SUITE, "guest", image.PACKAGES)
    mark = hashlib.sha256(f"{os.path.basename(base)}{UNIT}{MASKED}".encode()).hexdigest()[:12]
    stem = os.path.join(HOME, f"guest-{mark}")
    disk = image.Disk(f"{stem}.ext4", f"{stem}.vmlinuz", f"{stem}.initrd")
    if os.path.exists(disk.path):
        return disk
    os.makedirs(HOME, exist_ok=True)
    for old in glob.glob(f"{HOME}/guest-*"):
        os.unlink(old)
    with tempfile.TemporaryDirectory(dir=HOME, prefix="root-") as root:
        image.command(["tar", "--extract", "--file", base, "--directory", root, "--numeric-owner", "--zstd"])
        units = os.path.join(root, "etc/systemd/system")
        with open(f"{units}/bench.service", "w") as file:
            file.write(UNIT)
        os.makedirs(f"{units}/multi-user.target.wants", exist_ok=True)
        os.symlink("../bench.service", f"{units}/multi-user.target.wants/bench.service")
        for unit in MASKED:
            name = f"{units}/{unit if '.' in unit else f'{unit}.service'}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            os.symlink("/dev/null", name)
        shutil.copy(max(glob.glob(f"{root}/boot/vmlinuz-*")), disk.kernel)
        shutil.copy(max(glob.glob(f"{root}/boot/initrd.img-*")), disk.initrd)
        image.command(["mke2fs", "-q", "-t", "ext4", "-d", root, f"{disk.path}.part", str(DISK_BYTES // 1024)])
    os.replace(f"{disk.path}.part", disk.path)
    return disk


def _code(directory: str, probes: Sequence[Sequence[str]], loop: str) -> str:
    """The second disk."""
    builder.wheels(REPOSITORY, PYTHON, f"{directory}/wheels")
    for wheel in glob.glob(f"{directory}/wheels/*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(f"{directory}/libraries")
    os.makedirs(f"{directory}/.build/bench")
    shutil.copy(loop, f"{directory}/.build/bench")
    shutil.copy(SCRIPT, f"{directory}/in_guest.sh")
    with open(f"{directory}/probes", "w") as file:
        file.writelines(" ".join(each) + "\n" for each in probes)
    code = f"{directory}/code.tar"
    own = ["in_guest.sh", "probes", "libraries", ".build"]
    without = ["--exclude=__pycache__", "--exclude=tests/cases"]
    image.command(["tar", "-cf", code, "-C", directory, *own, "-C", REPOSITORY, *without, "edgeguardd", "tests"])
    # A block device has whole sectors.
    with open(code, "ab") as file:
        file.truncate(-(-file.tell() // 512) * 512)
    return code


def _run(disk: image.Disk, code: str, directory: str, tell: Tell) -> Measured:
    lines, console = f"{directory}/lines", f"{directory}/console"
    argv = [
        "qemu-system-x86_64",
        "-accel",
        "tcg,thread=multi",
        "-smp",
        "2",
        "-m",
        str(MEMORY_MIB),
        "-cpu",
        "max,la57=off",
    ]
    argv += ["-display", "none", "-no-reboot", "-monitor", "none", "-nic", "none", "-snapshot"]
    argv += ["-drive", f"file={disk.path},format=raw,if=virtio", "-drive", f"file={code},format=raw,if=virtio"]
    argv += ["-object", "rng-random,id=rng", "-device", "virtio-rng-pci,rng=rng"]
    argv += ["-kernel", disk.kernel, "-initrd", disk.initrd]
    argv += ["-append", "root=/dev/vda rw console=ttyS0 psi=1 quiet systemd.show_status=no mitigations=off audit=0"]
    argv += ["-serial", f"file:{console}", "-serial", f"file:{lines}"]
    measured, ended = Measured([], []), False
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as guest:
        try:
            for line in _lines(guest, lines):
                if line.startswith(FOUND):
                    measured.found.append(msgspec.json.decode(line.removeprefix(FOUND), type=Found))
                elif line.startswith(FAILED):
                    measured.missing.append(line.removeprefix(FAILED))
                else:
                    tell(f"  {line}")
            ended = guest.poll() == 0
        finally:
            guest.kill()
    if not ended:
        with open(console, errors="replace") as file:
            end = " / ".join(file.read().split("\n")[-3:]).strip()
        measured.missing.append(f"the rest in QEMU: the guest did not come to its end; its console: {end}")
    if not measured.found:
        raise ProbeError("; ".join(measured.missing))
    return measured


def _lines(guest: "subprocess.Popen[bytes]", path: str) -> Iterator[str]:
    """Whole lines of the serial port, until the guest has ended or has been silent for too long."""
    partial, heard = "", time.monotonic()
    # Before the guest, so that there is something to read from.
    with open(path, "a+", errors="replace") as file:
        file.seek(0)
        while time.monotonic() - heard < SILENT_S:
            ended = guest.poll() is not None
            new = file.read().replace("\r", "")
            if new:
                heard = time.monotonic()
                *whole, partial = (partial + new).split("\n")
                yield from whole
            elif ended:
                return
            time.sleep(POLL_S)
