"""Knows what really happened, from the kernel's files, the servers' journals and the daemon's log, and judges.

Must not: use the daemon's own judgement where the kernel can be asked. Upstream: world. Downstream: rounds.
Each check is a function of its own that yields what is wrong, in sentences; the table CHECKS names them.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.torture.servers import Actor
from tests.torture.world import MIB, QUIET, SERVERS, STATIC_BYTES, World

# The defaults, as docs/reference/config.md has them, below the nearest limit.
MARKS = (("elevated", 0.60), ("high", 0.80), ("critical", 0.92))
HYSTERESIS = 0.05
# What a server gives beyond what is asked for, a piece, and what else of its memory comes and goes.
NOISE_BYTES = 2 * MIB
# Long enough for commands that wait for their deadline and for restores that are tried again.
SETTLE_S = 45.0
# Of a traceback, so much of its end.
LONGEST = 1200


@dataclass
class Before:
    """How things stood before a round: what counts is what moved since."""

    started: int
    pid: int
    counters: dict[str, dict[str, int]]
    told: dict[str, float]
    needed: dict[str, int]
    actors: dict[str, tuple[Actor, int]]
    facts: int
    words: int


def before(world: World) -> Before:
    """Take stock."""
    return Before(
        started=len(world.daemon.facts("started")),
        pid=world.daemon.pid,
        counters={name: world.cgroups[name].counters() for name in SERVERS},
        told={name: _told(world, name) for name in SERVERS},
        needed={name: world.needed(name) for name in SERVERS},
        actors={name: (actor, len(actor.journal)) for name, actor in world.actors.items()},
        facts=len(world.daemon.all_facts()),
        words=len(world.daemon.words),
    )


# Conditions that have to come about


def share(world: World, name: str) -> float:
    """The elastic range in use, by the kernel's figures."""
    limit = min(world.limits[name])
    return (world.needed(name) - STATIC_BYTES) / (limit - STATIC_BYTES)


def possible_levels(world: World, name: str) -> set[str]:
    """The levels that the kernel's figures allow: that of the marks, and that which the hysteresis may hold up."""
    ratio = share(world, name)
    return {_level(ratio), _level(ratio + HYSTERESIS)}


def unanswered(world: World) -> list[str]:
    """The servers above their first mark although somebody there obeys, or held up by the kernel on their way there.

    Has to become empty.
    """
    held_up = [f"{name} is held up in its growth" for name, actor in world.actors.items() if actor.alive and actor.busy]
    return held_up or [
        f"{name} rests at {share(world, name):.0%} and its server, which obeys, is not made to give anything"
        for name in SERVERS
        if share(world, name) >= MARKS[0][1]
    ]


def asked(world: World) -> list[str]:
    """Targets with commands under way. Has to become empty, or what the next round gives is credited to this one."""
    try:
        rows = world.daemon.status()["targets"]
    except OSError as error:
        return [f"status cannot be asked for: {error}"]
    return [f"{row['name']} has {row['outstanding']} outstanding" for row in rows if row["outstanding"]]


def restless(world: World) -> list[str]:
    """Targets that are not as the kernel's figures say that they should come to be. Has to become empty."""
    wrong = []
    try:
        status = world.daemon.status()
    except OSError as error:
        return [f"status cannot be asked for: {error}"]
    rows = {row["name"]: row for row in status["targets"]}
    for name in (*SERVERS, QUIET):
        row = rows.get(name)
        if row is None or not row["present"]:
            wrong.append(f"{name} is there, and status says that it is not")
            continue
        levels = possible_levels(world, name)
        if row["level"] not in levels:
            wrong.append(f"{name} is at level {row['level']}, and {share(world, name):.1%} is {' or '.join(levels)}")
        if name in SERVERS and (row["rung"] not in levels or row["outstanding"]):
            wrong.append(f"{name} has rung {row['rung']} at {share(world, name):.1%}, outstanding {row['outstanding']}")
        if name in SERVERS and row["relief"] not in {"resting", "unavailable"}:
            wrong.append(f"relief of {name} is {row['relief']}")
        if row["degraded"] is not None:
            wrong.append(f"{name} is said to be degraded: {row['degraded']}")
    if world.cgroups[QUIET].read("cgroup.freeze") != "0":
        wrong.append(f"{QUIET} is frozen")  # for a moment it may be; then it has to run
    wrong += [f"{row['name']} is still there" for name, row in rows.items() if name.startswith("g:")]
    wrong += _subscribers(status)
    return wrong


def _subscribers(status: dict[str, Any]) -> Iterator[str]:
    names = sorted(row["name"] for row in status["subscribers"])
    if names != [f"actor-{name}" for name in SERVERS]:
        yield f"subscribers are {names}"


# What has to be so once that is so


def limits(world: World, since: Before) -> Iterator[str]:
    """No limit left changed, no cgroup left frozen, nothing left written down."""
    for name in (*SERVERS, QUIET):
        cgroup = world.cgroups[name]
        now = tuple(int(cgroup.read(f"memory.{limit}")) for limit in ("high", "max"))
        if now != world.limits[name]:
            yield f"limits of {name} are {now}, not {world.limits[name]}"
        if name in SERVERS and cgroup.read("cgroup.freeze") != "0":
            yield f"{name} is frozen"
    for name in os.listdir(world.state_directory):
        if name.startswith(("lifted-", ".lifted-", "ballast")) or name.endswith(".damaged"):
            yield f"{name} is left in the state directory"


