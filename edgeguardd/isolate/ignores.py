"""`# edgeguard: ignore=RULE reason` in a unit's files: one rule that is broken on purpose, and why.

Must not: know which rules there are beyond their ids. Upstream: unittext. Downstream: judge.
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from edgeguardd.isolate.unittext import Remark, UnitText

_MARK = re.compile(r"[#;]+\s*edgeguard:\s*(.*)", re.IGNORECASE)
_IGNORE = re.compile(r"ignore\s*=\s*([A-Za-z0-9_-]+)\s*(.*)", re.DOTALL)


class Ignore(Struct, frozen=True):
    """One rule that is not to count, with the reason and where that stands."""

    rule: str
    reason: str
    place: Remark


def read(texts: Iterable[UnitText], known: Iterable[str]) -> tuple[dict[str, Ignore], list[Remark]]:
    """Rule -> its ignore, over all files of a unit, and what is wrong with others: no reason, no such rule."""
    ids = frozenset(known)
    found: dict[str, Ignore] = {}
    wrong: list[Remark] = []
    for text in texts:
        for line, comment in text.comments:
            marked = _MARK.match(comment)
            if marked is None:
                continue
            fault, ignore = _parsed(marked[1], text.file, line, ids)
            if ignore is not None:
                found[ignore.rule] = ignore
            else:
                wrong.append(Remark(text.file, line, fault))
    return found, wrong


def _parsed(words: str, file: str, line: int, ids: frozenset[str]) -> tuple[str, Ignore | None]:
    asked = _IGNORE.match(words)
    if asked is None:
        return "cannot read the edgeguard comment; write # edgeguard: ignore=RULE reason", None
    rule, reason = asked[1], asked[2].strip()
    if rule not in ids:
        return f"cannot ignore {rule}: there is no such rule; `edgeguardctl audit --rules` lists them", None
    if not reason:
        return f"cannot ignore {rule}: no reason given; write it behind the rule", None
    return "", Ignore(rule, reason, Remark(file, line, f"ignore={rule} {reason}"))
