"""Every call into the kernel that the daemon makes, failed one after another, while there is something of everything
to do; afterwards nothing may be left of it. On a tree of plain files, so that there is time for each of them.

Must not: know which calls there are (callsites finds them). Upstream: __main__, component tests. Downstream: world's
afflicted daemon, tests.support.
"""

import contextlib
import errno
import http.client
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import Subscriber
from tests.support.wait import eventually
from tests.torture import plan
from tests.torture.faults import within
from tests.torture.patient import Afflicted, differing, free_port

ERRNOS = tuple(getattr(errno, name) for name in plan.ERRNOS)
# Calls that take a descriptor.
OPENING = frozenset(
    {
        *(
            "open",
            "os.open",
            "os.fdopen",
            "os.scandir",
            "os.listdir",
            "os.dup",
            "os.pipe",
            "os.pidfd_open",
            "os.eventfd",
        ),
        *("select.epoll", "socket.socket", "socket.socketpair", "socket.accept", "inotify.new"),
    }
)
# The limit and what relief raises it to have as many digits: a write does not shorten a plain file.
HIGH_BYTES, MAX_BYTES, REST_BYTES = 400 * MIB, 600 * MIB, 50 * MIB
# A tour takes a tenth of a second on an idle machine; what a fault stalls goes on after it.
TOUR_S = 0.25
SETTLE_S = 15.0
SUPPORTS = ["trim_kv_cache", "reduce_batch", "reject_requests", "unload_model"]
CONFIG = """
cgroup_root = "{place}/tree"
state_directory = "{place}/state"
[socket]
path = "{place}/s"
stall = "1s"
[http]
port = {port}
[log]
format = "json"
[recorder]
max_size = "256K"
[sampling]
slow = "30ms"
fast = "10ms"
[machine]
enabled = false
[kernel_log]
enabled = false
[defaults]
dwell = 0.01
restore_dwell = 0.01
repeat = 0.1
static = {rest}
[[target]]
name = "llm"
path = "/llm"
[[target]]
name = "quiet"
path = "/quiet"
[target.last_resort]
critical = ["reclaim", {{action = "freeze", max_freeze = "100ms", hold_off = "200ms"}}]
[[target]]
name = "pods"
glob = "/pods/*"
"""


@dataclass
class Case:
    """One call, failed with one error. `wrong`: what was left of it."""

    site: str
    number: int
    hits: int = 0
    at_start: bool = False
    died: bool = False
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.site} failing with {errno.errorcode[self.number]}"


class Server(Subscriber):
    """Obeys: what a trim asks for is gone from the files before it is answered."""

    cgroup: FakeCgroup

    def _answer(self, line: dict[str, Any]) -> None:
        if line["type"] == "command" and line["action"] == "trim_kv_cache":
            self.cgroup.usage(REST_BYTES)
        super()._answer(line)


