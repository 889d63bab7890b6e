"""Restarts and kills under load: ten servers at critical, a daemon that dies anywhere, and nothing is forgotten."""

import asyncio
import os
import random
import shutil
import subprocess

import pytest

from tests.support import faulty
from tests.support.faketree import MIB, FakeCgroup
from tests.support.restarts import TARGET, Memory, activated
from tests.support.running import Daemon, Subscriber
from tests.support.subscriberload import Journal, Server, longest_gap_s, problems, read, run
from tests.support.wait import DEADLINE_S, eventually, soon

HELLO = {"name": "test", "target": "llm"}
SERVERS = 10
SEEDS = int(os.environ.get("EDGEGUARDD_RESTART_SEEDS", "2"))
DEATHS = 3
# A daemon is left alone for so long at most before it is killed anyway.
LONGEST_S = 1.0
# More of them than it takes.
MANY_DEATHS = 8
# Commands that have more time than a daemon lives, and less than it has for who is away.
HURRIED = """
[defaults.ladder]
critical = [
    { action = "trim_kv_cache", deadline = "2s" },
    { action = "reduce_batch", max_batch_ratio = "25%", deadline = "2s" },
    { action = "reject_requests", deadline = "2s" },
]
"""


def test_kill_9_forgets_neither_level_nor_commands(place: str, llm: FakeCgroup) -> None:
    """The next run has the same epoch and level, and tells the unanswered commands again, as they were."""
    llm.usage(950 * MIB)
    with activated(place, TARGET.replace("dwell = 0.2", "dwell = 60")) as daemon:
        with Subscriber(daemon.socket_path, HELLO, ack=None) as first:
            old = first.wait_for("welcome")
            told = {seq: first.wait_for("command", action=seq) for seq in ("reduce_batch", "reject_requests")}
            daemon.kill()
        llm.usage(100 * MIB)
        daemon.start()
        with Subscriber(daemon.socket_path, HELLO, ack=None) as second:
            new = second.wait_for("welcome")
            assert (new["epoch"], new["level"], new["accept_requests"]) == (old["epoch"], "critical", False)
            for action, command in told.items():
                again = second.wait_for("command", action=action)
                assert {**again, "deadline_s": 0} == {**command, "deadline_s": 0}
            state = daemon.status()["state"]
            assert (state["continued"], state["recalled_targets"], state["faults"]) == (True, 1, [])
            assert daemon.metric("edgeguardd_commands_told_again_total") == state["recalled_commands"]


def test_an_ack_that_comes_after_the_restart_counts(place: str, llm: FakeCgroup) -> None:
    """The server was at it while no daemon was there: the command ends done, with all the time that it took."""
    llm.usage(950 * MIB)
    with activated(place) as daemon:
        with Subscriber(daemon.socket_path, HELLO, ack=None) as first:
            command = first.wait_for("command", action="reject_requests")
            daemon.kill()
        daemon.start()
        with Subscriber(daemon.socket_path, HELLO, ack=None) as second:
            second.wait_for("welcome")
            second.send({"type": "ack", "seq": command["seq"], "status": "done", "effect": "none"})
            ended = eventually(lambda: [f for f in daemon.facts("command_ended") if f["seq"] == command["seq"]])
            assert [(fact["outcome"], fact["action"]) for fact in ended] == [("done", "reject_requests")]
            # Known as late, and no error, however often it is said.
            second.send({"type": "ack", "seq": command["seq"], "status": "done", "effect": "none"})
            assert eventually(lambda: daemon.facts("late_ack"))
            assert second.of("error") == []


def test_a_daemon_that_is_killed_again_and_again_escalates_all_the_same(place: str, llm: FakeCgroup) -> None:
    """A server that is back each time and answers nothing: its commands expire at their first deadline."""
    llm.usage(950 * MIB)
    with activated(place, TARGET + HURRIED) as daemon:
        with Subscriber(daemon.socket_path, HELLO, ack=None) as server:
            first = server.wait_for("command", level="critical")
            with_patience(daemon, LONGEST_S)
        told = [first["deadline_s"]]
        for _ in range(MANY_DEATHS):
            daemon.start()
            with Subscriber(daemon.socket_path, HELLO, ack=None) as server:
                server.wait_for("welcome")
                with_patience(daemon, LONGEST_S)
                told += [line["deadline_s"] for line in server.of("command") if line["seq"] == first["seq"]]
            if daemon.facts("escalated"):
                break
        ended = [(fact["seq"], fact["outcome"]) for fact in daemon.facts("command_ended")]
        assert (first["seq"], "expired") in ended
        assert daemon.facts("escalated")
        assert told == sorted(told, reverse=True)
        daemon.killed = True


