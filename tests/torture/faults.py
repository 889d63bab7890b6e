"""How each kind of fault is done, and undone: one context manager a kind, which gives what it could see of its effect.

Must not: judge. Upstream: plan (the words), world. Downstream: rounds.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.support.wait import eventually
from tests.torture import callsites
from tests.torture.plan import MISBEHAVIOURS, Words
from tests.torture.world import MAX_BYTES, MIB, World, mounted

# How long a fault stays at most when nothing of it is to be seen: few calls are made at some sites.
PATIENCE_S = 1.5
# Five intervals of a quarter of a second make it stale; the rest is for a busy guest.
BLIND_WITHIN_S = 20.0
SERVICE_UNAVAILABLE = 503
# Three heartbeats of a second of silence.
STALLED_WITHIN_S = 6.0

CHURN = """
import os, sys

rounds, prefix, names = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
paths = [f"{prefix}{number}" for number in range(names)]
for _ in range(rounds):
    for path in paths:
        os.mkdir(path)
    for path in paths:
        os.rmdir(path)
"""


@dataclass
class Seen:
    """What came of a fault: how often it struck, and whether a daemon ended of it, as it may or may not."""

    effects: int = 0
    daemon_died: bool = False
    # What was wrong while it lasted.
    wrong: list[str] = field(default_factory=list)


Fault = Callable[[World, Words, Seen], Iterator[None]]


def within(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> bool:
    """Wait for a condition that need not come."""
    until = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def hold(world: World, seconds: float) -> None:
    """A fault stays for so long: what it does is done to a daemon at work, and cannot be seen from outside."""
    within(lambda: not world.daemon.alive, seconds)


def cgroups_come_and_go(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """By the thousand, under a glob that is guarded."""
    churn = [sys.executable, "-I", "-S", "-c", CHURN, str(words["rounds"]), f"{world.top.path}/churn"]
    with subprocess.Popen([*churn, str(words["names"])]) as program:
        yield
        assert program.wait() == 0
    seen.effects = words["rounds"] * words["names"]


def limits_rewritten(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """By somebody else, up and down, below what is in use too."""
    yield
    for name, high_mib, max_mib in words["rewrites"]:
        high, most = high_mib * MIB, max_mib * MIB
        if most < world.needed(name) + 8 * MIB:
            continue  # the kernel would kill; that is another kind
        world.cgroups[name].write("memory.max", most)
        world.limit(name, high, most)
        seen.effects += 1


def a_server_misbehaves(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """As its kind has it, through a crossing."""
    actor = world.actors[words["server"]]
    since = len(actor.journal)
    actor.order("behave", kind=words["kind"])
    world.fill(words["server"], 0.86)

    def met() -> int:
        return sum(entry["what"] in {"lost", "command", "error", "bye"} for entry in actor.journal[since:])

    yield
    if words["kind"] == "stall":
        # It reads nothing, so it finds out only afterwards that it was put out.
        stalled = f"actor-{words['server']}"
        within(lambda: stalled not in [row["name"] for row in world.daemon.status()["subscribers"]], STALLED_WITHIN_S)
        seen.effects = int(stalled not in [row["name"] for row in world.daemon.status()["subscribers"]])
        return
    within(met)
    seen.effects = met()


def a_server_killed(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """kill -9, or by the kernel at memory.max."""
    actor = world.actors[words["server"]]
    if words["how"] == "oom":
        # Faster than any trim, with the subscriber's answer of no use and without memory.high to put it to sleep: it
        # takes more than there is.
        world.limit(words["server"], 2 * MAX_BYTES, MAX_BYTES)
        actor.order("behave", kind="lie")
        actor.order("grow", bytes=MAX_BYTES + 16 * MIB)
    yield
    actor.kill()
    seen.effects = 1


def daemon_killed_at_a_point(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """SIGKILL before or after the nth effect of a kind, or call at one of some sites."""
    for point in words["points"]:
        world.daemon.ask("die", point=point, nth=words["nth"])
    yield
    world.fill("a", 0.95, wait=False)
    within(lambda: not world.daemon.alive)
    seen.effects = int(not world.daemon.alive)
    seen.daemon_died = True


def daemon_killed_anywhere(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """kill -9 from outside, in the middle of whatever it does."""
    yield
    world.daemon.kill()
    seen.effects, seen.daemon_died = 1, True


def disk_full(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """No room for a record more."""
    ballast = f"{world.state_directory}/ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    yield
    within(lambda: world.daemon.facts("relief_failed"), 0.5)
    seen.effects = int(os.statvfs(world.state_directory).f_bavail == 0)
    os.unlink(ballast)


def state_read_only(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """Nothing can be written down."""
    with contextlib.ExitStack() as undo:
        mounted(undo, world.state_directory, "ro,mode=0700")
        seen.effects = 1
        yield


def descriptors_run_out(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """RLIMIT_NOFILE a little above what it has open: cgroups that come, peers and records have no descriptor."""
    limit = max(int(name) for name in os.listdir(f"/proc/{world.daemon.pid}/fd")) + 1 + words["room"]
    before = resource.prlimit(world.daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(world.daemon.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    world.actors["b"].order("drop")
    with world.top.child("churn-e"), world.top.child("churn-f"):
        yield
        hold(world, 0.3)
    seen.effects = 1
    if world.daemon.alive:
        resource.prlimit(world.daemon.pid, resource.RLIMIT_NOFILE, before)


def calls_fail(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """At some sites, with some error, while there is something of everything to do."""
    world.daemon.ask("fail", **words)
    with world.top.child("churn-e"):
        world.actors["c"].order("drop")
        world.daemon.hang_up()
        yield
        # Far enough for relief, so that limits are written and written down as well.
        world.fill("a", 1.04, wait=False)
        hold(world, 0.3)
    hold(world, 0.2)
    world.daemon.ask("fail", sites=[], number=0, odds=0.0, seed=0)
    seen.effects = sum(world.daemon.ask("count").get("hits", {}).values())


def daemon_blinded(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """No file of any cgroup can be read: it has to say so, and to see again afterwards."""
    reading = ("edgeguardd.kernel.cgroupfs", "os.pread")
    sites = [site.key for site in callsites.sites() if (site.module, site.call) == reading]
    world.daemon.ask("fail", sites=sites, number=words["number"], odds=1.0, seed=0)
    yield
    if within(lambda: world.http_status("/healthz") == SERVICE_UNAVAILABLE, BLIND_WITHIN_S):
        seen.effects = 1
    else:
        seen.wrong.append("it sees nothing, and says that it is healthy")
    world.daemon.ask("fail", sites=[], number=0, odds=0.0, seed=0)
    if not within(lambda: world.http_status("/healthz") != SERVICE_UNAVAILABLE, BLIND_WITHIN_S):
        seen.wrong.append("it sees again, and says that it does not")


def calls_fail_at_the_start(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """It starts in spite of them, or ends with one sentence."""
    world.daemon.kill()
    world.daemon.starting_with = [{"do": "fail", **words}]
    world.daemon.start(wait=False)
    started = len(world.daemon.facts("started"))
    eventually(lambda: not world.daemon.alive or len(world.daemon.facts("started")) > started or world.daemon.listens())
    yield
    within(lambda: not world.daemon.alive, 0.3)
    seen.effects = sum(world.daemon.ask("heal").get("hits", {}).values()) if world.daemon.alive else 1
    seen.daemon_died = not world.daemon.alive
    world.daemon.starting_with = []


def wall_clock_jumps(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """Years ahead or back; CLOCK_MONOTONIC goes on as before. In a guest only: it is everybody's clock."""
    if not world.is_guest:
        yield
        return
    off = time.time() - time.monotonic()
    time.clock_settime(time.CLOCK_REALTIME, time.time() + words["seconds"])
    seen.effects = 1
    yield
    time.clock_settime(time.CLOCK_REALTIME, time.monotonic() + off)


