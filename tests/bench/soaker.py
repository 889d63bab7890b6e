"""Mixed load on one daemon for as long as is asked: targets come and go, memory moves, subscribers join, obey, refuse
and vanish, pages are scraped, the configuration is read again. Seeded, so that a run can be had again.

Must not: measure (soak does), use the client library. Upstream: soak, and whoever wants a busy daemon. Downstream:
tests.support.running.Daemon on a tree of plain files.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable

from tests.support.faketree import MIB, FakeCgroup, FakeTree
from tests.support.running import Daemon

FIXED = 10
MOST_PODS = 20
PEERS = 20
LIMIT_BYTES = 1024 * MIB
ANSWER_WITHIN_S = 30.0
PAGES = ("/metrics", "/status", "/healthz", "/readyz", "/admit?target=t1", "/", "/nothing")
ANSWERS = ("done", "done", "done", "failed", "unsupported", "accepted", None)

Act = Callable[[], Awaitable[None]]


def configuration(fixed: int = FIXED) -> str:
    """So many targets by path, and all pods by a pattern."""
    rows = [f'[[target]]\nname = "t{number}"\npath = "/t{number}"\n' for number in range(1, fixed + 1)]
    return "\n".join([*rows, '[[target]]\nname = "pods"\nglob = "/pods/*"\n'])


class Peer:
    """One subscriber, raw."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chance: random.Random) -> None:
        self._reader, self._writer, self._chance = reader, writer, chance
        self._reading = asyncio.create_task(self._read())
        self.commands = 0

    def say(self, **message: object) -> None:
        """One line; a connection that has ended takes none."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Hang up. An observer that only stops speaking goes on looking, so the daemon is given something to answer."""
        self.say(type="ping", id="bye")
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                said = json.loads(line)
                if said["type"] == "ping":
                    self.say(type="pong", id=said.get("id"))
                elif said["type"] == "command":
                    self.commands += 1
                    status = self._chance.choice(ANSWERS)
                    if status is not None:
                        self.say(type="ack", seq=said["seq"], status=status)


class Soaker:
    """The load. `tempo`: acts a second."""

    def __init__(self, tree: FakeTree, daemon: Daemon, seed: int = 1) -> None:
        self.acts = 0
        self.commands = 0
        self._tree, self._daemon = tree, daemon
        self._chance = random.Random(seed)  # noqa: S311 - to be the same each time is its job
        self._fixed = {f"t{n}": tree.cgroup(f"/t{n}", max_bytes=LIMIT_BYTES) for n in range(1, FIXED + 1)}
        self._pods: dict[str, FakeCgroup] = {}
        self._last_pod = 0
        tree.cgroup("/pods")
        self._peers: list[Peer] = []
        self._counters: dict[str, int] = {}

    async def run(self, seconds: float, tempo: float = 10.0) -> None:
        """Act until the time is over; then all is as it was at the start: no pods, no peers, the first targets."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        until = due + seconds
        while loop.time() < until:
            act = self._chance.choices([act for act, _ in self._weighed()], [weight for _, weight in self._weighed()])
            await asyncio.wait_for(act[0](), ANSWER_WITHIN_S)
            self.acts += 1
            # Against the clock: what one act takes longer the next ones make up for.
            due += self._chance.expovariate(tempo)
            await asyncio.sleep(max(0.0, due - loop.time()))
        for peer in self._peers:
            await self._end(peer)
        self._peers.clear()
        while self._pods:
            await self._pod_goes()
        self._daemon.write_config(configuration())
        self._daemon.hang_up()

    def _weighed(self) -> tuple[tuple[Act, float], ...]:
        return (
            (self._use, 40),
            (self._count, 8),
            (self._pod_comes, 5),
            (self._pod_goes, 5),
            (self._peer_comes, 8),
            (self._peer_goes, 7),
            (self._peer_speaks, 15),
            (self._scrape, 8),
            (self._reload, 0.2),
        )

    # The kernel's side

    def _any_cgroup(self) -> tuple[str, FakeCgroup]:
        return self._chance.choice([*self._fixed.items(), *self._pods.items()])

    async def _use(self) -> None:
        """Memory moves, mostly below the marks, at times beyond each of them."""
        _, cgroup = self._any_cgroup()
        cgroup.usage(int(LIMIT_BYTES * self._chance.betavariate(3, 3)))

    async def _count(self) -> None:
        name, cgroup = self._any_cgroup()
        self._counters[name] = self._counters.get(name, 0) + self._chance.randint(1, 50)
        cgroup.events(high=self._counters[name], max=self._counters[name] // 100)

    async def _pod_comes(self) -> None:
        if len(self._pods) < MOST_PODS:
            self._last_pod += 1
            name = f"pod{self._last_pod}"
            self._pods[name] = self._tree.cgroup(f"/pods/{name}", max_bytes=LIMIT_BYTES)

    async def _pod_goes(self) -> None:
        if self._pods:
            name = self._chance.choice(list(self._pods))
            self._tree.remove(self._pods.pop(name).below_root)
            self._counters.pop(name, None)

    # The subscribers' side

    async def _peer_comes(self) -> None:
        if len(self._peers) >= PEERS:
            return
        reader, writer = await asyncio.open_unix_connection(self._daemon.socket_path)
        peer = Peer(reader, writer, self._chance)
        if self._chance.random() < 0.3:
            peer.say(type="hello", name="observer", role="observer")
        else:
            peer.say(type="hello", name="server", target=f"t{self._chance.randint(1, FIXED)}")
        self._peers.append(peer)

    async def _peer_goes(self) -> None:
        if self._peers:
            await self._end(self._peers.pop(self._chance.randrange(len(self._peers))))

    async def _end(self, peer: Peer) -> None:
        self.commands += peer.commands
        await peer.close()

    async def _peer_speaks(self) -> None:
        if not self._peers:
            return
        peer = self._chance.choice(self._peers)
        match self._chance.randrange(4):
            case 0:
                peer.say(type="report", kv_bytes=self._chance.randrange(LIMIT_BYTES), running=1)
            case 1:
                peer.say(type="admit", id=str(self.acts), bytes=self._chance.randrange(LIMIT_BYTES))
            case 2:
                peer.say(type="ping", id="x")
            case _:
                peer.say(type="nonsense", what=self.acts)

    # The operators' side

    async def _scrape(self) -> None:
        address, _, port = self._daemon.http.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        page = self._chance.choice(PAGES)
        writer.write(f"GET {page} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async def _reload(self) -> None:
        """Another configuration each time: the last target comes and goes."""
        self._daemon.write_config(configuration(FIXED - self._chance.randint(0, 1)))
        self._daemon.hang_up()
