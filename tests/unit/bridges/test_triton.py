"""The bridge to Triton, against a stand-in that reloads and updates models as Triton does."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.client import Level, Released
from tests.support.bridging import Bridged
from tests.support.standins.triton import Triton
from tests.support.wait import soon

INDEX = "/v2/repository/index"
PROBE = "/v2/repository/models/.edgeguardd/unload"
UNLOADED = ["/v2/repository/models/detect/unload", "/v2/repository/models/ocr/unload"]
LOADED = ["/v2/repository/models/detect/load", "/v2/repository/models/ocr/load"]


def run(test: Callable[[Triton], Awaitable[None]], **flags: Any) -> None:
    """A test with a stand-in that is up."""

    async def with_server() -> None:
        async with Triton(**flags) as server:
            await test(server)

    asyncio.run(with_server())


async def found(server: Triton, **options: Any) -> Bridged:
    """A bridge that measures what the stand-in holds."""
    return await Bridged("triton", server, needed=lambda: server.resident_bytes, **options).found()


def instances(server: Triton) -> dict[str, list[int]]:
    """The counts that are in force."""
    return {name: [group["count"] for group in model.stored["instance_group"]] for name, model in server.models.items()}


def test_an_unload_takes_out_what_is_loaded_and_measures_it() -> None:
    """Only models that are ready; the one that never was stays alone."""

    async def test(server: Triton) -> None:
        bridged = await found(server)
        before = server.resident_bytes
        released = await bridged.unload()
        assert isinstance(released, Released)
        assert released.bytes == before
        assert server.done(INDEX, PROBE) == UNLOADED
        await bridged.restore()
        assert server.done(INDEX, PROBE) == UNLOADED + LOADED
        assert server.models["spare"].state == ""
        assert server.resident_bytes == before

    run(test)


def test_an_unload_is_done_when_the_last_request_has_ended() -> None:
    """Triton answers at once; the index says when nothing is left."""

    async def test(server: Triton) -> None:
        bridged = await found(server)
        asked = asyncio.create_task(server.http(30).ask("POST", "/v2/models/ocr/infer", {"inputs": []}))
        await soon(lambda: server.models["ocr"].work.running)
        unloading = asyncio.create_task(bridged.unload())
        await soon(lambda: server.models["ocr"].state == "UNLOADING")
        looked = server.calls.count(f"POST {INDEX}")
        await soon(lambda: server.calls.count(f"POST {INDEX}") > looked + 1)
        assert not unloading.done()
        server.models["ocr"].work.end()
        assert (await asked).status == 200
        assert isinstance(await unloading, Released)

    run(test)


def test_a_trim_at_high_reloads_the_models_and_lets_requests_in_again() -> None:
    """A backend's arenas start small; below high nothing is done."""

    async def test(server: Triton) -> None:
        bridged = await found(server)
        await bridged.trim(Level.ELEVATED)
        assert server.done(INDEX, PROBE) == []
        # The stand-in's models have not grown, so that nothing is said to have been released.
        assert "before" in await bridged.failure_of(bridged.trim(Level.HIGH))
        assert server.done(INDEX, PROBE) == UNLOADED + LOADED
        assert not await bridged.refuses()

    run(test)


def test_only_the_named_models_are_unloaded() -> None:
    """--model, once or more."""

    async def test(server: Triton) -> None:
        bridged = await found(server, model=["ocr"])
        await bridged.unload()
        assert server.done(INDEX, PROBE) == UNLOADED[1:]
        assert server.models["detect"].state == "READY"

    run(test)


@pytest.mark.parametrize("kept", ['["detect","ocr"]', "[]"])
def test_a_bridge_that_died_is_followed_by_one_that_loads_what_was_unloaded(tmp_path: Path, kept: str) -> None:
    """Also when it died in the middle: the index tells what somebody unloaded."""

    async def test(server: Triton) -> None:
        state = tmp_path / "taken"
        await (await found(server, state=state)).unload()
        state.write_text(kept)
        await found(server, state=state)
        assert server.models["detect"].state == server.models["ocr"].state == "READY"
        assert server.models["spare"].state == ""

    run(test)


def test_without_explicit_control_it_says_so_and_unloads_nothing() -> None:
    """Triton answers 503 to every load and unload, from the first one on."""

    async def test(server: Triton) -> None:
        bridged = await found(server)
        assert "--model-control-mode=explicit" in bridged.look.cannot[0]
        assert set(bridged.bridge.handlers()) == {"reject_requests", "restore"}

    run(test, explicit=False)


def test_looking_disturbs_no_model() -> None:
    """By default nothing is loaded or unloaded at the start."""

    async def test(server: Triton) -> None:
        bridged = await found(server)
        assert server.done(INDEX) == [PROBE]
        assert bridged.look.version == "2.61.0"
        assert any("--instances live" in why for why in bridged.look.cannot)

    run(test)


def test_restricted_model_control_is_said() -> None:
    """--http-restricted-api answers 403."""

    async def test(server: Triton) -> None:
        server.override(PROBE, 403, {"error": "This API is restricted, expecting header 'admin-key'"})
        bridged = await found(server)
        assert "restricts" in bridged.look.cannot[0]

    run(test)


