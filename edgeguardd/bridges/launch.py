"""python -m edgeguardd.bridges.launch PARENT FILE SECONDS PROGRAM [ARGUMENT …]: enter a cgroup and become the server.

PARENT is the bridge's process: when it is killed, the server and all of its process group get SIGTERM, and SIGKILL
SECONDS later, instead of going on without a gate and in the way of the next one. FILE is the cgroup's cgroup.procs,
"-": stay in the bridge's cgroup.

    bridge ─▶ launch ─▶ the server (PR_SET_PDEATHSIG) ─▶ what it starts
                  └───▶ the lookout: waits for the end of either, in a session and, as the bridge is, out of the cgroup

What has left the server's process group (setsid(2)) is out of reach for both; a systemd unit ends such, too.

Must not: do more: what it allocates counts in that cgroup. Upstream: supervise. Downstream: the server.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1  # linux/prctl.h; kept over exec(2) but for set-user-ID programs
STAY = "-"
LOOK_AGAIN_S = 0.05


def main() -> None:
    """Exit status 126: the cgroup cannot be entered; 127: the program cannot be run."""
    parent, file, seconds, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        bridge = os.pidfd_open(int(parent))
    except ProcessLookupError:
        sys.exit(0)  # it has died before that was said
    if os.getppid() != int(parent):
        sys.exit(0)
    _post_lookout(bridge, float(seconds))
    os.close(bridge)
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


def _post_lookout(bridge: int, seconds: float) -> None:
    """Start it as nobody's child: the server shall not find one that it does not know."""
    server = os.getpid()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    status = 1
    try:
        os.setsid()
        if os.fork() == 0:
            _look_out(bridge, os.pidfd_open(server), server, seconds)
        status = 0
    finally:
        os._exit(status)


def _look_out(bridge: int, process: int, group: int, seconds: float) -> None:
    """Wait for the end of the bridge, and then end the server's group. The server's own end is the bridge's affair."""
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    quiet = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(quiet, standard)
    ended = select.poll()
    ended.register(bridge, select.POLLIN)
    ended.register(process, select.POLLIN)
    if bridge not in dict(ended.poll()):
        # The bridge now ends the rest of the group, unless it is killed over that.
        ended.unregister(process)
        until = time.monotonic() + seconds
        while _signal(group, 0) and time.monotonic() < until and not ended.poll(LOOK_AGAIN_S * 1000):
            pass
    until = time.monotonic() + seconds
    number: int = signal.SIGTERM
    while _signal(group, number) and time.monotonic() < until:
        number = 0
        time.sleep(LOOK_AGAIN_S)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether there is anybody in the group, zombies included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    main()
