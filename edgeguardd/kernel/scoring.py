"""Which processes have their oom_score_adj by a rule, and what one look at a process changes of that.

    _judge: read what the rules ask for ─▶ match ─▶ write what differs, or give back what it had before

Must not: choose rules, log, find processes (scores does). Upstream: core.scores, processes. Downstream: scores.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from edgeguardd.core.config import OomScoreRule
from edgeguardd.core.scores import Facts, Wanted, match, wanted
from edgeguardd.errors import KernelError
from edgeguardd.kernel.processes import GoneError, Process, RefusedError

MAX_HELD: Final = 16384


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


class Scoring:
    """By one set of rules at a time.

    held  process -> what is in force for it
    """

    def __init__(
        self,
        proc: str,
        corrected: Callable[[str, int, int, int], None],
        failed: Callable[[str | None, str], None],
    ) -> None:
        self.rules: tuple[OomScoreRule, ...] = ()
        self.held: dict[int, Held] = {}
        self._proc = proc
        self._tell_corrected = corrected
        self._tell_failed = failed
        self._wanted = Wanted()
        self._stats: dict[str, RuleStats] = {}
        self._said: set[str] = set()

    def judge_by(self, rules: tuple[OomScoreRule, ...]) -> None:
        """These from now on; what is in force is looked at as it comes up."""
        if rules != self.rules:
            self.rules, self._wanted = rules, wanted(rules)
            self._stats = {rule.name: _kept(self._stats.get(rule.name), rule) for rule in rules}
            self._said.clear()

    def stats(self) -> list[RuleStats]:
        """The figures as of now."""
        in_force = Counter(held.rule for held in self.held.values())
        return [replace(row, in_force=in_force[row.name]) for row in self._stats.values()]

    def check(self, pid: int, seen: Seen) -> bool:
        """Look at one. True: it has become another program meanwhile, which is to be looked at by itself."""
        try:
            with Process(pid, self._proc) as process:
                return self._judge(process, seen)
        except GoneError:
            self.held.pop(pid, None)
        except KernelError as error:
            self._failed(None, str(error))
        return False

    def _judge(self, process: Process, seen: Seen) -> bool:
        pid = process.pid
        rule = match(self.rules, self._facts(process))
        held = self.held.get(pid)
        inherited = seen.inherited or self.held.get(seen.parent)
        if rule is None and held is None and inherited is None:
            return False
        stat = process.stat()
        if stat.kernel_thread or stat.ended:
            self.held.pop(pid, None)
            return False
        if held is not None and held.started_ticks != stat.started_ticks:
            held = None  # another process has the number
        score = process.score()
        # A child has what its parent had; what it would have had without the rule is what the parent had before.
        known = held or inherited
        before = score if known is None else known.before if score == known.value or held else score
        if rule is None:
            self._give_back(process, known, score)
            return False
        return self._put(process, rule, Held(stat.started_ticks, rule.name, rule.value, before), score)

    def _facts(self, process: Process) -> Facts:
        try:
            return process.facts(self._wanted)
        except RefusedError as error:
            for rule in self.rules:
                if rule.exe is not None:
                    self._failed(rule.name, str(error))
            return process.facts(replace(self._wanted, exe=False))

    def _put(self, process: Process, rule: OomScoreRule, holding: Held, score: int) -> bool:
        stats, held = self._stats[rule.name], self.held.get(process.pid)
        if score != rule.value:
            try:
                process.set_score(rule.value)
            except RefusedError as error:
                self.held.pop(process.pid, None)
                self._failed(rule.name, str(error))
                return False
            stats.writes += 1
            if held is not None and replace(held, before=0) == replace(holding, before=0):
                stats.corrections += 1
                self._tell_corrected(rule.name, process.pid, score, rule.value)
            if match(self.rules, self._facts(process)) is not rule:
                self.held[process.pid] = holding
                return True
        if process.pid in self.held or len(self.held) < MAX_HELD:
            self.held[process.pid] = holding
        return False

    def _give_back(self, process: Process, known: Held | None, score: int) -> None:
        self.held.pop(process.pid, None)
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
            self._tell_failed(rule, why)


def _kept(stats: RuleStats | None, rule: OomScoreRule) -> RuleStats:
    """The counts of a rule go on over a reload."""
    return RuleStats(rule.name, rule.value) if stats is None else replace(stats, value=rule.value, why=None)
