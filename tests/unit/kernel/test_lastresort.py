"""Last resorts on a fake tree: what is refused, what fails and why, and that each order is answered once.

The processes are real ones, named in plain cgroup.procs files. What only a kernel does (stopping, reclaiming, killing
at once) is in tests/kernel.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from edgeguardd.core.config import LastResortStep
from edgeguardd.core.events import Event, LastResortEnded
from edgeguardd.core.model import LastResort
from edgeguardd.kernel import freezer, lastresort, pidsignal, unitrestart
from edgeguardd.kernel.cgroupfs import CgroupRoot
from edgeguardd.kernel.freezer import KIND, Frozen
from edgeguardd.kernel.lastresort import LastResorts
from edgeguardd.state import StateDirectory
from tests.support.descriptors import none_left, open_now
from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.wait import eventually, soon

BOOT = "11111111-2222-3333-4444-555555555555"
# Says what it was started with, and then does as its unit's name tells it.
SYSTEMCTL = """#!/bin/sh
echo "$@" > "{log}"
env | sort > "{log}.env"
case "$4" in
    fails.service) printf 'Job for fails.service failed.\\n\\033[31mSee it.\\n' >&2; exit 1;;
    hangs.service) echo $$ > "{log}.pid"; exec sleep 600;;
esac
"""


class Scene:
    """A tree with one cgroup, and daemons one after another on it."""

    def __init__(self, path: Path) -> None:
        (path / "tree").mkdir(exist_ok=True)
        self.path = path
        self.tree = FakeTree(path / "tree")
        self.llm = self.cgroup("/llm")
        self.proc = self.tree.proc(
            {"sys/kernel/random/boot_id": f"{BOOT}\n", "self/cgroup": "0::/system.slice/edgeguardd.service\n"}
        )
        self.log = path / "systemctl-said"
        self.systemctl = path / "systemctl"
        self.systemctl.write_text(SYSTEMCTL.format(log=self.log))
        self.systemctl.chmod(0o755)
        self.said: list[str] = []
        self.told: list[Event] = []
        self.children: list[subprocess.Popen[bytes]] = []
        self.last = self.daemon()

    def daemon(self) -> LastResorts:
        """The next daemon."""
        self.state = StateDirectory(str(self.path / "state"), self.said.append)
        self.last = LastResorts(
            CgroupRoot(self.tree.path),
            asyncio.get_running_loop(),
            self.told.append,
            time.monotonic,
            self.state,
            proc=self.proc,
            systemctl=(str(self.path / "nothing"), str(self.systemctl)),
        )
        return self.last

    def cgroup(self, below_root: str) -> FakeCgroup:
        """A cgroup with the files that last resorts use."""
        made = self.tree.cgroup(below_root)
        for name, content in (("cgroup.procs", ""), ("cgroup.freeze", "0\n"), ("memory.reclaim", "")):
            made.write(name, content)
        made.write("cgroup.events", "populated 0\nfrozen 1\n")
        made.write("cgroup.kill", "")
        return made

    def child(self, cgroup: FakeCgroup | None = None) -> subprocess.Popen[bytes]:
        """A process that is said to be in a cgroup."""
        process = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1)
        assert process.stdout is not None
        process.stdout.readline()
        self.children.append(process)
        self.holds(cgroup or self.llm, process.pid)
        return process

    def holds(self, cgroup: FakeCgroup, *pids: int) -> None:
        """Add processes to a cgroup."""
        with open(f"{cgroup.path}/cgroup.procs", "a") as file:
            file.writelines(f"{pid}\n" for pid in pids)

    def read(self, name: str, cgroup: FakeCgroup | None = None) -> str:
        """One file of a cgroup."""
        return (Path((cgroup or self.llm).path) / name).read_text().strip()

    async def ended(self, count: int = 1) -> list[LastResortEnded]:
        """So many answers, in their order."""
        await soon(lambda: len(self.told) >= count)
        told, self.told[:] = list(self.told), []
        assert len(told) == count
        return [event for event in told if isinstance(event, LastResortEnded)]

    async def run(
        self,
        action: LastResort,
        path: str = "/llm",
        *,
        step: LastResortStep | None = None,
        unit: str | None = None,
        reclaim_bytes: int | None = None,
    ) -> LastResortEnded:
        """One order for target llm and its answer."""
        self.last.run("llm", path, step or LastResortStep(action), unit, reclaim_bytes)
        (event,) = await self.ended()
        assert (event.target, event.action) == ("llm", action)
        return event

    async def fails(self, action: LastResort, path: str = "/llm", **options: object) -> str:
        """As run, for an order that fails: its sentence."""
        event = await self.run(action, path, **options)  # type: ignore[arg-type]
        assert event.outcome == "failed"
        assert event.message is not None
        assert event.message.startswith("cannot ")
        return event.message

    def close(self) -> None:
        """End the children."""
        for process in self.children:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def scenario(path: Path, play: Callable[[Scene], Awaitable[None]]) -> None:
    """Play; no descriptor, child or task may be left."""

    async def run() -> None:
        scene = Scene(path)
        try:
            await play(scene)
        finally:
            await scene.last.close()
            await scene.last.close()
            scene.close()
            assert len(asyncio.all_tasks()) == 1

    before = open_now()
    asyncio.run(run())
    none_left(before)


EVERY = pytest.mark.parametrize("action", list(LastResort))
ON_CGROUPS = pytest.mark.parametrize("action", [action for action in LastResort if action is not LastResort.RESTART])


# Whom it never touches


@EVERY
def test_the_root_is_never_acted_upon(tmp_path: Path, action: LastResort) -> None:
    """However its path is spelt."""

    async def play(scene: Scene) -> None:
        for path in ("/", "//.", "/."):
            assert "it is the root of the tree" in await scene.fails(action, path, unit="llm.service", reclaim_bytes=1)
        assert not scene.log.exists()

    scenario(tmp_path, play)


@EVERY
def test_the_daemons_own_cgroup_is_never_acted_upon(tmp_path: Path, action: LastResort) -> None:
    """Nor any around it, however deep this process is inside."""

    async def play(scene: Scene) -> None:
        child = scene.child()
        scene.cgroup("/llm/inner")
        deep = scene.cgroup("/llm/inner/deep")
        scene.holds(deep, os.getpid())
        for path in ("/llm", "/llm/inner", "/llm/inner/deep"):
            sentence = await scene.fails(action, path, unit="llm.service", reclaim_bytes=1)
            assert "this daemon itself runs in it" in sentence
        assert child.poll() is None
        assert scene.read("cgroup.freeze") == "0"
        assert scene.read("cgroup.kill") == ""
        assert not scene.log.exists()

    scenario(tmp_path, play)


@ON_CGROUPS
def test_a_cgroup_whose_processes_cannot_be_listed_is_not_acted_upon(tmp_path: Path, action: LastResort) -> None:
    """This daemon may be among them."""

    async def play(scene: Scene) -> None:
        inner = scene.cgroup("/llm/inner")
        inner.break_file("cgroup.procs")
        assert "Is a directory" in await scene.fails(action, reclaim_bytes=1)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


@ON_CGROUPS
@pytest.mark.parametrize("path", ["/missing", "/../tree/llm", "/link", "llm"])
def test_a_cgroup_that_is_none_is_said(tmp_path: Path, action: LastResort, path: str) -> None:
    """Gone, outside the tree, behind a symbolic link, no path."""

    async def play(scene: Scene) -> None:
        os.symlink("llm", scene.tree.full("/link"))
        await scene.fails(action, path, reclaim_bytes=1)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


@pytest.mark.parametrize(
    ("action", "name"), [(LastResort.RECLAIM, "memory.reclaim"), (LastResort.FREEZE, "cgroup.freeze")]
)
def test_a_kernel_without_the_feature_is_said(tmp_path: Path, action: LastResort, name: str) -> None:
    """The file is not there."""

    async def play(scene: Scene) -> None:
        scene.llm.unlink(name)
        sentence = await scene.fails(action, reclaim_bytes=MIB)
        assert f"{name}: No such file or directory; this kernel is too old" in sentence
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


# Reclaim


def test_reclaim_tells_what_memory_current_says(tmp_path: Path) -> None:
    """In pieces, the last of them the rest; plain files free nothing, and that is what is told."""

    async def play(scene: Scene) -> None:
        scene.llm.usage(30 * MIB)
        event = await scene.run(LastResort.RECLAIM, reclaim_bytes=lastresort.RECLAIM_PIECE_BYTES + 12_345_678)
        assert event.outcome == "done"
        assert event.message is not None
        assert event.message.startswith("reclaimed from /llm: 0.0 MiB of 27.8 MiB in ")
        assert event.message.endswith("memory.current 30.0 MiB to 30.0 MiB")
        assert scene.read("memory.reclaim") == "12345678"

    scenario(tmp_path, play)


@pytest.mark.parametrize("reclaim_bytes", [None, 0, -5])
def test_reclaiming_nothing_is_a_failure(tmp_path: Path, reclaim_bytes: int | None) -> None:
    """The order was without sense, and that is said."""

    async def play(scene: Scene) -> None:
        assert "nothing to be freed" in await scene.fails(LastResort.RECLAIM, reclaim_bytes=reclaim_bytes)

    scenario(tmp_path, play)


def test_reclaim_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop does not wait for it, and what is not begun is not begun any more."""
    monkeypatch.setattr(lastresort, "RECLAIM_WITHIN_S", 0.05)
    come_back = threading.Event()
    pieces = []

    def slow(fd: int, text: bytes, at: int) -> int:
        pieces.append(int(text))
        come_back.wait(20)
        return len(text)

    monkeypatch.setattr(os, "pwrite", slow)

    async def play(scene: Scene) -> None:
        assert "too slow" in await scene.fails(LastResort.RECLAIM, reclaim_bytes=4 * lastresort.RECLAIM_PIECE_BYTES)
        come_back.set()
        await soon(lambda: threading.active_count() == 1)
        assert pieces == [lastresort.RECLAIM_PIECE_BYTES]

    scenario(tmp_path, play)


