"""The blocking client's questions: who asks gets its own answer, or the default in time."""

import asyncio

import pytest

from edgeguardd.client import Subscriber
from edgeguardd.core import effects, wire
from edgeguardd.core.events import AdmitAsked, ReportReceived
from tests.support.blockingclient import Server, run, subscribed
from tests.support.subscribers import TRIM, serving, short_dir, standing_in, welcome
from tests.support.wait import soon


def test_admissions_are_asked_and_finished() -> None:
    """The daemon's answer comes back to the thread that asked; finished ids and figures are reported."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda asked: effects.AnswerAdmit(
                asked.subscriber, asked.id, asked.tokens == 1, "because", None if asked.tokens == 1 else 2.0
            )
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                granted = await asyncio.to_thread(guard.admit, tokens=1)
                refused = await asyncio.to_thread(guard.admit, size_bytes=1 << 30)
                assert (bool(granted), granted.asked, granted.reason) == (True, True, "because")
                assert (bool(refused), refused.retry_after_s) == (False, 2.0)
                assert not await asyncio.to_thread(guard.admit, size_bytes=10**20)
                sizes = [(1, None), (None, 1 << 30), (None, 2**63 - 1)]
                assert [(a.tokens, a.bytes) for a in scripted.of(AdmitAsked)] == sizes
                guard.finished(granted.id)
                await soon(lambda: scripted.of(ReportReceived))
                assert scripted.of(ReportReceived)[0].finished == (granted.id,)

    run(test())


def test_a_hundred_threads_ask_at_once_and_each_gets_its_own_answer() -> None:
    """Answers find their asker."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda a: effects.AnswerAdmit(a.subscriber, a.id, True, str(a.tokens))
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                asked = [asyncio.to_thread(guard.admit, tokens=n, timeout_s=20) for n in range(100)]
                assert [answer.reason for answer in await asyncio.gather(*asked)] == [str(n) for n in range(100)]

    run(test())


@pytest.mark.parametrize("default", [True, False])
def test_without_an_answer_the_default_counts(default: bool) -> None:
    """A daemon that does not answer stops no server, unless the server wants it so."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda _asked: None
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                answer = await asyncio.to_thread(guard.admit, timeout_s=0.05, default_when_unreachable=default)
                assert (bool(answer), answer.asked) == (default, False)

    run(test())


def test_who_waits_for_an_answer_is_let_go_when_the_daemon_stops() -> None:
    """The end of the connection ends the wait, not the timeout."""

    async def test() -> None:
        async with serving() as scripted:
            scripted.grant = lambda _asked: None
            guard = Subscriber("s", target="llm", path=scripted.server.config.path)
            with subscribed(guard):
                await soon(lambda: guard.connected)
                asking = asyncio.create_task(asyncio.to_thread(guard.admit, timeout_s=30))
                await soon(lambda: scripted.of(AdmitAsked))
                await scripted.server.close()
                assert not (await asyncio.wait_for(asking, 15)).asked

    run(test())


def test_an_ack_does_not_wait_behind_questions() -> None:
    """Of two thousand questions that nobody answers or awaits any more, few are on the wire before the ack."""

    async def test() -> None:
        with short_dir() as directory:
            server = Server(f"{directory}/s")
            async with standing_in(f"{directory}/s", welcome()) as connections:
                with subscribed(server.guard):
                    await soon(lambda: server.guard.connected)

                    def ask() -> None:
                        for _ in range(100):
                            server.guard.admit(tokens=1, timeout_s=0.001)

                    await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(20)))
                    reader, writer = connections[0]
                    writer.write(wire.encode(TRIM))
                    before = 0
                    while b'"status":"done"' not in await asyncio.wait_for(reader.readline(), 20):
                        before += 1
                    assert before < 500
                    await asyncio.to_thread(server.guard.close)

    run(test())
