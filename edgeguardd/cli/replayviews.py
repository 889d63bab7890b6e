"""What `edgeguardctl replay` shows: decisions and differences, for people or as JSON Lines.

Must not: replay or compare itself. Upstream: recordings, core.replay, decisions, difference. Downstream: replay.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from msgspec import to_builtins

from edgeguardd.cli import common, words
from edgeguardd.cli.recordings import Recordings, clock_time, local
from edgeguardd.core.config import Config
from edgeguardd.core.decisions import Decision, as_json, of_step
from edgeguardd.core.difference import COUNTED, SAME_S, Change, Episode, difference
from edgeguardd.core.recording import Header
from edgeguardd.core.replay import Changed, Opened, Step, recorded

MAX_SENTENCE_CHARS = 300


def run(args: argparse.Namespace) -> int:
    """Replay args.place, and print what the options ask for. Returns the exit status. Raises EdgeguardError."""
    recordings = Recordings(args.place)
    show = Lines() if args.json else Text()
    summary: dict[str, Any] = {}
    if args.config is None:
        for item in recordings.watched(recorded(recordings, recordings.unusable)):
            for decision in _shown(item, args.target, show):
                show.decision(decision)
    else:
        summary = _compare(recordings, common.read_config(args.config), args, show)
    show.summary({**summary, "remarks": list(recordings.remarks)})
    return common.OK


def _compare(recordings: Recordings, config: Config, args: argparse.Namespace, show: "Text | Lines") -> dict[str, Any]:
    """Print what the other configuration changes; returns what has to be said about the comparison."""
    changed = Changed(recordings, config, recordings.unusable)
    then: list[Decision] = []
    now: list[Decision] = []
    for item, made in recordings.watched_pairs(changed.pairs()):
        then += _shown(item, args.target, None)
        for step in made:
            now += (decisions := list(_shown(step, args.target, show if args.decisions else None)))
            if args.decisions:
                for decision in decisions:
                    show.decision(decision)
    episodes = difference(then, now)
    for episode in episodes:
        show.episode(episode)
    return {
        "config": args.config,
        "episodes": len(episodes),
        "guesses": sum(change.guess for episode in episodes for change in episode.changes),
        "left_out": dict(changed.left_out),
        "by_defaults": sorted(changed.by_defaults),
    }


def _shown(item: Opened | Step, target: str | None, show: "Text | Lines | None") -> Iterator[Decision]:
    """The decisions of one item, those of one target if it is named; that a segment begins is shown at once."""
    if isinstance(item, Step):
        yield from (decision for decision in of_step(item) if target is None or decision.target == target)
    elif show is not None:
        show.segment(item.header, continuous=item.continuous)


class Text:
    """For people."""

    def segment(self, header: Header, *, continuous: bool) -> None:
        if not continuous:
            zone = local(header.clock.wall_s).strftime("%z")
            print(f"edgeguardd {words.name(header.version)}, run {words.name(header.run)}, times in {zone}")

    def decision(self, decision: Decision) -> None:
        sentence = words.name(decision.sentence, MAX_SENTENCE_CHARS)
        print(f"{clock_time(decision.wall_s)}  {words.name(decision.target or '-')}  {sentence}")

    def episode(self, episode: Episode) -> None:
        print(f"{words.name(episode.target)}, {clock_time(episode.start_s)} to {clock_time(episode.end_s)}")
        rows = [_row(change) for change in episode.changes]
        print("\n".join(f"  {line}" for line in words.table(("WHAT", "CHANGE", "TIMES", "FIRST", ""), rows)))

    def summary(self, summary: dict[str, Any]) -> None:
        if "config" in summary:
            for sentence in _about(summary):
                print(sentence)
        for remark in summary["remarks"]:
            print(f"edgeguardctl: {words.name(remark, MAX_SENTENCE_CHARS)}", file=sys.stderr)


class Lines:
    """For programs. ASCII, so that names which are not UTF-8 stay valid JSON."""

    def segment(self, header: Header, *, continuous: bool) -> None:
        found = {"version": header.version, "run": header.run, "segment": header.segment}
        _print("segment", {**found, "wall_s": header.clock.wall_s, "continuous": continuous})

    def decision(self, decision: Decision) -> None:
        _print("decision", as_json(decision))

    def episode(self, episode: Episode) -> None:
        changes = [{**to_builtins(change), "earlier_s": _rounded(change.earlier_s)} for change in episode.changes]
        _print("episode", {**to_builtins(episode), "changes": changes})

    def summary(self, summary: dict[str, Any]) -> None:
        _print("summary", summary)


def _print(kind: str, value: dict[str, Any]) -> None:
    print(json.dumps({"type": kind, **value}))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _row(change: Change) -> list[str]:
    """What, how it moves, how often, and when it first comes, before and after."""
    return [
        f"{change.kind.replace('_', ' ')} {words.name(change.what)}",
        _moved(change),
        f"{change.recorded_times} -> {change.changed_times}",
        f"{_time(change.recorded_s)} -> {_time(change.changed_s)}",
        "guess" if change.guess else "",
    ]


def _moved(change: Change) -> str:
    earlier_s = change.earlier_s
    if earlier_s is None:
        return "new" if change.recorded_s is None else "never"
    if abs(earlier_s) <= SAME_S or change.kind in COUNTED:
        return "-"
    span = f"{abs(earlier_s):.3f}s" if abs(earlier_s) < 1 else f"{abs(earlier_s):.1f}s"
    return f"{span} {'earlier' if earlier_s > 0 else 'later'}"


def _time(wall_s: float | None) -> str:
    return "-" if wall_s is None else clock_time(wall_s).partition(" ")[2]


def _about(summary: dict[str, Any]) -> Iterator[str]:
    name = words.name(summary["config"], MAX_SENTENCE_CHARS)
    if not summary["episodes"]:
        yield f"With {name} nothing would have been decided otherwise."
    left_out = summary["left_out"]
    if left_out:
        counted = ", ".join(f"{kind} {count}" for kind, count in sorted(left_out.items()))
        yield f"Left out, since with {name} the orders that they answer had not been given: {counted}."
    if summary["by_defaults"]:
        names = ", ".join(words.name(target) for target in summary["by_defaults"])
        yield f"Judged by the [defaults] of {name}, which names no such target: {names}."
    if summary["guesses"]:
        yield "guess: what comes after an order that nobody could answer, since in the recording it was not given."
    if summary["episodes"]:
        yield "Memory stays as it was recorded: what an earlier trim would have freed does not show."