def test_instances_are_lowered_in_place() -> None:
    """After the bridge's start no further copy of a model is loaded, and one instance is left at least."""

    async def test(server: Triton) -> None:
        bridged = await found(server, instances="live")
        assert sorted(server.full_reloads) == ["detect", "ocr"]
        server.full_reloads.clear()
        server.peak_copies = 1
        await bridged.reduce(0.5)
        assert instances(server) == {"detect": [1], "ocr": [1, 1], "spare": [1]}
        await bridged.restore()
        assert instances(server) == {"detect": [2], "ocr": [3, 1], "spare": [1]}
        assert server.full_reloads == []
        assert server.peak_copies == 1

    run(test)


def test_a_ratio_is_of_the_configured_count() -> None:
    """Obeying twice is harmless, and half is half of all, not of what is left."""

    async def test(server: Triton) -> None:
        bridged = await found(server, instances="live")
        await bridged.reduce(0.7)
        await bridged.reduce(0.7)
        assert instances(server)["ocr"] == [2, 1]
        calls = len(server.done(INDEX))
        await bridged.reduce(0.7)
        assert len(server.done(INDEX)) == calls

    run(test)


def test_counts_that_a_bridge_before_has_lowered_are_not_taken_for_the_configured_ones() -> None:
    """The repository's configuration is loaded first."""

    async def test(server: Triton) -> None:
        await (await found(server, instances="live")).reduce(0.25)
        assert instances(server)["detect"] == [1]
        bridged = await found(server, instances="live")
        assert instances(server)["detect"] == [2]
        await bridged.reduce(0.5)
        assert instances(server)["detect"] == [1]

    run(test)


def test_lowered_counts_outlive_an_unload() -> None:
    """What comes back has the counts that are in force."""

    async def test(server: Triton) -> None:
        bridged = await found(server, instances="live")
        await bridged.reduce(0.5)
        await bridged.unload()
        await bridged.restore(ratio=0.5)
        assert instances(server)["ocr"] == [1, 1]
        await bridged.restore()
        assert instances(server)["ocr"] == [3, 1]

    run(test)


def test_lowering_counts_brings_nothing_back_that_is_being_unloaded() -> None:
    """Both of an emergency's commands run side by side; a load in the middle of the unload would undo it."""

    async def test(server: Triton) -> None:
        bridged = await found(server, instances="live")
        path = "/v2/repository/models/ocr/load"
        server.hold(path)
        reducing = asyncio.create_task(bridged.reduce(0.5))
        await soon(lambda: server.waiting(path))
        unloading = asyncio.create_task(bridged.unload())
        done, _ = await asyncio.wait({unloading}, timeout=0.3)
        assert not done
        assert await bridged.refuses()
        server.let_go(path)
        await reducing
        await unloading
        assert {model.state for model in server.models.values()} == {"UNAVAILABLE", ""}
        await bridged.reduce(0.25)
        assert {model.state for model in server.models.values()} == {"UNAVAILABLE", ""}
        await bridged.restore(ratio=0.5)
        assert instances(server) == {"detect": [1], "ocr": [1, 1], "spare": [1]}

    run(test)


def test_where_every_model_has_one_instance_the_gate_does_it() -> None:
    """There is nothing to lower, and that is said at the start."""

    async def test(server: Triton) -> None:
        for model in server.models.values():
            for group in model.stored["instance_group"]:
                group["count"] = 1
            model.on_disk["instance_group"] = [{**group} for group in model.stored["instance_group"]]
        bridged = await found(server, instances="live")
        assert any("one instance" in why for why in bridged.look.cannot)
        assert not bridged.look.reduces

    run(test)


def test_counts_are_not_lowered_on_a_triton_that_was_restarted() -> None:
    """It has the repository's configuration again: the load would be a second copy, at the worst time."""

    async def test(server: Triton) -> None:
        bridged = await found(server, instances="live")
        for model in server.models.values():
            model.stored = model.on_disk
        server.peak_copies = 1
        assert "restart the bridge" in await bridged.failure_of(bridged.reduce(0.5))
        assert server.peak_copies == 1

    run(test)


def test_a_reload_that_half_fails_keeps_the_gate_shut_until_it_is_restored(tmp_path: Path) -> None:
    """What came back is there, what did not is tried again by restore; requests for it would only fail."""

    async def test(server: Triton) -> None:
        state = tmp_path / "taken"
        bridged = await found(server, state=state)
        path = "/v2/repository/models/detect/load"
        server.override(path, 400, {"error": "failed to load 'detect', out of memory"})
        assert "out of memory" in await bridged.failure_of(bridged.trim())
        assert server.models["ocr"].state == "READY"
        assert await bridged.refuses()
        assert state.exists()
        del server.overrides[path]
        await bridged.restore()
        assert server.models["detect"].state == "READY"
        assert not await bridged.refuses()
        assert not state.exists()

    run(test)


def test_a_model_that_does_not_load_again_keeps_the_gate_shut() -> None:
    """The sentence names the model and what Triton says."""

    async def test(server: Triton) -> None:
        bridged = await found(server)
        await bridged.unload()
        path = "/v2/repository/models/ocr/load"
        server.override(path, 400, {"error": "failed to load 'ocr', version 1 is at UNAVAILABLE state: out of memory"})
        assert "out of memory" in await bridged.failure_of(bridged.restore())
        assert await bridged.refuses()
        del server.overrides[path]
        await bridged.restore()
        assert not await bridged.refuses()

    run(test)
