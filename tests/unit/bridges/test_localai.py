"""The bridge to LocalAI, against a stand-in with real processes."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.client import NoEffect, Released
from tests.support.bridging import Bridged
from tests.support.standins.localai import LocalAi
from tests.support.wait import soon

SHUTDOWN, LOAD = "/backend/shutdown", "/backend/load"
MODEL_BYTES = 300 << 20


def run(tmp_path: Path, test: Callable[[LocalAi], Awaitable[None]], **flags: Any) -> None:
    """A test with a stand-in that is up."""

    async def with_server() -> None:
        async with LocalAi(tmp_path, **flags) as server:
            await test(server)

    asyncio.run(with_server())


async def found(server: LocalAi, *, cgroup: bool = True, **options: Any) -> Bridged:
    """A bridge that knows the stand-in's processes, and that each needs as much."""

    def needed() -> int:
        return MODEL_BYTES * (len(server.children) + len(server.orphans))

    bridged = Bridged("localai", server, needed=needed, **options)
    if cgroup:
        bridged.server.procs_file = lambda: str(server.cgroup / "cgroup.procs")
    return await bridged.found()


def test_an_unload_stops_each_model_and_sees_that_its_process_is_gone(tmp_path: Path) -> None:
    """Both are named by /system, both are stopped, and what left is measured."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server)
        released = await bridged.unload()
        assert isinstance(released, Released)
        assert released.bytes == 2 * MODEL_BYTES
        assert server.done() == [SHUTDOWN, SHUTDOWN]
        assert isinstance(await bridged.unload(), NoEffect)
        await bridged.restore()
        assert server.done() == [SHUTDOWN, SHUTDOWN, LOAD, LOAD]
        assert set(server.children) == {"chat", "whisper"}

    run(tmp_path, test)


def test_a_process_that_stays_is_no_success(tmp_path: Path) -> None:
    """LocalAI says that it has stopped the model, and the memory is still held."""

    async def test(server: LocalAi) -> None:
        server.leaves_child = True
        bridged = await found(server, patience_s=1.5)
        said = await bridged.failure_of(bridged.unload())
        assert "processes of chat, whisper are gone" in said
        assert await bridged.refuses()
        for orphan in server.orphans:
            orphan.kill()
            orphan.wait()

    run(tmp_path, test)


def test_without_the_cgroup_the_bridge_says_that_it_cannot_look(tmp_path: Path) -> None:
    """It unloads all the same."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server, cgroup=False)
        assert any("--cgroup or --unit" in why for why in bridged.look.cannot)
        await bridged.unload()
        assert server.children == {}

    run(tmp_path, test)


def test_running_requests_end_before_their_model_is_stopped(tmp_path: Path) -> None:
    """LocalAI's shutdown waits for them; others are not held up."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server)
        body = {"model": "chat", "messages": []}
        asked = asyncio.create_task(server.http(30).ask("POST", "/v1/chat/completions", body))
        await soon(lambda: server.work.running)
        unloading = asyncio.create_task(bridged.unload())
        await soon(lambda: SHUTDOWN in server.done())
        assert await bridged.reject() is None
        assert not unloading.done()
        server.work.end()
        assert (await asked).status == 200
        assert isinstance(await unloading, Released)

    run(tmp_path, test)


@pytest.mark.parametrize("not_found", [404, 500])
def test_a_model_that_has_gone_by_itself_is_no_failure(tmp_path: Path, not_found: int) -> None:
    """404 in newer versions, 500 in older ones; /system tells it from a failure."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server, model=["chat", "never"])
        server.says_models = False
        await bridged.unload()
        assert set(server.children) == {"whisper"}

    run(tmp_path, test, not_found=not_found)


def test_a_model_that_is_busy_for_too_long_is_a_failure(tmp_path: Path) -> None:
    """LocalAI gives up after 30 s with 500, and the model is still listed."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server)
        server.override(SHUTDOWN, 500, {"error": {"code": 500, "message": "model is still busy: chat", "type": ""}})
        assert "still busy" in await bridged.failure_of(bridged.unload())

    run(tmp_path, test)


def test_only_the_named_models_are_stopped(tmp_path: Path) -> None:
    """--model, once or more."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server, model=["whisper"])
        await bridged.unload()
        assert set(server.children) == {"chat"}

    run(tmp_path, test)


def test_a_version_without_load_loads_with_the_next_request(tmp_path: Path) -> None:
    """It is said at the start, and restore opens the gate."""

    async def test(server: LocalAi) -> None:
        bridged = await found(server)
        assert any("no /backend/load" in why for why in bridged.look.cannot)
        await bridged.unload()
        await bridged.restore()
        assert server.done() == [SHUTDOWN, SHUTDOWN]
        assert not await bridged.refuses()

    run(tmp_path, test, has_load=False)


def test_a_version_that_does_not_say_what_is_loaded_needs_the_names(tmp_path: Path) -> None:
    """--model for each; without, the gate alone."""

    async def test(server: LocalAi) -> None:
        server.says_models = False
        nameless = await found(server)
        assert "give --model" in nameless.look.cannot[0]
        assert set(nameless.bridge.handlers()) == {"reject_requests", "restore"}
        named = await found(server, model=["chat", "whisper"])
        await named.unload()
        assert server.children == {}

    run(tmp_path, test)


def test_a_bridge_that_died_is_followed_by_one_that_loads_what_was_stopped(tmp_path: Path) -> None:
    """The names are in the state file."""

    async def test(server: LocalAi) -> None:
        state = tmp_path / "taken"
        await (await found(server, state=state)).unload()
        await found(server, state=state)
        assert set(server.children) == {"chat", "whisper"}

    run(tmp_path, test)


def test_a_missing_key_is_said(tmp_path: Path) -> None:
    """LocalAI wants it for everything; the bridge waits and says what it was answered."""

    async def test(server: LocalAi) -> None:
        server.api_key = "secret"
        bridged = Bridged("localai", server)
        assert "401" in await bridged.failure_of(bridged.server.look())

    run(tmp_path, test)
