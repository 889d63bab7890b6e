"""The bridge to SGLang, against a stand-in that ends as SGLang does when it is used in the wrong order."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.client import Logical
from tests.support.bridging import Bridged
from tests.support.standins.sglang import KV_BYTES, WEIGHT_BYTES, Sglang
from tests.support.wait import soon

MARK, RELEASE, RESUME = "/update_weight_version", "/release_memory_occupation", "/resume_memory_occupation"
RELEASED = ["/pause_generation", "/flush_cache", RELEASE]


def run(test: Callable[[Sglang], Awaitable[None]], **flags: Any) -> None:
    """A test with a stand-in that is up; it may never have crashed, whatever a test did."""

    async def with_server() -> None:
        async with Sglang(**flags) as server:
            await test(server)
            assert not server.crashed

    asyncio.run(with_server())


async def ask(server: Sglang) -> Any:
    """One generation's answer."""
    return (await server.http(30).ask("POST", "/generate", {"text": "hi"})).json()


async def text_now(server: Sglang) -> str:
    """What a generation says now."""
    asked = asyncio.create_task(ask(server))
    await soon(lambda: server.work.running)
    server.work.end()
    return str((await asked)["text"])


def test_a_trim_while_requests_are_served_only_flushes_the_cache() -> None:
    """flush_cache is acked as logical: the pool stays."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        assert isinstance(await bridged.trim(), Logical)
        assert server.done() == ["/flush_cache"]
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES

    run(test)


def test_a_flush_is_refused_while_requests_run() -> None:
    """400 is no success, and nobody is disturbed."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        assert "requests run or wait" in await bridged.failure_of(bridged.trim())
        server.work.end()
        assert (await asked)["text"] == "hello"

    run(test)


def test_while_requests_are_refused_a_trim_parks_the_kv_cache() -> None:
    """Pause, flush, release, in this order, and only the KV cache."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        await bridged.reject()
        await bridged.trim()
        assert server.done(MARK) == RELEASED
        assert server.device_bytes == WEIGHT_BYTES

    run(test)


def test_the_cache_is_back_before_anybody_is_let_in() -> None:
    """Resume, then continue, then the gate."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        await bridged.reject()
        await bridged.trim()
        server.hold(RESUME)
        restoring = asyncio.create_task(bridged.restore())
        await soon(lambda: server.waiting(RESUME))
        assert await bridged.refuses()
        server.let_go(RESUME)
        await restoring
        assert server.done(MARK) == [*RELEASED, RESUME, "/continue_generation"]
        assert not await bridged.refuses()
        assert server.weight_version == "default"
        assert await text_now(server) == "hello"

    run(test)


def test_nothing_is_released_while_somebody_past_the_gate_runs() -> None:
    """A release while busy ends the server: the flush is refused first, generation goes on, and the next trim works."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        await bridged.reject()
        assert "requests run or wait" in await bridged.failure_of(bridged.trim())
        assert server.done("/generate") == ["/pause_generation", "/flush_cache", "/continue_generation"]
        assert not server.paused
        server.work.end()
        assert (await asked)["text"] == "hello"
        await bridged.trim()
        assert server.device_bytes == WEIGHT_BYTES

    run(test)


def test_an_unload_cuts_off_who_came_past_the_gate() -> None:
    """They are aborted, then the flush is asked again, and only then memory is released."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        await bridged.unload()
        done = server.done("/generate", MARK, "/flush_cache")
        assert done == ["/pause_generation", "/abort_request", RELEASE]
        assert (await asked)["meta_info"]["finish_reason"]["type"] == "abort"
        assert server.device_bytes == 0

    run(test)


def test_what_is_parked_can_go_deeper() -> None:
    """An unload after a trim lets the weights go as well, and all comes back."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        await bridged.reject()
        await bridged.trim()
        await bridged.unload()
        assert server.done(MARK) == [*RELEASED, RELEASE]
        assert server.device_bytes == 0
        await bridged.restore(accept=False)
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES
        assert await bridged.refuses()
        await bridged.restore()
        assert await text_now(server) == "hello"

    run(test)


def test_weights_are_loaded_again_before_generation_goes_on() -> None:
    """They come back as garbage, and SGLang does not say so."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        await bridged.unload()
        assert server.weights == "garbage"
        await bridged.restore()
        back = [RESUME, "/update_weights_from_disk", RESUME, "/continue_generation"]
        assert server.done(MARK) == [*RELEASED, *back]
        assert await text_now(server) == "hello"

    run(test)


