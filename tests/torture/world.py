"""The stage: cgroups with servers in them, a daemon that can be afflicted, and what the kernel says of it all.

Must not: judge (oracle does), choose what happens (plan does). Upstream: rounds. Downstream: actor.py, afflicted.py,
tests.support.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

from tests.support.cgroup import Cgroup
from tests.support.running import Daemon
from tests.support.wait import DEADLINE_S, eventually

MIB = 1 << 20
SERVERS = ("a", "b", "c")
QUIET = "q"
HIGH_BYTES = 64 * MIB
MAX_BYTES = 80 * MIB
STATIC_BYTES = 12 * MIB
ANSWER_S = 60.0
# So many looks at descriptors, a few milliseconds apart, that are alike are the state of rest.
LOOKS_ALIKE = 20
# So many of the daemon's last words on a target are shown with a finding.
TAIL = 12
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "actor.py")

# Short dwells, so that a round is over soon; marks and hysteresis are the defaults, which the oracle knows.
CONFIG = """
cgroup_root = "/sys/fs/cgroup"
state_directory = "{directory}/state"

[socket]
path = "{directory}/s"
stall = "1s"
heartbeat = "1s"

[http]
port = {port}

[log]
format = "json"

[recorder]
max_size = "256K"

[sampling]
slow = "250ms"
fast = "50ms"

[defaults]
dwell = 0.05
restore_dwell = 0.05
repeat = 0.5
static = {static}