# Freeze and thaw


def freeze_for(max_freeze_s: float) -> LastResortStep:
    """A step that freezes for so long."""
    return LastResortStep(LastResort.FREEZE, max_freeze_s=max_freeze_s)


def test_a_freeze_is_written_down_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Once each: stopped, running again; a second thaw has nothing to tell."""

    async def play(scene: Scene) -> None:
        scene.child()
        event = await scene.run(LastResort.FREEZE, step=freeze_for(600))
        assert event.outcome == "done"
        assert event.message is not None
        assert event.message.startswith("1 process of /llm stopped after ")
        assert event.message.endswith("for at most 600 s")
        assert scene.read("cgroup.freeze") == "1"
        record = scene.state.load(KIND, "/llm", Frozen)
        assert record is not None
        assert (record.target, record.boot_id, record.inode) == ("llm", BOOT, os.stat(scene.llm.path).st_ino)
        scene.last.thaw("other")
        assert scene.read("cgroup.freeze") == "1"
        scene.last.thaw("llm")
        scene.last.thaw("llm")
        (thawed,) = await scene.ended()
        assert thawed.outcome == "thawed"
        assert thawed.message is not None
        assert "/llm runs again after " in thawed.message
        assert scene.read("cgroup.freeze") == "0"
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


def test_a_freeze_ends_by_itself(tmp_path: Path) -> None:
    """At its maximum, whoever forgot it."""

    async def play(scene: Scene) -> None:
        scene.last.run("llm", "/llm", freeze_for(0.05))
        done, thawed = await scene.ended(2)
        assert (done.outcome, thawed.outcome) == ("done", "thawed")
        assert "its time was up" in str(thawed.message)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_a_freeze_that_never_takes_is_a_failure_and_is_undone(tmp_path: Path) -> None:
    """A process in a hung driver does not stop."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", freeze_for(0.05))
        thawed, failed = await scene.ended(2)
        assert (thawed.outcome, failed.outcome) == ("thawed", "failed")
        assert "not all processes had stopped" in str(failed.message)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_what_is_frozen_already_is_left_to_who_froze_it(tmp_path: Path) -> None:
    """Ours is not frozen twice, and somebody else's is not thawed by us."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.freeze", "1\n")
        assert "somebody else has frozen it" in await scene.fails(LastResort.FREEZE)
        scene.last.thaw("llm")
        assert scene.read("cgroup.freeze") == "1"
        scene.llm.write("cgroup.freeze", "0\n")
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        assert "we have frozen it" in await scene.fails(LastResort.FREEZE)

    scenario(tmp_path, play)


def test_stopping_the_daemon_thaws(tmp_path: Path) -> None:
    """And ends what is under way, each with its answer."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", freeze_for(600))
        await soon(lambda: scene.read("cgroup.freeze") == "1")
        await scene.last.close()
        failed, thawed = await scene.ended(2)
        assert (failed.outcome, thawed.outcome) == ("failed", "thawed")
        assert scene.read("cgroup.freeze") == "0"
        assert scene.state.load_all(KIND, Frozen) == {}
        assert "the daemon stops" in await scene.fails(LastResort.FREEZE)

    scenario(tmp_path, play)


