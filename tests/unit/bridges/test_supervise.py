"""Stopping and starting a server's process, with real processes and a systemctl that writes down what it is asked."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeguardd.bridges import commands, supervise
from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.supervise import ChildKeeper, CommandKeeper, UnitKeeper
from tests.support.children import ending
from tests.support.running import REPOSITORY
from tests.support.wait import eventually, soon

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def script(path: Path, body: str) -> str:
    """A program."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_unit_is_stopped_and_started_by_systemctl_and_asked_for_its_cgroup(tmp_path: Path) -> None:
    """Waited for to the end, never through a shell; a unit's name cannot become an option."""

    async def scene() -> None:
        systemctl = script(tmp_path / "systemctl", f'echo "$@" >> {tmp_path}/asked; echo /system.slice/llama.service')
        keeper = UnitKeeper("llama.service", [str(tmp_path / "absent"), systemctl])
        await keeper.stop()
        await keeper.start()
        assert await keeper.cgroup() == "/system.slice/llama.service"
        assert (tmp_path / "asked").read_text().splitlines() == [
            "stop --no-ask-password -- llama.service",
            "start --no-ask-password -- llama.service",
            "show --no-ask-password --property=ControlGroup --value -- llama.service",
        ]

    asyncio.run(scene())


def test_what_systemctl_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    """One sentence, whatever it prints."""
    systemctl = script(tmp_path / "systemctl", 'printf "Unit llama.service\\nnot found.\\n" >&2; exit 5')
    with pytest.raises(ServerError, match=r"ended with status 5 \(Unit llama.service not found\.\)"):
        asyncio.run(UnitKeeper("llama.service", [systemctl]).stop())
    with pytest.raises(ServerError, match=r"there is no /absent; give --start and --stop"):
        asyncio.run(UnitKeeper("llama.service", ["/absent"]).stop())


def test_the_operators_own_commands_are_run_as_they_are(tmp_path: Path) -> None:
    """Without a shell: a semicolon is an argument like another."""
    keeper = CommandKeeper([script(tmp_path / "stop", f'echo "$1" > {tmp_path}/said'), "a; b"], ["/absent/start"])
    asyncio.run(keeper.stop())
    assert (tmp_path / "said").read_text() == "a; b\n"
    with pytest.raises(ServerError, match=r"cannot run /absent/start: No such file or directory"):
        asyncio.run(keeper.start())


def test_a_command_that_never_ends_is_ended(tmp_path: Path) -> None:
    """And told."""
    program = script(tmp_path / "hangs", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    with pytest.raises(ServerError, match=r"not within 0\.5 s"):
        asyncio.run(commands.run([program], within_s=0.5))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_command_is_not_waited_for_after_its_end(tmp_path: Path) -> None:
    """A start script leaves its server behind, with the script's output open; and one that hangs may have children."""
    program = script(tmp_path / "start", f"sleep 60 & echo $! > {tmp_path}/pid; echo started; exec $1")
    try:
        assert asyncio.run(commands.run([program, "true"], within_s=20.0)) == "started\n"
        assert alive(int((tmp_path / "pid").read_text()))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    began = time.monotonic()
    try:
        with pytest.raises(ServerError, match=r"not within 0\.2 s"):
            asyncio.run(commands.run([program, "sleep 60"], within_s=0.2))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert time.monotonic() - began < 20.0


def test_a_command_may_print_much(tmp_path: Path) -> None:
    """More than a pipe holds; the beginning is kept."""
    program = script(tmp_path / "much", "head -c 300000 /dev/zero | tr '\\0' x")
    assert asyncio.run(commands.run([program], within_s=20.0)) == "x" * commands.MAX_PRINTED_BYTES


def test_what_a_child_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server behind a script: stopped with it, and not left in the way of the next when the script is killed."""
    monkeypatch.setattr(supervise, "RESTART_AFTER_S", 0.01)

    async def scene() -> None:
        pids = tmp_path / "pids"
        program = script(tmp_path / "start", f"sleep 60 & echo $$ $! >> {pids}; wait")
        keeper = ChildKeeper([program], None, lambda _: None)
        await keeper.start()
        await soon(lambda: pids.exists() and pids.read_text().endswith("\n"))
        leader, server = map(int, pids.read_text().split())
        os.kill(leader, signal.SIGKILL)
        await soon(lambda: pids.read_text().count("\n") == 2)
        await soon(lambda: not alive(server))
        await keeper.stop()
        # Killed is not yet gone, and the numbers of those from before may be somebody else's for a moment.
        await soon(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))

    asyncio.run(scene())


def test_a_child_is_stopped_and_started_again_when_it_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that was asked for starts nothing."""
    monkeypatch.setattr(supervise, "RESTART_AFTER_S", 0.01)

    async def scene() -> None:
        ends: list[int] = []
        stale = tmp_path / "sock"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(stale))
        program = script(tmp_path / "server", f"echo $$ >> {tmp_path}/pids; exec sleep 60")
        keeper = ChildKeeper([program], None, ends.append, str(stale))
        await keeper.start()
        await keeper.start()
        pids = tmp_path / "pids"
        await soon(lambda: pids.exists() and pids.read_text())
        assert not stale.exists()
        os.kill(int(pids.read_text()), 9)
        await soon(lambda: len(pids.read_text().split()) == 2)
        assert ends == [-9]
        await keeper.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(int(pids.read_text().split()[1]), 0)
        await keeper.start()
        await soon(lambda: len(pids.read_text().split()) == 3)
        await keeper.stop()
        assert ends == [-9]

    asyncio.run(scene())


