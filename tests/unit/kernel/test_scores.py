"""Keeping scores, on a /proc of plain files and events that the test sends: order, races, what is refused."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeguardd.core.config import OomScoreRule
from edgeguardd.core.scores import Wanted
from edgeguardd.errors import KernelError
from edgeguardd.kernel import scores
from edgeguardd.kernel.processes import GoneError, Process
from edgeguardd.kernel.procevents import OverrunError, ProcEvent, ProcEvents
from edgeguardd.kernel.scores import OomScores, Report
from tests.support.fakeproc import FakeProc
from tests.support.wait import soon
from tests.unit.kernel.test_procevents import PORT, message

RULES = (OomScoreRule("llm", 500, comm="llama"), OomScoreRule("core", -200, exe="/bin/core"))
HOUR_S = 3600.0


@dataclass
class Scene:
    """A keeper, its /proc, the kernel's end of the socket, and what it has said."""

    proc: FakeProc
    keeper: OomScores
    kernel: socket.socket
    corrected: list[tuple[str, int, int, int]]
    failed: list[tuple[str | None, str]]
    slow: list[str]

    def fork(self, parent: int, child: int) -> None:
        self.send(1, parent, parent, child, child)

    def exec(self, pid: int) -> None:
        self.send(2, pid, pid)

    def exit(self, pid: int) -> None:
        self.send(0x80000000, pid, pid)

    def send(self, what: int, *words: int) -> None:
        self.kernel.send(message(what, *words))

    def in_force(self) -> dict[str, int]:
        return {row.name: row.in_force for row in self.keeper.stats().rules}


@asynccontextmanager
async def scene(directory: Path, *, told: bool = True, kind: type[ProcEvents] = ProcEvents) -> AsyncIterator[Scene]:
    """Everything closed at the end."""
    kernel, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def open_events() -> ProcEvents:
        if not told:
            raise KernelError("cannot be told: test")
        return kind(ours, PORT)

    directory.joinpath("proc").mkdir()
    corrected: list[tuple[str, int, int, int]] = []
    failed: list[tuple[str | None, str]] = []
    slow: list[str] = []
    report = Report(
        corrected=lambda *what: corrected.append(what), failed=lambda *what: failed.append(what), slow=slow.append
    )
    proc = FakeProc(str(directory / "proc"))
    keeper = OomScores(asyncio.get_running_loop(), report, proc=proc.path, open_events=open_events)
    try:
        yield Scene(proc, keeper, kernel, corrected, failed, slow)
    finally:
        keeper.close()
        kernel.close()
        ours.close()


def test_at_the_start_all_that_fit_have_their_score_before_it_returns(tmp_path: Path) -> None:
    """Others, threads of the kernel and what has ended are left alone."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.proc.process(1, "init")
            at.proc.process(2, "llama")
            at.proc.process(3, "x", exe="/bin/core (deleted)", score=-200)
            at.proc.process(4, "llama", flags=0x200000, exe=None)
            at.proc.process(5, "llama", state="Z")
            os.mkdir(f"{at.proc.path}/6")
            at.keeper.apply(RULES, HOUR_S, at_once=100)
            assert [at.proc.score(pid) for pid in (1, 2, 3, 4, 5)] == [0, 500, -200, 0, 0]
            assert at.in_force() == {"llm": 1, "core": 1}
            assert [row.writes for row in at.keeper.stats().rules] == [1, 0]

    asyncio.run(story())


def test_a_new_process_has_its_score_after_the_word_of_it(tmp_path: Path) -> None:
    """Word of one that has ended by then does no harm."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.keeper.apply(RULES, HOUR_S)
            at.proc.process(7, "llama")
            at.exec(6)
            at.exec(7)
            await soon(lambda: at.proc.score(7) == 500)
            at.proc.end(7)
            at.exit(7)
            await soon(lambda: at.in_force()["llm"] == 0)
            assert at.keeper.stats().told
            assert at.failed == []

    asyncio.run(story())


def test_a_number_that_another_process_took_is_another_process(tmp_path: Path) -> None:
    """Nothing of the first is done to the second: its score is its own, and no correction."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.proc.process(7, "llama", started=100)
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            at.proc.end(7)
            at.proc.process(7, "sh", started=200, score=500)
            at.proc.process(8, "llama")
            at.exec(7)
            at.exec(8)
            await soon(lambda: at.proc.score(8) == 500)
            assert at.proc.score(7) == 500
            assert at.in_force()["llm"] == 1

    asyncio.run(story())


def test_a_held_process_is_never_another_one(tmp_path: Path) -> None:
    """The real /proc: what was opened of a process that has ended tells nothing and takes nothing."""

    async def story() -> None:
        ended = await asyncio.create_subprocess_exec("sleep", "60")
        with Process(ended.pid) as process:
            assert process.score() == process.score()
            ended.kill()
            await ended.wait()
            with pytest.raises(GoneError):
                process.set_score(999)
            with pytest.raises(GoneError):
                process.stat()
            with pytest.raises(GoneError):
                process.facts(Wanted(comm=True))
            with pytest.raises(GoneError):
                process.facts(Wanted(exe=True))

    asyncio.run(story())


def test_a_child_that_becomes_something_else_has_what_its_parent_had_before(tmp_path: Path) -> None:
    """Also when the parent has ended by the time the child is looked at."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.proc.process(7, "llama", score=30)
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            at.proc.process(8, "curl", score=500)
            at.fork(7, 8)
            at.exec(8)
            at.exit(7)
            at.proc.end(7)
            await soon(lambda: at.proc.score(8) == 30)
            assert at.in_force()["llm"] == 0

    asyncio.run(story())


