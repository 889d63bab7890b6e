"""A server to practise on: conversations whose cache grows, idle ones that stay, and memory for 200 MiB.

As root on a machine with cgroup v2 it makes a cgroup of its own, limits it and lives in it. Elsewhere it writes into a
directory of plain files what the kernel would say of such a cgroup, and holds no memory at all: edgeguardd reads the
same figures. docs/tutorial/first-pressure.md leads through it. With --beside it runs another program where the practice
server lives, so that its memory counts there too. With --service it is a server like any other, in a container or a
unit that has limited it (docs/how-to/docker.md).
"""

import argparse
import contextlib
import mmap
import os
import runpy
import signal
import sys
import threading
import time

from edgeguardd.client import Command, Released, Subscriber

MIB = 1 << 20
LIMIT = 200 * MIB
WEIGHTS = 32 * MIB  # what it holds at rest
BATCH = 8  # conversations that run at once
TURN = MIB // 2  # what a turn of a conversation adds to its cache
TURNS = 40  # after so many it is idle, and stays in the cache for whoever comes back
TICK_S = 0.2
ROOT = "/sys/fs/cgroup"

CONFIG = """# practice.toml: edgeguardd for the practice server
cgroup_root = "{root}"
state_directory = "{directory}/state"

[[target]]
name = "practice"
path = "{path}"

[socket]
path = "{socket}"
allow_uids = [{uid}]
"""


def say(text: str) -> None:
    """One line for the reader."""
    print(f"practice: {text}", flush=True)