def test_kills_while_nobody_looked_are_told_once(place: str, llm: FakeCgroup) -> None:
    """By count, not by level: what was killed then says nothing of memory now. A third run has nothing to tell."""
    llm.events(oom_kill=2)
    with activated(place) as daemon:
        daemon.kill()
        llm.events(oom_kill=5)
        daemon.start()
        assert eventually(lambda: daemon.facts("kills_while_away"))[0]["kills"] == 3
        assert daemon.metric("edgeguardd_kills_while_away_total", target="llm") == 3
        assert daemon.metric("edgeguardd_target_level", target="llm") == 0
        daemon.kill()
        daemon.start()
        daemon.stop()
        assert len(daemon.facts("kills_while_away")) == 1


@pytest.mark.parametrize("damage", ["newer", "huge"])
def test_a_record_that_cannot_be_used_is_said_and_survived(place: str, llm: FakeCgroup, damage: str) -> None:
    """It is put aside where that can be; levels come from memory, and the epoch is a new one where numbers are lost."""
    llm.usage(950 * MIB)
    with activated(place) as daemon, Subscriber(daemon.socket_path, HELLO) as first:
        epoch = first.wait_for("welcome")["epoch"]
        first.wait_for("command", action="reject_requests")
        daemon.stop()
        for name in os.listdir(daemon.state_directory):
            if name.endswith(".json"):
                spoil(f"{daemon.state_directory}/{name}", damage)
        daemon.start()
        with Subscriber(daemon.socket_path, HELLO) as second:
            welcome = second.wait_for("welcome")
            assert (welcome["level"], welcome["epoch"] == epoch) == ("critical", False)
        status = daemon.status()
        assert (status["state"]["continued"], status["ready"]) == (False, True)
        assert status["state"]["faults"]
        said = [fact["why"] for fact in daemon.facts("works_in_part")]
        assert sorted(said) == sorted(set(said))
        assert daemon.get("/healthz").startswith("ok\n")


def test_a_state_directory_that_is_removed_under_the_daemon_is_made_again_with_all_that_was_in_it(
    place: str, llm: FakeCgroup
) -> None:
    """Noticed at the next save, said once; a kill -9 thereafter loses as little as one before."""
    llm.usage(950 * MIB)
    with activated(place) as daemon, Subscriber(daemon.socket_path, HELLO) as first:
        epoch = first.wait_for("welcome")["epoch"]
        first.wait_for("command", action="reject_requests")
        eventually(lambda: daemon.status()["state"]["kept"])
        before = {name for name in os.listdir(daemon.state_directory) if not name.startswith(".")}
        shutil.rmtree(daemon.state_directory)
        llm.usage(960 * MIB)
        eventually(
            lambda: os.path.isdir(daemon.state_directory) and before <= set(os.listdir(daemon.state_directory)),
            what=f"{before} are there again",
        )
        assert os.stat(daemon.state_directory).st_mode & 0o777 == 0o700
        eventually(lambda: daemon.metric("edgeguardd_state_kept") == 1)
        said = [fact["why"] for fact in daemon.facts("works_in_part") if "removed or replaced" in fact["why"]]
        assert len(said) == 1
        assert [fault for fault in daemon.status()["state"]["faults"] if "removed or replaced" in fault]
        eventually(lambda: os.listdir(f"{daemon.state_directory}/recordings"))
        daemon.kill()
        daemon.start()
        with Subscriber(daemon.socket_path, HELLO) as second:
            welcome = second.wait_for("welcome")
            assert (welcome["level"], welcome["epoch"]) == ("critical", epoch)