def test_a_load_that_failed_between_memory_and_weights_is_taken_up_where_it_was() -> None:
    """Resuming the same memory twice would end the server; weights that were not loaded must not be forgotten."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        await bridged.unload()
        server.override("/update_weights_from_disk", 400, {"success": False, "message": "Failed to get model"})
        assert "Failed to get model" in await bridged.failure_of(bridged.restore())
        assert await bridged.refuses()
        del server.overrides["/update_weights_from_disk"]
        await bridged.restore()
        assert await text_now(server) == "hello"
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES

    run(test)


@pytest.mark.parametrize("kept", [b'["kv_cache","weights"]', b"[]", b"rubbish"])
def test_a_bridge_that_died_is_followed_by_one_that_brings_all_back(tmp_path: Path, kept: bytes) -> None:
    """What is released is marked on the server, so it does not matter what the bridge still knew."""

    async def test(server: Sglang) -> None:
        state = tmp_path / "taken"
        await (await Bridged("sglang", server, state=state).found()).unload()
        state.write_bytes(kept)
        await Bridged("sglang", server, state=state).found()
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES
        assert await text_now(server) == "hello"

    run(test)


def test_a_server_that_was_restarted_meanwhile_is_not_asked_to_resume(tmp_path: Path) -> None:
    """A resume of what it never released would end it."""

    async def test(server: Sglang) -> None:
        state = tmp_path / "taken"
        bridged = await Bridged("sglang", server, state=state).found()
        await bridged.unload()
        await server.down()
        async with Sglang() as anew:
            later = await Bridged("sglang", anew, state=state).found()
            assert anew.done() == ["/continue_generation"]
            assert not anew.crashed
            assert not await later.refuses()

    run(test)


def test_the_operators_weight_version_is_kept() -> None:
    """The mark goes behind it and away again."""

    async def test(server: Sglang) -> None:
        server.weight_version = "v7"
        bridged = await Bridged("sglang", server).found()
        await bridged.unload()
        assert server.weight_version.startswith("v7+")
        await bridged.restore()
        assert server.weight_version == "v7"

    run(test)


@pytest.mark.parametrize(
    ("flags", "said", "parks"),
    [
        ({"memory_saver": False}, "--enable-memory-saver", False),
        ({"pausing": False, "version": "0.5.3"}, "0.5.6 or newer", False),
        ({"version": "0.5.5"}, "0.5.6 or newer", False),
        ({"memory_calls": False, "version": "0.4.0"}, "0.5.6 or newer", False),
        ({"weights_backup": True}, "--enable-weights-cpu-backup", True),
        ({"new_names": False, "version": "0.5.6.post2"}, "max-running-requests", True),
    ],
)
def test_what_the_flags_and_the_version_do_not_allow_is_said(flags: dict[str, Any], said: str, parks: bool) -> None:
    """Each shortcoming in a sentence, and no command is claimed that cannot work."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        assert any(said in why for why in bridged.look.cannot), bridged.look.cannot
        assert (bridged.look.parks, bridged.look.unloads, bridged.look.trims) == (parks, parks, True)
        assert bridged.look.places == 16
        assert bridged.look.version == server.version
        assert server.done() == []

    run(test, **flags)


def test_a_build_from_source_is_taken_for_a_new_one() -> None:
    """Its version says nothing."""

    async def test(server: Sglang) -> None:
        assert (await Bridged("sglang", server).found()).look.parks

    run(test, version="0.0.0.dev1+g1234567")


def test_weights_are_not_copied_to_the_host() -> None:
    """With --enable-weights-cpu-backup an unload lets the KV cache go alone."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        await bridged.unload()
        assert server.offloaded == {"kv_cache"}

    run(test, weights_backup=True)


@pytest.mark.parametrize("new_names", [True, False])
def test_running_requests_are_what_sglang_says(new_names: bool) -> None:
    """By /v1/loads, by /get_load in older ones."""

    async def test(server: Sglang) -> None:
        bridged = await Bridged("sglang", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        assert await bridged.server.running() == 1
        server.work.end()
        await asked
        assert await bridged.server.running() == 0

    run(test, new_names=new_names)


def test_a_wrong_admin_key_is_said_when_it_matters() -> None:
    """The call fails with what the server said; nothing is released, nothing paused."""

    async def test(server: Sglang) -> None:
        server.admin_key = "secret"
        bridged = await Bridged("sglang", server).found()
        await bridged.reject()
        assert "401" in await bridged.failure_of(bridged.trim())
        assert not server.paused

    run(test)
