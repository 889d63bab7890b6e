"""oom_score_adj kept in force by rule: at start, for new processes at once, and again when something has changed it.

Must not: choose rules, log, hold up the loop: at most BATCH processes are looked at in one turn. Upstream: core.scores,
kernel.processes, kernel.procevents. Downstream: oomscores.

    connector ──events──▶ pending ──┐
    recheck timer ──all of /proc──▶ scan ──┴──▶ _check: read what the rules ask for, match, write what differs

A rule holds for a process as long as the process fits it. What does not fit it any more (it runs another program now)
gets back what it had before, unless something else has changed it since. A daemon that stops leaves the scores.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, assert_never

from msgspec import Struct
from msgspec.structs import replace

from edgeguardd.core.config import OomScoreRule
from edgeguardd.core.scores import Facts, Wanted, match, wanted
from edgeguardd.errors import KernelError
from edgeguardd.kernel.processes import GoneError, Process, RefusedError, pids
from edgeguardd.kernel.procevents import Kind, OverrunError, ProcEvent, ProcEvents

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
MAX_HELD: Final = 16384
# Before the daemon says that it is ready; the rest follows in turns.
START_CHECKS: Final = 4096
# The kernel answers within a millisecond, or, to another pid or user namespace than the first, never.
ANSWER_S: Final = 2.0
UNANSWERED: Final = (
    "cannot be told of new processes: the kernel has not answered; run the daemon in the host's namespaces, on a "
    "kernel with CONFIG_PROC_EVENTS"
)


class Held(Struct, frozen=True):
    """A process that a rule is in force for: when it began, the rule, and the score before."""

    started_ticks: int
    rule: str
    value: int
    before: int


class Seen(Struct, frozen=True):
    """What an event says of a process: its parent, and what was in force for that."""

    parent: int = 0
    inherited: Held | None = None


class RuleStats(Struct):
    """What became of one rule. Counts are since the start, or since a reload brought the rule."""

    name: str
    value: int
    in_force: int = 0
    writes: int = 0
    corrections: int = 0
    failures: int = 0
    why: str | None = None


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
        self._rules: tuple[OomScoreRule, ...] = ()
        self._wanted = Wanted()
        self._recheck_s = 0.0
        self._stats: dict[str, RuleStats] = {}
        self._events: ProcEvents | None = None
        self._told = False
        self._why: str | None = None
        self._overruns = 0
        self._lost_some = False
        self._said: set[str] = set()
        self._held: dict[int, Held] = {}
        self._pending: dict[int, Seen] = {}
        self._scan: deque[int] = deque()
        self._turn_timer: asyncio.TimerHandle | None = None
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    # Life

    def apply(self, rules: tuple[OomScoreRule, ...], recheck_s: float, *, at_once: int = 0) -> None:
        """Put these rules in force instead of those before; so many processes before this returns, the rest after."""
        self._recheck_s = recheck_s
        if rules != self._rules:
            self._rules, self._wanted = rules, wanted(rules)
            self._stats = {rule.name: _kept(self._stats.get(rule.name), rule) for rule in rules}
            self._said.clear()
        if not rules:
            self._check_all(list(self._held))
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
        self._held.clear()

    def stats(self) -> ScoreStats:
        """The figures as of now."""
        in_force = Counter(held.rule for held in self._held.values())
        rows = [replace(row, in_force=in_force[row.name]) for row in self._stats.values()]
        return ScoreStats(self._told, self._why, self._overruns, rows)

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
                self._held.pop(pid, None)
                self._forked(pid, event.other)
            case Kind.EXEC | Kind.COMM:
                self._wait(pid, self._pending.get(pid, Seen()))
            case Kind.EXIT:
                self._pending.pop(pid, None)
                self._held.pop(pid, None)
            case Kind.ACK:
                pass
            case _:
                assert_never(event.kind)

    def _forked(self, pid: int, parent: int) -> None:
        """A child is what its parent is: of one that no rule fits it need not be looked at until it says otherwise."""
        waiting = self._pending.get(parent)
        inherited = self._held.get(parent) or (None if waiting is None else waiting.inherited)
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
        for gone in self._held.keys() - set(found):
            del self._held[gone]

    def _recheck(self) -> None:
        self._recheck_timer = None
        self._begin_scan()
        self._turn_soon(0.0)

    def _work(self, at_most: int, until: float) -> None:
        for _ in range(at_most):
            if self._pending:
                pid = next(iter(self._pending))
                self._check(pid, self._pending.pop(pid))
            elif self._scan:
                self._check(self._scan.popleft(), Seen())
            else:
                return
            if self._loop.time() >= until:
                return

    def _check_all(self, numbers: list[int]) -> None:
        for pid in numbers:
            self._check(pid, Seen())

    def _check(self, pid: int, seen: Seen) -> None:
        try:
            with Process(pid, self._proc) as process:
                self._judge(process, seen)
        except GoneError:
            self._held.pop(pid, None)
        except KernelError as error:
            self._failed(None, str(error))

    def _judge(self, process: Process, seen: Seen) -> None:
        pid = process.pid
        rule = match(self._rules, self._facts(process))
        held = self._held.get(pid)
        inherited = seen.inherited or self._held.get(seen.parent)
        if rule is None and held is None and inherited is None:
            return
        stat = process.stat()
        if stat.kernel_thread or stat.ended:
            self._held.pop(pid, None)
            return
        if held is not None and held.started_ticks != stat.started_ticks:
            held = None  # another process has the number
        score = process.score()
        # A child has what its parent had; what it would have had without the rule is what the parent had before.
        known = held or inherited
        before = score if known is None else known.before if score == known.value or held else score
        if rule is None:
            self._give_back(process, known, score)
        else:
            self._put(process, rule, Held(stat.started_ticks, rule.name, rule.value, before), score)

    def _facts(self, process: Process) -> Facts:
        try:
            return process.facts(self._wanted)
        except RefusedError as error:
            for rule in self._rules:
                if rule.exe is not None:
                    self._failed(rule.name, str(error))
            return process.facts(replace(self._wanted, exe=False))

    def _put(self, process: Process, rule: OomScoreRule, holding: Held, score: int) -> None:
        stats, held = self._stats[rule.name], self._held.get(process.pid)
        if score != rule.value:
            try:
                process.set_score(rule.value)
            except RefusedError as error:
                self._held.pop(process.pid, None)
                self._failed(rule.name, str(error))
                return
            stats.writes += 1
            if held is not None and replace(held, before=0) == replace(holding, before=0):
                stats.corrections += 1
                self._report.corrected(rule.name, process.pid, score, rule.value)
            if match(self._rules, self._facts(process)) is not rule:
                # It has become another program in between: that one is looked at by itself.
                self._held[process.pid] = holding
                self._wait(process.pid, Seen())
                return
        if process.pid in self._held or len(self._held) < MAX_HELD:
            self._held[process.pid] = holding

    def _give_back(self, process: Process, known: Held | None, score: int) -> None:
        self._held.pop(process.pid, None)
        if known is None or score != known.value or score == known.before:
            return
        try:
            process.set_score(known.before)
        except RefusedError as error:
            self._failed(known.rule, str(error))

    def _failed(self, rule: str | None, why: str) -> None:
        """Count; say the first of a kind. Two processes that are refused alike differ in their number alone."""
        kind = f"{rule}: {why.rpartition(': ')[2]}"
        if rule is not None and (stats := self._stats.get(rule)):
            stats.failures += 1
            stats.why = why
        if kind not in self._said:
            self._said.add(kind)
            self._report.failed(rule, why)


def _kept(stats: RuleStats | None, rule: OomScoreRule) -> RuleStats:
    """The counts of a rule go on over a reload."""
    return RuleStats(rule.name, rule.value) if stats is None else replace(stats, value=rule.value, why=None)
