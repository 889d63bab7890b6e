"""The server's own figures on their way to the daemon: merged, so that reporting on every token costs nothing.

Must not: know sockets. Upstream: wire. Downstream: session.
"""

import operator

from edgeguardd.core.wire import MAX_FINISHED, ReportLine

# Far below the daemon's limit on lines, far above what changes faster than memory does.
INTERVAL_S = 0.1


class Reporter:
    """Holds what was last said of each figure, what of it is unsent, and the requests that have finished since."""

    def __init__(self) -> None:
        self._latest: dict[str, int] = {}
        self._unsent: dict[str, int] = {}
        self._finished: list[str] = []
        self._next_at = 0.0

    def report(self, figures: dict[str, int | None]) -> None:
        """Take new figures; None says nothing. Raises ValueError for a negative one, TypeError for no whole number."""
        for name, value in figures.items():
            if value is None:
                continue
            whole = operator.index(value)
            if not 0 <= whole < 2**63:
                raise ValueError(f"cannot report {name} = {whole}: it must be 0 or more, and fit into 63 bits")
            if self._latest.get(name) != whole:
                self._latest[name] = self._unsent[name] = whole

    def finish(self, request: str) -> None:
        """An admitted request is done."""
        self._finished.append(request)

    def begin_again(self) -> None:
        """A new connection: the daemon knows nothing of ours, and has forgotten the requests of the old one."""
        self._unsent = dict(self._latest)
        self._finished.clear()
        self._next_at = 0.0

    def due(self) -> float | None:
        """When there will be something to send; None for nothing."""
        return self._next_at if self._unsent or self._finished else None

    def take(self, now: float) -> list[ReportLine]:
        """The lines to send now; at most one batch every INTERVAL_S."""
        due = self.due()
        if due is None or due > now:
            return []
        self._next_at = now + INTERVAL_S
        finished, self._finished = self._finished, []
        figures, self._unsent = self._unsent, {}
        batches = [tuple(finished[at : at + MAX_FINISHED]) for at in range(0, len(finished), MAX_FINISHED)] or [()]
        return [ReportLine(finished=batches[0], **figures), *(ReportLine(finished=batch) for batch in batches[1:])]
