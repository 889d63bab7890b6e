"""Who runs, who waits and who is refused, without HTTP and without a daemon."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from edgeguardd.client.places import Places
from tests.support.wait import soon

LONG_S = 1000.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run it; afterwards no task is left."""

    async def watched() -> None:
        await test
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())


def places(limit: int = 4, max_waiting: int = 2) -> Places:
    return Places(limit, max_waiting=max_waiting)


async def waiting(at: Places, count: int, patience_s: float = LONG_S) -> list["asyncio.Task[str | None]"]:
    """So many who wait, in this order."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(at.enter(patience_s)))
        await soon(lambda number=number: at.waiting == number + 1)  # type: ignore[misc]
    return tasks


def test_nobody_is_held_back_while_nothing_is_restricted() -> None:
    """Ten times the limit run at once: a guard that has nothing to say changes nothing."""

    async def test() -> None:
        at = places(limit=1)
        assert [await at.enter(0) for _ in range(10)] == [None] * 10
        assert at.running == 10

    run(test())


@pytest.mark.parametrize(
    ("limit", "ratio", "allowed"),
    [(8, 0.5, 4), (8, 0.25, 2), (3, 0.5, 1), (2, 0.25, 1), (100, 0.29, 29), (4, 0.0, 1), (4, 1.0, None)],
)
def test_a_ratio_is_of_the_limit(limit: int, ratio: float, allowed: int | None) -> None:
    """Rounded down, at least one, and the whole is no restriction."""
    at = places(limit)
    at.cut(ratio)
    assert at.allowed == allowed


def test_those_who_run_stay_and_the_next_waits_for_room() -> None:
    """A cut from four to two lets four end; the fifth comes in when one of two is left."""

    async def test() -> None:
        at = places()
        for _ in range(4):
            await at.enter(0)
        at.cut(0.5)
        (fifth,) = await waiting(at, 1)
        at.leave()
        at.leave()
        await asyncio.sleep(0)
        assert not fifth.done()
        at.leave()
        assert await fifth is None
        assert (at.running, at.waiting) == (2, 0)

    run(test())


def test_places_go_to_those_who_have_waited_longest() -> None:
    """Also when all come free at once, and nobody who comes later overtakes."""

    async def test() -> None:
        at = places()
        at.cut(0.25)
        await at.enter(0)
        first, second = await waiting(at, 2)
        at.leave()
        await first
        assert not second.done()
        at.cut(1.0)
        assert await second is None
        assert at.running == 2

    run(test())


def test_waiting_has_an_end_and_a_bound() -> None:
    """Who has waited long enough is told so; who would be one too many is told at once."""

    async def test() -> None:
        at = places()
        at.cut(0.25)
        await at.enter(0)
        assert "none has ended within 0.01 s" in str(await at.enter(0.01))
        tasks = await waiting(at, 2)
        assert "2 others wait" in str(await at.enter(LONG_S))
        at.leave()
        await tasks[0]
        at.leave()
        await tasks[1]
        assert (at.running, at.waiting) == (1, 0)

    run(test())


def test_shutting_refuses_those_who_wait_and_lets_those_who_run() -> None:
    """Each key has to be opened again."""

    async def test() -> None:
        at = places()
        at.cut(0.25)
        await at.enter(0)
        tasks = await waiting(at, 2)
        at.shut("a", "memory is short")
        at.shut("b", "no model")
        assert [await task for task in tasks] == ["memory is short"] * 2
        assert (at.running, at.waiting) == (1, 0)
        at.open("a")
        assert await at.enter(LONG_S) == "no model"
        at.open("b")
        at.open("b")
        at.leave()
        assert await at.enter(0) is None

    run(test())


def test_a_cancelled_one_leaves_no_trace() -> None:
    """Neither one that waits nor one that was given a place and cancelled in the same moment."""

    async def test() -> None:
        at = places()
        at.cut(0.25)
        await at.enter(0)
        first, second = await waiting(at, 2)
        second.cancel()
        at.leave()  # the place is first's now
        first.cancel()
        await asyncio.wait([first, second])
        assert first.cancelled()
        assert second.cancelled()
        assert (at.running, at.waiting) == (0, 0)
        assert await at.enter(0) is None

    run(test())


def test_draining_ends_when_nobody_runs_or_when_time_is_up() -> None:
    """Whoever comes in meanwhile is waited for as well."""

    async def test() -> None:
        at = places()
        assert await at.drained(0)
        await at.enter(0)
        assert not await at.drained(0.01)
        draining = asyncio.create_task(at.drained(LONG_S))
        await asyncio.sleep(0)
        await at.enter(0)
        at.leave()
        await asyncio.sleep(0)
        assert not draining.done()
        at.leave()
        assert await draining

    run(test())


def test_each_change_is_told() -> None:
    """Whoever reports the figures hears of every one."""
    told: list[tuple[int, int]] = []

    async def test() -> None:
        at = Places(1, max_waiting=1, on_change=lambda: told.append((at.running, at.waiting)))
        at.cut(0.5)
        await at.enter(0)
        (task,) = await waiting(at, 1)
        at.leave()
        await task
        at.leave()

    run(test())
    assert told[:2] == [(1, 0), (1, 1)]
    assert told[-1] == (0, 0)
