"""TCP ports that cannot be had at the start: memory is guarded all the same, and they are served once they can be."""

import asyncio
import socket
import urllib.request

import pytest

from edgeguardd import doors
from edgeguardd.doors import Door
from edgeguardd.errors import ServeError
from tests.support.faketree import MIB, FakeCgroup
from tests.support.running import Daemon, Subscriber
from tests.support.wait import DEADLINE_S, eventually

TARGET = '[[target]]\nname = "llm"\npath = "/llm"\n[sampling]\nfast = 0.05\nslow = 0.1\n'


@pytest.mark.parametrize("section", ["http", "gate"])
def test_a_taken_port_does_not_keep_memory_from_being_guarded(place: str, llm: FakeCgroup, section: str) -> None:
    """A command is sent meanwhile; what is wrong is said once; freed, the port is served, and that is said."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        body, http = TARGET, ""
        if section == "http":
            http = f"address = '127.0.0.1'\nport = {port}"
        else:
            body += f"[gate]\nagent_port = {port}\n"
        with Daemon(place, body, cgroup_root=f"{place}/tree", http=http, start=False) as daemon:
            if http:
                with open(daemon.config_path) as file:
                    text = file.read().replace("port = 0\n", "", 1)
                with open(daemon.config_path, "w") as file:
                    file.write(text)
            daemon.start()
            (started,) = daemon.facts("started")
            assert started["http" if http else "agent"] is None
            (fault,) = [line for line in daemon.facts("works_in_part") if f"127.0.0.1:{port}: " in line["why"]]
            assert "tried again" in fault["why"]
            with Subscriber(daemon.socket_path, {"name": "test", "target": "llm"}) as server:
                server.wait_for("welcome")
                llm.usage(950 * MIB)
                server.wait_for("command", action="trim_kv_cache")
            taken.close()
            (served,) = eventually(lambda: daemon.facts("listens_at_last"))
            assert served["place"] == f"127.0.0.1:{port}"
            if http:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as answer:
                    assert b"edgeguardd_target_level" in answer.read()
            else:
                with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as asked:
                    assert asked.recv(64)


class Reluctant:
    """A server whose port can be had at the n-th time."""

    def __init__(self, succeeds_at: int) -> None:
        self.succeeds_at = succeeds_at
        self.tries = 0
        self.closed = 0
        self.listens = asyncio.Event()

    async def start(self) -> None:
        self.tries += 1
        if self.tries < self.succeeds_at:
            raise ServeError("cannot listen on here:1: busy")
        self.listens.set()

    async def close(self) -> None:
        self.closed += 1


def test_it_is_tried_until_it_can_be_and_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it fails."""
    monkeypatch.setattr(doors, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(doors, "LONGEST_WAIT_S", 0.004)
    said: list[str] = []
    server = Reluctant(6)

    async def scene() -> None:
        door = Door(server, lambda: "here:1", said.append)
        await door.open()
        places = [door.place]
        await server.listens.wait()
        places.append(door.place)
        await door.close()
        assert places == [None, "here:1"]

    asyncio.run(asyncio.wait_for(scene(), DEADLINE_S))
    assert server.tries == 6
    assert said == ["cannot listen on here:1: busy; it is tried again until it can be"]
    assert server.closed == 1


def test_a_daemon_that_stops_tries_no_more() -> None:
    """Nothing of it is left in the loop."""
    server = Reluctant(1000)

    async def scene() -> int:
        door = Door(server, lambda: "here:1", lambda _sentence: None)
        await door.open()
        await door.close()
        return len(asyncio.all_tasks())

    assert asyncio.run(scene()) == 1
    assert (server.tries, server.closed) == (1, 1)
