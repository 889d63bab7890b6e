"""The generated blocks of docs/explanation/policy.md: marks, ladder, counters, outcomes, the check, state diagrams.

Must not: hold facts of its own. Upstream: core.commands, core.config, core.policy, core.relief, protocoltext.
Downstream: reference.
"""

import re
from collections.abc import Callable

from edgeguardd.cli import protocoltext
from edgeguardd.core.commands import EFFECT_SHARE, VERIFY_S
from edgeguardd.core.config import Mark, Policy, Step
from edgeguardd.core.model import Level, Outcome
from edgeguardd.core.policy import COUNTER_LEVELS
from edgeguardd.core.relief import MOVES, Phase

_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(page: str) -> str:
    """The page with every generated block made anew. Raises KeyError for a block that nobody makes."""
    return _BLOCK.sub(lambda found: found.group(1) + BLOCKS[found.group(2)]() + found.group(3), page)


def _marks() -> str:
    policy = Policy()
    rows = [
        f"| {level.word} | {_mark(mark)} |"
        for level, mark in (
            (Level.ELEVATED, policy.elevated),
            (Level.HIGH, policy.high),
            (Level.CRITICAL, policy.critical),
        )
    ]
    return _table(("level", "begins at, by default"), rows)


def _ladder() -> str:
    ladder = Policy().ladder
    rows = [f"| {level.word} | {', '.join(map(_step, ladder.rung(level)))} |" for level in Level if level]
    return _table(("level", "asks for, by default"), rows)


def _counters() -> str:
    rows = [
        f"| `{key}` | {level.word} | {'yes' if of_ancestors else 'no'} |"
        for key, level, of_ancestors in reversed(COUNTER_LEVELS)
    ]
    return _table(("counter", "at least", "an ancestor's counts too"), rows)


def _outcomes() -> str:
    return _table(
        ("outcome", "when"), [f"| {outcome.value} | {protocoltext.OUTCOMES[outcome]} |" for outcome in Outcome]
    )


def _check() -> str:
    share = f"at least {EFFECT_SHARE:.0%} of what was asked for"
    return f"A `done` is checked: {share} has to leave needed bytes within {VERIFY_S:g} s of it.\n"


def _levels() -> str:
    up = [f"    {a.word} --> {b.word}: at once" for a in Level for b in Level if b > a]
    down = [f"    {level.word} --> {Level(level - 1).word}: after the dwell" for level in Level if level]
    return _diagram([f"    [*] --> {Level.NORMAL.word}", *up, *down])


def _relief() -> str:
    moves = [f"    {a.value} --> {b.value}: {what}" for (a, what), b in MOVES.items()]
    return _diagram([f"    [*] --> {Phase.RESTING.value}", *moves])


BLOCKS: dict[str, Callable[[], str]] = {
    "marks": _marks,
    "ladder": _ladder,
    "counters": _counters,
    "outcomes": _outcomes,
    "check": _check,
    "levels": _levels,
    "relief": _relief,
}


def _mark(mark: Mark) -> str:
    if mark.headroom_bytes is not None:
        return f"{mark.headroom_bytes} bytes of headroom"
    return f"{mark.ratio:.0%} of the elastic range"


def _step(step: Step) -> str:
    ratio = "" if step.max_batch_ratio is None else f" to {step.max_batch_ratio:.0%}"
    return f"{step.action.value}{ratio}"


def _table(head: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *rows]) + "\n"


def _diagram(lines: list[str]) -> str:
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"]) + "\n"
