"""`python -m tests.torture.guest RESULTS faults|strain …`: one part on this very kernel, results as JSON lines.

Must not: choose the kernel. Upstream: __main__, which starts this here or in a guest. Downstream: rounds, strain.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from typing import Any

from tests.torture import callsites, plan, rounds, strain
from tests.torture.world import World


def main() -> int:
    """Exit status 0: it ran to its end, whatever it found."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.guest", description=__doc__)
    parser.add_argument("results")
    parser.add_argument("part", choices=("faults", "strain"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--share", default="0/1", help="of all rounds those whose number has this rest")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no round after so long")
    parser.add_argument("--kinds", help="only these kinds of faults, with commas between them")
    options = parser.parse_args()
    with open(options.results, "a", buffering=1) as results:
        if options.part == "faults":
            faults(options, results)
        else:
            for found in strain.run(lambda text: print(text, flush=True)):
                put(results, {"strain": {**dataclasses.asdict(found), "right": found.right}})
        put(results, {"ended": options.part})
    return 0


def faults(options: argparse.Namespace, results: Any) -> None:
    """The rounds of this share, each told as it ends."""
    rest, of = (int(word) for word in options.share.split("/"))
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    mine = [each for each in plan.schedule(options.seed, options.rounds, kinds) if each.number % of == rest]
    until = time.monotonic() + 60 * options.minutes
    with World(options.seed) as world:
        for verdict in rounds.play(world, mine):
            said = "right" if verdict.right else f"WRONG: {', '.join(verdict.wrong)}"
            print(f"{verdict.round}\n    {said}, {verdict.took_s:.1f} s", flush=True)
            put(results, {"verdict": as_row(verdict)})
            if time.monotonic() > until:
                break
        put(results, {"sites": sites(world)})


def as_row(verdict: rounds.Verdict) -> dict[str, Any]:
    """As reports take it."""
    return {
        "number": verdict.round.number,
        "kind": verdict.round.kind,
        "text": str(verdict.round),
        "effects": verdict.seen.effects,
        "wrong": verdict.wrong,
        "took_s": verdict.took_s,
        "probe_s": verdict.probe_s,
        "descriptors": verdict.descriptors,
        "resident_bytes": verdict.resident_bytes,
        "pid": verdict.pid,
    }


def sites(world: World) -> dict[str, Any]:
    """Which calls into the kernel were made, and which were failed, over all daemons of this world."""
    calls, hits = world.counted()
    return {"known": [site.key for site in callsites.sites()], "calls": dict(calls), "hits": dict(hits)}


def put(results: Any, row: dict[str, Any]) -> None:
    """One line; the guest's own cache of the host's file is no place for it."""
    results.write(json.dumps(row) + "\n")
    results.flush()


def merged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The sites of several guests, as the table wants them."""
    known = {key for row in rows for key in row["known"]}
    calls: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    for row in rows:
        calls.update(row["calls"])
        hits.update(row["hits"])
    return {
        "known": len(known),
        "called": len(known & calls.keys()),
        "failed": len(known & hits.keys()),
        "failures": sum(hits.values()),
        "never": sorted(known - calls.keys()),
    }


if __name__ == "__main__":
    sys.exit(main())
