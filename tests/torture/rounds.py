"""One round after another: a fault, crossings meanwhile, everything mended, and the oracle's verdict.

Must not: choose faults (plan does) or judge (oracle does). Upstream: plan, faults, oracle, world. Downstream:
__main__, tests/kernel/test_torture.py.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.support.wait import eventually
from tests.torture import oracle
from tests.torture.faults import FAULTS, Seen, within
from tests.torture.patient import differing
from tests.torture.plan import MISBEHAVIOURS, Round
from tests.torture.world import HIGH_BYTES, MAX_BYTES, QUIET, SERVERS, World

# A clean crossing after each round: the command has to be there within this, on a guest whose host is busy too.
PROBE_S = 10.0

# Kinds that concern the rest of the world, or one server alone: the others' commands are to be answered as ever.
OF_OTHERS = {"cgroups come and go", "wall clock jumps", "reload storm", "pressure files vanish"}
OF_OTHERS |= {f"a server: {kind}" for kind in MISBEHAVIOURS}


@dataclass
class Verdict:
    """What became of one round. `wrong` holds the oracle's sentences, by check."""

    round: Round
    seen: Seen
    took_s: float = 0.0
    probe_s: float | None = None
    wrong: dict[str, list[str]] = field(default_factory=dict)
    descriptors: int = 0
    resident_bytes: int = 0
    pid: int = 0

    @property
    def right(self) -> bool:
        """Whether the oracle had nothing to say."""
        return not self.wrong


def play(world: World, rounds: Iterable[Round]) -> Iterator[Verdict]:
    """Each round's verdict as it comes. Whatever one leaves broken, the next begins from a world that is whole."""
    for number, each in enumerate(rounds):
        if number == 0:
            settle(world, Verdict(each, Seen()))
            world.baseline = world.daemon.open_files_at_rest()
        yield one(world, each)


def one(world: World, each: Round) -> Verdict:
    """One round."""
    verdict = Verdict(each, Seen())
    started = time.monotonic()
    level_the_ground(world, each)
    before = oracle.before(world)
    world.undisturbed = set(SERVERS) - {each.words.get("server")} if each.kind in OF_OTHERS else set()
    fault = FAULTS[each.kind]
    with contextlib.contextmanager(fault)(world, each.words, verdict.seen):
        for name, ratio in each.crossings:
            world.fill(name, ratio, wait=False)
    if verdict.seen.wrong:
        verdict.wrong["meanwhile"] = verdict.seen.wrong
    mend(world, each)
    settle(world, verdict)
    for check, judge in oracle.CHECKS.items():
        sentences = list(judge(world, before))
        if sentences:
            verdict.wrong[check] = sentences
    judge_descriptors(world, verdict)
    if verdict.right:
        probe(world, verdict)
    verdict.resident_bytes = world.daemon.resident_bytes()
    verdict.pid = world.daemon.pid
    verdict.took_s = time.monotonic() - started
    if not verdict.right:
        start_over(world)
    return verdict


def level_the_ground(world: World, each: Round) -> None:
    """Every round begins alike: limits as at first, servers at rest, the quiet one where the round wants it."""
    for name in (*SERVERS, QUIET):
        world.limit(name, HIGH_BYTES, MAX_BYTES)
        world.actors[name].order("shrink", bytes=MAX_BYTES)
    world.fill(QUIET, each.plateau)
    # The last round ends with a command on its way: what came of it is none of this one's.
    within(lambda: not oracle.asked(world), PROBE_S)


def mend(world: World, each: Round) -> None:
    """Whatever died runs again, whoever misbehaved behaves. The state in which memory is stays as it is."""
    daemon = world.daemon
    if daemon.alive:
        os.kill(daemon.pid, signal.SIGCONT)
        daemon.ask("heal")
    if not daemon.alive:
        daemon.start()
    for name, actor in list(world.actors.items()):
        if not actor.alive:
            world.spawn(name)
    server = each.words.get("server")
    if server is not None:
        world.actors[server].order("behave", kind="good")
        world.actors[server].order("drop")


def settle(world: World, verdict: Verdict) -> None:
    """Until every crossing is answered, and then until everything is as the kernel's figures say."""
    for check, condition in (("answered", oracle.unanswered), ("levels", oracle.restless)):
        last: list[str] = []

        def holds(condition=condition, last=last) -> bool:  # type: ignore[no-untyped-def]
            last[:] = condition(world)
            return not last

        if not within(holds, oracle.SETTLE_S):
            verdict.wrong[check] = [*last, world.testimony()]


def judge_descriptors(world: World, verdict: Verdict) -> None:
    """As many as at first, each of the same kind. HTTP connections of the oracle's may be about to be closed."""

    def changed() -> dict[str, tuple[int, int]]:
        return differing(world.baseline, world.daemon.open_files())

    if not within(lambda: not changed(), 5.0):
        verdict.wrong["descriptors"] = [f"descriptors before and after: {changed()}"]
    verdict.descriptors = sum(world.daemon.open_files().values())


def probe(world: World, verdict: Verdict) -> None:
    """It still guards: one clean crossing, from the order to grow to the command in the server's hands."""
    name = SERVERS[verdict.round.number % len(SERVERS)]
    actor = world.actors[name]
    world.limit(name, HIGH_BYTES, MAX_BYTES)
    since = time.monotonic()
    world.fill(name, 0.7, wait=False)
    if within(lambda: actor.commands(since), PROBE_S):
        verdict.probe_s = actor.commands(since)[0]["at"] - since
    else:
        grown = f"{'held up in its growth' if actor.busy else 'grown'}, at {oracle.share(world, name):.0%}"
        verdict.wrong["answered"] = [
            f"a clean crossing of {name} after the round is not answered: it is {grown}",
            world.testimony(name),
        ]


def start_over(world: World) -> None:
    """After a finding: a daemon and servers anew, so that one finding is told once."""
    if world.daemon.alive:
        world.daemon.kill()
    world.daemon.write_config(world.config)
    world.daemon.start()
    for name in list(world.actors):
        world.spawn(name)
    eventually(lambda: not oracle.restless(world) or True)
