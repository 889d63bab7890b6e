"""The bridge to vLLM, against a stand-in that behaves as vLLM does."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges import vllm
from edgeguardd.client import Level, Logical, NoEffect
from tests.support.bridging import Bridged
from tests.support.standins.vllm import KV_BYTES, WEIGHT_BYTES, Vllm
from tests.support.wait import soon

WAIT = "/pause?mode=wait&wait_for_inflight_requests=true"
PARKED = [WAIT, "/release_kv_cache_memory"]
ASLEEP = [WAIT, "/sleep?level=2"]
KV_BACK = ["/wake_up?tags=kv_cache", "/reset_prefix_cache", "/resume"]
WEIGHTS_BACK = ["/wake_up?tags=weights", "/collective_rpc"]


def run(test: Callable[[Vllm], Awaitable[None]], **flags: Any) -> None:
    """A test with a stand-in that is up."""

    async def with_server() -> None:
        async with Vllm(**flags) as server:
            await test(server)

    asyncio.run(with_server())


async def ask(server: Vllm) -> Any:
    """One completion's answer."""
    return (await server.http(30).ask("POST", "/v1/completions", {"prompt": "hi"})).json()


async def text_now(server: Vllm) -> str:
    """What a completion says now."""
    asked = asyncio.create_task(ask(server))
    await soon(lambda: server.work.running)
    server.work.end()
    return str((await asked)["choices"][0]["text"])


def test_a_trim_while_requests_are_served_only_forgets_prefixes() -> None:
    """reset_prefix_cache is acked as logical: no page leaves, and nobody is paused."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        assert isinstance(await bridged.trim(), Logical)
        assert server.done() == ["/reset_prefix_cache"]
        assert server.prefix_blocks == 0
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES

    run(test)


def test_a_trim_that_running_requests_keep_from_happening_fails() -> None:
    """Newer servers say that blocks are held; that is no success."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        assert "running requests hold blocks" in await bridged.failure_of(bridged.trim())
        server.work.end()
        await asked

    run(test)


def test_while_requests_are_refused_a_trim_parks_the_kv_cache() -> None:
    """Pause first, then the release; the weights stay, and nothing is copied to the host."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.reject()
        await bridged.trim()
        assert server.done() == PARKED
        assert server.device_bytes == WEIGHT_BYTES
        assert await bridged.refuses()
        assert isinstance(await bridged.trim(), NoEffect)

    run(test)


def test_a_trim_below_the_level_of_releases_parks_nothing() -> None:
    """At elevated a trim costs nobody anything, whatever is refused."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.reject()
        await bridged.trim(Level.ELEVATED)
        assert server.done() == ["/reset_prefix_cache"]

    run(test)


def test_the_cache_is_back_before_anybody_is_let_in() -> None:
    """restore with accept_requests maps the cache, resumes, and opens last; the answers are right."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.reject()
        await bridged.trim()
        server.hold("/wake_up")
        restoring = asyncio.create_task(bridged.restore())
        await soon(lambda: server.waiting("/wake_up"))
        assert await bridged.refuses()
        server.let_go("/wake_up")
        await restoring
        assert server.done() == PARKED + KV_BACK
        assert not await bridged.refuses()
        assert await text_now(server) == "hello"
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES

    run(test)


def test_a_refusal_right_behind_the_trim_lets_it_park() -> None:
    """Of one rung's commands the trim comes first; taken alone it would only empty books."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        trimming = asyncio.create_task(bridged.trim())
        await asyncio.sleep(0)
        await bridged.reject()
        await trimming
        assert server.done() == PARKED

    run(test)


def test_an_unload_of_what_is_parked_wakes_nothing() -> None:
    """vLLM does not go from there to sleep without mapping the cache again, which would be the wrong direction."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.reject()
        await bridged.trim()
        assert isinstance(await bridged.unload(), NoEffect)
        assert server.done() == PARKED
        await bridged.restore()
        assert server.done() == PARKED + KV_BACK

    run(test)


def test_parked_stays_parked_while_requests_are_refused() -> None:
    """A restore that still refuses brings no cache back."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.reject()
        await bridged.trim()
        await bridged.restore(accept=False)
        assert server.done() == PARKED
        await bridged.restore(accept=True)
        assert server.done() == PARKED + KV_BACK

    run(test)


def test_parking_waits_for_those_inside_and_gives_way_to_restore() -> None:
    """Whoever is inside ends first; if requests are allowed again meanwhile, nothing is released."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.places.enter()
        await bridged.reject()
        trimming = asyncio.create_task(bridged.failure_of(bridged.trim()))
        await soon(lambda: bridged.bridge.is_busy)
        assert server.done() == []
        await bridged.restore()
        assert "a later command" in await trimming
        assert server.done() == []
        bridged.places.leave()

    run(test)


def test_who_came_past_the_gate_is_not_aborted_by_parking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause waits for them, is undone when that takes too long, and they get their answers."""
    monkeypatch.setattr(vllm, "CUT_AFTER_S", 0.1)

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        await bridged.reject()
        assert "past the gate" in await bridged.failure_of(bridged.trim())
        assert server.done("/v1/completions") == [WAIT, "/resume"]
        assert not server.paused
        server.work.end()
        assert (await asked)["choices"][0] == {"text": "hello", "finish_reason": "stop"}
        monkeypatch.undo()
        await bridged.trim()
        assert server.device_bytes == WEIGHT_BYTES

    run(test)


