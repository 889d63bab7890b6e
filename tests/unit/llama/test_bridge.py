"""What commands do: the order of a restart, and that the gate is never left shut or open by mistake."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.client import Command, Level, NoEffect, Parameters, Released
from edgeguardd.core.model import Action
from tests.llama.bridge import WORTH_BYTES, Bridge, NotReleasedError
from tests.llama.gate import Gate
from tests.llama.server import NotReadyError, Place, Server
from tests.support.wait import soon

REST_BYTES = 400 * 1024 * 1024
GROWN_BYTES = REST_BYTES + 4 * WORTH_BYTES


class Book(Server):
    """A server without a process: it writes down what is done to it, and what the gate was like then."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(Place("", "", "", "", ""))
        self.gate = gate
        self.done: list[str] = []
        self.needed = REST_BYTES
        self.leaks = 0
        self.startable = True
        self._up = False
        self._end = asyncio.Event()

    @property
    def running(self) -> bool:
        return self._up

    async def start(self) -> float:
        self.done.append("start")
        if not self.startable:
            raise NotReadyError("llama-server ended with 1")
        self._up, self.needed = True, REST_BYTES + self.leaks
        self._end.clear()
        return 1.0

    async def ended(self) -> int:
        await self._end.wait()
        return -9

    async def stop(self) -> None:
        self.done.append("stop")
        self.end(self.leaks)

    def end(self, left_bytes: int = 0) -> None:
        """The process is gone."""
        self._up, self.needed = False, left_bytes
        self._end.set()

    def needed_bytes(self) -> int:
        return self.needed


class Noted(Gate):
    """A gate that writes into the same book."""

    def __init__(self) -> None:
        super().__init__("", 2, 1)
        self.book = Book(self)
        self.keys: set[str] = set()
        self.places = 2

    async def shut(self, key: str, reason: str) -> None:
        self.keys.add(key)
        self.book.done.append(f"shut {key}")
        await super().shut(key, reason)

    async def open(self, key: str) -> None:
        self.keys.discard(key)
        self.book.done.append(f"open {key}")
        await super().open(key)

    async def limit(self, places: int) -> None:
        self.places = places
        await super().limit(places)

    async def drain(self, within_s: float) -> bool:
        self.book.done.append("drain")
        return await super().drain(within_s)


def command(action: Action, **parameters: Any) -> Command:
    """An order of edgeguardd's."""
    return Command(1, "llama", action, Parameters(**parameters), Level.HIGH, "needed 81 %", 90.0)


async def bridge_over(gate: Noted) -> tuple[Bridge, list[dict[str, Any]]]:
    """A bridge whose server is up, and what it says."""
    said: list[dict[str, Any]] = []
    bridge = Bridge(gate, gate.book, lambda event, **fields: said.append({"event": event, **fields}))
    await bridge.bring_up()
    gate.book.done.clear()
    return bridge, said


def test_a_trim_is_shut_drain_restart_and_open_in_this_order() -> None:
    """And what it says it gave back is what it measured."""

    async def scene() -> None:
        gate = Noted()
        bridge, said = await bridge_over(gate)
        gate.book.needed = GROWN_BYTES
        result = await bridge.trim(command(Action.TRIM_KV_CACHE))
        assert gate.book.done == ["shut restart", "drain", "stop", "start", "open restart"]
        assert isinstance(result, Released)
        assert result.bytes == GROWN_BYTES - REST_BYTES
        assert said[-1]["event"] == "restarted"

    asyncio.run(scene())


def test_a_trim_with_nothing_worth_it_restarts_nothing() -> None:
    """A server at rest, or one prompt above it, stays up."""

    async def scene() -> None:
        gate = Noted()
        bridge, _ = await bridge_over(gate)
        for above in (0, WORTH_BYTES - 1):
            gate.book.needed = REST_BYTES + above
            assert isinstance(await bridge.trim(command(Action.TRIM_KV_CACHE)), NoEffect)
        assert not gate.book.done

    asyncio.run(scene())


