"""edgeguardd with stamps at the stages of its way from a wake-up to a socket.

    python -m tests.bench.staged STAMPS run --config …

Each wake-up that ended in a command gives one line of nanoseconds in the file STAMPS, when the daemon ends. The stamps
cost something (a few microseconds a stage), so the series of the reaction itself are taken without them.

Must not: change what is done. Upstream: reaction. Downstream: the daemon's own command line.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STAGES = ("woken", "reading", "read", "judged", "delivering", "delivered")


class Stamps:
    """The stamps since the last wake-up, and the complete rows."""

    def __init__(self) -> None:
        self._now: dict[str, int] | None = None
        self.rows: list[dict[str, int]] = []

    def begin(self) -> None:
        """A wake-up."""
        self._now = {"woken": time.monotonic_ns()}

    def put(self, stage: str) -> None:
        """A stage is reached; the first time counts."""
        if self._now is not None:
            self._now.setdefault(stage, time.monotonic_ns())

    def end(self) -> None:
        """The first command of a wake-up was handed over."""
        self.put("delivered")
        if self._now is not None and len(self._now) == len(STAGES):
            self.rows.append(self._now)
        self._now = None


def stamped(stamps: Stamps, function: Callable[..., Any], *, before: str = "", after: str = "") -> Callable[..., Any]:
    """The function, with stamps before and after it."""

    def wrapped(*words: Any, **named: Any) -> Any:
        if before:
            stamps.put(before)
        result = function(*words, **named)
        if after:
            stamps.put(after)
        return result

    return wrapped


def install(stamps: Stamps) -> None:
    """On the classes, before the daemon is made."""
    from edgeguardd.core.engine import Engine  # noqa: PLC0415 - after the command line has chosen what to import
    from edgeguardd.kernel.telling import Telling  # noqa: PLC0415
    from edgeguardd.kernel.wakeups import Wakeups  # noqa: PLC0415
    from edgeguardd.serve.subscribers import SubscriberServer  # noqa: PLC0415

    dispatch, deliver, handle = Wakeups._dispatch, SubscriberServer.deliver, Engine.handle

    def dispatched(self: Wakeups) -> None:
        stamps.begin()
        dispatch(self)

    def handled(self: Engine, event: Any, now: float) -> Any:
        effects = handle(self, event, now)
        if any(type(effect).__name__ == "Deliver" for effect in effects):
            stamps.put("judged")
        return effects

    def delivered(self: SubscriberServer, effect: Any) -> None:
        stamps.put("delivering")
        deliver(self, effect)
        stamps.end()

    Wakeups._dispatch = dispatched  # type: ignore[method-assign]
    Engine.handle = handled  # type: ignore[method-assign]
    SubscriberServer.deliver = delivered  # type: ignore[method-assign]
    Telling.read = stamped(stamps, Telling.read, before="reading", after="read")  # type: ignore[method-assign]


def main() -> int:
    """As edgeguardd, then the stamps."""
    path, *words = sys.argv[1:]
    from edgeguardd.cli import edgeguardd  # noqa: PLC0415 - for the same reason

    stamps = Stamps()
    install(stamps)
    try:
        return edgeguardd.main(words)
    finally:
        with open(path, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in stamps.rows)


if __name__ == "__main__":
    sys.exit(main())
