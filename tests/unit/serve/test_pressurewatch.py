"""The pressure-watch server on real sockets, where the daemon as a whole cannot be brought to it."""

import asyncio
import contextlib
import os
import resource
import socket
import tempfile
from collections.abc import Iterator

import pytest

from edgeguardd.core.config import WatchSpec
from edgeguardd.errors import ServeError
from edgeguardd.serve import pressurewatch
from edgeguardd.serve.peercred import Peer
from edgeguardd.serve.pressurewatch import Host, PressureWatchServer, Watcher
from tests.support.subscribers import no_leaked_descriptors
from tests.support.wait import soon


class Daemon:
    """What the server needs of one: everybody is at home in "llm", and how many are is counted."""

    def __init__(self) -> None:
        self.peers = 0
        self.kept: list[int] = []
        self.changes: list[bool] = []

    def host(self) -> Host:
        return Host(home_of=self._home_of, release=self._release, keep=self._keep, changed=self._changed)

    def _home_of(self, peer: Peer, _: WatchSpec | None) -> str:
        assert peer.pid == os.getpid()
        self.peers += 1
        return "llm"

    def _release(self, target: str) -> None:
        assert target == "llm"
        self.peers -= 1

    def _keep(self, connection: socket.socket) -> None:
        self.kept.append(connection.fileno())

    def _changed(self, _: Watcher, came: bool) -> None:
        self.changes.append(came)


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="eg-", dir="/tmp") as directory:
        yield f"{directory}/w"


def program(path: str) -> socket.socket:
    """A connected program."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.setblocking(False)
    return sock


def test_a_target_is_released_as_often_as_it_was_taken(path: str) -> None:
    """Whether the program left, its home was looked for again, or the daemon stopped."""
    daemon = Daemon()

    async def test() -> None:
        server = PressureWatchServer([WatchSpec(path)], daemon.host())
        server.start()
        with contextlib.closing(program(path)), contextlib.closing(program(path)) as second:
            await soon(lambda: daemon.peers == 2)
            server.place_again()
            server.place_again("llm")
            server.place_again("other")
            assert daemon.peers == 2
            assert server.counts() == {"llm": 2}
            second.close()
            await soon(lambda: daemon.peers == 1)
            server.close()
        assert daemon.peers == 0

    with no_leaked_descriptors():
        asyncio.run(test())
    assert (daemon.changes, len(daemon.kept)) == ([True, True, False, False], 2)


def test_without_a_descriptor_left_programs_wait_until_there_is_one(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon neither spins over the one that it cannot take, nor forgets it."""
    daemon = Daemon()
    monkeypatch.setattr(pressurewatch, "PAUSE_S", 0.02)

    async def test() -> None:
        server = PressureWatchServer([WatchSpec(path)], daemon.host())
        server.start()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.closing(program(path)) as waiting:
            resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
            try:
                for _ in range(100):
                    await asyncio.sleep(0)
                assert daemon.peers == 0
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await soon(lambda: daemon.peers == 1)
            server.signal("llm")
            await soon(lambda: waiting.recv(10))
            server.close()

    with no_leaked_descriptors():
        asyncio.run(test())


def test_of_two_sockets_one_that_cannot_be_made_leaves_nothing_of_the_other(path: str) -> None:
    """After the start has failed, closing gives back what had been made."""

    with open(f"{path}2", "w"):
        pass

    async def test() -> None:
        server = PressureWatchServer([WatchSpec(path), WatchSpec(f"{path}2")], Daemon().host())
        with pytest.raises(ServeError, match="is not a socket"):
            server.start()
        server.close()

    with no_leaked_descriptors():
        asyncio.run(test())
    assert not os.path.exists(path)