def test_a_child_of_what_no_rule_fits_is_not_looked_at_before_it_changes(tmp_path: Path) -> None:
    """A storm of forks costs next to nothing."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.proc.process(1, "sh")
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            at.proc.process(8, "llama")
            at.proc.process(9, "llama")
            at.fork(1, 8)
            at.fork(1, 9)
            at.exec(9)
            await soon(lambda: at.proc.score(9) == 500)
            assert at.proc.score(8) == 0

    asyncio.run(story())


def test_a_child_of_one_that_has_yet_to_be_looked_at_is_looked_at_after_it(tmp_path: Path) -> None:
    """It may have inherited the score from before the rule; what it sheds is what its parent had before."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            at.proc.process(7, "llama", score=30)
            at.proc.process(8, "llama", score=30)
            at.exec(7)
            at.fork(7, 8)
            at.fork(8, 9)
            at.proc.process(9, "llama", score=30)
            await soon(lambda: [at.proc.score(pid) for pid in (7, 8, 9)] == [500] * 3)
            at.proc.process(9, "curl", score=500)
            at.exec(9)
            await soon(lambda: at.proc.score(9) == 30)

    asyncio.run(story())


def test_a_child_that_chose_its_own_score_keeps_it(tmp_path: Path) -> None:
    """As sshd does for the sessions that it starts."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.proc.process(7, "llama")
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            at.proc.process(8, "curl", score=111)
            at.proc.process(9, "llama")
            at.fork(7, 8)
            at.exec(9)
            await soon(lambda: at.proc.score(9) == 500)
            assert at.proc.score(8) == 111

    asyncio.run(story())


def test_lost_events_are_made_up_for_by_one_look_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More at once than can be noted."""
    monkeypatch.setattr(scores, "MAX_PENDING", 2)

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.keeper.apply(RULES, HOUR_S)
            await soon(lambda: not at.keeper._scan)
            for pid in range(10, 40):
                at.proc.process(pid, "llama")
                at.exec(pid)
            await soon(lambda: at.in_force()["llm"] == 30)

    asyncio.run(story())


def test_an_overrun_of_the_socket_is_made_up_for_by_one_look_at_all(tmp_path: Path) -> None:
    """ENOBUFS: nobody knows what was lost."""

    class Overrun(ProcEvents):
        left = 1

        def read(self, at_most: int) -> Iterator[ProcEvent]:
            if self.left:
                self.left -= 1
                raise OverrunError
            return super().read(at_most)

    async def story() -> None:
        async with scene(tmp_path, kind=Overrun) as at:
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            at.proc.process(7, "llama")
            at.exec(1)
            await soon(lambda: at.proc.score(7) == 500)
            assert at.keeper.stats().overruns == 1

    asyncio.run(story())


def test_without_events_the_next_look_finds_new_processes(tmp_path: Path) -> None:
    """Said once."""

    async def story() -> None:
        async with scene(tmp_path, told=False) as at:
            at.keeper.apply(RULES, 0.01)
            at.keeper.apply(RULES, 0.01)
            at.proc.process(7, "llama")
            await soon(lambda: at.proc.score(7) == 500)
            assert at.slow == ["cannot be told: test"]
            stats = at.keeper.stats()
            assert (stats.told, stats.why) == (False, "cannot be told: test")

    asyncio.run(story())


def test_a_kernel_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to another pid namespace than the first."""
    monkeypatch.setattr(scores, "ANSWER_S", 0.01)

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.keeper.apply(RULES, HOUR_S)
            await soon(lambda: at.slow == [scores.UNANSWERED])

    asyncio.run(story())


def test_a_kernel_that_refuses_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has the error's number; nothing else is said afterwards."""
    monkeypatch.setattr(scores, "ANSWER_S", 0.05)

    async def story() -> None:
        async with scene(tmp_path) as at:
            at.keeper.apply(RULES, HOUR_S)
            at.kernel.send(message(0, 1, ack=PORT + 1))
            await soon(lambda: bool(at.slow))
            answered = asyncio.get_running_loop().time() + 0.1
            await soon(lambda: asyncio.get_running_loop().time() > answered)
            assert len(at.slow) == 1
            assert "CAP_NET_ADMIN" in at.slow[0]

    asyncio.run(story())


def test_what_is_refused_is_said_once_a_rule_and_counted_always(tmp_path: Path) -> None:
    """Not once a process."""

    async def story() -> None:
        async with scene(tmp_path) as at:
            for pid in (7, 8, 9):
                at.proc.process(pid, "llama")
                os.unlink(f"{at.proc.path}/{pid}/oom_score_adj")
                os.mkdir(f"{at.proc.path}/{pid}/oom_score_adj")  # neither to be read nor to be written
            at.keeper.apply(RULES, HOUR_S, at_once=10)
            assert len(at.failed) == 1
            assert at.in_force()["llm"] == 0

    asyncio.run(story())