def test_without_a_record_nothing_is_frozen(tmp_path: Path) -> None:
    """A crash would leave it frozen for ever."""

    async def play(scene: Scene) -> None:
        (scene.path / "state").write_text("a file")
        assert "Not a directory" in await scene.fails(LastResort.FREEZE)
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def test_a_thaw_that_fails_is_told_once_and_tried_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else would."""
    monkeypatch.setattr(freezer, "THAW_AGAIN_S", 0.01)

    async def play(scene: Scene) -> None:
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        os.rename(f"{scene.llm.path}/cgroup.freeze", f"{scene.llm.path}/hidden")
        os.mkdir(f"{scene.llm.path}/cgroup.freeze")
        scene.last.thaw("llm")
        (failed,) = await scene.ended()
        assert failed.outcome == "failed"
        assert "tried again every" in str(failed.message)
        os.rmdir(f"{scene.llm.path}/cgroup.freeze")
        os.rename(f"{scene.llm.path}/hidden", f"{scene.llm.path}/cgroup.freeze")
        (thawed,) = await scene.ended()
        assert thawed.outcome == "thawed"
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


def crashed(scene: Scene, **changes: object) -> None:
    """What a killed daemon leaves: a frozen cgroup and its record."""
    scene.llm.write("cgroup.freeze", "1\n")
    values = {"target": "llm", "boot_id": BOOT, "inode": os.stat(scene.llm.path).st_ino, "since": time.monotonic()}
    scene.state.save(KIND, "/llm", Frozen(**(values | changes)))  # type: ignore[arg-type]


def test_the_next_daemon_thaws_what_the_last_one_froze(tmp_path: Path) -> None:
    """Whatever ended it."""

    async def play(scene: Scene) -> None:
        crashed(scene)
        scene.daemon().recover()
        (event,) = await scene.ended()
        assert event.outcome == "thawed"
        assert "the daemon that froze it is gone" in str(event.message)
        assert scene.read("cgroup.freeze") == "0"
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


@pytest.mark.parametrize("changes", [{"boot_id": "another"}, {"inode": 1}])
def test_another_cgroup_or_another_boot_is_not_thawed(tmp_path: Path, changes: dict[str, object]) -> None:
    """Who froze it is somebody else."""

    async def play(scene: Scene) -> None:
        crashed(scene, **changes)
        scene.daemon().recover()
        assert scene.told == []
        assert scene.read("cgroup.freeze") == "1"
        assert scene.state.load_all(KIND, Frozen) == {}

    scenario(tmp_path, play)


# Signal


def test_a_signal_reaches_every_process_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cgroup and of those inside it, in batches, and nobody else."""
    monkeypatch.setattr(pidsignal, "BATCH", 2)

    async def play(scene: Scene) -> None:
        inner = scene.cgroup("/llm/inner")
        inside = [scene.child(cgroup) for cgroup in (scene.llm, scene.llm, scene.llm, inner)]
        outside = scene.child(scene.cgroup("/other"))
        event = await scene.run(LastResort.SIGNAL, step=LastResortStep(LastResort.SIGNAL, signal="SIGINT"))
        assert (event.outcome, event.message) == ("done", "SIGINT reached 4 processes of /llm")
        eventually(lambda: all(process.poll() for process in inside))
        assert [process.poll() for process in inside] == [-signal.SIGINT] * 4
        assert outside.poll() is None

    scenario(tmp_path, play)


