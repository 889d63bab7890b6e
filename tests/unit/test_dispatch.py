"""The queue that every fact goes through, the timers that orders set, and what a peer's facts pass on their way."""

import asyncio

import pytest

from edgeguardd.core.events import CgroupAppeared, CgroupVanished, Event, TimerFired
from edgeguardd.dispatch import EventQueue
from edgeguardd.timers import Timers
from tests.support.wait import soon


def test_a_fact_that_arises_while_another_is_handled_waits_its_turn() -> None:
    """What the first one's orders bring about is handled after all of them, at the time at which it came."""
    order: list[str] = []
    times = iter((1.0, 2.0))
    queue = EventQueue(lambda: next(times))

    def handle(event: Event, at: float) -> None:
        order.append(f"{type(event).__name__} at {at:g} begins")
        if isinstance(event, CgroupAppeared):
            queue.emit(CgroupVanished(event.target))
        order.append(f"{type(event).__name__} ends")

    queue.handle = handle
    queue.emit(CgroupAppeared("llm"))
    assert order == [
        "CgroupAppeared at 1 begins",
        "CgroupAppeared ends",
        "CgroupVanished at 2 begins",
        "CgroupVanished ends",
    ]


def test_a_fact_that_raises_does_not_hold_up_the_next() -> None:
    """The one that raised is told to whoever brought it; the queue goes on."""
    handled: list[str] = []
    queue = EventQueue(lambda: 0.0)

    def handle(event: Event, _at: float) -> None:
        handled.append(type(event).__name__)
        if handled == ["CgroupAppeared"]:
            raise ValueError("a defect")

    queue.handle = handle
    with pytest.raises(ValueError, match="a defect"):
        queue.emit(CgroupAppeared("llm"))
    queue.emit(CgroupVanished("llm"))
    assert handled == ["CgroupAppeared", "CgroupVanished"]


def test_a_timer_set_again_under_its_key_fires_once() -> None:
    """At the later of the two orders' times, and a cancelled one never."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fired: list[tuple[str, float]] = []
        timers = Timers(loop, lambda event: fired.append((event.key, loop.time())))
        begun = loop.time()
        timers.set("verify:1:llm", begun)
        timers.set("deadline:1:llm", begun)
        timers.set("verify:1:llm", begun + 0.01)
        timers.cancel("deadline:1:llm")
        timers.cancel("never set")
        await soon(lambda: fired)
        timers.set("late", loop.time())
        timers.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [key for key, _ in fired] == ["verify:1:llm"]
        assert fired[0][1] >= begun + 0.01

    asyncio.run(main())


def test_a_timer_may_set_its_key_again_when_it_fires() -> None:
    """As the engine does with what it looks at again and again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fired: list[TimerFired] = []

        def take(event: TimerFired) -> None:
            fired.append(event)
            if len(fired) < 3:
                timers.set(event.key, loop.time())

        timers = Timers(loop, take)
        timers.set("blind:llm", loop.time())
        await soon(lambda: len(fired) == 3)
        timers.close()

    asyncio.run(main())
