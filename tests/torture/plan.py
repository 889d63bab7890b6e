"""From a seed to what will be done: pure, so that the same seed gives the same schedule.

Must not: look at anything that runs. Upstream: callsites, edgeguardd.core.effects. Downstream: rounds, faults.
"""

import errno
import random
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from edgeguardd.core.effects import Effect
from tests.torture import afflictions, callsites

SERVERS = ("a", "b", "c")
# What calls into the kernel answer on a machine in trouble, or with a cgroup that has just gone.
ERRNOS = ("ENOMEM", "EIO", "ENODEV", "EMFILE", "ENFILE", "ENOSPC", "EACCES", "EPERM", "ENOENT", "EROFS", "EBUSY")
EFFECTS = tuple(kind.__name__ for kind in typing.get_args(Effect))

# The share of the elastic range below memory.high up to which servers fill: each level, and beyond the limit.
CROSSINGS = (0.68, 0.86, 0.95, 1.04)
# Where the server that subscribes to nothing rests; each well inside its level.
PLATEAUS = (0.2, 0.7, 0.86, 0.96)

MISBEHAVIOURS = ("stall", "lie", "mute", "failing", "foreign", "flood", "halfclose", "reconnect")

Words = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """One round: a fault of this kind with these figures, and who crosses which mark meanwhile."""

    number: int
    kind: str
    words: Words = field(hash=False)
    crossings: tuple[tuple[str, float], ...]
    plateau: float

    def __str__(self) -> str:
        crossed = ", ".join(f"{name} to {ratio:.0%}" for name, ratio in self.crossings)
        return f"round {self.number}: {self.kind} {self.words}; {crossed}; quiet at {self.plateau:.0%}"


def schedule(seed: int, rounds: int, kinds: tuple[str, ...] | None = None) -> Iterator[Round]:
    """So many rounds. Each kind comes once before any comes again, each time in another order."""
    chance = random.Random(seed)  # noqa: S311 - to be the same each time is its job
    waiting: list[str] = []
    for number in range(rounds):
        if not waiting:
            waiting = list(kinds or KINDS)
            chance.shuffle(waiting)
        kind = waiting.pop()
        crossing = chance.sample(SERVERS, chance.randint(1, 2))
        yield Round(
            number,
            kind,
            KINDS[kind](chance),
            tuple((name, chance.choice(CROSSINGS)) for name in crossing),
            chance.choice(PLATEAUS),
        )


def _churn(chance: random.Random) -> Words:
    return {"names": chance.randint(2, 24), "rounds": chance.randint(40, 120)}


def _limits(chance: random.Random) -> Words:
    rewrites = []
    for _ in range(chance.randint(5, 20)):
        high_mib = chance.randint(40, 90)
        rewrites.append((chance.choice(SERVERS), high_mib, high_mib + chance.randint(4, 30)))
    return {"rewrites": rewrites}


def _server(chance: random.Random) -> Words:
    return {"server": chance.choice(SERVERS)}


def _misbehaving(kind: str) -> Callable[[random.Random], Words]:
    return lambda chance: {**_server(chance), "kind": kind}


def _kill_at_effect(chance: random.Random) -> Words:
    when = chance.choice(("before", "after"))
    return {"points": [f"{when} {chance.choice(EFFECTS)}"], "nth": chance.randint(1, 3)}


def _kill_at_call(chance: random.Random) -> Words:
    # Many at once: most calls are made seldom, and the first that is made decides.
    points = [f"{chance.choice(('before', 'after'))} {site}" for site in chance.sample(sites(), 30)]
    return {"points": points, "nth": chance.randint(1, 3)}


def _kill_server(chance: random.Random) -> Words:
    return {**_server(chance), "how": chance.choice(("kill", "oom"))}


def _errno(chance: random.Random) -> Words:
    return {
        "sites": sorted(chance.sample(sites(), chance.randint(10, 60))),
        "number": getattr(errno, chance.choice(ERRNOS)),
        "odds": chance.choice((0.1, 0.5, 1.0)),
        "seed": chance.getrandbits(32),
    }


def _blinding(chance: random.Random) -> Words:
    return {"number": getattr(errno, chance.choice(("EIO", "ENOMEM", "EACCES")))}


def _room(chance: random.Random) -> Words:
    return {"room": chance.randint(0, 6)}


def _seconds(least: int, most: int) -> Callable[[random.Random], Words]:
    return lambda chance: {"seconds": chance.choice((-1, 1)) * chance.randint(least, most)}


def _gap(chance: random.Random) -> Words:
    return {"seconds": chance.choice((30, 600, 3600, 86400))}


def _reloads(chance: random.Random) -> Words:
    return {"good": [chance.random() < 0.5 for _ in range(chance.randint(10, 30))]}


def _nothing(_: random.Random) -> Words:
    return {}


def _records(chance: random.Random) -> Words:
    return {"records": chance.randint(1500, 3000)}


def sites() -> list[str]:
    """The calls that can be failed or died at."""
    closes = [site for site in callsites.sites() if site.call == "os.close"]
    spared = {site.key for site in closes if site.module not in afflictions.CLOSE_FAILS_IN}
    return [site.key for site in callsites.sites() if site.key not in spared] + list(afflictions.LIBRARY)


# kind of fault -> the figures of one round of it
KINDS: dict[str, Callable[[random.Random], Words]] = {
    "cgroups come and go": _churn,
    "limits rewritten": _limits,
    **{f"a server: {kind}": _misbehaving(kind) for kind in MISBEHAVIOURS},
    "a server killed": _kill_server,
    "daemon killed at an effect": _kill_at_effect,
    "daemon killed at a call": _kill_at_call,
    "daemon killed anywhere": _nothing,
    "disk full": _nothing,
    "state read-only": _nothing,
    "descriptors run out": _room,
    "calls fail": _errno,
    "calls fail at the start": _errno,
    "daemon blinded": _blinding,
    "wall clock jumps": _seconds(60, 10_000_000),
    "machine suspended": _gap,
    "daemon stopped": _nothing,
    "server stopped": _server,
    "reload storm": _reloads,
    "pressure files vanish": _nothing,
    "inotify overflows": _churn,
    "kernel log overruns": _records,
}
