"""The kernel's OOM reports as they come, each once, across restarts, floods and whatever a log does."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from edgeguardd.core.oomlog.report import Report
from edgeguardd.errors import KernelError
from edgeguardd.kernel import oomwatch
from edgeguardd.kernel.oomwatch import OomWatch
from edgeguardd.state import StateDirectory
from tests.support.fakekmsg import FakeKmsg
from tests.support.oomlogs import MODERN


class Scene:
    """A device, a state directory, and what the watches of one boot after the other tell."""

    def __init__(self, directory: str) -> None:
        self.device = FakeKmsg()
        self.boot = "boot-1"
        self.faults: list[str] = []
        self.unread: list[str] = []
        self.told: list[int] = []
        self._news = asyncio.Event()
        self.state = StateDirectory(os.path.join(directory, "state"), self.faults.append)
        self.state.make()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[OomWatch]:
        """A daemon's watch, closed as a daemon does at its end."""
        watch = self.watch()
        try:
            yield watch
        finally:
            watch.close()

    def watch(self) -> OomWatch:
        """A watch that has started."""
        loop = asyncio.get_running_loop()
        made = OomWatch(
            loop,
            self.state,
            self._tell,
            self.unread.append,
            self.faults.append,
            open_log=self.device.open,
            boot_id=lambda: self.boot,
        )
        made.start()
        return made

    def _tell(self, report: Report) -> None:
        self.told += [victim.pid for victim in report.victims] or [0]
        self._news.set()

    async def until_told(self, *pids: int) -> None:
        """Wait until exactly these have been told."""
        async with asyncio.timeout(30):
            while len(self.told) < len(pids):
                self._news.clear()
                await self._news.wait()
        assert self.told == list(pids)


@pytest.fixture
def scene(tmp_path: os.PathLike[str]) -> Scene:
    """Nothing has happened yet."""
    return Scene(os.fspath(tmp_path))


def play(scene: Scene, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it, and close the device behind it."""
    with contextlib.closing(scene.device):
        asyncio.run(story())


def test_a_report_is_told_once_it_is_whole(scene: Scene) -> None:
    """Its last line is the reaper's, behind the kill."""

    async def story() -> None:
        async with scene.watching():
            scene.device.kill(501)
            await scene.until_told(501)

    play(scene, story)


def test_what_was_there_before_is_history(scene: Scene) -> None:
    """A daemon that starts for the first time in a boot does not tell old kills as new."""

    async def story() -> None:
        scene.device.kill(501)
        async with scene.watching():
            scene.device.kill(502)
            await scene.until_told(502)

    play(scene, story)


def test_a_restart_tells_nothing_twice_and_leaves_nothing_out(scene: Scene) -> None:
    """Killed and started again: what came in between is told, what was told is not."""

    async def story() -> None:
        first = scene.watch()
        scene.device.kill(501)
        await scene.until_told(501)
        # As after kill -9: nothing is written down at the end.
        assert first._log is not None
        asyncio.get_running_loop().remove_reader(first._log.fd)
        first._log.close()
        first._log = None
        scene.device.kill(502)
        async with scene.watching():
            await scene.until_told(501, 502)
        async with scene.watching():
            scene.device.kill(503)
            await scene.until_told(501, 502, 503)

    play(scene, story)


def test_another_boot_begins_anew(scene: Scene) -> None:
    """Sequence numbers start at zero then, and mean other records."""

    async def story() -> None:
        async with scene.watching():
            scene.device.kill(501)
            await scene.until_told(501)
        scene.boot = "boot-2"
        scene.device.records.clear()
        scene.device.kill(502)
        async with scene.watching():
            scene.device.kill(503)
            await scene.until_told(501, 503)

    play(scene, story)


def test_a_stop_in_the_middle_of_a_report_tells_what_there_is(scene: Scene) -> None:
    """The kill is in the log, the reaper's line is not; after the restart it is not told again."""

    async def story() -> None:
        async with scene.watching() as watch:
            scene.device.write_all(MODERN[:-1])
            while watch._collector is None or not watch._collector.busy:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0)
        assert scene.told == [7055]
        scene.device.write(MODERN[-1])
        async with scene.watching():
            scene.device.kill(502)
            await scene.until_told(7055, 502)

    play(scene, story)


def test_a_flood_of_other_messages_leaves_the_loop_its_turns(scene: Scene) -> None:
    """A driver that talks without end: reports are found in between, and the reader rests between its turns."""

    async def story() -> None:
        async with scene.watching() as watch:
            for number in range(200):
                scene.device.write(f"eth0: link up, link down {number}")
            scene.device.kill(501)
            readable = 0
            async with asyncio.timeout(30):
                while not scene.told:
                    readable += 1
                    await asyncio.sleep(0)
            # 200 records and a report are four turns of the reader; the loop had a thousand times as many of its own.
            assert readable > 100
            assert watch.lost_records == 0

    play(scene, story)


def test_nobodys_report_but_the_kernels_is_told(scene: Scene) -> None:
    """Whoever may write to /dev/kmsg does not get the kernel's facility."""

    async def story() -> None:
        async with scene.watching():
            for message in MODERN:
                scene.device.write(message.replace("7055", "666"), facility=1)
            scene.device.kill(501)
            await scene.until_told(501)

    play(scene, story)


def test_a_log_that_cannot_be_read_is_said_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No permission: one sentence, nothing else changes."""

    def refuse() -> Any:
        raise KernelError("cannot read /dev/kmsg: Operation not permitted; run as root")

    async def story() -> None:
        monkeypatch.setattr(scene.device, "open", refuse)
        async with scene.watching() as watch:
            await asyncio.sleep(0)
            assert not watch.readable
            assert watch.why == scene.unread[0]

    play(scene, story)
    assert len(scene.unread) == 1


def test_a_state_directory_that_cannot_be_written_is_said_once(scene: Scene) -> None:
    """Reports are told all the same."""

    async def story() -> None:
        scene.state = StateDirectory("/proc/nowhere", scene.faults.append)
        async with scene.watching():
            scene.device.kill(501)
            scene.device.kill(502)
            await scene.until_told(501, 502)

    play(scene, story)
    assert len([fault for fault in scene.faults if "OOM report twice" in fault]) == 1


def test_the_readers_of_reports_are_imported_when_there_is_one() -> None:
    """A daemon on a machine that never runs out of memory does not carry them."""
    code = "import sys, edgeguardd.daemon; sys.exit(any('oomlog' in name for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_report_begins_with_a_word_that_wakes_the_readers() -> None:
    """Of every collected log, a report's first line, or its only one, has one of them."""
    assert any(word in MODERN[0].encode() for word in oomwatch.BEGINNINGS)
    assert any(word in MODERN[-2].encode() for word in oomwatch.BEGINNINGS)