BRIDGE = """
import asyncio, sys
from edgeguardd.bridges import supervise
supervise.STOP_WITHIN_S = 0.5
async def main():
    await supervise.ChildKeeper(sys.argv[1:], None, print).start()
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        ("exec sleep 60", "it is the server itself"),
        ("sleep 60 & echo $! >> {pids}; touch {up}; wait", "it is a script before the server"),
        ('trap "" TERM; echo $$ >> {pids}; touch {up}; while :; do sleep 0.05; done', "it ignores the asking"),
        ("(sleep 60 & echo $! >> {pids}; touch {up}); exit 0", "the script has ended, and what it started goes on"),
    ],
)
def test_nothing_of_a_child_outlives_a_bridge_that_is_killed(tmp_path: Path, starts: str, why: str) -> None:
    """It would hold its port and its memory against the next one, without a gate before it."""
    assert why
    pids, up = tmp_path / "pids", tmp_path / "up"
    if "{up}" not in starts:
        starts = "touch {up}; " + starts
    server = script(tmp_path / "server", f"echo $$ >> {pids}; " + starts.format(pids=pids, up=up))
    with ending(subprocess.Popen([sys.executable, "-c", BRIDGE, server], cwd=REPOSITORY)) as bridge:
        eventually(up.exists)
        bridge.kill()
        bridge.wait()
        started = [int(pid) for pid in pids.read_text().split()]
        eventually(lambda: not any(alive(pid) for pid in started), what="all of it has ended")
    eventually(lambda: not lookouts(server), what="nobody looks out any more")


def lookouts(server: str) -> list[int]:
    """The processes that wait for the end of this server's bridge."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"edgeguardd.bridges.launch" in words and os.fsencode(server) in words:
                found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    """Whose child it is."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_the_lookout_ends_with_the_server(tmp_path: Path) -> None:
    """Started and stopped a few times, a bridge leaves none behind; none is the server's own child."""

    async def scene() -> None:
        server = script(
            tmp_path / "server", f"echo $$ > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/up; exec sleep 60"
        )
        keeper = ChildKeeper([server], None, lambda _: None)
        for _ in range(2):
            (tmp_path / "up").unlink(missing_ok=True)
            await keeper.start()
            await soon((tmp_path / "up").exists)
            (lookout,) = lookouts(server)
            assert parent_of(lookout) != int((tmp_path / "up").read_text())
            await keeper.stop()
            await soon(lambda: not lookouts(server))

    asyncio.run(scene())


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_child_that_ignores_the_asking_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is what this is about."""
    monkeypatch.setattr(supervise, "STOP_WITHIN_S", 0.05)

    async def scene() -> None:
        deaf = script(tmp_path / "deaf", f'trap "" TERM; touch {tmp_path}/up; while :; do sleep 0.05; done')
        keeper = ChildKeeper([deaf], None, lambda _: None)
        await keeper.start()
        await soon((tmp_path / "up").exists)
        await keeper.stop()
        assert not keeper.running

    asyncio.run(scene())


def test_a_child_enters_its_cgroup_before_it_becomes_the_server(tmp_path: Path) -> None:
    """Its first page counts there. A cgroup that is not there is told, and nothing runs outside it."""

    async def scene() -> None:
        procs = tmp_path / "cgroup.procs"
        procs.touch()
        ends: list[int] = []
        server = script(tmp_path / "server", f"cp {procs} {tmp_path}/seen; exec sleep 60")
        keeper = ChildKeeper([server], str(procs), ends.append)
        await keeper.start()
        await soon(lambda: (tmp_path / "seen").exists() and (tmp_path / "seen").read_text() == "0")
        await keeper.stop()
        homeless = ChildKeeper([server], str(tmp_path / "absent" / "cgroup.procs"), ends.append)
        await homeless.start()
        await soon(lambda: ends == [126])
        await homeless.stop()
        with pytest.raises(ServerError, match=r"cannot start /absent: there is no such program"):
            await ChildKeeper(["/absent"], None, ends.append).start()

    asyncio.run(scene())
