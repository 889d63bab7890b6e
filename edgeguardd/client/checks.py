"""What a subscriber is made of, checked when it is made: a mistake is told there, not by a daemon that may be away.

Must not: connect, or know what exists. Upstream: core.wire. Downstream: guard, aio, blocking.
Each check returns its value or raises ValueError("cannot …: …; remedy").
"""

import operator
import os
import re

from edgeguardd.core.model import Role
from edgeguardd.core.wire import MAX_NAME_CHARS, NAME_PATTERN

MAX_PATH_BYTES = 107  # sizeof(sun_path) in unix(7), less the NUL at its end

MOST_SIZE = 2**63 - 1  # the most that the protocol can say

_NAME = re.compile(NAME_PATTERN)


def checked_name(name: str) -> str:
    """A subscriber's name."""
    return _named("name", name, "logs and status call this server by it")


def checked_target(target: str | None) -> str | None:
    """A target's name."""
    return None if target is None else _named("target", target, 'name a configured target, or "self"')


def checked_role(role: Role | str) -> Role:
    """A role, also as its word."""
    try:
        return Role(role)
    except ValueError:
        raise ValueError(
            f"cannot subscribe with role {role!r}: no such role; choose one of {', '.join(Role)}"
        ) from None


def checked_path(given: str | os.PathLike[str]) -> str:
    """The path of a socket."""
    path = os.fspath(given)
    if not path.startswith("/"):
        raise ValueError(f"cannot subscribe at {path!r}: the path is relative; write the socket's path from / on")
    if "\0" in path or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ValueError(f"cannot subscribe at {path!r}: no socket can have it; at most {MAX_PATH_BYTES} bytes, no NUL")
    return path


def checked_lost_after(lost_after_s: float | None) -> float | None:
    """Seconds, or never."""
    if lost_after_s is not None and not lost_after_s >= 0:
        raise ValueError(
            f"cannot subscribe with lost_after_s {lost_after_s!r}: no time span; give seconds, or None for never"
        )
    return lost_after_s


def checked_size(what: str, size: int | None) -> int | None:
    """Of a request that is asked for. What a stranger claims may have any length, and fits nowhere all the same."""
    if size is None:
        return None
    whole = operator.index(size)
    if whole < 0:
        raise ValueError(f"cannot ask for {what} {whole}: no size; give 0 or more, or None where it is not known")
    return min(whole, MOST_SIZE)


def _named(what: str, name: object, remedy: str) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS or not _NAME.search(name):
        raise ValueError(
            f"cannot subscribe with {what} {name!r}: it has to be 1 to {MAX_NAME_CHARS} characters without control "
            f"characters; {remedy}"
        )
    return name