def test_a_process_that_has_ended_is_not_counted(tmp_path: Path) -> None:
    """Nor is whoever has its number now."""

    async def play(scene: Scene) -> None:
        process = scene.child()
        process.kill()
        process.wait()
        assert "no process is in it" in await scene.fails(LastResort.SIGNAL)

    scenario(tmp_path, play)


def test_a_process_that_left_the_cgroup_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed, but not any more when its descriptor had been taken: the number may be somebody else's."""
    taken = os.pidfd_open

    async def play(scene: Scene) -> None:
        process = scene.child()

        def then_gone(pid: int) -> int:
            scene.llm.write("cgroup.procs", "")
            return taken(pid)

        monkeypatch.setattr(os, "pidfd_open", then_gone)
        assert "no process is in it" in await scene.fails(LastResort.SIGNAL)
        assert process.poll() is None

    scenario(tmp_path, play)


def test_a_process_of_another_pid_namespace_is_said(tmp_path: Path) -> None:
    """The kernel lists it as 0; signalling 0 would hit ourselves."""

    async def play(scene: Scene) -> None:
        process = scene.child()
        scene.holds(scene.llm, 0)
        sentence = await scene.fails(LastResort.SIGNAL)
        assert "SIGTERM reached 1 process and not 1 more; run the daemon as root" in sentence
        assert eventually(process.poll) == -signal.SIGTERM

    scenario(tmp_path, play)


