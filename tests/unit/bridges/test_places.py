"""Who may in, and who waits how long."""

import asyncio

from edgeguardd.bridges.places import MAX_WAITING, Places, Refusal
from tests.support.wait import soon


def test_a_shut_door_refuses_at_once_also_those_who_wait() -> None:
    """And says why: the first of the reasons that keep it shut."""

    async def scene() -> None:
        places = Places(1, patience_s=60.0)
        assert await places.enter() is None
        waiting = asyncio.create_task(places.enter())
        await soon(lambda: places.waiting == 1)
        places.shut("reject", "memory is short")
        places.shut("release", "the server restarts")
        assert await waiting == Refusal("memory_pressure", "memory is short")
        assert await places.enter() == Refusal("memory_pressure", "memory is short")
        places.open("reject")
        assert places.shut_by == ("release",)
        places.open("release")
        places.leave()
        assert await places.enter() is None
        assert (places.inside, places.refused) == (1, 2)

    asyncio.run(scene())


def test_who_waits_gets_the_place_that_is_freed_or_added_and_else_is_told() -> None:
    """A lower limit counts for those who come after."""

    async def scene() -> None:
        places = Places(1, patience_s=60.0)
        await places.enter()
        first, second = (asyncio.create_task(places.enter()) for _ in range(2))
        await soon(lambda: places.waiting == 2)
        places.leave()
        assert await first is None
        places.limit(2)
        assert await second is None
        places.limit(1)
        assert places.inside == 2
        hasty = Places(1, patience_s=0.01)
        await hasty.enter()
        assert await hasty.enter() == Refusal("busy", "all 1 places are taken")

    asyncio.run(scene())


def test_without_a_limit_everybody_is_let_in() -> None:
    """A server that does not say what it takes at once is not held to a guess."""

    async def scene() -> None:
        places = Places(None, patience_s=0.0)
        assert [await places.enter() for _ in range(50)] == [None] * 50

    asyncio.run(scene())


def test_a_drain_ends_when_nobody_is_inside_or_nobody_wants_it_any_more() -> None:
    """Or when its time is over, which it says."""

    async def scene() -> None:
        places = Places(2, patience_s=1.0)
        assert await places.drain(0.01)
        await places.enter()
        assert not await places.drain(0.01)
        draining = asyncio.create_task(places.drain(60.0))
        await asyncio.sleep(0)
        places.leave()
        assert await draining
        await places.enter()
        wanted = True
        draining = asyncio.create_task(places.drain(60.0, lambda: not wanted))
        await asyncio.sleep(0)
        wanted = False
        places.notify()
        assert await draining

    asyncio.run(scene())


def test_a_full_queue_is_told_at_once() -> None:
    """Nobody can make the bridge hold any number of callers."""

    async def scene() -> None:
        places = Places(1, patience_s=60.0)
        await places.enter()
        tasks = [asyncio.create_task(places.enter()) for _ in range(MAX_WAITING)]
        await soon(lambda: places.waiting == MAX_WAITING)
        assert await places.enter() == Refusal("busy", "all 1 places are taken")
        places.shut("reject", "memory is short")
        assert {refusal.code for refusal in await asyncio.gather(*tasks) if refusal} == {"memory_pressure"}

    asyncio.run(scene())
