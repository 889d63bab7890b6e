"""Ollama, against a stand-in for its scheduler."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges.calls import ServerError
from edgeguardd.bridges.ollama import NO_CALL, NO_LIMIT, OllamaServer
from edgeguardd.bridges.works import Settings
from edgeguardd.client import Level, NoEffect, Released
from tests.support.gated import GROWN_BYTES, REST_BYTES, Gated
from tests.support.standins.ollama import FOR_EVER, SOON, FakeOllama
from tests.support.wait import soon

ALL: dict[str, Any] = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}


class Weighed(FakeOllama):
    """Its cgroup shrinks when no model is loaded, and grows to what models need at rest when one is."""

    bridged: Gated

    async def _end(self, name: str) -> None:
        await super()._end(name)
        self.bridged.cgroup.usage(0)

    async def _generate(self, path: str, content: dict[str, Any]) -> Any:
        had = bool(self.loaded)
        reply = await super()._generate(path, content)
        if self.loaded and not had:
            self.bridged.cgroup.usage(REST_BYTES)
        return reply


@contextlib.asynccontextmanager
async def standing(
    directory: Path, *loaded: str, settings: Settings | None = None, **options: Any
) -> AsyncIterator[tuple[Gated, Weighed]]:
    """A bridge over an Ollama with these models loaded, and one more that is not."""
    server = Weighed(*loaded, "other:1b")
    server.loaded = dict.fromkeys(loaded, SOON)
    bridged = server.bridged = Gated(directory, server)
    async with bridged.over(OllamaServer, settings, kept=False, **options):
        yield bridged, server


def test_a_trim_is_shut_drain_unload_load_and_what_came_back_is_measured(tmp_path: Path) -> None:
    """Who is inside gets its answer; who comes is refused, or it would load the model in the middle."""

    async def scene() -> None:
        async with standing(tmp_path, "gemma:2b") as (bridged, server):
            bridged.grow()
            server.go.clear()
            inside = bridged.ask("/api/generate", model="gemma:2b", prompt="once")
            await soon(lambda: bridged.places.inside == 1)
            trim = bridged.begin("trim_kv_cache")
            await soon(lambda: bridged.places.shut_by == ("release",))
            assert await bridged.ask("/api/chat", model="gemma:2b", messages=[{}]) == 503
            server.go.set()
            assert await inside == 200
            released = await trim
            assert isinstance(released, Released)
            assert released.bytes == GROWN_BYTES - REST_BYTES
            unload = {"model": "gemma:2b", "stream": False, "keep_alive": 0}
            assert server.sent[1:] == [unload, {"model": "gemma:2b", "stream": False}]
            assert server.loaded == {"gemma:2b": SOON}

    asyncio.run(scene())


def test_below_the_release_level_nothing_is_done_and_nothing_claimed(tmp_path: Path) -> None:
    """Ollama has no call that frees a part."""

    async def scene() -> None:
        async with standing(tmp_path, "gemma:2b") as (bridged, server):
            bridged.grow()
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), NoEffect)
            assert server.calls == []

    asyncio.run(scene())


def test_unloading_takes_all_models_and_a_restore_brings_them_back_as_they_were(tmp_path: Path) -> None:
    """One that somebody pinned is pinned again; one for embeddings has a call of its own."""

    async def scene() -> None:
        async with standing(tmp_path, "gemma:2b", "nomic-embed") as (bridged, server):
            server.for_embeddings.add("nomic-embed")
            server.loaded["gemma:2b"] = FOR_EVER
            released = await bridged.obey("unload_model", Level.EMERGENCY, model_loaded=False)
            assert released.bytes == REST_BYTES
            assert server.loaded == {}
            assert bridged.state_file.read_text() == '["gemma:2b pinned","nomic-embed"]'
            assert await bridged.ask("/api/generate", model="gemma:2b", prompt="once") == 503
            assert server.loaded == {}
            await bridged.obey("restore", **ALL)
            assert server.loaded == {"gemma:2b": FOR_EVER, "nomic-embed": SOON}
            assert bridged.places.shut_by == ()

    asyncio.run(scene())


def test_only_the_models_that_are_named_are_touched(tmp_path: Path) -> None:
    """A small model that must stay, stays."""

    async def scene() -> None:
        async with standing(tmp_path, "gemma:2b", "router:1b", model=["gemma:2b"]) as (bridged, server):
            await bridged.obey("unload_model", model_loaded=False)
            assert list(server.loaded) == ["router:1b"]

    asyncio.run(scene())


def test_a_runner_that_does_not_end_is_told_and_what_was_there_is_loaded_again(tmp_path: Path) -> None:
    """It answers "unload" at once; only /api/ps tells what became of it. The gate opens when it answers again."""

    async def scene() -> None:
        async with standing(tmp_path, "gemma:2b", settings=Settings(patience_s=0.1)) as (bridged, server):
            bridged.grow()
            server.may_end.clear()
            with pytest.raises(ServerError, match=r"gemma:2b left memory: not within|did release memory: not within"):
                await bridged.obey("trim_kv_cache")
            assert bridged.places.shut_by == ("unloaded",)
            server.may_end.set()
            await soon(lambda: not server.loaded)
            await bridged.bridge.mend()
            assert list(server.loaded) == ["gemma:2b"]
            assert await bridged.ask("/api/generate", model="gemma:2b", prompt="once") == 200

    asyncio.run(scene())


def test_a_model_that_was_deleted_meanwhile_stops_nothing(tmp_path: Path) -> None:
    """The others come back."""

    async def scene() -> None:
        async with standing(tmp_path, "gemma:2b", "gone:1b") as (bridged, server):
            await bridged.obey("unload_model", model_loaded=False)
            server.known.discard("gone:1b")
            await bridged.obey("restore", **ALL)
            assert server.loaded == {"gemma:2b": SOON}

    asyncio.run(scene())


def test_an_ollama_without_the_call_is_told_at_the_start(tmp_path: Path) -> None:
    """It can still be refused for, at the gate."""

    async def scene() -> None:
        server = Weighed("gemma:2b", version="0.1.20")
        server.has_ps = False
        async with Gated(tmp_path, server).over(OllamaServer, kept=False) as bridged:
            assert bridged.bridge.look.cannot == (NO_CALL, NO_LIMIT)
            assert bridged.bridge.look.version == "0.1.20"
            assert bridged.bridge.handlers().keys() == {"reject_requests", "restore"}

    asyncio.run(scene())
