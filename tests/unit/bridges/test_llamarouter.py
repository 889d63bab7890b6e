"""llama-server as a router of many models, against a stand-in that loads, unloads and kills as it does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.llama import AUTOLOAD, LlamaServer
from edgeguardd.bridges.works import Settings
from edgeguardd.client import Level, NoEffect, Released
from tests.support.gated import REST_BYTES, Gated
from tests.support.standins.llama import FakeRouter
from tests.support.wait import soon

ALL: dict[str, Any] = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}


class Weighed(FakeRouter):
    """Its cgroup holds a model's memory as long as the model's process is there."""

    bridged: Gated

    async def _end(self, name: str) -> None:
        await super()._end(name)
        self.bridged.cgroup.usage(0)

    async def _loaded(self, name: str) -> None:
        await super()._loaded(name)
        self.bridged.cgroup.usage(REST_BYTES)


@contextlib.asynccontextmanager
async def standing(
    directory: Path, settings: Settings | None = None, *, autoload: bool = True, **options: Any
) -> AsyncIterator[tuple[Gated, Weighed]]:
    """A bridge over a router with `big` and `small`; big is loaded."""
    server = Weighed("big", "small", autoload=autoload)
    server.states["big"] = "loaded"
    bridged = server.bridged = Gated(directory, server)
    async with bridged.over(LlamaServer, settings, kept=False, **options):
        yield bridged, server


def test_unloading_drains_first_and_is_over_only_when_the_process_is_gone(tmp_path: Path) -> None:
    """The call returns at once and kills what runs ten seconds later; neither happens to those inside here."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            server.go.clear()
            server.stop.clear()
            inside = bridged.ask(model="big")
            await soon(lambda: bridged.places.inside == 1)
            unload = bridged.begin("unload_model", Level.EMERGENCY, model_loaded=False)
            await soon(lambda: bridged.places.shut_by == ("unloaded",))
            assert "POST /models/unload" not in server.calls
            server.go.set()
            assert await inside == 200
            await soon(lambda: server.calls.count("GET /models") > 2)
            assert not unload.done()
            server.stop.set()
            released = await unload
            assert isinstance(released, Released)
            assert (released.bytes, server.killed) == (REST_BYTES, 0)

    asyncio.run(scene())


def test_no_request_loads_the_model_again_before_it_is_restored(tmp_path: Path) -> None:
    """Autoload would; also a GET that names a model does."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            await bridged.obey("unload_model", model_loaded=False)
            assert await bridged.ask(model="big") == 503
            assert (await bridged.front.ask("GET", "/props?model=big")).status == 503
            assert (await bridged.front.ask("GET", "/models")).status == 200
            assert server.states["big"] == "unloaded"
            await bridged.obey("restore", **ALL)
            assert server.states == {"big": "loaded", "small": "unloaded"}
            assert await bridged.ask(model="big") == 200

    asyncio.run(scene())


def test_a_trim_loads_again_what_it_unloaded(tmp_path: Path) -> None:
    """A sleeping model's process holds its prompt cache, and is ended like the others."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            server.states["small"] = "sleeping"
            bridged.grow()
            assert isinstance(await bridged.obey("trim_kv_cache"), Released)
            order = [call for call in server.calls if call.startswith("POST")]
            assert order == ["POST /models/unload"] * 2 + ["POST /models/load"] * 2
            assert server.states == {"big": "loaded", "small": "loaded"}
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), NoEffect)

    asyncio.run(scene())


def test_only_the_models_that_are_named_are_unloaded(tmp_path: Path) -> None:
    """One that is not running is none of them, and no error."""

    async def scene() -> None:
        async with standing(tmp_path, model=["big", "absent"]) as (bridged, server):
            server.states["small"] = "loaded"
            await bridged.obey("unload_model", model_loaded=False)
            assert server.states == {"big": "unloaded", "small": "loaded"}
            assert bridged.state_file.read_text() == '["big"]'

    asyncio.run(scene())


def test_those_who_are_inside_too_long_get_the_routers_500_and_memory_comes_back(tmp_path: Path) -> None:
    """In an emergency, and only then."""

    async def scene() -> None:
        async with standing(tmp_path, Settings(drain_s=0.05, patience_s=5.0)) as (bridged, server):
            server.go.clear()
            inside = bridged.ask(model="big")
            await soon(lambda: bridged.places.inside == 1)
            bridged.grow()
            assert isinstance(await bridged.obey("unload_model", Level.EMERGENCY, model_loaded=False), Released)
            assert await inside == 500

    asyncio.run(scene())


def test_a_model_that_fails_to_load_is_told(tmp_path: Path) -> None:
    """The restore fails with a sentence; the gate stays shut, as there is nothing behind it."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            await bridged.obey("unload_model", model_loaded=False)
            server.broken.add("big")
            with pytest.raises(ServerError, match="cannot load big: the router says that it failed"):
                await bridged.obey("restore", **ALL)
            assert await bridged.ask(model="big") == 503
            server.broken.clear()
            await bridged.obey("restore", **ALL)
            assert bridged.places.shut_by == ()

    asyncio.run(scene())


@pytest.mark.parametrize(("autoload", "cannot"), [(True, (AUTOLOAD,)), (False, ())])
def test_what_its_flags_mean_is_said_at_the_start(tmp_path: Path, autoload: bool, cannot: tuple[str, ...]) -> None:
    """The batch cannot be reduced without knowing it; unloading works in both."""

    async def scene() -> None:
        async with standing(tmp_path, autoload=autoload) as (bridged, _):
            assert bridged.bridge.look.cannot == cannot
            commands = {"trim_kv_cache", "unload_model", "reject_requests", "restore"}
            assert bridged.bridge.handlers().keys() == commands

    asyncio.run(scene())