def once(world: World, since: Before) -> Iterator[str]:
    """No command twice on one connection, one number one command, none ended twice, nobody made to give too much."""
    numbers: dict[tuple[str, str, int], tuple[Any, ...]] = {}
    for name, actor in world.actors.items():
        seen: set[int] = set()
        for entry in list(actor.journal):
            if entry["what"] in {"welcome", "lost"}:
                seen.clear()
            elif entry["what"] == "command":
                if entry["line"]["seq"] in seen:
                    yield f"{name} got command {entry['line']['seq']} twice on one connection"
                seen.add(entry["line"]["seq"])
                told = entry["line"]["action"], entry["line"]["parameters"]
                if numbers.setdefault((entry["epoch"], name, entry["line"]["seq"]), told) != told:
                    yield f"number {entry['line']['seq']} of {name} is two commands in one epoch: {told}"
    ended: set[tuple[int, str, int]] = set()
    run = 0
    for fact in world.daemon.all_facts()[since.facts :]:
        if fact["event"] == "started":
            run += 1
        elif fact["event"] == "command_ended":
            key = run, fact["target"], fact["seq"]
            if key in ended:
                yield f"command {fact['seq']} of {fact['target']} ended twice"
            ended.add(key)
    yield from _robbed(world, since)


def _robbed(world: World, since: Before) -> Iterator[str]:
    """Given up once, counted once: what the daemon credits trims with has really left, and no more was asked for."""
    facts = world.daemon.all_facts()[since.facts :]
    for name in SERVERS:
        journal = [entry for entry in _journal(world, since, name) if entry["what"] == "command"]
        trims = [e for e in journal if e["line"]["action"] == "trim_kv_cache"]
        goals = [e["line"]["parameters"].get("needed_target_bytes") or 0 for e in trims]
        lowest = min((e["needed"] - e["freed"] for e in trims if e["freed"]), default=None)
        if lowest is not None and lowest < min(goals) - NOISE_BYTES:
            yield f"{name} was brought down to {lowest / MIB:.1f} MiB, where {min(goals) / MIB:.1f} MiB was the goal"
        credited = sum(
            fact["freed_bytes"] or 0
            for fact in facts
            if fact["event"] == "command_ended" and fact["target"] == name and fact["action"] == "trim_kv_cache"
            if fact["outcome"] == "done"
        )
        gave = sum(e["freed"] for e in journal)
        if credited > gave + NOISE_BYTES * (1 + len(trims)):
            yield f"{name} gave {gave / MIB:.1f} MiB, and was credited with {credited / MIB:.1f} MiB"


def in_time(world: World, since: Before) -> Iterator[str]:
    """Servers that nothing was done to have had their commands, and their answers were heard, before the deadline."""
    late = {"expired", "lost", "failed", "unsupported"}
    for fact in world.daemon.all_facts()[since.facts :]:
        if fact["event"] == "command_ended" and fact["target"] in world.undisturbed and fact["outcome"] in late:
            yield f"command {fact['seq']} ({fact['action']}) of {fact['target']} ended {fact['outcome']}"


def _journal(world: World, since: Before, name: str) -> list[dict[str, Any]]:
    """What the servers of this name have said in the round: that one's rest, and all of the one after it."""
    old, length = since.actors[name]
    new = world.actors[name]
    return old.journal[length:] + ([] if new is old else new.journal)


def counts(world: World, since: Before) -> Iterator[str]:
    """What the kernel has counted is what the daemon has told, unless it was not there meanwhile."""
    rows = {row["name"]: row for row in world.daemon.status()["targets"]}
    for name in SERVERS:
        counters = world.cgroups[name].counters()
        shown = rows[name]["counters"] or {}
        wrong = {key: (counters[key], shown.get(key)) for key in ("high", "max", "oom_kill") if key in counters}
        wrong = {key: pair for key, pair in wrong.items() if pair[0] != pair[1]}
        if wrong:
            yield f"counters of {name}, kernel's and shown: {wrong}"
        if world.daemon.pid == since.pid:
            moved = sum(counters[key] - since.counters[name][key] for key in ("high", "max", "oom_kill"))
            told = _told(world, name) - since.told[name]
            if moved != told:
                yield f"the kernel has counted {moved} of {name} since, and {told:.0f} were told"


def health(world: World, since: Before) -> Iterator[str]:
    """Health, readiness, defects and what was said are as they should be."""
    for path in ("/healthz", "/readyz"):
        status = world.http_status(path)
        if status != 200:
            yield f"{path} answers {status}"
    for fact in world.daemon.all_facts()[since.facts :]:
        if fact["event"] == "defect":
            yield f"a defect: {fact.get('what')}: {str(fact.get('exception'))[-LONGEST:]}"
    for line in world.daemon.words[since.words :]:
        if not line.startswith("edgeguardd: "):
            yield f"said, and not in one sentence: {line}"


def servers(world: World, since: Before) -> Iterator[str]:
    """The servers are as free as the daemon thinks."""
    free = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}
    for name in SERVERS:
        state = world.actors[name].order("state").get("state")
        if state != free:
            yield f"{name} is left with {state}"


CHECKS: dict[str, Callable[[World, Before], Iterator[str]]] = {
    "limits": limits,
    "once": once,
    "in time": in_time,
    "counts": counts,
    "health": health,
    "servers": servers,
}


def _level(ratio: float) -> str:
    found = "normal"
    for level, mark in MARKS:
        if ratio >= mark:
            found = level
    return found


def _told(world: World, name: str) -> float:
    keys = ("high", "max", "oom_kill")
    return sum(world.daemon.metric("edgeguardd_memory_events_total", target=name, event=key) or 0 for key in keys)