def test_an_unknown_signal_is_said(tmp_path: Path) -> None:
    """The configuration is checked before; this is the last line."""

    async def play(scene: Scene) -> None:
        process = scene.child()
        step = LastResortStep(LastResort.SIGNAL, signal="SIGNOPE")
        assert "'SIGNOPE' is no signal" in await scene.fails(LastResort.SIGNAL, step=step)
        assert process.poll() is None

    scenario(tmp_path, play)


def test_a_frozen_target_is_thawed_to_act_on_its_signal(tmp_path: Path) -> None:
    """A stopped process would never see it."""

    async def play(scene: Scene) -> None:
        scene.child()
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        scene.last.run("llm", "/llm", LastResortStep(LastResort.SIGNAL))
        thawed, done = await scene.ended(2)
        assert (thawed.action, thawed.outcome) == (LastResort.FREEZE, "thawed")
        assert (done.action, done.outcome) == (LastResort.SIGNAL, "done")

    scenario(tmp_path, play)


# Kill


def test_a_kill_is_done_when_nothing_is_left(tmp_path: Path) -> None:
    """Not before, though the order was given."""

    async def play(scene: Scene) -> None:
        scene.child()
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        await soon(lambda: scene.read("cgroup.kill") == "1")
        assert scene.told == []
        scene.llm.write("cgroup.events", "populated 0\nfrozen 0\n")
        (event,) = await scene.ended()
        assert event.outcome == "done"
        assert str(event.message).startswith("1 process of /llm killed, all gone after ")

    scenario(tmp_path, play)


def test_a_kill_that_leaves_somebody_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in the kernel."""
    monkeypatch.setattr(lastresort, "KILL_WITHIN_S", 0.05)

    async def play(scene: Scene) -> None:
        scene.child()
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        assert "1 process still there after" in await scene.fails(LastResort.KILL)

    scenario(tmp_path, play)


def test_without_cgroup_kill_each_process_is_killed_until_none_is_left(tmp_path: Path) -> None:
    """Before 5.14. One that comes meanwhile is found as well."""

    async def play(scene: Scene) -> None:
        scene.llm.unlink("cgroup.kill")
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        first = scene.child()
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        assert await soon(first.poll) == -signal.SIGKILL
        second = scene.child()
        assert await soon(second.poll) == -signal.SIGKILL
        scene.llm.write("cgroup.events", "populated 0\nfrozen 0\n")
        (event,) = await scene.ended()
        assert event.outcome == "done"

    scenario(tmp_path, play)


def test_a_killed_target_is_frozen_no_more(tmp_path: Path) -> None:
    """What starts in it next has to run."""

    async def play(scene: Scene) -> None:
        await scene.run(LastResort.FREEZE, step=freeze_for(600))
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        thawed, done = await scene.ended(2)
        assert (thawed.outcome, done.outcome) == ("thawed", "done")
        assert scene.read("cgroup.freeze") == "0"

    scenario(tmp_path, play)


# Restart


@pytest.mark.parametrize("unit", ["llm@a.service", "-Hx.service"])
def test_a_restart_is_systemctls(tmp_path: Path, unit: str) -> None:
    """No shell, a bare environment, the unit after "--"; done when the job is."""

    async def play(scene: Scene) -> None:
        event = await scene.run(LastResort.RESTART, unit=unit)
        assert event.outcome == "done"
        assert str(event.message).startswith(f"{unit} was restarted in ")
        assert scene.log.read_text() == f"restart --no-ask-password -- {unit}\n"
        environment = scene.log.with_suffix(".env").read_text()
        assert "LC_ALL=C.UTF-8" in environment
        assert "HOME=" not in environment

    scenario(tmp_path, play)


def test_the_steps_unit_comes_before_the_targets(tmp_path: Path) -> None:
    """A supervisor restarts its server, say."""

    async def play(scene: Scene) -> None:
        step = LastResortStep(LastResort.RESTART, unit="supervisor.service")
        await scene.run(LastResort.RESTART, step=step, unit="llm.service")
        assert "supervisor.service" in scene.log.read_text()

    scenario(tmp_path, play)


def test_a_service_whose_cgroup_is_gone_is_restarted(tmp_path: Path) -> None:
    """It has crashed: now more than ever."""

    async def play(scene: Scene) -> None:
        event = await scene.run(LastResort.RESTART, "/missing", unit="llm.service")
        assert event.outcome == "done"

    scenario(tmp_path, play)


def test_what_systemctl_says_is_passed_on(tmp_path: Path) -> None:
    """On one line, and safe to print."""

    async def play(scene: Scene) -> None:
        sentence = await scene.fails(LastResort.RESTART, unit="fails.service")
        assert "systemctl ended with status 1 (Job for fails.service failed. \\x1b[31mSee it.)" in sentence
        assert sentence.isprintable()

    scenario(tmp_path, play)


def test_a_restart_that_takes_too_long_is_waited_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemctl is ended (see no_child_is_left), and nothing is claimed."""
    monkeypatch.setattr(unitrestart, "WITHIN_S", 0.1)

    async def play(scene: Scene) -> None:
        sentence = await scene.fails(LastResort.RESTART, unit="hangs.service")
        assert "its job goes on; look at systemctl list-jobs" in sentence

    scenario(tmp_path, play)


