"""Delays as counters: they go on over restarts of the main process, and end with the target."""

import asyncio
import os
from pathlib import Path
from typing import Any

import structlog

from edgeguardd.core.config import DelaysConfig
from edgeguardd.core.taskstats import Delays
from edgeguardd.delays import Asker, DelayCounters
from edgeguardd.errors import KernelError
from edgeguardd.kernel import delays
from edgeguardd.kernel.delays import Reading
from tests.support.fakeproc import FakeProc
from tests.support.wait import soon

OFTEN = DelaysConfig(enabled=True, interval_s=0.001)


class Told(Asker):
    """Answers that a test has written, one a reading; then the last for ever."""

    def __init__(self, *answers: list[Reading] | KernelError) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[list[tuple[str, str]]] = []
        self.closed = False

    def read(self, cgroups: list[tuple[str, str]]) -> list[Reading]:
        self.asked.append(cgroups)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, KernelError):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


def reading(pid: int, reclaim_s: float, started: int = 1) -> Reading:
    return Reading("llm", pid, started, Delays(reclaim_s, reclaim_s * 2, 0.0))


def test_counters_go_on_when_the_main_process_is_another_one() -> None:
    """10 s of the first, then 3 s of the second, also when that has the same number."""

    async def story() -> None:
        told = Told([reading(7, 4)], [reading(7, 10)], [reading(7, 1, 2)], [reading(8, 2)], [])
        counters = DelayCounters(OFTEN, asyncio.get_running_loop(), lambda: {"llm": "/tree/llm"}, told)
        counters.start()
        await soon(lambda: len(told.asked) > 4)
        assert told.asked[0] == [("llm", "/tree/llm")]
        assert counters.totals == {"llm": Delays(13.0, 26.0, 0.0)}
        counters.close()
        assert told.closed

    asyncio.run(story())


def test_a_target_that_is_guarded_no_longer_has_no_counters() -> None:
    """Nor does anything of it stay behind."""

    async def story() -> None:
        guarded = {"llm": "/tree/llm"}
        told = Told([reading(7, 4)])
        counters = DelayCounters(OFTEN, asyncio.get_running_loop(), lambda: guarded, told)
        counters.start()
        await soon(lambda: "llm" in counters.totals)
        guarded.clear()
        told.answers = [[]]
        await soon(lambda: not counters.totals)
        counters.close()

    asyncio.run(story())


def test_what_is_in_the_way_is_said_once_and_not_tried_again() -> None:
    """It takes a restart to mend it."""

    async def story() -> None:
        told = Told(KernelError("cannot: test"))
        counters = DelayCounters(OFTEN, asyncio.get_running_loop(), dict, told)
        with structlog.testing.capture_logs() as lines:
            counters.start()
            await soon(lambda: any(line.get("why") == "cannot: test" for line in lines))
            counters.close()
        assert len(told.asked) == 1

    asyncio.run(story())


def test_switched_off_nothing_is_started() -> None:
    """No thread, no question."""

    async def story() -> None:
        told = Told([])
        counters = DelayCounters(DelaysConfig(), asyncio.get_running_loop(), dict, told)
        counters.start()
        counters.close()
        assert (told.asked, told.closed) == ([], False)

    asyncio.run(story())


def test_the_main_process_is_the_oldest_of_the_cgroup(tmp_path: Path) -> None:
    """What has ended does not count; without processes of its own, those below it do."""
    proc = FakeProc(str(tmp_path / "proc"))
    for pid, started, state in ((7, 300, "S"), (8, 200, "S"), (9, 100, "Z"), (11, 50, "S")):
        proc.process(pid, started=started, state=state)

    def cgroup(path: str, *pids: int) -> str:
        os.makedirs(tmp_path / path)
        (tmp_path / path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return str(tmp_path / path)

    assert delays.main_process(cgroup("own", 7, 8, 9, 10, 0), proc.path) == (8, 200)
    outer = cgroup("outer")
    assert delays.main_process(outer, proc.path) is None
    cgroup("outer/a")
    cgroup("outer/b/c", 11)
    assert delays.main_process(outer, proc.path) == (11, 50)
    assert delays.main_process(str(tmp_path / "gone"), proc.path) is None


def test_the_switch_is_explained(tmp_path: Path, monkeypatch: Any) -> None:
    """Off: all figures would stay 0. Without a switch the kernel always measures."""
    switch = tmp_path / "switch"
    monkeypatch.setattr(delays, "SWITCH", str(switch))
    assert delays.switched_off() is None
    switch.write_text("1\n")
    assert delays.switched_off() is None
    switch.write_text("0\n")
    assert "kernel.task_delayacct=1" in str(delays.switched_off())
