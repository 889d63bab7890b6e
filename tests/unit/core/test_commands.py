"""The commands of one target: their numbers, their timers, their one end, and whether memory came back."""

import pytest

from edgeguardd.core.commands import EFFECT_SHARE, VERIFY_S, Commands, Numbers, Outstanding
from edgeguardd.core.effects import CancelTimer, CommandEnded, Deliver, Effect, Note, Refuse, SetTimer
from edgeguardd.core.events import AckReceived
from edgeguardd.core.ladder import Situation
from edgeguardd.core.model import AckStatus, Action, Level, Outcome, Parameters

TRIM = Parameters(release_bytes=100, needed_target_bytes=900)
PRESSED = Situation(now=10.0, level=Level.HIGH, reason="usage", pressing=True, needed_bytes=1000)


def sent(action: Action = Action.TRIM_KV_CACHE, parameters: Parameters = TRIM) -> tuple[Commands, Outstanding]:
    """One command on its way to server 1."""
    commands = Commands("llm", Numbers(last=6))
    commands.send(1, action, parameters, 5.0, PRESSED, [])
    return commands, commands.outstanding[7]


def test_numbers_are_given_one_after_another() -> None:
    """None is left out: a reader of a log looks for what is missing."""
    numbers = Numbers(last=6)
    assert [numbers.next(), numbers.next()] == [7, 8]


def test_what_is_sent_is_told_with_a_deadline() -> None:
    """To a server that is there; one that is expected back (below 0) is told later, and counts as untold until then."""
    out: list[Effect] = []
    commands = Commands("llm", Numbers())
    commands.send(1, Action.TRIM_KV_CACHE, TRIM, 5.0, PRESSED, out)
    commands.send(-1, Action.TRIM_KV_CACHE, TRIM, 5.0, PRESSED, out)
    here, away = commands.outstanding.values()
    assert (here.told, away.told) == (True, False)
    assert out == [
        Deliver(1, here.command),
        SetTimer("deadline:1:llm", 15.0),
        SetTimer("deadline:2:llm", 15.0),
    ]


@pytest.mark.parametrize(("grace_s", "ends_at"), [(0.5, 15.0), (10.5, 22.5)])
@pytest.mark.parametrize("done", [False, True])
def test_after_a_restart_its_timers_run_again(done: bool, grace_s: float, ends_at: float) -> None:
    """The deadline, not before somebody can be back, and the look at memory where it had been begun."""
    commands, one = sent()
    one.done = done
    out: list[Effect] = []
    commands.resume(one, grace_s, 12.0, out)
    looked: list[Effect] = [SetTimer("verify:7:llm", 12.0 + VERIFY_S)]
    assert out == [SetTimer("deadline:7:llm", ends_at), *(looked if done else [])]
    assert one.due_at == 15.0


@pytest.mark.parametrize(
    ("starts", "ends_at"),
    [
        ([12.0, 14.0], 24.5),  # within one grace of the last start
        ([12.0, 24.0], 25.5),  # and of its own time
        ([12.0, 24.0, 90.0], 25.5),  # which is over
        ([90.0], 100.5),  # nobody could have been let in before
        ([90.0, 99.0], 100.5),
    ],
)
def test_all_restarts_together_give_it_one_grace(starts: list[float], ends_at: float) -> None:
    """Behind its time, or behind the first start after that, where the daemon had been away."""
    commands, one = sent()
    out: list[Effect] = []
    for start in starts:
        commands.resume(one, 10.5, start, out)
    assert out[-1] == SetTimer("deadline:7:llm", ends_at)


def test_who_is_back_when_all_of_it_is_over_is_not_told_again() -> None:
    """It has ended by then, and an answer to it is known as a late one."""
    commands, one = sent()
    out: list[Effect] = []
    commands.resume(one, 10.5, 12.0, out)
    commands.tell_again(one, 0.5, 25.4, out)
    commands.tell_again(one, 0.5, 25.5, out)
    told = [effect.command.deadline_s for effect in out if isinstance(effect, Deliver)]
    assert told == pytest.approx([0.1])


@pytest.mark.parametrize(("now", "left_s"), [(11.0, 4.0), (14.8, 0.5), (99.0, 0.5)])
def test_who_is_back_has_the_time_that_is_left(now: float, left_s: float) -> None:
    """And a little, when all of it is over."""
    commands, one = sent()
    out: list[Effect] = []
    commands.tell_again(one, 0.5, now, out)
    timer, order = out
    assert isinstance(timer, SetTimer)
    assert isinstance(order, Deliver)
    assert timer.key == "deadline:7:llm"
    assert [timer.at, order.command.deadline_s] == pytest.approx([now + left_s, left_s])
    assert order.again


