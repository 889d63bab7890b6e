"""Questions on their way to the daemon: few at once, the newest first, none that nobody awaits."""

from edgeguardd.client.questions import ANSWER_S, MAX_ASKED, Questions
from edgeguardd.core.wire import Admit


def asked(count: int) -> Questions:
    """So many questions, none sent yet."""
    questions = Questions()
    for number in range(count):
        questions.ask(Admit(str(number)))
    return questions


def ids(questions: Questions, now: float = 0.0) -> list[str]:
    """What goes out now."""
    return [question.id for question in questions.take(now)]


def test_only_so_many_are_on_their_way() -> None:
    """The rest waits; each answer lets the next one go: the newest, whose asker will wait longest."""
    questions = asked(MAX_ASKED + 2)
    assert ids(questions) == [str(number) for number in range(MAX_ASKED + 1, 1, -1)]
    assert ids(questions) == []
    questions.answered("7")
    assert ids(questions) == ["1"]


def test_one_that_nobody_awaits_is_not_sent() -> None:
    """An asker that gave up leaves nothing behind; one that is on its way cannot be called back."""
    questions = asked(3)
    questions.withdraw("1")
    assert ids(questions) == ["2", "0"]
    questions.withdraw("0")
    questions.ask(Admit("3"))
    assert ids(questions) == ["3"]


def test_lost_answers_do_not_end_the_asking() -> None:
    """A question without an answer makes room after a while, and due() says when."""
    questions = asked(MAX_ASKED)
    assert questions.due() == 0.0
    questions.take(1.0)
    assert questions.due() is None
    questions.ask(Admit("late"))
    assert questions.due() == 1.0 + ANSWER_S
    assert ids(questions, 1.0 + ANSWER_S - 0.1) == []
    assert ids(questions, 1.0 + ANSWER_S) == ["late"]


def test_a_new_connection_begins_with_none() -> None:
    """What was asked of a daemon that is gone is answered by nobody."""
    questions = asked(MAX_ASKED + 1)
    questions.take(0.0)
    questions.clear()
    assert questions.due() is None
    questions.ask(Admit("new"))
    assert ids(questions) == ["new"]
