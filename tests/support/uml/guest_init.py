"""The first process of a user-mode Linux guest: mount what tests need, run one command, pass its status out, halt.

Must not: import anything of the project or of site-packages (it runs with -I -S before anything is set up).
Upstream: runner writes spec.json beside this file's copy. Downstream: the command; runner reads status.json.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import termios
import time
import tty
from typing import Any

CGROUP_ROOT = "/sys/fs/cgroup"
OUTPUT = "/dev/tty1"
# type, where; the root is the host's file system, and /dev is the guest's own (CONFIG_DEVTMPFS_MOUNT).
MOUNTS = (
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("tmpfs", "/run"),
    ("tmpfs", "/dev/shm"),
    ("devpts", "/dev/pts"),
    ("cgroup2", CGROUP_ROOT),
)
RB_HALT_SYSTEM = 0xCDEF0123  # reboot(2)
SIOCSIFFLAGS = 0x8914  # netdevice(7)
IFF_UP = 0x1

libc = ctypes.CDLL(None, use_errno=True)


def main(directory: str) -> None:
    """Run the command of directory/spec.json; halt whatever happens, for init must never return."""
    try:
        with open(f"{directory}/spec.json") as file:
            spec = json.load(file)
        prepare()
        answer = run(spec)
    except Exception as error:  # the edge: whatever it is, the host has to hear of it
        answer = {"status": None, "trouble": f"cannot set up the guest: {error!r}"}
    put(f"{directory}/status.json", json.dumps(answer))
    libc.sync()
    libc.reboot(ctypes.c_int(RB_HALT_SYSTEM - (1 << 32)))


def prepare() -> None:
    """Mounts, cgroup controllers, loopback interface, descriptor limit."""
    for kind, where in MOUNTS:
        os.makedirs(where, exist_ok=True)
        if libc.mount(kind.encode(), where.encode(), kind.encode(), 0, None) < 0:
            raise OSError(ctypes.get_errno(), f"cannot mount {kind} on {where}")
    with open(f"{CGROUP_ROOT}/cgroup.controllers") as file:
        controllers = file.read().split()
    for name in controllers:
        put(f"{CGROUP_ROOT}/cgroup.subtree_control", f"+{name}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 65536))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the command to its end or its limit; orphans that land here are reaped on the way."""
    out = os.open(OUTPUT, os.O_WRONLY | os.O_NOCTTY)
    mode = termios.tcgetattr(out)
    mode[tty.OFLAG] &= ~termios.OPOST  # or each newline would become CR LF
    termios.tcsetattr(out, termios.TCSANOW, mode)
    child = os.fork()
    if child == 0:
        become(spec, out)
    until = time.monotonic() + spec["limit_s"]
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            termios.tcdrain(out)
            return {"status": os.waitstatus_to_exitcode(status), "trouble": None}
        if time.monotonic() > until:
            return {"status": None, "trouble": f"the command did not end within {spec['limit_s']:.0f} s"}
        if pid == 0:
            # A child's end interrupts the wait at once; the time-out is only for the limit.
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)


def become(spec: dict[str, Any], out: int) -> None:
    """Turn this forked process into the command."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (out, 2)):
            os.dup2(source, target)
        os.closerange(3, 256)
        os.chdir(spec["cwd"])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - a program is what is wanted
    except OSError as error:
        os.write(2, f"cannot run {spec['argv'][0]}: {error}\n".encode())
    os._exit(127)


def put(path: str, text: str) -> None:
    """Write and push through to the host: the guest caches host files like any disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_SYNC, 0o644)
    os.write(descriptor, text.encode())
    os.close(descriptor)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    main(sys.argv[1])
