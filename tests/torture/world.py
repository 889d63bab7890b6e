"""The stage: cgroups with servers in them, a daemon that can be afflicted, and what the kernel says of it all.

Must not: judge (oracle does), choose what happens (plan does). Upstream: rounds. Downstream: servers, patient,
tests.support.
"""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from typing import Any

from tests.support.cgroup import Cgroup
from tests.support.wait import DEADLINE_S
from tests.torture.patient import Afflicted, free_port
from tests.torture.servers import Actor

MIB = 1 << 20
SERVERS = ("a", "b", "c")
QUIET = "q"
HIGH_BYTES = 64 * MIB
MAX_BYTES = 80 * MIB
STATIC_BYTES = 12 * MIB
# So many of the daemon's last words on a target are shown with a finding.
TAIL = 12

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

{ladder}
"""
# The default ladder, with time for a guest whose host is busy: a command that is late then was lost.
LATE = ', deadline = "20s"}'
TRIM = '{action = "trim_kv_cache"' + LATE
LADDER = f"""
[defaults.ladder]
elevated = [{TRIM}]
high = [{TRIM}, {{action = "reduce_batch", max_batch_ratio = "50%"{LATE}]
critical = [{TRIM}, {{action = "reduce_batch", max_batch_ratio = "25%"{LATE}, {{action = "reject_requests"{LATE}]
emergency = [
    {TRIM}, {{action = "reduce_batch", max_batch_ratio = "25%"{LATE}, {{action = "reject_requests"{LATE}, "unload_model"
]
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
        target = "" if name == QUIET else name
        seed = self.seed * 1000 + next(self._numbers)
        made = Actor(self.cgroups[name], self.daemon.socket_path, name, target, seed)
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

    def testimony(self, *names: str) -> str:
        """What the daemon says of targets that are not at rest, and of these, with its last words on each."""
        status, facts = self.daemon.status(), self.daemon.all_facts()
        restless = {row["name"] for row in status["targets"] if row["rung"] != "normal" and row["name"] != QUIET}
        rows = [row for row in status["targets"] if row["name"] in restless | set(names)]
        words = [fact for fact in facts if fact.get("target") in restless | set(names)][-TAIL:]
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
        common = CONFIG.format(static=STATIC_BYTES, directory=self.directory, port=port, ladder=LADDER)
        return common + targets + churn

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


def mounted(undo: contextlib.ExitStack, path: str, options: str) -> None:
    """A tmpfs there, until `undo` closes."""
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
    # Lazily: a daemon that is still about to die may have a file open there.
    undo.callback(subprocess.run, ["umount", "-l", path], check=True)