class Stage:
    """One daemon on plain files, a server, a cgroup with nobody, and cgroups that come and go."""

    def __init__(self) -> None:
        self.place = tempfile.mkdtemp(prefix="eg-", dir="/tmp")
        os.mkdir(f"{self.place}/tree")
        self.tree = FakeTree(f"{self.place}/tree")
        self.llm = self.tree.cgroup("/llm", HIGH_BYTES, MAX_BYTES)
        self.quiet = self.tree.cgroup("/quiet", HIGH_BYTES, MAX_BYTES)
        for name, text in (("cgroup.freeze", "0\n"), ("cgroup.procs", ""), ("memory.reclaim", "")):
            self.quiet.write(name, text)
        self.quiet.write("cgroup.events", "populated 0\nfrozen 1\n")
        os.mkdir(f"{self.place}/tree/pods")
        self.counted = 0
        port = free_port()
        self.config = CONFIG.format(place=self.place, rest=REST_BYTES, port=port)
        self.daemon = Afflicted(self.place, self.config, port)
        self.server: Server | None = None
        self.baseline: dict[str, int] = {}
        self.called_at_start: set[str] = set()
        self.patience_s = SETTLE_S

    def __enter__(self) -> "Stage":
        self.rest()
        self.daemon.start()
        self.called_at_start = set(self.daemon.ask("count")["calls"])
        self.join()
        eventually(lambda: not self.unrest(), SETTLE_S, what=f"{self.unrest()}")
        self.baseline = self.daemon.open_files_at_rest()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        if self.daemon.alive:
            self.daemon.ask("heal")
            self.daemon.stop()
        shutil.rmtree(self.place)

    def rest(self) -> None:
        """Memory as it is at rest."""
        self.llm.usage(REST_BYTES)
        self.quiet.usage(REST_BYTES)

    def join(self) -> None:
        """The server subscribes, anew if its connection has ended."""
        self.leave()
        server = Server.__new__(Server)
        server.cgroup = self.llm
        Server.__init__(server, self.daemon.socket_path, {"name": "server", "target": "llm", "supports": SUPPORTS})
        self.server = server

    def leave(self) -> None:
        """The server hangs up."""
        if self.server is not None:
            self.server.close()
        self.server = None

    def cross(self) -> None:
        """Needed bytes above the limit, and the kernel has counted it."""
        self.counted += 1
        self.llm.usage(HIGH_BYTES + MIB)
        self.llm.events(high=self.counted)

    def tour(self) -> None:
        """Something of everything: cgroups, peers, a crossing with relief, a last resort, a reload, pages."""
        self.cross()
        self.quiet.usage(int(0.97 * HIGH_BYTES))
        self.tree.cgroup("/pods/one", max_bytes=MAX_BYTES)
        self.daemon.hang_up()
        with contextlib.suppress(OSError):
            self.daemon.get("/status")
            Subscriber(self.daemon.socket_path, {"name": "looker", "role": "observer"}).close()
        within(lambda: not self.daemon.alive, TOUR_S)
        self.tree.remove("/pods/one")
        self.leave()
        within(lambda: not self.daemon.alive, TOUR_S / 3)

    def unrest(self) -> list[str]:
        """What is not at rest yet."""
        if not self.daemon.alive:
            return ["the daemon has ended"]
        try:
            status = self.daemon.status()
        except OSError as error:
            return [f"status cannot be asked for: {error}"]
        wrong = [f"{row['name']} is at {row['level']}" for row in status["targets"] if row["level"] != "normal"]
        wrong += [f"{row['name']} is degraded: {row['degraded']}" for row in status["targets"] if row["degraded"]]
        wrong += [f"{row['name']} owes {row['outstanding']}" for row in status["targets"] if row["outstanding"]]
        wrong += [f"{row['name']} has rung {row['rung']}" for row in status["targets"] if row["rung"] != "normal"]
        lines = [] if self.server is None else [line for _, line in self.server.lines[:]]
        told = [line["level"] for line in lines if line["type"] in {"welcome", "level"}]
        wrong += [] if told[-1:] == ["normal"] else [f"the server was told {told[-1:]} last"]
        wrong += [] if sorted(row["name"] for row in status["targets"]) == ["llm", "quiet"] else ["targets differ"]
        wrong += [] if [row["name"] for row in status["subscribers"]] == ["server"] else ["subscribers differ"]
        wrong += [] if read(f"{self.llm.path}/memory.high") == str(HIGH_BYTES) else ["memory.high is another"]
        wrong += [] if read(f"{self.quiet.path}/cgroup.freeze") == "0" else ["quiet is frozen"]
        return wrong

    def answers(self) -> bool:
        """Whether the daemon says that it is ready."""
        try:
            return bool(self.daemon.get("/readyz"))
        except (OSError, http.client.HTTPException):
            return False

    def leaked(self) -> dict[str, tuple[int, int]]:
        """Descriptors that are more or fewer than at rest."""
        return differing(self.baseline, self.daemon.open_files())


def read(path: str) -> str:
    """A small file, without the last newline."""
    with open(path) as file:
        return file.read().rstrip("\n")


def cases(seed: int, errors: int, share: tuple[int, int] = (0, 1)) -> list[Case]:
    """Each site with so many errors: too little memory, no descriptor where it opens one, and others drawn by the seed.

    Of all sites those whose place has this rest.
    """
    chance = random.Random(seed)  # noqa: S311 - to be the same each time is its job
    found = []
    for site in plan.sites():
        first = [errno.ENOMEM, errno.EMFILE] if site.rpartition(":")[2] in OPENING else [errno.ENOMEM]
        drawn = chance.sample([number for number in ERRNOS if number not in first], errors)
        found += [Case(site, number) for number in [*first, *drawn][:errors]]
    return [case for number, case in enumerate(found) if number % share[1] == share[0]]


