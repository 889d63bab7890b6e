"""Starts a program as a container runtime would, in a cgroup and namespaces of its own, and passes signals on.

    python tests/support/apart.py CGROUP NAMESPACES PROGRAM…      NAMESPACES: "cgroup", "pid", "cgroup,pid", "none"

Must not: use the code under test or anything outside the standard library. Upstream: tests/kernel.
"""

import ctypes
import os
import signal
import sys

# sched.h; os.unshare came with Python 3.12.
FLAGS = {"cgroup": 0x02000000, "pid": 0x20000000}
SCRIPT = os.path.abspath(__file__)


def command(cgroup: str, *namespaces: str) -> list[str]:
    """What to write before the program; `cgroup` is the full path."""
    return [sys.executable, "-I", "-S", SCRIPT, cgroup, ",".join(namespaces) or "none"]


def main(cgroup: str, namespaces: list[str], program: list[str]) -> None:
    """Move, part, and become the program. A new pid namespace holds only children: there it is one, and waited for."""
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    flags = sum(FLAGS[name] for name in namespaces)
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), f"cannot part {namespaces}")
    if "pid" in namespaces:
        child = os.fork()
        if child:
            signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.execv(program[0], program)  # noqa: S606  no shell wanted


if __name__ == "__main__":
    main(sys.argv[1], [name for name in sys.argv[2].split(",") if name != "none"], sys.argv[3:])
