"""What the bridge and its stand-ins take llama-server to do, asked of a real one: `make llama`.

Skips where LLAMA_SERVER and LLAMA_MODEL do not name one; tests/llama/setup.sh makes both. Each server is a child of the
bridge's own keeper, on a free port, with a short context, so that a test takes seconds.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges.calls import Http
from edgeguardd.bridges.endpoint import endpoint
from edgeguardd.bridges.llama import AUTOLOAD, NO_SLOT_SAVE_PATH, LlamaServer
from edgeguardd.bridges.supervise import ChildKeeper

PROGRAM = os.environ.get("LLAMA_SERVER", "")
MODEL = os.environ.get("LLAMA_MODEL", "")
# Also for 100 tokens on a processor that others use.
READY_WITHIN_S = 240.0

pytestmark = [
    pytest.mark.skipif(not (PROGRAM and MODEL), reason="LLAMA_SERVER and LLAMA_MODEL name no server and no model"),
    pytest.mark.timeout(600),
]


@contextlib.asynccontextmanager
async def serving(*flags: str) -> AsyncIterator[LlamaServer]:
    """A real server with these flags, ready, and the bridge's view of it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common = ["--host", "127.0.0.1", "--port", str(port), "--offline", "--log-verbosity", "0", "--parallel", "2"]
    ends: list[int] = []
    keeper = ChildKeeper([PROGRAM, *common, "--ctx-size", "1024", *flags], None, ends.append)
    http = Http(endpoint(f"http://127.0.0.1:{port}"))
    server = LlamaServer(http, argparse.Namespace(model=None), keeper, READY_WITHIN_S)
    await keeper.start()
    try:
        await server.until(server._is_healthy, "it is ready")
        assert ends == []
        yield server
    finally:
        await keeper.stop()


async def complete(server: LlamaServer, tokens: int = 4, **content: Any) -> int:
    """One completion; its status."""
    body = {"prompt": "The quick brown fox", "n_predict": tokens, "ignore_eos": True, **content}
    return (await server.http.ask("POST", "/completion", body, within_s=READY_WITHIN_S)).status


def test_without_flags_nothing_can_be_erased_and_that_is_found_out_without_trying() -> None:
    """501 comes before the action is looked at; /metrics is off by itself."""

    async def scene() -> None:
        async with serving("--model", MODEL) as server:
            look = await server.look()
            assert look.version
            assert (look.places, look.trims, look.releases) == (2, False, True)
            assert look.cannot == (NO_SLOT_SAVE_PATH,)
            assert await server.running() is None
            assert (await server.http.ask("POST", "/slots/0?action=erase")).status == 501

    asyncio.run(scene())


def test_idle_slots_are_erased_and_ids_wrap(tmp_path: Path) -> None:
    """/slots/99 is answered as if there were one: why the bridge uses only ids that it was told."""

    async def scene() -> None:
        async with serving("--model", MODEL, "--slot-save-path", str(tmp_path), "--metrics") as server:
            look = await server.look()
            assert look.trims
            assert look.cannot == ()
            assert await complete(server) == 200
            erased = [await server.http.post(f"/slots/{number}?action=erase") for number in range(2)]
            assert sum(reply.field("n_erased") for reply in erased) > 0
            assert (await server.http.ask("POST", "/slots/99?action=erase")).status == 200
            assert await server.running() == 0
            await server.trim()

    asyncio.run(scene())


def test_a_trim_does_not_wait_for_a_slot_that_generates(tmp_path: Path) -> None:
    """The call for that slot would hang until its answer is through."""

    async def scene() -> None:
        async with serving("--model", MODEL, "--slot-save-path", str(tmp_path), "--metrics") as server:
            await server.look()
            busy = asyncio.create_task(complete(server, tokens=100))
            while await server.running() != 1:
                assert not busy.done()
                await asyncio.sleep(0.01)
            slots = (await server.http.get("/slots")).json()
            number = next(slot["id"] for slot in slots if slot["is_processing"])
            hanging = asyncio.create_task(server.http.post(f"/slots/{number}?action=erase", within_s=READY_WITHIN_S))
            began = time.monotonic()
            await server.trim()
            took_s = time.monotonic() - began
            assert not busy.done(), "the generation was too short to show anything"
            assert not hanging.done()
            assert took_s < 2.0
            assert await busy == 200
            assert (await hanging).field("n_erased") > 0

    asyncio.run(scene())


def test_a_release_ends_the_process_and_comes_back_ready(tmp_path: Path) -> None:
    """Requests meanwhile would be refused by the gate; the server itself answers 503 while it loads."""

    async def scene() -> None:
        async with serving("--model", MODEL) as server:
            await server.look()
            await server.release()
            assert await complete(server) == 200

    asyncio.run(scene())


@pytest.mark.parametrize(("flags", "while_out"), [((), 200), (("--no-models-autoload",), 400)])
def test_a_router_unloads_and_loads_and_only_autoload_brings_a_model_back_by_itself(
    tmp_path: Path, flags: tuple[str, ...], while_out: int
) -> None:
    """The call returns at once, so the bridge polls; with autoload the next request loads the model again."""

    async def scene() -> None:
        os.symlink(MODEL, tmp_path / "small.gguf")
        async with serving("--models-dir", str(tmp_path), *flags) as server:
            look = await server.look()
            assert (look.places, look.unloads) == (None, True)
            assert look.cannot == (() if flags else (AUTOLOAD,))
            name = next(name for name in await server._states() if "small" in name)
            await server.load((name,))
            assert await complete(server, model=name) == 200
            assert await server.unload() == (name,)
            assert (await server._states())[name] == "unloaded"
            assert (await server.http.ask("POST", "/models/unload", {"model": name})).status == 400
            assert await complete(server, model=name) == while_out
            await server.load((name,))
            await server.release()
            assert (await server._states())[name] == "loaded"
            assert await complete(server, model=name) == 200

    asyncio.run(scene())
