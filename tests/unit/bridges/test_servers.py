"""What holds for the bridge to every server: one that is down, slow or another harms nothing but its own command."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges import catalog, vllm
from edgeguardd.bridges.calls import AwayError, ServerError
from edgeguardd.bridges.trtllm import KEY_VARIABLE
from edgeguardd.client import NoEffect, Unsupported
from tests.support.bridging import Bridged
from tests.support.standin import Call, Reply, StandIn
from tests.support.standins.localai import LocalAi
from tests.support.standins.ovms import Ovms
from tests.support.standins.restserver import RestServer
from tests.support.standins.sglang import Sglang
from tests.support.standins.triton import Triton
from tests.support.standins.trtllm import KEY, Trtllm
from tests.support.standins.vllm import Vllm
from tests.support.wait import soon

# The first call of an unload, which a test makes slow or wrong.
FIRST = {
    "vllm": "/pause",
    "sglang": "/pause_generation",
    "trtllm": "/release_memory",
    "triton": "/v2/repository/models/detect/unload",
    "ovms": "/v1/config/reload",
    "localai": "/backend/shutdown",
}


SERVERS = tuple(FIRST)

MAKERS: dict[str, Callable[[Path], RestServer]] = {
    "vllm": lambda _: Vllm(),
    "sglang": lambda _: Sglang(),
    "trtllm": lambda _: Trtllm(),
    "triton": lambda _: Triton(),
    "ovms": lambda directory: Ovms(directory / "config.json"),
    "localai": LocalAi,
}


def options_of(name: str, directory: Path) -> dict[str, Any]:
    """What its bridge needs to be told."""
    if name != "ovms":
        return {}
    config = directory / "config.json"
    config.write_text(json.dumps({"model_config_list": [{"config": {"name": "m", "base_path": "/m"}}]}))
    return {"config_path": str(config)}


@contextlib.asynccontextmanager
async def standing(name: str, directory: Path, **options: Any) -> AsyncIterator[tuple[RestServer, Bridged]]:
    """A stand-in that is up, and a bridge to it that has not looked yet."""
    more = options_of(name, directory)
    server = MAKERS[name](directory)
    async with server:
        bridged = Bridged(name, server, state=directory / "taken", **more, **options)
        # Where a bridge measures, something leaves; the tests here are about other things.
        falling = iter(range(10**6, 0, -1))
        bridged.figures.needed = lambda: next(falling)
        yield server, bridged


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """For trtllm."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def test_every_server_of_the_catalog_has_its_bridge() -> None:
    """The rows name what there is."""
    assert set(SERVERS) <= set(catalog.SERVERS)


@pytest.mark.parametrize("name", SERVERS)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    """Unload, refuse, restore: afterwards requests are let in, and a second restore does nothing."""

    async def test() -> None:
        async with standing(name, tmp_path) as (server, bridged):
            await bridged.found()
            await bridged.unload()
            assert await bridged.refuses()
            assert isinstance(await bridged.unload(), NoEffect)
            await bridged.restore()
            assert not await bridged.refuses()
            assert not (tmp_path / "taken").exists()
            done = server.done()
            await bridged.restore()
            assert server.done() == done

    asyncio.run(test())


