"""python -m edgeguardd.bridges.launch PARENT FILE PROGRAM [ARGUMENT …]: enter a cgroup and become the server.

PARENT is the bridge's process: when it is killed, the server gets SIGTERM, instead of going on without a gate and in
the way of the next one. FILE is the cgroup's cgroup.procs, "-": stay in the bridge's cgroup.

Must not: do more: what it allocates counts in that cgroup. Upstream: supervise. Downstream: the server.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; kept over exec(2) but for set-user-ID programs
STAY = "-"


def main() -> None:
    """Exit status 126: the cgroup cannot be entered; 127: the program cannot be run."""
    parent, file, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(0)  # it has died before that was said
    try:
        if file != STAY:
            with open(file, "w") as procs:
                procs.write("0")
    except OSError as error:
        sys.stderr.write(f"cannot enter the cgroup of {file}: {os.strerror(error.errno or 0)}; make it first\n")
        sys.exit(126)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the operator's own command, without a shell
    except OSError as error:
        sys.stderr.write(f"cannot run {argv[0]}: {os.strerror(error.errno or 0)}; correct the command\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