def test_memory_that_does_not_come_back_is_a_failure_and_service_goes_on() -> None:
    """The daemon hears "failed", callers get in again."""

    async def scene() -> None:
        gate = Noted()
        bridge, _ = await bridge_over(gate)
        gate.book.needed = gate.book.leaks = GROWN_BYTES
        with pytest.raises(NotReleasedError):
            await bridge.trim(command(Action.TRIM_KV_CACHE))
        assert gate.book.running
        assert not gate.keys

    asyncio.run(scene())


def test_a_server_that_ends_by_itself_is_started_again_behind_a_shut_gate() -> None:
    """Also when the first try fails; the gate opens only before a server that answers."""

    async def scene() -> None:
        gate = Noted()
        bridge, said = await bridge_over(gate)
        keeping = asyncio.create_task(bridge.keep_alive())
        gate.book.startable = False
        gate.book.end()
        await soon(lambda: any(line["event"] == "not_ready" for line in said))
        assert gate.keys == {"died"}
        gate.book.startable = True
        await soon(lambda: gate.book.running and not gate.keys)
        assert said[0] == {"event": "ready", "rest_bytes": REST_BYTES}
        assert said[1] == {"event": "died", "status": -9}
        keeping.cancel()

    asyncio.run(scene())


def test_a_restart_on_command_is_no_death() -> None:
    """Who keeps the server alive leaves a trim alone."""

    async def scene() -> None:
        gate = Noted()
        bridge, said = await bridge_over(gate)
        keeping = asyncio.create_task(bridge.keep_alive())
        gate.book.needed = GROWN_BYTES
        await bridge.trim(command(Action.TRIM_KV_CACHE))
        await asyncio.sleep(0)
        assert [line["event"] for line in said] == ["ready", "restarted"]
        keeping.cancel()

    asyncio.run(scene())


def test_refusing_lasts_until_restored_and_the_batch_is_a_share_of_the_configured_one() -> None:
    """A restore that still forbids keeps the gate shut."""

    async def scene() -> None:
        gate = Noted()
        bridge, _ = await bridge_over(gate)
        await bridge.reject(command(Action.REJECT_REQUESTS, accept_requests=False))
        await bridge.reduce_batch(command(Action.REDUCE_BATCH, max_batch_ratio=0.25))
        assert (gate.keys, gate.places) == ({"reject"}, 1)
        await bridge.restore(command(Action.RESTORE, max_batch_ratio=0.5, accept_requests=False, model_loaded=True))
        assert gate.keys == {"reject"}
        await bridge.restore(command(Action.RESTORE, max_batch_ratio=1.0, accept_requests=True, model_loaded=True))
        assert (gate.keys, gate.places) == (set(), 2)
        assert "start" not in gate.book.done

    asyncio.run(scene())


def test_an_unloaded_model_is_loaded_before_callers_get_in_again() -> None:
    """Unload drains first; nobody starts the server behind the daemon's back."""

    async def scene() -> None:
        gate = Noted()
        bridge, _ = await bridge_over(gate)
        gate.book.needed = GROWN_BYTES
        released = await bridge.unload(command(Action.UNLOAD_MODEL, model_loaded=False))
        assert released.bytes == GROWN_BYTES
        assert gate.book.done == ["shut unloaded", "drain", "stop"]
        assert isinstance(await bridge.trim(command(Action.TRIM_KV_CACHE)), NoEffect)
        await bridge.restore(command(Action.RESTORE, max_batch_ratio=1.0, accept_requests=True, model_loaded=True))
        assert gate.book.done[3:5] == ["start", "open unloaded"]
        assert not gate.keys

    asyncio.run(scene())


def test_a_real_process_that_ends_at_once_is_not_waited_for(tmp_path: Path) -> None:
    """The error names the status and where to look."""

    async def scene() -> None:
        (tmp_path / "cgroup.procs").touch()
        server = Server(Place("/bin/false", "m", str(tmp_path), str(tmp_path / "s"), str(tmp_path / "log")))
        with pytest.raises(NotReadyError, match=r"ended with 1: see .*log"):
            await server.start()
        assert not server.running

    asyncio.run(scene())
