"""The parts of the demonstration that its figures rest on."""

import asyncio

from tests.demo import model, timeline, workload
from tests.demo.__main__ import wrong_answers
from tests.demo.kvcache import BLOCK_BYTES, Conversation, KvCache
from tests.demo.load import Tally
from tests.demo.run import Result
from tests.demo.slots import Slots
from tests.demo.timeline import MIB, Limits, Look


def test_a_seed_always_means_the_same_load() -> None:
    """All runs are asked the same at the same times; another seed asks something else."""
    assert workload.schedule(1, 30.0) == workload.schedule(1, 30.0)
    assert workload.schedule(1, 30.0) != workload.schedule(2, 30.0)


def test_each_turn_carries_the_conversation_so_far() -> None:
    """The context of a turn is all prompts and answers before it, whatever became of them."""
    seen: dict[int, int] = {}
    for request in workload.schedule(1, 30.0):
        assert request.context_tokens == seen.get(request.conversation, 0)
        seen[request.conversation] = request.context_tokens + request.prompt_tokens + request.answer_tokens
    assert len(seen) > 5


def filled(cache: KvCache, number: int, tokens: int) -> Conversation:
    """A conversation of so many tokens in a cache, in use."""
    conversation = cache.use(number)
    for position in range(tokens):
        conversation.append(model.entry(number, position))
    return conversation


def test_trimming_drops_the_least_recently_used_first() -> None:
    """As much as asked for, in whole conversations, and no more."""
    cache = KvCache(1 << 30)
    for number in range(3):
        cache.done(filled(cache, number, 16))
    cache.done(cache.use(0))
    assert cache.trim(1) == BLOCK_BYTES
    assert cache.size == 2 * BLOCK_BYTES
    assert cache.use(1).tokens == 0
    assert cache.use(0).tokens == 16


def test_a_conversation_in_use_is_never_dropped() -> None:
    """Trimming everything leaves what requests are working on."""
    cache = KvCache(1 << 30)
    busy = filled(cache, 1, 20)
    cache.done(filled(cache, 2, 20))
    assert cache.trim(1 << 30) == 2 * BLOCK_BYTES
    assert busy.tokens == 20
    assert cache.size == 2 * BLOCK_BYTES


def test_a_recomputed_conversation_holds_what_it_held() -> None:
    """A token's entry depends on conversation and position alone: that is what answers are compared by."""
    assert model.entry(1, 2) == model.entry(1, 2)
    assert len({model.entry(1, 2), model.entry(1, 3), model.entry(2, 2)}) == 3


def test_wrong_answers_are_found() -> None:
    """The same request with two checksums is a defect, whichever runs they come from."""
    one, two = workload.schedule(1, 5.0)[:2]
    bare = Result("bare", Tally(checksums={one: 7, two: 8}))
    assert wrong_answers([bare, Result("guarded", Tally(checksums={one: 7}))]) == 0
    assert wrong_answers([bare, Result("guarded", Tally(checksums={one: 7, two: 9}))]) == 1


def test_the_longest_stall_is_time_without_any_answer_while_somebody_waits() -> None:
    """A time-out does not end a stall, an answer does, and an idle server has none."""
    tally = Tally()
    tally.begin(0.0)
    tally.end(1.0, answered=True)
    tally.begin(50.0)
    tally.end(52.0, answered=False)
    tally.begin(53.0)
    tally.end(54.0, answered=True)
    assert tally.longest_stall_s == 4.0


def test_the_bar_shows_needed_cache_and_the_mark() -> None:
    """Needed bytes, page cache, and memory.high at their places up to memory.max."""
    drawn = timeline.bar(Look(22 * MIB, 33 * MIB, 0), Limits(33 * MIB, 44 * MIB))
    assert drawn == f"[{'#' * 22}{':' * 11}|{'.' * 11}]"


def test_slots_are_given_in_order_and_survive_those_who_leave() -> None:
    """First come, first served; a request that gives up while waiting takes no place along, nor one it just got."""

    async def scene() -> list[str]:
        slots, order = Slots(1), []
        leave = asyncio.Event()

        async def work(name: str) -> None:
            async with slots:
                order.append(name)
                await leave.wait()

        tasks = {}
        for name in ("a", "b", "c", "d"):
            tasks[name] = asyncio.create_task(work(name))
            await asyncio.sleep(0)
        tasks["b"].cancel()
        leave.set()
        await asyncio.sleep(0)
        tasks["c"].cancel()
        await asyncio.wait(tasks.values())
        slots.set_limit(2)
        async with slots, slots:
            order.append("both")
        return order

    assert asyncio.run(scene()) in (["a", "d", "both"], ["a", "c", "d", "both"])