@pytest.mark.parametrize("done", [False, True])
def test_a_command_ends_once_with_its_timers(done: bool) -> None:
    """What is told of it: whose, which, how long, what it claimed and what was measured."""
    commands, one = sent()
    one.done, one.claimed_bytes, one.message = done, 90, "as far as it goes"
    later = Situation(now=12.5, level=Level.HIGH, reason="usage", pressing=True, needed_bytes=940)
    out: list[Effect] = []
    commands.end(one, Outcome.DONE, later, out)
    looked: list[Effect] = [CancelTimer("verify:7:llm")]
    ended = CommandEnded(1, 7, "llm", Action.TRIM_KV_CACHE, Outcome.DONE, 2.5, 90, 60, "as far as it goes")
    assert out == [CancelTimer("deadline:7:llm"), *(looked if done else []), ended]
    assert commands.outstanding == {}


@pytest.mark.parametrize(
    ("needed", "credited"),
    [
        ((800, 800), [200, 0]),  # either may have done it: once
        ((950, 920), [50, 30]),  # one after another
        ((1000, 900), [0, 100]),  # only the second's
        ((900, 970), [100, -70]),  # and grown again
    ],
)
def test_each_byte_is_credited_to_one_of_two_servers(needed: tuple[int, int], credited: list[int]) -> None:
    """The first that ends after it has left; whether a trim has helped is the target's, not the server's."""
    commands = Commands("llm", Numbers())
    for server in (1, 2):
        commands.send(server, Action.TRIM_KV_CACHE, TRIM, 5.0, PRESSED, [])
    out: list[Effect] = []
    for one, left in zip(list(commands.outstanding.values()), needed, strict=True):
        at = Situation(now=11.0, level=Level.HIGH, reason="usage", pressing=True, needed_bytes=left)
        assert one.helped(at) is (1000 - left >= EFFECT_SHARE * 100)
        commands.end(one, Outcome.DONE, at, out)
    assert [ended.freed_bytes for ended in out if isinstance(ended, CommandEnded)] == credited


def test_what_left_before_the_second_was_asked_stays_with_the_first() -> None:
    """The younger ends first, and takes only what has left since it was sent."""
    commands = Commands("llm", Numbers())
    out: list[Effect] = []
    for server, needed in ((1, 1000), (2, 900)):
        at = Situation(now=10.0, level=Level.HIGH, reason="usage", pressing=True, needed_bytes=needed)
        commands.send(server, Action.TRIM_KV_CACHE, TRIM, 5.0, at, [])
    at = Situation(now=11.0, level=Level.HIGH, reason="usage", pressing=True, needed_bytes=860)
    for seq in (2, 1):
        commands.end(commands.outstanding[seq], Outcome.DONE, at, out)
    assert [ended.freed_bytes for ended in out if isinstance(ended, CommandEnded)] == [40, 100]


def test_an_answer_that_comes_too_late_is_noted_and_one_to_nothing_is_refused() -> None:
    """With all that there is to say of it."""
    commands, one = sent()
    commands.end(one, Outcome.EXPIRED, PRESSED, [])
    out: list[Effect] = []
    assert commands.answered(AckReceived(1, 7, AckStatus.DONE, None, None), out) is None
    assert commands.answered(AckReceived(1, 99, AckStatus.DONE, None, None), out) is None
    text = "cannot take the ack of seq 99: no such command is outstanding for you"
    assert out == [
        Note("info", "late_ack", {"target": "llm", "subscriber": 1, "seq": 7, "status": "done"}),
        Refuse(1, "unknown_seq", text),
    ]


def test_memory_gets_some_time_to_show_what_was_done() -> None:
    """Counted from the answer."""
    commands, one = sent()
    out: list[Effect] = []
    assert not commands.verify(one, AckReceived(1, 7, AckStatus.DONE, None, 100), PRESSED, out)
    assert out == [SetTimer("verify:7:llm", PRESSED.now + VERIFY_S)]


@pytest.mark.parametrize(
    ("parameters", "freed_bytes", "pressing", "helped"),
    [
        (TRIM, int(EFFECT_SHARE * 100), True, True),
        (TRIM, int(EFFECT_SHARE * 100) - 1, True, False),
        (TRIM, 0, False, True),
        (Parameters(), 0, True, True),
    ],
    ids=["enough", "too little", "below the marks", "nothing was asked"],
)
def test_a_trim_has_helped_when_a_share_of_it_came(
    parameters: Parameters, freed_bytes: int, pressing: bool, helped: bool
) -> None:
    """Or nothing presses any more, or no figure was asked for."""
    _, one = sent(parameters=parameters)
    at = Situation(now=11.0, level=Level.HIGH, reason="usage", pressing=pressing, needed_bytes=1000 - freed_bytes)
    assert one.helped(at) is helped


def test_what_is_no_trim_has_always_helped() -> None:
    """Nothing of it can be measured."""
    _, one = sent(Action.REDUCE_BATCH, Parameters(max_batch_ratio=0.5))
    assert one.helped(PRESSED)