def test_a_state_directory_that_cannot_be_made_again_shows_as_not_kept(place: str, llm: FakeCgroup) -> None:
    """In metric, status and health, until there is a place for it again."""
    with activated(place) as daemon:
        eventually(lambda: daemon.metric("edgeguardd_state_kept") == 1)
        shutil.rmtree(daemon.state_directory)
        with open(daemon.state_directory, "w"):
            pass
        llm.usage(950 * MIB)
        eventually(lambda: daemon.metric("edgeguardd_state_kept") == 0)
        assert daemon.get("/healthz") == "ok; what outlives the daemon cannot be written\n"
        assert daemon.status()["state"]["kept"] is False
        os.unlink(daemon.state_directory)
        eventually(lambda: daemon.metric("edgeguardd_state_kept") == 1)
        assert [name for name in os.listdir(daemon.state_directory) if name.startswith("target-")]


@pytest.mark.parametrize("made", ["another user's", "writable by others"])
def test_a_record_that_another_user_may_have_written_is_put_aside(place: str, llm: FakeCgroup, made: str) -> None:
    """Like a damaged one: said, and levels come from memory."""
    if made == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    llm.usage(950 * MIB)
    with activated(place) as daemon:
        eventually(lambda: daemon.status()["targets"][0]["level"] == "critical")
        daemon.stop()
        names = [name for name in os.listdir(daemon.state_directory) if name.endswith((".json", ".journal"))]
        for name in names:
            if made == "another user's":
                os.chown(f"{daemon.state_directory}/{name}", 12345, -1)
            else:
                os.chmod(f"{daemon.state_directory}/{name}", 0o620)
        llm.usage(100 * MIB)
        daemon.start()
        status = daemon.status()
        assert (status["state"]["continued"], status["targets"][0]["level"]) == (False, "normal")
        aside = {name.removesuffix(".damaged") for name in os.listdir(daemon.state_directory) if ".damaged" in name}
        assert aside == set(names)
        for name in names:
            assert any(f"{name}.damaged now" in fact["why"] for fact in daemon.facts("works_in_part")), name


@pytest.mark.parametrize("damage", ["random bytes", "zeros"])
def test_a_journal_that_is_damaged_is_put_aside_and_said(place: str, llm: FakeCgroup, damage: str) -> None:
    """As a damaged record is: in the log and in /status, and a kill -9 that leaves it whole says nothing."""
    llm.usage(950 * MIB)
    with activated(place) as daemon:
        eventually(lambda: daemon.status()["targets"][0]["level"] == "critical")
        daemon.kill()
        daemon.start()
        assert daemon.facts("works_in_part") == []
        daemon.kill()
        names = [name for name in os.listdir(daemon.state_directory) if name.endswith(".journal")]
        assert names
        for name in names:
            path = f"{daemon.state_directory}/{name}"
            size = os.path.getsize(path)
            with open(path, "wb") as file:
                file.write(bytes(size) if damage == "zeros" else random.Random(1).randbytes(size))  # noqa: S311
        daemon.start()
        said = [fact["why"] for fact in daemon.facts("works_in_part")]
        assert said == daemon.status()["state"]["faults"]
        assert {name for name in names for why in said if f"{name}.damaged now" in why} == set(names)
        assert {f"{name}.damaged" for name in names} <= set(os.listdir(daemon.state_directory))
        assert daemon.status()["targets"][0]["level"] == "critical"


def spoil(path: str, damage: str) -> None:
    """Make a record unusable."""
    with open(path, "rb") as file:
        good = file.read()
    contents = {"newer": good.replace(b'"v":1', b'"v":2', 1), "huge": b"[" * (9 << 20)}
    with open(path, "wb") as file:
        file.write(contents[damage])