"""
# A guest's kernel is the tests' own: so little is remembered of directories, and everybody may fill the log.
GUEST_SETTINGS = (
    ("/proc/sys/fs/inotify/max_queued_events", "64"),
    ("/proc/sys/kernel/printk_devkmsg", "on\n"),
)
# The one that nobody answers for: the daemon itself acts.
RESORT = """
[target.last_resort]
critical = ["reclaim", {action = "freeze", max_freeze = "200ms", hold_off = "1s"}]
"""


class Actor:
    """One server process, its orders and its journal."""

    def __init__(self, world: "World", name: str, seed: int) -> None:
        self.name = name
        self.journal: list[dict[str, Any]] = []
        self._world = world
        self._orders = self._done = 0
        target = "" if name == QUIET else name
        argv = [sys.executable, "-I", "-S", "-B", SCRIPT, world.daemon.socket_path, target, str(seed)]
        self.process = world.cgroups[name].spawn(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.first("ready")

    def first(self, what: str, since: int = 0) -> dict[str, Any]:
        """The first entry of a kind, come or coming."""
        found = eventually(lambda: self._said(what, since), ANSWER_S, what=f"{self.name} says {what}")
        assert found is not None
        return found

    def order(self, do: str, *, wait: bool = True, **words: Any) -> dict[str, Any]:
        """One order, and what it has come to. An actor that is dead, or dies over it, answers {}."""
        self._orders += 1
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **words}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {}
        if not wait:
            return {}
        number = self._orders
        with contextlib.suppress(DeadError):
            eventually(lambda: self._alive() and self._done >= number, ANSWER_S, what=f"{self.name} has done {do}")
            return next(entry for entry in reversed(self.journal) if entry["what"] == "did")
        return {}

    @property
    def busy(self) -> bool:
        """Whether it has orders that it has not carried out yet."""
        return self._done < self._orders

    def commands(self, since: float = 0.0) -> list[dict[str, Any]]:
        """The commands it got, as journal entries."""
        return [entry for entry in list(self.journal) if entry["what"] == "command" and entry["at"] >= since]

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it, its pipes and the thread."""
        self.process.kill()
        self.process.wait()
        self._reader.join(ANSWER_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _alive(self) -> bool:
        if not self.alive:
            raise DeadError(self.name)
        return True

    def _said(self, what: str, since: int) -> dict[str, Any] | None:
        found = next((entry for entry in self.journal[since:] if entry["what"] == what), None)
        return found if found is not None or self._alive() else None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # killed in the middle of a line
                entry = json.loads(line)
                self.journal.append(entry)
                self._done += entry["what"] == "did"


class DeadError(Exception):
    """An actor died."""


class Afflicted(Daemon):
    """The daemon with afflictions in it, and the way to its control socket."""

    def __init__(self, directory: str, config: str, port: int) -> None:
        self.port = port
        self._facts: list[dict[str, Any]] = []
        self._read_bytes = 0
        # The last counts of calls heard of each run, by process.
        self.counted: dict[int, dict[str, Any]] = {}
        # What it said that is no log line: tracebacks, and sentences of the command.
        self.words: list[str] = []
        super().__init__(directory, config, start=False)
        self.control_path = f"{directory}/control"
        self.command = [sys.executable, "-m", "tests.torture.afflicted", "run"]
        self.environment = {"EDGEGUARDD_AFFLICTIONS": self.control_path}
        self.starting_with: list[dict[str, Any]] = []
        # What replayed.check compares is not to be had of a daemon that is killed again and again.
        self.killed = True

    @property
    def http(self) -> str:
        """Known also of a run whose log is what cannot be written."""
        return f"http://127.0.0.1:{self.port}"

    def write_config(self, body: str) -> None:
        """The whole configuration."""
        with open(self.config_path, "w") as file:
            file.write(body)

    def all_facts(self) -> list[dict[str, Any]]:
        """All log lines, each read once."""
        try:
            with open(self.log_path, "rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return self._facts
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                self._facts.append(json.loads(line))
            else:
                self.words.append(line.decode(errors="replace"))
        return self._facts

    def start(self, *, wait: bool = True) -> None:
        """Start with what `starting_with` says in force."""
        with open(f"{self.control_path}.start", "w") as file:
            file.writelines(json.dumps(asked) + "\n" for asked in self.starting_with)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.control_path)
        super().start(wait=wait)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def ask(self, do: str, **words: Any) -> dict[str, Any]:
        """One question to the control socket. A daemon that is dead, or dies over it, answers {}."""
        answer = self._asked(do, words)
        # Each run counts from zero; what was last heard of one before is kept.
        if answer and self.process is not None:
            self.counted[self.process.pid] = answer
        return answer

    def _asked(self, do: str, words: dict[str, Any]) -> dict[str, Any]:
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(ANSWER_S)
                eventually(lambda: not self.alive or os.path.exists(self.control_path))
                sock.connect(self.control_path)
                with sock.makefile("rwb") as file:
                    file.write(json.dumps({"do": do, **words}).encode() + b"\n")
                    file.flush()
                    line = file.readline()
        except ConnectionError:
            return {}
        return dict(json.loads(line)) if line else {}

    def resident_bytes(self) -> int:
        """RSS."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> dict[str, int]:
        """What its descriptors are, and how many of each; numbers of sockets and pipes left out."""
        found: dict[str, int] = {}
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                what = os.readlink(f"/proc/{self.pid}/fd/{name}").split(":")[0]
                found[what] = found.get(what, 0) + 1
        return found

    def open_files_at_rest(self) -> dict[str, int]:
        """As open_files, once many looks are alike: a connection that was just asked through is about to be closed."""
        looks = [self.open_files()]

        def alike() -> bool:
            looks.append(self.open_files())
            return looks[-LOOKS_ALIKE:] == [looks[-1]] * LOOKS_ALIKE

        eventually(alike)
        return looks[-1]


class World:
    """Everything that is on stage."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        # What the daemon has open at rest.
        self.baseline: dict[str, int] = {}
        # The servers to which, and to whose way to the daemon, nothing is done in this round.
        self.undisturbed: set[str] = set()
        with open("/proc/cpuinfo") as file:
            self.is_guest = "User Mode Linux" in file.read()
        self.directory = tempfile.mkdtemp(prefix="edgeguardd-torture-", dir="/run")
        self._undo = contextlib.ExitStack()
        self._undo.callback(shutil.rmtree, self.directory)
        try:
            self._set_up()
        except BaseException:
            self._undo.close()
            raise

    def _set_up(self) -> None:
        self._numbers = itertools.count(1)
        if self.is_guest:
            for path, value in GUEST_SETTINGS:
                with open(path, "w") as file:
                    file.write(value)
        self.state_directory = f"{self.directory}/state"
        mounted(self._undo, self.state_directory, "size=1M,mode=0700")
        self.top = self._undo.enter_context(Cgroup.fresh("torture"))
        self.top.write("cgroup.subtree_control", "+memory")
        self.cgroups: dict[str, Cgroup] = {}
        self.limits: dict[str, tuple[int, int]] = {}
        for name in (*SERVERS, QUIET):
            self.cgroups[name] = self._undo.enter_context(self.top.child(name))
            self.limit(name, HIGH_BYTES, MAX_BYTES)
        port = free_port()
        self.config = self._config(port)
        self.daemon = Afflicted(self.directory, self.config, port)
        self._undo.callback(self._end_daemon)
        self.daemon.start()
        self.actors: dict[str, Actor] = {}
        self._undo.callback(self._end_actors)
        for name in (*SERVERS, QUIET):
            self.spawn(name)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def spawn(self, name: str) -> Actor:
        """A new server in this cgroup, in place of one that is dead. The quiet one's subscribes to nothing."""
        old = self.actors.pop(name, None)
        if old is not None:
            old.close()
        made = Actor(self, name, self.seed * 1000 + next(self._numbers))
        self.actors[name] = made
        return made

    def limit(self, name: str, high: int, most: int) -> None:
        """Write both limits of a cgroup: from here on they have to stay so."""
        cgroup = self.cgroups[name]
        cgroup.set(high=high, max=most)
        self.limits[name] = (high, most)

    def needed(self, name: str) -> int:
        """Needed bytes of a cgroup as the kernel has them, read in the tests' own way."""
        stat = self.cgroups[name].keyed("memory.stat")
        file = max(stat["shmem"], min(stat["shmem"] + stat["file_mapped"], stat["file"]))
        return stat["anon"] + file + stat["kernel"] - stat["slab_reclaimable"] + stat["sock"]

    def fill(self, name: str, ratio: float, *, wait: bool = True) -> None:
        """Have the server take memory up to this share of its elastic range below memory.high."""
        goal = int(STATIC_BYTES + ratio * (self.limits[name][0] - STATIC_BYTES))
        size = goal - self.needed(name)
        if size > 0:
            self.actors[name].order("grow", bytes=size, wait=wait)

    def counted(self) -> tuple[Counter[str], Counter[str]]:
        """How often each call into the kernel was made, and failed, as far as it was heard of."""
        calls: Counter[str] = Counter()
        hits: Counter[str] = Counter()
        for answer in self.daemon.counted.values():
            calls.update(answer["calls"])
            hits.update(answer["hits"])
        return calls, hits

    def testimony(self) -> str:
        """What the daemon says of targets that are not at rest, with its last words on each, for whoever reads it."""
        status, facts = self.daemon.status(), self.daemon.all_facts()
        rows = [row for row in status["targets"] if row["rung"] != "normal" and row["name"] != QUIET]
        words = [fact for fact in facts if fact.get("target") in {row["name"] for row in rows}][-TAIL:]
        return json.dumps({"targets": rows, "machine": status["machine"], "log": words})

    def http_status(self, path: str) -> int:
        """The status that a page answers with."""
        try:
            with urllib.request.urlopen(self.daemon.http + path, timeout=DEADLINE_S) as answer:  # noqa: S310  loopback
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code

    def reloads(self) -> float:
        """How many reloads were taken, whatever came of them."""
        results = ("applied", "rejected")
        return sum(self.daemon.metric("edgeguardd_reloads_total", result=result) or 0 for result in results)

    def row(self, name: str) -> dict[str, Any]:
        """The target's row of /status."""
        return next((row for row in self.daemon.status()["targets"] if row["name"] == name), {})

    def _config(self, port: int) -> str:
        targets = "".join(
            f'[[target]]\nname = "{name}"\npath = "{cgroup.below_root}"\n{RESORT if name == QUIET else ""}'
            for name, cgroup in self.cgroups.items()
        )
        churn = f'[[target]]\nname = "g"\nglob = "{self.top.below_root}/churn*"\n'
        return CONFIG.format(static=STATIC_BYTES, directory=self.directory, port=port) + targets + churn

    def _end_actors(self) -> None:
        for name, actor in self.actors.items():
            self.cgroups[name].write("memory.high", "max")
            self.cgroups[name].write("cgroup.freeze", "0")
            actor.close()

    def _end_daemon(self) -> None:
        if self.daemon.alive:
            os.kill(self.daemon.pid, signal.SIGCONT)
            self.daemon.ask("heal")
            self.daemon.stop()


def differing(first: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Of which there are more or fewer than at first.

    Recordings take turns, and what could not be opened at the start (a recording, the journal) is done without.
    """
    return {
        what: (first.get(what, 0), now.get(what, 0))
        for what in sorted(first.keys() | now.keys())
        if now.get(what, 0) > first.get(what, 0) or (now.get(what, 0) < first.get(what, 0) and "/state/" not in what)
        if "recording-" not in what
    }


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def mounted(undo: contextlib.ExitStack, path: str, options: str) -> None:
    """A tmpfs there, until `undo` closes."""
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
    # Lazily: a daemon that is still about to die may have a file open there.
    undo.callback(subprocess.run, ["umount", "-l", path], check=True)
