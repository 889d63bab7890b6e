"""Starts a program as a container runtime would, in a cgroup and namespaces of its own, and passes signals on.

    python tests/support/apart.py CGROUP NAMESPACES TREE PROGRAM…      NAMESPACES: "cgroup", "pid", "cgroup,pid", "none"

TREE: a directory on which the cgroup tree is mounted besides, read-only, as a hostPath volume is; "-" for none.

Must not: use the code under test or anything outside the standard library. Upstream: tests/kernel.
"""

import ctypes
import os
import signal
import sys

# sched.h; os.unshare came with Python 3.12.
FLAGS = {"cgroup": 0x02000000, "pid": 0x20000000, "mount": 0x00020000}
# sys/mount.h
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
SCRIPT = os.path.abspath(__file__)
LIBC = ctypes.CDLL(None, use_errno=True)


def command(cgroup: str, *namespaces: str, tree: str = "-") -> list[str]:
    """What to write before the program; `cgroup` is the full path."""
    return [sys.executable, "-I", "-S", SCRIPT, cgroup, ",".join(namespaces) or "none", tree]


def main(cgroup: str, namespaces: list[str], tree: str, program: list[str]) -> None:
    """Move, part, and become the program. A new pid namespace holds only children: there it is one, and waited for."""
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    parted = [*namespaces, "mount"] if tree != "-" else namespaces
    system("unshare", sum(FLAGS[name] for name in parted))
    if tree != "-":
        system("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
        system("mount", b"/sys/fs/cgroup", tree.encode(), None, MS_BIND, None)
        system("mount", None, tree.encode(), None, MS_REMOUNT | MS_BIND | MS_RDONLY, None)
    if "pid" in namespaces:
        child = os.fork()
        if child:
            signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os.execv(program[0], program)  # noqa: S606  no shell wanted


def system(name: str, *arguments: object) -> None:
    """One call of the C library. Raises OSError."""
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"cannot {name} {arguments}")


if __name__ == "__main__":
    main(sys.argv[1], [name for name in sys.argv[2].split(",") if name != "none"], sys.argv[3], sys.argv[4:])