def test_a_directory_that_cannot_be_written_is_said_and_survived(place: str, llm: FakeCgroup) -> None:
    """Levels are carried over as last written; numbers cannot be, so the epoch is a new one each time."""
    llm.usage(950 * MIB)
    with activated(place) as daemon, Subscriber(daemon.socket_path, HELLO) as first:
        epochs = [first.wait_for("welcome")["epoch"]]
        first.wait_for("command", action="reject_requests")
        daemon.stop()
        # A file where the directory was: for root as well nothing can be made there.
        os.rename(daemon.state_directory, f"{place}/old")
        with open(daemon.state_directory, "w"):
            pass
        for _ in range(2):
            daemon.start()
            with Subscriber(daemon.socket_path, HELLO) as other:
                epochs.append(other.wait_for("welcome")["epoch"])
            assert daemon.status()["state"]["kept"] is False
            assert "cannot be written" in daemon.get("/healthz")
            assert daemon.metric("edgeguardd_state_kept") == 0
            daemon.kill()
        assert len(set(epochs)) == 3
        os.unlink(daemon.state_directory)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ten_servers_lose_nothing_wherever_the_daemon_dies(place: str, llm: FakeCgroup, seed: int) -> None:
    """SIGKILL at a point of its work, SIGKILL at any moment, SIGTERM: three deaths, and then quiet."""
    chance = random.Random(seed)  # noqa: S311  a seed to find it again
    memory = Memory(llm)
    path = f"{place}/journal"
    with activated(place) as daemon:
        asyncio.run(_rounds(daemon, memory, path, chance))
        lines = read(path)
        assert problems(lines, gap_s=DEADLINE_S, least_level="critical") == []
        welcomes = [line for line in lines if line["what"] == "welcome"]
        assert len({line["epoch"] for line in welcomes}) == 1
        assert daemon.facts("defect") == []
        assert [fact["why"] for fact in daemon.facts("works_in_part") if "journal" in fact["why"]] == []
        begun = {line["seq"] for line in lines if line["what"] == "begin"}
        ended = {line["seq"] for line in lines if line["what"] == "end"}
        assert begun == ended
    print(f"seed {seed}: {len(welcomes)} welcomes, {len(ended)} commands, gap {longest_gap_s(lines):.2f} s")


async def _rounds(daemon: Daemon, memory: Memory, path: str, chance: random.Random) -> None:
    journal, until = Journal(path), asyncio.Event()
    servers = [
        Server(f"load-{n}", journal, take_s=0.02, release=memory.release, path=daemon.socket_path, target="llm")
        for n in range(SERVERS)
    ]
    load = asyncio.create_task(run(servers, journal, daemon.socket_path, until))
    await soon(lambda: all(server.guard.connected for server in servers))
    memory.set(980 * MIB)
    growing = asyncio.create_task(memory.grow())
    await soon(lambda: not any(server.accepting for server in servers))
    for _ in range(DEATHS):
        await asyncio.to_thread(_die, daemon, chance)
    growing.cancel()
    await asyncio.gather(growing, return_exceptions=True)
    # The welcomes of the last restart tell a level that is at least critical; from here on it may fall.
    await soon(lambda: all(server.guard.connected for server in servers))
    memory.set(100 * MIB)
    await soon(lambda: all(server.accepting and server.settled() for server in servers), 2 * DEADLINE_S)
    status = await asyncio.to_thread(daemon.status)
    assert [row["outstanding"] for row in status["targets"]] == [[]]
    until.set()
    await load
    journal.close()


def _die(daemon: Daemon, chance: random.Random) -> None:
    """The daemon dies in one of three ways, and the next one comes; that one may have a fault in it as well."""
    assert daemon.process is not None
    match chance.choice(["fault", "fault", "kill", "stop"]):
        case "fault":
            daemon.stop()
            point = chance.choice(sorted(faulty.POINTS))
            when = chance.choice(["before", "after"])
            daemon.environment = {faulty.VARIABLE: f"{point}:{when}:{chance.randrange(1, 40)}"}
            daemon.command[2] = "tests.support.faulty"
            daemon.start(wait=False)
            with_patience(daemon)
            daemon.environment, daemon.command[2] = {}, "edgeguardd"
        case "kill":
            with_patience(daemon, chance.random() * LONGEST_S)
        case "stop":
            daemon.stop()
    daemon.killed = True
    daemon.start()


def with_patience(daemon: Daemon, longest_s: float = 2 * LONGEST_S) -> None:
    """Until it has killed itself, or its time is over and it is killed."""
    assert daemon.process is not None
    try:
        daemon.process.wait(longest_s)
    except subprocess.TimeoutExpired:
        daemon.kill()
