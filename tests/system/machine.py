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
# What an emulated machine pays dearly for and the tests do not look at: mitigations of a processor that is not there,
# a fifth level of page tables, a clock that is read from a device (the kernel distrusts an emulated TSC), and the audit
# of each system call. On two busy cores boot to login takes 18 s with these, and 32 s without.
KERNEL_WORDS = """\
root=/dev/vda rw console=ttyS0 quiet systemd.show_status=no psi=1 panic=-1
mitigations=off audit=0 clocksource=tsc tsc=reliable
"""
# With two emulated processors a kernel that patches its own text may meet a breakpoint that it has just taken out
# ("Oops: int3" a second after the start, seen once in some twenty boots): no matter of what is tested.
BOOTS = 3
PANIC = b"Kernel panic - not syncing"
PROCESSOR = "max,la57=off,svm=off,vmx=off"


class MachineError(Exception):
    """The guest did not come to an end; the message has the end of its console."""


def run(disk: Disk, phase: str, expression: str) -> tuple[int, str]:
    """Boot, pass on what the tests write to the second serial port; their exit status, and all they wrote.

    Raises MachineError.
    """
    console, lines = f"{disk.path}.console", f"{disk.path}.tests"
    words = [*KERNEL_WORDS.split(), f"edgeguardd.phase={phase}", f"edgeguardd.python_ms={python_ms()}"]
    if expression:
        words.append(f"edgeguardd.only={expression.replace(' ', '_')}")
    argv = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-smp", "2", "-m", MEMORY, "-cpu", PROCESSOR]
    argv += ["-display", "none", "-no-reboot", "-monitor", "none", "-nic", "none"]
    argv += ["-kernel", disk.kernel, "-initrd", disk.initrd, "-append", " ".join(words)]
    argv += [
        "-drive",
        # Nobody needs the disk after the machine has crashed: what the guest syncs need not reach it.
        f"file={disk.path},format=raw,if=virtio,cache=unsafe",
        "-object",
        "rng-random,id=rng",
        "-device",
        "virtio-rng-pci,rng=rng",
    ]
    argv += ["-serial", f"file:{console}", "-serial", f"file:{lines}"]
    for _ in range(BOOTS):
        seen = _boot(argv, console, lines)
        if seen or not _panicked(console):
            break
        print("the emulated kernel panicked before it had started anything: booting again", flush=True)
    found = STATUS.findall(seen)
    if not found:
        raise MachineError(f"the guest ended without a result; the end of its console:\n{_tail(console)}")
    return int(found[-1]), seen.decode("utf-8", "replace")


def _boot(argv: list[str], console: str, lines: str) -> bytes:
    """One time on and off: what the tests wrote."""
    for path in (console, lines):
        with open(path, "wb"):
            pass
    guest = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    try:
        return _follow(guest, lines, time.monotonic() + LIMIT_S)
    finally:
        if guest.poll() is None:
            guest.kill()
        guest.wait()


def _panicked(console: str) -> bool:
    with open(console, "rb") as file:
        return PANIC in file.read()


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