@pytest.mark.parametrize("name", SERVERS)
def test_whoever_is_inside_ends_before_the_server_is_touched(name: str, tmp_path: Path) -> None:
    """The gate is shut at once; the first call comes when nobody is inside."""

    async def test() -> None:
        async with standing(name, tmp_path) as (server, bridged):
            await bridged.found()
            looked = server.done()
            assert await bridged.places.enter() is None
            unloading = asyncio.create_task(bridged.unload())
            await asyncio.sleep(0)
            assert await bridged.refuses()
            assert server.done() == looked
            bridged.places.leave()
            await unloading
            assert FIRST[name] in [call.split("?")[0] for call in server.done()]

    asyncio.run(test())


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_is_down_is_waited_for(name: str, tmp_path: Path) -> None:
    """Looking fails with a sentence that names where; when it is there, looking works."""

    async def test() -> None:
        async with standing(name, tmp_path) as (server, bridged):
            server.kill()
            with pytest.raises(AwayError, match=r"http://127\.0\.0\.1:\d+: .*start the server"):
                await bridged.server.look()
            await server.up()
            await bridged.found()
            assert bridged.look.unloads

    asyncio.run(test())


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_goes_down_fails_its_command_and_comes_back_by_restore(name: str, tmp_path: Path) -> None:
    """The command fails with a sentence; requests stay refused until restore has found the server in order."""

    async def test() -> None:
        async with standing(name, tmp_path) as (server, bridged):
            await bridged.found()
            server.kill()
            assert "start the server" in await bridged.failure_of(bridged.unload())
            assert await bridged.refuses()
            assert "start the server" in await bridged.failure_of(bridged.restore())
            await server.up()
            await bridged.restore()
            assert not await bridged.refuses()

    asyncio.run(test())


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_is_slow_fails_in_time_and_holds_up_no_other_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusing works at once while the slow call is under way."""
    monkeypatch.setattr(vllm, "CUT_AFTER_S", 0.3)

    async def test() -> None:
        async with standing(name, tmp_path) as (server, bridged):
            await bridged.found()
            server.hold(FIRST[name])
            patience_s, within_s = bridged.server.patience_s, bridged.server.http.within_s
            bridged.server.patience_s = bridged.server.http.within_s = 0.3
            unloading = asyncio.create_task(bridged.failure_of(bridged.unload()))
            await soon(lambda: server.waiting(FIRST[name]))
            assert await bridged.reject() is None
            assert not unloading.done()
            assert "no answer within 0.3 s" in await unloading
            bridged.server.patience_s, bridged.server.http.within_s = patience_s, within_s
            server.let_go(FIRST[name])
            await bridged.restore()
            assert not await bridged.refuses()

    asyncio.run(test())


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("content", [[], {}, "<html>no such thing</html>", 7, None, [[]], {"version": [1]}])
@pytest.mark.parametrize("name", SERVERS)
def test_what_is_no_such_server_is_told_by_a_sentence(name: str, content: object, status: int, tmp_path: Path) -> None:
    """Whatever it answers, looking ends with a sentence, never with a defect or a command that is claimed."""

    class Other(StandIn):
        async def answer(self, call: Call) -> Reply:
            return Reply(content, status)

    async def test() -> None:
        async with Other() as server:
            bridged = Bridged(name, server, **options_of(name, tmp_path))
            with pytest.raises(ServerError, match=r"^cannot "):
                await bridged.server.look()
            with contextlib.suppress(ServerError):
                assert await bridged.server.running() is None

    asyncio.run(test())


RUBBISH: list[Any] = [
    7,
    [],
    [[7]],
    {},
    "<html>",
    {"success": 7, "is_sleeping": 7, "parked_tags": 7, "state": 7, "loads": 7, "loaded_models": 7, "version": "1"},
    {"m": {"model_version_status": 7}, "weight_version": 7, "version": "1", "model_path": 7, "loaded_models": [7]},
    [{"name": 7, "state": 7}, {"name": "detect", "state": 7, "reason": "unloaded"}],
]


@pytest.mark.parametrize("content", RUBBISH, ids=range(len(RUBBISH)))
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_answers_rubbish_from_some_moment_on_fails_commands_and_nothing_else(
    name: str, content: object, tmp_path: Path
) -> None:
    """Each command ends well or with a sentence; when the server is itself again, restore sets everything right."""

    async def test() -> None:
        async with standing(name, tmp_path, patience_s=0.2) as (server, bridged):
            await bridged.found()
            server.to_all = Reply(content)
            for command in (bridged.reject, bridged.trim, bridged.unload, bridged.restore):
                with contextlib.suppress(ServerError, Unsupported):
                    await command()
            server.to_all = None
            bridged.server.patience_s = 10.0
            await bridged.restore()
            assert not await bridged.refuses()

    asyncio.run(test())
