"""A request's target -> path, query, and the host that it names itself (RFC 9112, section 3.2).

Must not: judge the host (httphosts does). Upstream: nothing. Downstream: httpconnection.
"""

import re

from msgspec import Struct

# Absolute form, as clients send it to a proxy. The authority ends where path, query or (never sent) fragment begins.
_ABSOLUTE = re.compile(r"http://([^/?#]*)([^#]*)", re.IGNORECASE)


class Target(Struct, frozen=True):
    """What was asked for. host: of an absolute form, which then counts instead of the Host field; else None."""

    path: str
    query: str
    host: bytes | None = None


def parse(target: str) -> Target:
    """Any target. One that is neither a path nor an absolute form is taken for a path, and found nowhere."""
    absolute = _ABSOLUTE.match(target)
    host = None if absolute is None else absolute[1].encode("ascii")
    path, _, query = (target if absolute is None else absolute[2]).partition("?")
    return Target(path or "/", query, host)
