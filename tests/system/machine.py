"""One boot of the guest: QEMU without KVM, the console to a file, the tests' lines to standard output.

Must not: outlive its limit or leave a QEMU behind. Upstream: __main__. Downstream: qemu-system-x86_64.
"""

import os
import re
import subprocess
import sys
import time

from tests.system.image import Disk

# 24 s to boot and shut down, then the tests; under emulation on two cores everything takes ten times as long.
LIMIT_S = 1200.0
MEMORY = "2048"
STATUS = re.compile(rb"^system-tests: exit status (\d+)\s*$", re.MULTILINE)
POLL_S = 0.1
# The same in tests/system/guest/first/test_b_upgrade.py.
PYTHON_STARTS = ["/usr/bin/python3", "-I", "-c", "import asyncio, argparse, json, logging, tomllib"]
CONSOLE_LINES = 40


class MachineError(Exception):
    """The guest did not come to an end; the message has the end of its console."""


def run(disk: Disk, phase: str, expression: str) -> int:
    """Boot, pass on what the tests write to the second serial port; their exit status. Raises MachineError."""
    console, lines = f"{disk.path}.console", f"{disk.path}.tests"
    words = ["root=/dev/vda", "rw", "console=ttyS0", "psi=1", "quiet", "systemd.show_status=no"]
    words += [f"edgeguardd.phase={phase}", f"edgeguardd.python_ms={python_ms()}"]
    if expression:
        words.append(f"edgeguardd.only={expression.replace(' ', '_')}")
    argv = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-smp", "2", "-m", MEMORY, "-cpu", "max"]
    argv += ["-display", "none", "-no-reboot", "-monitor", "none", "-nic", "none"]
    argv += ["-kernel", disk.kernel, "-initrd", disk.initrd, "-append", " ".join(words)]
    argv += [
        "-drive",
        f"file={disk.path},format=raw,if=virtio",
        "-object",
        "rng-random,id=rng",
        "-device",
        "virtio-rng-pci,rng=rng",
    ]
    argv += ["-serial", f"file:{console}", "-serial", f"file:{lines}"]
    for path in (console, lines):
        with open(path, "wb"):
            pass
    guest = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        seen = _follow(guest, lines, time.monotonic() + LIMIT_S)
    finally:
        if guest.poll() is None:
            guest.kill()
        guest.wait()
    found = STATUS.findall(seen)
    if not found:
        raise MachineError(f"the guest ended without a result; the end of its console:\n{_tail(console)}")
    return int(found[-1])


def python_ms() -> int:
    """How long a Python program takes to start on this machine: what figures of the guest are to be held against."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run(PYTHON_STARTS, check=True)
        times.append(time.monotonic() - began)
    return max(1, round(min(times) * 1000))


def _follow(guest: "subprocess.Popen[bytes]", lines: str, until: float) -> bytes:
    """Pass on what comes until the guest ends; all of it."""
    seen = b""
    with open(lines, "rb") as file:
        while True:
            ended = guest.poll() is not None
            new = file.read().replace(b"\r\n", b"\n")
            seen += new
            sys.stdout.write(STATUS.sub(b"", new).decode("utf-8", "replace"))
            sys.stdout.flush()
            if ended:
                return seen
            if time.monotonic() > until:
                console = _tail(f"{lines.removesuffix('.tests')}.console")
                raise MachineError(f"the guest was not done after {LIMIT_S:.0f} s; the end of its console:\n{console}")
            time.sleep(POLL_S)


def _tail(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 16384))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-CONSOLE_LINES:])
