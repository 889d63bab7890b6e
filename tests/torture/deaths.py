"""kill -9 of the daemon before and after each order that its engine can give; the next run makes everything whole.

On a tree of plain files, so that there is time for each of them. Orders that are new are died at like the others.
Must not: know the orders (edgeguardd.core.effects lists them). Upstream: __main__. Downstream: calls, world.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.running import Subscriber
from tests.torture import calls, plan
from tests.torture.faults import within

PATIENCE_S = 2.0


@dataclass
class Death:
    """One point. `met`: the order was given, and the daemon died there."""

    point: str
    met: bool = False
    wrong: list[str] = field(default_factory=list)


def points() -> list[str]:
    """Before and after each order."""
    return [f"{when} {effect}" for effect in plan.EFFECTS for when in ("before", "after")]


def play() -> Iterator[Death]:
    """Each point once; after a finding on a stage of its own."""
    with contextlib.ExitStack() as undo:
        stage = undo.enter_context(calls.Stage())
        for point in points():
            death = Death(point)
            die(stage, death)
            yield death
            if death.wrong:
                undo.close()
                stage = undo.enter_context(calls.Stage())


def die(stage: calls.Stage, death: Death) -> None:
    """Die there, start again, and come to rest; a point that is not met is passed over."""
    since, words = len(stage.daemon.all_facts()), len(stage.daemon.words)
    stage.daemon.ask("die", point=death.point, nth=1)
    with contextlib.suppress(OSError):  # it may die in the middle of any of these
        stage.tour()
        questions(stage)
    death.met = within(lambda: not stage.daemon.alive, PATIENCE_S)
    stage.rest()
    if death.met:
        stage.daemon.kill()
        stage.daemon.start()
    stage.daemon.ask("heal")
    stage.join()
    case = calls.Case(death.point, 0)
    calls.judge(stage, case, since, words)
    death.wrong = case.wrong


def questions(stage: calls.Stage) -> None:
    """What asks for the orders that a tour does not: answers, refusals."""
    hello = {"name": "asker", "target": "llm", "supports": []}
    with Subscriber(stage.daemon.socket_path, hello) as asker:
        asker.send({"type": "admit", "id": "one", "bytes": 1})
        asker.send({"type": "ack", "seq": 999_999, "status": "done"})
        stage.daemon.get("/admit?target=llm&bytes=1")
        within(lambda: asker.of("admission") and asker.of("error"), PATIENCE_S)
