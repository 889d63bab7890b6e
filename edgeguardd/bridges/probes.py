"""Finding out without side effects: which calls a server offers, and what it counts.

Must not: call anything that does something. Upstream: calls. Downstream: the servers' files.
"""

import math
from collections.abc import Sequence

from edgeguardd.bridges.calls import Http, ServerError


async def version_at(http: Http, path: str, server: str) -> str:
    """What is under "version" there. Raises AwayError, RefusedError, and ServerError when that is no text."""
    version = (await http.get(path)).field("version")
    if not isinstance(version, str) or not version:
        raise ServerError(f"cannot use {http.at}: its {path} names no version; is that {server}?")
    return version


async def offers(http: Http, path: str) -> bool:
    """Whether there is such a call. Raises AwayError.

    OPTIONS runs no handler: a known path answers 405 (Starlette, which FastAPI is built on) or 204 (Echo, LocalAI's),
    an unknown one 404. GET would not do: SGLang's /release_memory_occupation works by GET as well.
    """
    return (await http.ask("OPTIONS", path)).status != 404


async def offered(http: Http, paths: Sequence[str]) -> frozenset[str]:
    """Those of the paths that there are. Raises AwayError."""
    return frozenset([path for path in paths if await offers(http, path)])


def gauge_sum(text: str, *names: str) -> int | None:
    """The sum of these gauges over all their labels, from the text of /metrics; None: there is none of them."""
    found = [_value(line) for line in text.splitlines() if line.split("{", 1)[0].split(" ", 1)[0] in names]
    values = [value for value in found if value is not None and math.isfinite(value)]
    total = sum(values)
    return int(total) if values and math.isfinite(total) else None


def _value(line: str) -> float | None:
    try:
        return float(line.rsplit("}", 1)[-1].split()[0 if "}" in line else 1])
    except (ValueError, IndexError):
        return None