def play(todo: list[Case]) -> Iterator[Case]:
    """Each case, in a running daemon and then at its start. After a finding, and after each start, a daemon anew."""
    with contextlib.ExitStack() as undo:
        stage = undo.enter_context(Stage())
        for case in todo:
            while_running(stage, case)
            if not case.wrong and case.site in stage.called_at_start:
                at_start(stage, case)
            yield case
            if case.wrong:
                undo.close()
                stage = undo.enter_context(Stage())


def while_running(stage: Stage, case: Case) -> None:
    """The call fails for the length of a tour; then everything has to come to rest, and nothing to be left."""
    since, words = len(stage.daemon.all_facts()), len(stage.daemon.words)
    stage.daemon.ask("fail", sites=[case.site], number=case.number, odds=1.0, seed=1)
    before = hits(stage, case)
    stage.tour()
    case.hits = hits(stage, case) - before
    stage.daemon.ask("heal")
    stage.rest()
    if not stage.daemon.alive:
        case.died = True
        case.wrong.append("the daemon has ended of it")
        return
    stage.join()
    judge(stage, case, since, words)


def at_start(stage: Stage, case: Case) -> None:
    """The call fails while the daemon starts: it runs nevertheless, or ends with one sentence; then it starts well."""
    case.at_start = True
    stage.leave()
    stage.daemon.kill()
    since, words = len(stage.daemon.all_facts()), len(stage.daemon.words)
    started = len(stage.daemon.facts("started"))
    stage.daemon.starting_with = [{"do": "fail", "sites": [case.site], "number": case.number, "odds": 1.0, "seed": 1}]
    stage.daemon.start(wait=False)
    stage.daemon.starting_with = []

    def decided() -> bool:
        """It has ended, or runs; of one whose log is what fails, only its pages tell."""
        return not stage.daemon.alive or len(stage.daemon.facts("started")) > started or stage.answers()

    if not within(decided, SETTLE_S):
        case.wrong.append(f"neither ends nor starts; last said: {stage.daemon.log_text()[-300:]}")
        stage.daemon.kill()
    if stage.daemon.alive:
        case.hits += hits(stage, case)
        stage.daemon.ask("heal")
    else:
        case.hits, case.died = case.hits + 1, True
        if not case.wrong and stage.daemon.process is not None and stage.daemon.process.returncode not in (1, 2):
            case.wrong.append(f"the daemon ended with {stage.daemon.process.returncode}")
        stage.daemon.start()
    try:
        stage.join()
    except OSError as error:
        case.wrong.append(f"nobody can join: {error}")
        return
    judge(stage, case, since, words)


def judge(stage: Stage, case: Case, since: int, words: int) -> None:
    """At rest, still guarding, nothing leaked, no defect, nothing said that is not a sentence."""
    if not within(lambda: not stage.unrest(), stage.patience_s):
        case.wrong += stage.unrest()
        return
    at = time.monotonic()
    stage.cross()
    server = stage.server
    assert server is not None

    def told(kind: str) -> bool:
        return any(when > at and line["type"] == kind for when, line in server.lines[:])

    if not within(lambda: told("command") and told("level"), stage.patience_s):
        case.wrong.append("a clean crossing is not told")
    stage.rest()
    if not within(lambda: not stage.unrest(), stage.patience_s):
        case.wrong += stage.unrest()
    if not within(lambda: not stage.leaked(), 3.0):
        case.wrong.append(f"descriptors before and after: {stage.leaked()}")
    for fact in stage.daemon.all_facts()[since:]:
        if fact["event"] == "defect":
            case.wrong.append(f"a defect: {fact.get('what')}: {fact.get('exception')}")
    no_sentence = [line for line in stage.daemon.words[words:] if not line.startswith("edgeguardd: ")]
    if no_sentence:
        case.wrong.append("said, and no sentence: " + "\n".join(no_sentence))


def hits(stage: Stage, case: Case) -> int:
    """How often the call has failed in this daemon."""
    return int(stage.daemon.ask("count").get("hits", {}).get(case.site, 0))
