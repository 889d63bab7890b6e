"""python -m edgeguardd.bridges.moved FILE PROGRAM [ARGUMENT …]: move into a cgroup, then become the program.

FILE is the cgroup's cgroup.procs. Must not: do more: what it allocates counts in that cgroup. Upstream: supervise.
Downstream: the server.
"""

import os
import sys


def main() -> None:
    """Write, then exec. Exit status 126: the cgroup cannot be entered; 127: the program cannot be run."""
    file, *argv = sys.argv[1:]
    try:
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
