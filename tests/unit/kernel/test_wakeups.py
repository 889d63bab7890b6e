"""Wake-ups through the nested epoll. Urgent data on a TCP socket stands in for a kernfs file: both wake by EPOLLPRI."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

from edgeguardd.kernel.wakeups import Wakeups
from tests.support.descriptors import none_left, open_now
from tests.support.urgent import Urgent
from tests.support.wait import soon


def scenario(play: Callable[[Wakeups, Urgent], Awaitable[None]]) -> None:
    """Play with fresh wake-ups and one source; no descriptor may be left."""

    async def run() -> None:
        wakeups, source = Wakeups(asyncio.get_running_loop()), Urgent()
        try:
            await play(wakeups, source)
        finally:
            wakeups.close()
            source.close()

    before = open_now()
    asyncio.run(run())
    none_left(before)


def test_a_change_calls_back_and_silence_does_not() -> None:
    """A source that is readable all the time, as a kernfs file is, does not spin the loop."""

    async def play(wakeups: Wakeups, source: Urgent) -> None:
        woken: list[str] = []
        source.sender.send(b"ordinary, never read")
        assert wakeups.add(source.fd, lambda: woken.append("first"))
        turns = 0
        while turns < 200:
            await asyncio.sleep(0)
            turns += 1
        assert woken == []
        source.change()
        await soon(lambda: woken)
        assert woken == ["first"]

    scenario(play)


def test_a_callback_that_does_not_read_is_called_once() -> None:
    """The flags stay set until the file is read; the loop goes on all the same."""

    async def play(wakeups: Wakeups, source: Urgent) -> None:
        woken: list[int] = []
        wakeups.add(source.fd, lambda: woken.append(1))
        source.change()
        await soon(lambda: woken)
        for _ in range(200):
            await asyncio.sleep(0)
        assert woken == [1]

    scenario(play)


def test_a_plain_file_cannot_wake() -> None:
    """It is told at once, so that the caller polls it."""

    async def play(wakeups: Wakeups, source: Urgent) -> None:
        with tempfile.TemporaryFile() as file:
            assert not wakeups.add(file.fileno(), lambda: None)
            wakeups.remove(file.fileno())

    scenario(play)


def test_a_removed_source_is_silent_even_within_one_batch() -> None:
    """One callback may remove what the next would be called for."""

    async def play(wakeups: Wakeups, source: Urgent) -> None:
        other = Urgent()
        try:
            woken: list[str] = []

            def one_removes_the_other(me: Urgent, you: Urgent) -> None:
                woken.append("x")
                wakeups.remove(you.fd)

            wakeups.add(source.fd, lambda: one_removes_the_other(source, other))
            wakeups.add(other.fd, lambda: one_removes_the_other(other, source))
            source.change()
            other.change()
            # Both have arrived before the loop looks.
            await soon(lambda: woken)
            for _ in range(50):
                await asyncio.sleep(0)
            assert woken == ["x"]
        finally:
            other.close()

    scenario(play)


def test_closing_twice_is_fine() -> None:
    """And nothing is called after it."""

    async def play(wakeups: Wakeups, source: Urgent) -> None:
        woken: list[int] = []
        wakeups.add(source.fd, lambda: woken.append(1))
        wakeups.close()
        wakeups.close()
        source.change()
        for _ in range(50):
            await asyncio.sleep(0)
        assert woken == []

    scenario(play)