def test_unloading_sleeps_at_level_2_and_never_at_1() -> None:
    """Level 1 would copy the weights to the memory that is short."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.unload()
        assert server.done() == ASLEEP
        assert server.device_bytes == 0
        assert not server.host_copy
        assert isinstance(await bridged.unload(), NoEffect)

    run(test)


def test_weights_are_loaded_again_before_anybody_is_let_in() -> None:
    """After level 2 they are garbage, and vLLM does not say so."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.unload()
        assert server.weights == "garbage"
        await bridged.restore()
        assert server.done() == ASLEEP + WEIGHTS_BACK + KV_BACK
        assert await text_now(server) == "hello"
        assert not server.engine_dead

    run(test)


def test_an_unload_cuts_off_who_came_past_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were given time; then the pause aborts them, with what they have so far."""
    monkeypatch.setattr(vllm, "CUT_AFTER_S", 0.1)

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        await bridged.unload()
        assert server.done("/v1/completions") == [WAIT, "/pause?mode=abort", "/sleep?level=2"]
        assert (await asked)["choices"][0]["finish_reason"] == "abort"

    run(test)


def test_an_older_pause_does_not_abort_either() -> None:
    """0.14 knows no `mode`, and aborts unless it is told to wait in its own words."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        unloading = asyncio.create_task(bridged.unload())
        await soon(lambda: WAIT in server.done())
        server.work.end()
        assert (await asked)["choices"][0]["finish_reason"] == "stop"
        await unloading
        assert server.device_bytes == 0

    run(test, pause_modes=False, kv_release=False, version="0.14.0")


def test_a_bridge_that_died_is_followed_by_one_that_wakes_the_server(tmp_path: Path) -> None:
    """Also when it died in the middle and does not know what was taken."""

    async def test(server: Vllm) -> None:
        state = tmp_path / "taken"
        await (await Bridged("vllm", server, state=state).found()).unload()
        state.write_text("[]")
        await Bridged("vllm", server, state=state).found()
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES
        assert await text_now(server) == "hello"
        assert not state.exists()

    run(test)


@pytest.mark.parametrize(
    ("flags", "said", "trims", "parks", "unloads"),
    [
        ({"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1", False, False, False),
        ({"sleep_mode": False}, "--enable-sleep-mode", True, False, False),
        ({"kv_release": False, "version": "0.20.0"}, "/release_kv_cache_memory", True, False, True),
        ({"pausing": False, "kv_release": False, "version": "0.11.0"}, "no /pause", True, False, True),
        ({"speculative": True}, "speculative decoding", True, True, True),
        ({"json_config": False}, "max-num-seqs", True, True, True),
        ({"json_config": False, "sleep_mode": False}, "--enable-sleep-mode", True, False, False),
    ],
)
def test_what_the_flags_and_the_version_do_not_allow_is_said(
    flags: dict[str, Any], said: str, trims: bool, parks: bool, unloads: bool
) -> None:
    """Each shortcoming in a sentence with its remedy, and no command is claimed that cannot work."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        assert any(said in why for why in bridged.look.cannot), bridged.look.cannot
        assert (bridged.look.trims, bridged.look.parks, bridged.look.unloads) == (trims, parks, unloads)
        assert ("unload_model" in bridged.bridge.handlers()) is unloads
        assert bridged.look.version == server.version
        assert server.done() == []  # looking does nothing

    run(test, **flags)


def test_with_speculative_decoding_an_unload_leaves_the_weights() -> None:
    """A draft model's weights would not come back."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.unload()
        assert server.done() == PARKED
        assert server.device_bytes == WEIGHT_BYTES

    run(test, speculative=True)


def test_unloading_can_be_kept_to_the_kv_cache() -> None:
    """--unload kv_cache: what comes back in milliseconds."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server, unload="kv_cache").found()
        await bridged.unload()
        assert server.done() == PARKED
        await bridged.restore()
        assert server.done() == PARKED + KV_BACK

    run(test)


def test_an_older_version_without_pause_sleeps_behind_the_gate_alone() -> None:
    """Before 0.14 nothing but the gate keeps requests away; there is no resume to call either."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        await bridged.unload()
        await bridged.restore()
        assert server.done() == ["/sleep?level=2", *WEIGHTS_BACK, "/wake_up?tags=kv_cache", "/reset_prefix_cache"]
        assert await text_now(server) == "hello"

    run(test, pausing=False, kv_release=False, version="0.11.0")


def test_places_and_running_requests_are_what_vllm_says() -> None:
    """max_num_seqs and the gauges of /metrics, summed over engines."""

    async def test(server: Vllm) -> None:
        bridged = await Bridged("vllm", server).found()
        assert bridged.look.places == 8
        assert await bridged.server.running() == 0
        asked = asyncio.create_task(ask(server))
        await soon(lambda: server.work.running)
        assert await bridged.server.running() == 1
        server.work.end()
        await asked

    run(test)
