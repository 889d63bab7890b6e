"""Any history with restarts in it: no command forgotten or ended twice, no number twice, and the same in the end."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeguardd.core import resume
from edgeguardd.core.config import UNLOAD_DEADLINE_S
from edgeguardd.core.effects import CommandEnded, Deliver, Effect
from edgeguardd.core.engine import Engine
from edgeguardd.core.events import (
    AckReceived,
    CgroupAppeared,
    CgroupVanished,
    Event,
    MachineSampled,
    StateRecalled,
    SubscriberJoined,
    SubscriberLeft,
    TargetAdded,
    TargetDropped,
)
from edgeguardd.core.kept import KeptTarget
from edgeguardd.core.model import AckStatus, Command, Level, MachineSample, Role
from edgeguardd.core.restores import RESTORE_DEADLINE_S
from tests.property.test_engine import STEPS, Shell
from tests.support.script import EVERYTHING, Script

WAIT_S = 5.0
# For who is away, and what there is left at least for who is back in the last moment of it.
GRACE_S = WAIT_S + resume.LEAST_LEFT_S
# No command has more time than this.
LONGEST_S = max(RESTORE_DEADLINE_S, UNLOAD_DEADLINE_S)
# Longer than every dwell of a target that flaps, one after the other.
SETTLED_S = 180
# After these there is nothing that could come to anything.
ENDINGS = (CgroupVanished, TargetDropped)


class Runs(Script):
    """A script whose daemon may die: the next one gets what was kept, and who was subscribed comes back, or nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell()
        # number on the stage -> how it was let in
        self.let_in: dict[int, SubscriberJoined] = {}
        # numbers of commands that are on their way after all the time that they can have
        self.overdue: list[int] = []

    def pass_time(self, seconds: float, every: float = 0.5, sample: bool = True) -> list[Effect]:
        """As in any script, and a look at how long commands have been on their way."""
        effects = super().pass_time(seconds, every, sample)
        for target in self.engine.targets.values():
            for seq, one in target.ledger.outstanding.items():
                if self.now > one.sent_at + one.command.deadline_s + GRACE_S:
                    self.overdue.append(seq)
        return effects

    def take(self, fact: Event) -> None:
        """One fact, as the shell would tell it."""
        if isinstance(fact, SubscriberJoined):
            fact = msgspec.structs.replace(fact, name=f"s{fact.subscriber}")
        stage = getattr(fact, "subscriber", 0)
        event = self.shell.translate(fact)
        if event is None:
            return
        if isinstance(event, SubscriberJoined):
            event = msgspec.structs.replace(event, pid=stage)
            self.let_in[stage] = event
        elif isinstance(event, SubscriberLeft):
            self.let_in.pop(stage, None)
        self.do(event)

    def restart(self, *, come_back: bool) -> None:
        """kill -9, and at once the next run."""
        if "llm" not in self.engine.targets:
            return
        present = self.target.present
        kept = msgspec.json.decode(msgspec.json.encode(resume.keep(self.target)), type=KeptTarget)
        machine, last = resume.keep_machine(self.engine.machine), self.engine.numbers.last
        self.engine, self.timers = Engine(), {}
        self.do(StateRecalled((kept,), machine, last, WAIT_S))
        self.do(TargetAdded("llm", "/llm", self.policy))
        if present:
            self.do(CgroupAppeared("llm"))
        was, self.let_in, self.shell.ids = self.let_in, {}, {}
        for stage, joined in was.items() if come_back else ():
            self.take(SubscriberJoined(stage, joined.name, Role.INFERENCE, "llm", joined.supports))


def play(steps: list[tuple[Event | None, float]], *, come_back: bool = True, restarts: bool = True) -> Runs:
    runs = Runs()
    for fact, wait_s in steps:
        runs.pass_time(wait_s, sample=False)
        if fact is not None:
            runs.take(fact)
        elif restarts:
            runs.restart(come_back=come_back)
    return runs


HISTORIES = st.lists(STEPS.flatmap(lambda steps: st.just(steps[:12])), max_size=5).map(
    lambda parts: [step for part in parts for step in (*part, (None, 0.3))]
)


@settings(max_examples=150)
@given(HISTORIES, st.booleans())
def test_no_command_is_forgotten_or_ended_twice(steps: list[tuple[Event | None, float]], come_back: bool) -> None:
    """Each number that was told has ended once, or is on its way; and it is one command, whenever it is told."""
    runs = play(steps, come_back=come_back)
    told: dict[int, Command] = {}
    for effect in runs.effects:
        if isinstance(effect, Deliver):
            command = msgspec.structs.replace(effect.command, deadline_s=0.0)
            assert effect.again or command.seq not in told
            assert told.setdefault(command.seq, command) == command
    ended = [effect.seq for effect in runs.effects if isinstance(effect, CommandEnded)]
    waiting = [seq for target in runs.engine.targets.values() for seq in target.ledger.outstanding]
    assert len(ended) == len(set(ended))
    assert set(told) <= set(ended) | set(waiting)
    assert not set(ended) & set(waiting)


