"""A plan as people read it: a diff, place by place.

Must not: print. Upstream: model. Downstream: cli.provision.
"""

import difflib
from collections.abc import Iterator, Sequence

from edgeguardd.core.text import printable
from edgeguardd.isolate.provision.model import SIZES, Change, Kind, number_of, size_text

_MAX_CHARS = 4096


def diff(changes: Sequence[Change]) -> Iterator[str]:
    """Lines: the place, then what goes (-) and what comes (+)."""
    place = None
    for change in changes:
        if change.place != place:
            place = change.place
            yield printable(place, _MAX_CHARS)
        yield from _lines(change)


def _lines(change: Change) -> Iterator[str]:
    match change.kind:
        case Kind.CGROUP:
            yield "  - the cgroup" if change.after is None else "  + a cgroup"
        case Kind.CONTROLLER:
            sign = "-" if change.after is None else "+"
            yield f"  {sign} {change.key.split()[1]} for the cgroups in it"
        case Kind.DROP_IN:
            yield f"  {change.key}"
            old, new = ((text or "").splitlines() for text in (change.before, change.after))
            for line in difflib.unified_diff(old, new, lineterm="", n=1):
                if not line.startswith(("---", "+++", "@@")):
                    yield f"  {line[:1]} {line[1:]}"
        case Kind.RELOAD:
            yield "  + systemctl daemon-reload"
        case Kind.SLICE:
            yield f"  + systemctl {'stop' if change.after == 'inactive' else 'start'}"
        case _:
            yield f"  - {change.key} {_value(change.key, change.before)}"
            yield f"  + {change.key} {_value(change.key, change.after)}"


def _value(file: str, text: str | None) -> str:
    if text is None:
        return "as a new cgroup has it"
    number = number_of(file, text) if file in SIZES else None
    return f"{text} ({size_text(number)})" if number else text