def test_stopping_the_daemon_leaves_no_systemctl(tmp_path: Path) -> None:
    """The order is answered, the child is gone."""

    async def play(scene: Scene) -> None:
        scene.last.run("llm", "/llm", LastResortStep(LastResort.RESTART), "hangs.service")
        file = scene.log.with_suffix(".pid")
        pid = await soon(lambda: file.exists() and file.read_text())
        await scene.last.close()
        (event,) = await scene.ended()
        assert event.outcome == "failed"
        assert not is_running(int(str(pid)))

    scenario(tmp_path, play)


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        (None, "no unit is named"),
        ("--help", "it is no name of"),
        ("a b.service", "it is no name of"),
        ("../x.service", "it is no name of"),
        ("x;reboot.service", "it is no name of"),
        ("llm@.service", "a template has no cgroup"),
        ("llm.slice", "only a service can be restarted"),
        ("edgeguardd.service", "this daemon itself runs in it"),
        ("\x1b[2J.service", "cannot restart \\x1b[2J.service"),
    ],
)
def test_only_a_well_named_service_of_others_is_restarted(tmp_path: Path, unit: str | None, why: str) -> None:
    """systemctl is not even started."""

    async def play(scene: Scene) -> None:
        assert why in await scene.fails(LastResort.RESTART, unit=unit)
        assert not scene.log.exists()

    scenario(tmp_path, play)


def test_a_machine_without_systemctl_is_said(tmp_path: Path) -> None:
    """As in a container."""

    async def play(scene: Scene) -> None:
        scene.systemctl.unlink()
        sentence = await scene.fails(LastResort.RESTART, unit="llm.service")
        assert sentence.startswith("cannot restart units: there is no ")

    scenario(tmp_path, play)


def is_running(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# One at a time


def test_an_answer_may_bring_the_same_order_again(tmp_path: Path) -> None:
    """The engine reacts at once."""

    async def play(scene: Scene) -> None:
        left = [1, 2]

        def react(event: Event) -> None:
            scene.told.append(event)
            if left:
                left.pop()
                scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))

        scene.last._emit = react
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        assert [event.outcome for event in await scene.ended(3)] == ["done"] * 3

    scenario(tmp_path, play)


def test_an_order_that_had_not_begun_is_answered_too(tmp_path: Path) -> None:
    """The daemon stops in the same moment."""

    async def play(scene: Scene) -> None:
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        await scene.last.close()
        (event,) = await scene.ended()
        assert (event.outcome, "interrupted" in str(event.message)) == ("failed", True)

    scenario(tmp_path, play)


def test_an_order_is_not_begun_twice(tmp_path: Path) -> None:
    """The second is refused while the first is under way; another target is another matter."""

    async def play(scene: Scene) -> None:
        scene.cgroup("/other")
        scene.llm.write("cgroup.events", "populated 1\nfrozen 0\n")
        scene.last.run("llm", "/llm", LastResortStep(LastResort.KILL))
        assert "still under way" in await scene.fails(LastResort.KILL)
        scene.last.run("other", "/other", LastResortStep(LastResort.KILL))
        (other,) = await scene.ended()
        assert (other.target, other.outcome) == ("other", "done")
        scene.llm.write("cgroup.events", "populated 0\nfrozen 0\n")
        (event,) = await scene.ended()
        assert (event.target, event.outcome) == ("llm", "done")
        assert (await scene.run(LastResort.KILL)).outcome == "done"

    scenario(tmp_path, play)


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Each child has been waited for."""
    yield
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