@settings(max_examples=150)
@given(HISTORIES)
def test_every_command_on_its_way_has_its_deadline(steps: list[tuple[Event | None, float]]) -> None:
    """After a restart as before it: nothing waits for ever."""
    runs = play(steps)
    due = {key for key in runs.timers if key.startswith("deadline:")}
    waiting = [seq for target in runs.engine.targets.values() for seq in target.ledger.outstanding]
    assert due == {f"deadline:{seq}:llm" for seq in waiting}


@settings(max_examples=150)
@given(HISTORIES, st.booleans())
def test_a_command_ends_by_its_first_deadline_and_one_grace(
    steps: list[tuple[Event | None, float]], come_back: bool
) -> None:
    """However often the daemon is restarted, and whether or not who was subscribed comes back."""
    assert play(steps, come_back=come_back).overdue == []


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 3)), max_size=40), st.sampled_from([850, 950, 1000]))
def test_servers_that_answer_nothing_are_not_waited_for_anew_by_each_restart(
    lives: list[tuple[bool, float]], mib: int
) -> None:
    """In some runs they are back, in some they are not: neither gives what was asked another time than its first."""
    runs = Runs()
    for stage in (1, 2):
        runs.take(SubscriberJoined(stage, "", Role.INFERENCE, "llm", EVERYTHING))
    runs.need(mib)
    asked = list(runs.target.ledger.outstanding)
    assert asked
    was = dict(runs.let_in)
    for come_back, length_s in lives:
        runs.let_in = dict(was)
        runs.restart(come_back=come_back)
        runs.pass_time(length_s)
    runs.pass_time(max(0.0, LONGEST_S + GRACE_S - sum(length_s for _, length_s in lives)))
    assert runs.overdue == []
    assert set(asked) <= {effect.seq for effect in runs.effects if isinstance(effect, CommandEnded)}


@settings(max_examples=150)
@given(STEPS)
def test_what_is_kept_is_what_is_recalled(steps: list[tuple[Event, float]]) -> None:
    """Kept, recalled, all back, and kept again: the same, times included, but for the grace."""
    runs = play([*steps])
    if "llm" not in runs.engine.targets:
        return
    before = resume.keep(runs.target)
    runs.restart(come_back=False)
    after = resume.keep(runs.target)
    assert ungraced(after) == ungraced(before)


def ungraced(kept: KeptTarget) -> KeptTarget:
    subscribers = tuple(
        msgspec.structs.replace(
            one, commands=tuple(msgspec.structs.replace(command, ends_by=None) for command in one.commands)
        )
        for one in kept.subscribers
    )
    return msgspec.structs.replace(kept, subscribers=subscribers)


@settings(max_examples=25)
@given(HISTORIES, st.sampled_from([700, 950]))
def test_it_comes_to_the_same_as_without_a_restart(steps: list[tuple[Event | None, float]], mib: int) -> None:
    """The same history, with restarts and without, then memory that stays and servers that obey: no rung below it.
    Then memory that is given back: one end. On the way dwells and what is learned at rest begin anew."""
    ends = []
    for restarts in (False, True):
        runs = play([step for step in steps if not isinstance(step[0], ENDINGS)], restarts=restarts)
        settle(runs, mib)
        assert runs.target.ledger.rung >= runs.target.level
        settle(runs, 100)
        ends.append((runs.target.level, runs.target.ledger.rung, runs.target.ledger.in_force(), sorted(runs.let_in)))
    assert ends[0] == ends[1]
    assert ends[0][:2] == (Level.NORMAL, Level.NORMAL)


def settle(runs: Runs, mib: int) -> None:
    """So much is needed for as long as it takes, and every command is answered."""
    runs.needed_mib = mib
    for _ in range(SETTLED_S):
        runs.pass_time(1.0, every=1.0)
        runs.do(MachineSampled(MachineSample(8000 << 20, 7000 << 20)))
        for target in runs.engine.targets.values():
            for one in list(target.ledger.outstanding.values()):
                if one.subscriber > 0 and one.command.seq in target.ledger.outstanding:
                    runs.do(AckReceived(one.subscriber, one.command.seq, AckStatus.DONE))