def machine_suspended(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """Everything stands still, and then it is much later."""
    pids = [world.daemon.pid, *(actor.process.pid for actor in world.actors.values())]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        hold(world, 0.2)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    world.daemon.ask("gap", seconds=words["seconds"])
    seen.effects = 1
    yield


def daemon_stopped(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """SIGSTOP, while marks are crossed; then it goes on."""
    os.kill(world.daemon.pid, signal.SIGSTOP)
    try:
        yield
        hold(world, 0.5)
    finally:
        os.kill(world.daemon.pid, signal.SIGCONT)
    seen.effects = 1


def server_stopped(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """SIGSTOP for a server that is over its mark; it is deaf, and then goes on."""
    name = words["server"]
    world.fill(name, 0.6)
    os.kill(world.actors[name].process.pid, signal.SIGSTOP)
    try:
        yield
        hold(world, 0.5)
    finally:
        os.kill(world.actors[name].process.pid, signal.SIGCONT)
    seen.effects = 1


def reload_storm(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """SIGHUP with good and bad configurations in turn, as fast as signals go; at the end the first one again."""
    good = [world.config, world.config.replace("repeat = 0.5", "repeat = 0.4")]
    bad = [world.config + "\n[nonsense]\n", world.config.replace("dwell = 0.05", 'dwell = "never"'), "\x00", ""]
    for number, valid in enumerate(words["good"]):
        texts = good if valid else bad[:3]
        world.daemon.write_config(texts[number % len(texts)])
        world.daemon.hang_up()
        if number == len(words["good"]) // 2:
            yield
    seen.effects = len(words["good"])
    before = world.reloads()
    world.daemon.write_config(world.config)
    world.daemon.hang_up()
    eventually(lambda: world.reloads() > before, what="the last reload is taken")


def pressure_files_vanish(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """PSI is there, and then its files are not."""
    directory = f"{world.directory}/psi"
    os.makedirs(directory, exist_ok=True)
    for name, text in (("memory.pressure", f"{PSI_LINE.format('some')}{PSI_LINE.format('full')}"), ("on", "")):
        with open(f"{directory}/{name}", "w") as file:
            file.write(text)
    world.daemon.ask("pressure", directory=directory)
    within(lambda: world.row("a").get("psi_ratio") is not None)
    seen.effects = int(world.row("a").get("psi_ratio") is not None)
    os.unlink(f"{directory}/on")
    yield
    world.daemon.ask("pressure", directory=None)


PSI_LINE = "{} avg10=0.00 avg60=0.00 avg300=0.00 total=123456\n"


def inotify_overflows(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """The daemon sleeps while more happens than inotify remembers: the world has made its memory small."""
    os.kill(world.daemon.pid, signal.SIGSTOP)
    try:
        churn = [sys.executable, "-I", "-S", "-c", CHURN, str(words["rounds"]), f"{world.top.path}/churn"]
        subprocess.run([*churn, str(words["names"])], check=True)
    finally:
        os.kill(world.daemon.pid, signal.SIGCONT)
    seen.effects = words["rounds"] * words["names"]
    with world.top.child("churn-e"):
        yield


def kernel_log_overruns(world: World, words: Words, seen: Seen) -> Iterator[None]:
    """More records than the kernel keeps, while the daemon sleeps. In a guest only: it is everybody's log."""
    if not world.is_guest:
        yield
        return
    os.kill(world.daemon.pid, signal.SIGSTOP)
    try:
        with open("/dev/kmsg", "wb", buffering=0) as log:
            for number in range(words["records"]):
                log.write(b"<7>torture %d %s\n" % (number, b"x" * 200))
    finally:
        os.kill(world.daemon.pid, signal.SIGCONT)
    yield
    lost = "edgeguardd_kernel_log_lost_records_total"
    within(lambda: world.daemon.metric(lost))
    seen.effects = int(world.daemon.metric(lost) or 0)


FAULTS: dict[str, Fault] = {
    "cgroups come and go": cgroups_come_and_go,
    "limits rewritten": limits_rewritten,
    **{f"a server: {kind}": a_server_misbehaves for kind in MISBEHAVIOURS},
    "a server killed": a_server_killed,
    "daemon killed at an effect": daemon_killed_at_a_point,
    "daemon killed at a call": daemon_killed_at_a_point,
    "daemon killed anywhere": daemon_killed_anywhere,
    "disk full": disk_full,
    "state read-only": state_read_only,
    "descriptors run out": descriptors_run_out,
    "calls fail": calls_fail,
    "calls fail at the start": calls_fail_at_the_start,
    "daemon blinded": daemon_blinded,
    "wall clock jumps": wall_clock_jumps,
    "machine suspended": machine_suspended,
    "daemon stopped": daemon_stopped,
    "server stopped": server_stopped,
    "reload storm": reload_storm,
    "pressure files vanish": pressure_files_vanish,
    "inotify overflows": inotify_overflows,
    "kernel log overruns": kernel_log_overruns,
}
