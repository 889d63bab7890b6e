"""oom_score_adj kept in force by rule: at start, for new processes at once, and again when something has changed it.

Must not: choose rules, log, hold up the loop: at most BATCH processes are looked at in one turn. Upstream: scoring,
processes, procevents. Downstream: oomscores.

    connector ──events──▶ pending ─────────┐
    recheck timer ──all of /proc──▶ scan ──┴──▶ scoring.check, one process after the other

A rule holds for a process as long as the process fits it. What does not fit it any more (it runs another program now)
gets back what it had before, unless something else has changed it since. A daemon that stops leaves the scores.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final, assert_never

from msgspec import Struct

from edgeguardd.core.config import OomScoreRule
from edgeguardd.errors import KernelError
from edgeguardd.kernel.processes import pids
from edgeguardd.kernel.procevents import Kind, OverrunError, ProcEvent, ProcEvents
from edgeguardd.kernel.scoring import RuleStats, Scoring, Seen

# A turn ends after either: a reaction elsewhere waits no longer than its budget, and two thirds of the time are
# everybody else's even in a storm.
BATCH: Final = 16
TURN_S: Final = 0.002
PAUSE_S: Final = 0.004
# What ends within so little needs no score; and a fork and the program it starts are one look.
SETTLE_S: Final = 0.005
MAX_MESSAGES: Final = 256
# Beyond these, what was not noted is found by looking at all processes once.
MAX_PENDING: Final = 4096
# Before the daemon says that it is ready; the rest follows in turns.
START_CHECKS: Final = 4096
# The kernel answers within a millisecond, or, to another pid or user namespace than the first, never.
ANSWER_S: Final = 2.0
UNANSWERED: Final = (
    "cannot be told of new processes: the kernel has not answered; run the daemon in the host's namespaces, on a "
    "kernel with CONFIG_PROC_EVENTS"
)


class ScoreStats(Struct):
    """For metrics and the status page. `why`: what keeps new processes from being told."""

    told: bool = False
    why: str | None = None
    overruns: int = 0
    rules: list[RuleStats] = []


class Report(Struct, frozen=True):
    """Whom to tell. failed: once a rule and reason. slow: once, that new processes wait for the next look at all."""

    corrected: Callable[[str, int, int, int], None]
    failed: Callable[[str | None, str], None]
    slow: Callable[[str], None]


class OomScores:
    """Keeps scores while it has rules; without any it costs nothing."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Report,
        *,
        proc: str = "/proc",
        open_events: Callable[[], ProcEvents] = ProcEvents.open,
    ) -> None:
        self._loop = loop
        self._report = report
        self._proc = proc
        self._open_events = open_events
        self._scoring = Scoring(proc, report.corrected, report.failed)
        self._recheck_s = 0.0
        self._events: ProcEvents | None = None
        self._told = False
        self._why: str | None = None
        self._overruns = 0
        self._lost_some = False
        self._pending: dict[int, Seen] = {}
        self._scan: deque[int] = deque()
        self._turn_timer: asyncio.TimerHandle | None = None
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    # Life

    def apply(self, rules: tuple[OomScoreRule, ...], recheck_s: float, *, at_once: int = 0) -> None:
        """Put these rules in force instead of those before; so many processes before this returns, the rest after."""
        self._recheck_s = recheck_s
        self._scoring.judge_by(rules)
        if not rules:
            for pid in list(self._scoring.held):
                self._scoring.check(pid, Seen())
            self.close()
            self._why = None
            return
        if self._events is None:
            self._listen()
        self._begin_scan()
        self._work(at_once, math.inf)
        self._turn_soon(0.0)

    def close(self) -> None:
        """Stop looking. The scores stay."""
        for timer in (self._turn_timer, self._recheck_timer):
            if timer is not None:
                timer.cancel()
        self._turn_timer = self._recheck_timer = None
        self._mute()
        self._pending.clear()
        self._scan.clear()
        self._scoring.held.clear()

    def stats(self) -> ScoreStats:
        """The figures as of now."""
        return ScoreStats(self._told, self._why, self._overruns, self._scoring.stats())

    # Being told

    def _listen(self) -> None:
        try:
            self._events = self._open_events()
        except KernelError as error:
            self._slow(str(error))
            return
        self._why = None
        self._loop.add_reader(self._events.fd, self._readable)
        self._answer_timer = self._loop.call_later(ANSWER_S, self._slow, UNANSWERED)

    def _mute(self) -> None:
        events, self._events = self._events, None
        self._told = False
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        if events is not None:
            self._loop.remove_reader(events.fd)
            events.close()

    def _slow(self, why: str) -> None:
        """No events: new processes wait for the next look at all."""
        self._mute()
        if why != self._why:
            self._why = why
            self._report.slow(why)

    def _readable(self) -> None:
        # The reader rests until the turn, so that a storm of events is not a storm of wake-ups.
        if self._events is not None:
            self._loop.remove_reader(self._events.fd)
        self._turn_soon(SETTLE_S)

    def _turn_soon(self, wait_s: float) -> None:
        if self._turn_timer is None:
            self._turn_timer = self._loop.call_later(wait_s, self._turn)

    def _turn(self) -> None:
        self._turn_timer = None
        more = self._read_events()
        if self._lost_some and not self._scan:
            self._begin_scan()
        self._work(BATCH, self._loop.time() + TURN_S)
        if more or self._pending or self._scan or self._lost_some:
            self._turn_soon(PAUSE_S)
        elif self._events is not None:
            self._loop.add_reader(self._events.fd, self._readable)

    def _read_events(self) -> bool:
        """Note what has come; whether there may be more."""
        events, count = self._events, 0
        if events is None:
            return False
        try:
            for event in events.read(MAX_MESSAGES):
                count += 1
                self._note(event)
                if self._events is not events:
                    return False  # closed meanwhile
        except OverrunError:
            self._overruns += 1
            self._lost_some = True
            return True
        except KernelError as error:
            self._slow(str(error))
        return count == MAX_MESSAGES

    def _note(self, event: ProcEvent) -> None:
        if event.kind is Kind.ACK and event.other:
            self._slow(f"cannot be told of new processes: error {event.other}; run the daemon with CAP_NET_ADMIN")
            return
        if not self._told:
            self._told = True
            if self._answer_timer is not None:
                self._answer_timer.cancel()
        pid = event.pid
        match event.kind:
            case Kind.FORK:
                self._scoring.held.pop(pid, None)
                self._forked(pid, event.other)
            case Kind.EXEC | Kind.COMM:
                self._wait(pid, self._pending.get(pid, Seen()))
            case Kind.EXIT:
                self._pending.pop(pid, None)
                self._scoring.held.pop(pid, None)
            case Kind.ACK:
                pass
            case _:
                assert_never(event.kind)

    def _forked(self, pid: int, parent: int) -> None:
        """A child is what its parent is: of one that no rule fits it need not be looked at until it says otherwise."""
        waiting = self._pending.get(parent)
        inherited = self._scoring.held.get(parent) or (None if waiting is None else waiting.inherited)
        if inherited is not None or waiting is not None or self._scan:
            self._wait(pid, Seen(parent, inherited))

    def _wait(self, pid: int, seen: Seen) -> None:
        if pid in self._pending or len(self._pending) < MAX_PENDING:
            self._pending[pid] = seen
        else:
            self._lost_some = True

    # Looking

    def _begin_scan(self) -> None:
        """All processes, in turns; what has ended unnoticed is forgotten."""
        self._lost_some = False
        if self._recheck_timer is not None:
            self._recheck_timer.cancel()
        self._recheck_timer = self._loop.call_later(self._recheck_s, self._recheck)
        try:
            found = pids(self._proc)
        except KernelError as error:
            self._slow(str(error))
            return
        self._scan = deque(found)
        for gone in self._scoring.held.keys() - set(found):
            del self._scoring.held[gone]

    def _recheck(self) -> None:
        self._recheck_timer = None
        self._begin_scan()
        self._turn_soon(0.0)

    def _work(self, at_most: int, until: float) -> None:
        for _ in range(at_most):
            if self._pending:
                pid = next(iter(self._pending))
                seen = self._pending.pop(pid)
            elif self._scan:
                pid, seen = self._scan.popleft(), Seen()
            else:
                return
            if self._scoring.check(pid, seen):
                self._wait(pid, Seen())
            if self._loop.time() >= until:
                return