class KernelCgroup:
    """A real one. Raises OSError where it cannot be had."""

    root, path, limit = ROOT, "/edgeguardd-practice", LIMIT
    says = "the kernel counts"

    def __init__(self, *, made: bool = False) -> None:
        """`made`: the practice server has made it, and another program comes in."""
        os.stat(f"{ROOT}/cgroup.controllers")  # else it is version 1
        with open("/proc/self/cgroup") as file:
            self._before = next(line.strip()[3:] for line in file if line.startswith("0::"))
        if not made:
            self._make()
        self._write(f"{self.path}/cgroup.procs", str(os.getpid()))

    def _make(self) -> None:
        with contextlib.suppress(OSError):  # most often it is on already
            self._write("/cgroup.subtree_control", "+memory")
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(ROOT + self.path)  # of one that was killed
        os.mkdir(ROOT + self.path)
        self._write(f"{self.path}/memory.max", str(LIMIT))
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
            self._write(f"{self.path}/memory.swap.max", "0")

    def hold(self, size: int) -> mmap.mmap:
        """Memory that is really taken."""
        return taken(size)

    def count(self, needed: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Leave it; whoever is the last takes it away."""
        self._write(f"{self._before.rstrip('/')}/cgroup.procs", str(os.getpid()))
        with contextlib.suppress(OSError):  # somebody is still inside
            os.rmdir(ROOT + self.path)

    def _write(self, name: str, text: str) -> None:
        with open(ROOT + name, "w") as file:
            file.write(text)


class OwnCgroup:
    """The one that it was started in, limited by whoever did that."""

    root, says = ROOT, "limited by the container or the unit"

    def __init__(self) -> None:
        with open("/proc/self/cgroup") as file:
            path = next((line.strip()[3:] for line in file if line.startswith("0::")), "/")
        # A container that has been given no namespace of its own sees its cgroup at the top all the same.
        self.path = path.rstrip("/") if os.path.exists(f"{ROOT}{path}/memory.max") else ""
        try:
            with open(f"{ROOT}{self.path}/memory.max") as file:
                self.limit = int(file.read())
        except (OSError, ValueError):
            sys.exit(
                "practice: cannot find a limit to practise with: start it where memory.max is set, such as docker run "
                "--memory 256m or systemd-run -p MemoryMax=256M"
            )

    def hold(self, size: int) -> mmap.mmap:
        """Memory that is really taken."""
        return taken(size)

    def count(self, needed: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def taken(size: int) -> mmap.mmap:
    """Pages that are there because they have been written to."""
    held = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        held[page] = 1
    return held


_OTHERS = "file 0\nkernel 0\nshmem 0\nfile_mapped 0\nslab_reclaimable 0\n"


class PlainFiles:
    """What the kernel would write about one."""

    path, limit = "/practice", LIMIT
    says = "plain files stand in for the kernel's (it takes root and cgroup v2)"

    def __init__(self, directory: str) -> None:
        self.root = f"{directory}/cgroup"
        self._beside = f"{directory}/beside"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._beside)  # of the time before
        os.makedirs(self.root + self.path, exist_ok=True)
        self._write("/cgroup.controllers", "memory\n")
        self._write(f"{self.path}/memory.max", f"{LIMIT}\n")
        self._write(f"{self.path}/memory.high", "max\n")
        self.count(WEIGHTS)
        events = "".join(f"{name} 0\n" for name in ("low", "high", "max", "oom", "oom_kill", "oom_group_kill"))
        self._write(f"{self.path}/memory.events.local", events)
        self._write(f"{self.path}/memory.events", events)

    def hold(self, size: int) -> None:
        """Nothing is taken."""

    def count(self, needed: int) -> None:
        """Say how much it would be, with the program beside; above the limit, do what the kernel does."""
        needed += self._taken_beside()
        self._write(f"{self.path}/memory.stat", f"anon {needed}\n{_OTHERS}")
        self._write(f"{self.path}/memory.current", f"{needed}\n")
        if needed > LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """The files stay, to be looked at."""

    def _taken_beside(self) -> int:
        with contextlib.suppress(OSError, ValueError):  # there is none, or none any more
            with open(self._beside) as file:
                pid, at_first = map(int, file.read().split())
            return max(0, anonymous(pid) - at_first)
        return 0

    def _write(self, name: str, text: str) -> None:
        # In place, as the kernel does: edgeguardd keeps its files open.
        fd = os.open(self.root + name, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(fd, text.encode(), 0)
        os.ftruncate(fd, len(text))
        os.close(fd)


class BesidePlainFiles:
    """Another program's part in them: the practice server adds what this process takes from now on."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/beside"
        with open(self._path, "w") as file:
            file.write(f"{os.getpid()} {anonymous(os.getpid())}\n")

    def close(self) -> None:
        """It counts no longer."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


def anonymous(pid: int) -> int:
    """A process's own memory. Raises OSError or ValueError where there is no such process."""
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory")


Cgroup = KernelCgroup | OwnCgroup | PlainFiles


class Server:
    """Conversations, running and idle. Handlers of commands run in the client's thread."""

    def __init__(self, cgroup: Cgroup) -> None:
        self.limit, self.accepting = BATCH, True
        self._cgroup = cgroup
        self._weights = cgroup.hold(WEIGHTS)
        self._running: list[list[mmap.mmap | None]] = []
        self._idle: list[list[mmap.mmap | None]] = []
        self._lock = threading.Lock()

    def tick(self) -> None:
        """One turn of each that runs; new ones come while there is place."""
        with self._lock:
            if self.accepting and len(self._running) < self.limit:
                self._running.append([])
            for conversation in self._running:
                conversation.append(self._cgroup.hold(TURN))
            self._idle += [one for one in self._running if len(one) >= TURNS]
            self._running = [one for one in self._running if len(one) < TURNS]
            self._cgroup.count(self.needed())

    def trim(self, command: Command) -> Released:
        """Drop idle conversations, the oldest first, until that much is free."""
        freed = 0
        with self._lock:
            while self._idle and freed < (command.parameters.release_bytes or 0):
                for held in (dropped := self._idle.pop(0)):
                    if held is not None:
                        held.close()
                freed += len(dropped) * TURN
            self._cgroup.count(self.needed())
        say(
            f"trim_kv_cache: asked for {(command.parameters.release_bytes or 0) // MIB} MiB, dropped {freed // MIB} MiB"
        )
        return Released(freed)

    def obey(self, command: Command) -> None:
        """Run as many, and take new ones, as the daemon allows now; those too many are put aside."""
        if command.parameters.max_batch_ratio is not None:
            self.limit = max(1, int(BATCH * command.parameters.max_batch_ratio))
        with self._lock:
            self._idle += self._running[self.limit :]
            self._running = self._running[: self.limit]
        if command.parameters.accept_requests is not None:
            self.accepting = command.parameters.accept_requests
        say(f"{command.action}: {self.limit} at once, {'taking' if self.accepting else 'refusing'} new ones")

    def needed(self) -> int:
        """What it takes."""
        return WEIGHTS + sum(len(one) for one in (*self._running, *self._idle)) * TURN

    def line(self) -> str:
        """For the reader."""
        full = f"{self.needed() // MIB} of {self._cgroup.limit // MIB} MiB"
        return f"{full}, {len(self._running)} running, {len(self._idle)} idle"


def prepare(directory: str) -> tuple[Cgroup, str]:
    """The cgroup, and the daemon's socket, which practice.toml names."""
    socket = f"{directory}/edgeguardd.sock"
    if len(socket.encode()) > 107:
        sys.exit(f"practice: cannot use {directory}: a socket's path has room for 107 bytes; go to a shorter one")
    os.makedirs(f"{directory}/state", mode=0o700, exist_ok=True)
    cgroup: Cgroup
    try:
        cgroup = KernelCgroup()
    except (OSError, StopIteration):
        cgroup = PlainFiles(directory)
    with open("practice.toml", "w") as file:
        file.write(
            CONFIG.format(root=cgroup.root, path=cgroup.path, directory=directory, socket=socket, uid=os.getuid())
        )
    return cgroup, socket


def run_beside(program: str, directory: str) -> None:
    """Run a Python program in the practice server's memory, until it is interrupted."""
    os.environ["EDGEGUARDD_SOCKET"] = f"{directory}/edgeguardd.sock"
    place: KernelCgroup | BesidePlainFiles
    try:
        place = KernelCgroup(made=True)
    except (OSError, StopIteration):
        place = BesidePlainFiles(directory)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(place):
        runpy.run_path(program, run_name="__main__")


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alone", action="store_true", help="do not subscribe")
    parser.add_argument("--service", action="store_true", help="be guarded in the cgroup that it is started in")
    parser.add_argument("--beside", metavar="PROGRAM", help="run this Python program where the practice server lives")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what ends a container ends it as Ctrl-C does
    if args.beside:
        run_beside(args.beside, os.path.abspath("practice"))
        return
    cgroup, socket = (OwnCgroup(), None) if args.service else prepare(os.path.abspath("practice"))
    say(f"memory for {cgroup.limit // MIB} MiB in {cgroup.root}{cgroup.path}: {cgroup.says}")
    server = Server(cgroup)
    guard = Subscriber("practice", path=socket, target="self" if args.service else "practice")
    guard.on("trim_kv_cache")(server.trim)
    for action in ("reduce_batch", "reject_requests", "restore"):
        guard.on(action)(server.obey)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(cgroup):
        if not args.alone:
            guard.report(static_bytes=WEIGHTS, batch_limit=BATCH)
            say("waiting for edgeguardd" + ("" if args.service else ": edgeguardd run --config practice.toml"))
            guard.start()
            while not guard.connected:
                time.sleep(TICK_S)
        with contextlib.closing(guard):
            serve(server)


def serve(server: Server) -> None:
    """One line a second, until interrupted or killed."""
    ticks = 0
    while True:
        if ticks % 5 == 0:
            say(server.line())
        server.tick()
        time.sleep(TICK_S)
        ticks += 1


if __name__ == "__main__":
    main()
