"""The bridge to TensorRT-LLM's trtllm-serve, against a stand-in that checks signatures as it does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from edgeguardd.bridges.trtllm import KEY_VARIABLE, signature
from tests.support.bridging import Bridged
from tests.support.standins.trtllm import KEY, KV_BYTES, WEIGHT_BYTES, Trtllm


def run(test: Callable[[Trtllm], Awaitable[None]], **flags: Any) -> None:
    """A test with a stand-in that is up."""

    async def with_server() -> None:
        async with Trtllm(**flags) as server:
            await test(server)

    asyncio.run(with_server())


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge has the server's key."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def test_parking_releases_the_kv_cache_alone() -> None:
    """Without tags the weights would be copied to the host's memory."""

    async def test(server: Trtllm) -> None:
        bridged = await Bridged("trtllm", server).found()
        await bridged.reject()
        await bridged.trim()
        assert server.done() == ["/release_memory"]
        assert server.parked == {"kv_cache"}
        assert not server.host_copy
        assert server.device_bytes == WEIGHT_BYTES
        await bridged.restore()
        assert server.done() == ["/release_memory", "/resume_memory"]
        assert server.state == "running"
        assert server.device_bytes == WEIGHT_BYTES + KV_BYTES

    run(test)


def test_unload_model_releases_the_kv_cache_and_says_so_at_the_start() -> None:
    """There is no call that would load weights again."""

    async def test(server: Trtllm) -> None:
        bridged = await Bridged("trtllm", server).found()
        assert any("copy them to the host" in why for why in bridged.look.cannot)
        await bridged.unload()
        assert server.parked == {"kv_cache"}
        assert not server.host_copy
        await bridged.restore()
        assert server.state == "running"

    run(test)


def test_a_server_that_has_failed_for_good_is_said() -> None:
    """`failed` is terminal: waiting for it would help nobody."""

    async def test(server: Trtllm) -> None:
        bridged = await Bridged("trtllm", server).found()
        await bridged.unload()
        server.override("/resume_memory", 200, {"status": "success"})
        server.state = "failed"
        assert "restart it" in await bridged.failure_of(bridged.restore())
        assert await bridged.refuses()

    run(test)


def test_a_cache_that_cannot_be_released_leaves_everything_as_it_was() -> None:
    """Where the KV cache is in no pool of its own the tag is refused; requests are let in again by restore."""

    async def test(server: Trtllm) -> None:
        bridged = await Bridged("trtllm", server).found()
        await bridged.reject()
        assert "400" in await bridged.failure_of(bridged.trim())
        await bridged.restore()
        assert not await bridged.refuses()
        assert server.state == "running"

    run(test, kv_tag=False)


@pytest.mark.parametrize(
    ("flags", "key", "said"),
    [
        ({"sleep_mode": False}, KEY, "--enable_sleep_mode"),
        ({}, "", KEY_VARIABLE),
        ({}, "another", "does not accept the key"),
    ],
)
def test_what_the_flags_and_the_key_do_not_allow_is_said(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], key: str, said: str
) -> None:
    """No command is claimed that cannot work, and the key is in no sentence."""
    monkeypatch.setenv(KEY_VARIABLE, key)

    async def test(server: Trtllm) -> None:
        bridged = await Bridged("trtllm", server).found()
        assert said in bridged.look.cannot[0]
        assert not any(KEY in why for why in bridged.look.cannot)
        assert set(bridged.bridge.handlers()) == {"reject_requests", "restore"}

    run(test, **flags)


def test_a_call_is_signed_over_what_is_called_when_and_once() -> None:
    """The digest of a known call, and none of its parts may change without changing it."""
    fields = dict(signature("k", "POST", "/release_memory", b"{}", 1700000000, "0" * 32))
    assert fields["x-trtllm-runtime-control-auth"] == (
        "sha256=9c426853e2448bc29595a07c99757f9045d63701a32e7d423c46fb78d9ccf352"
    )
    others = [
        signature("K", "POST", "/release_memory", b"{}", 1700000000, "0" * 32),
        signature("k", "GET", "/release_memory", b"{}", 1700000000, "0" * 32),
        signature("k", "POST", "/resume_memory", b"{}", 1700000000, "0" * 32),
        signature("k", "POST", "/release_memory", b"", 1700000000, "0" * 32),
        signature("k", "POST", "/release_memory", b"{}", 1700000001, "0" * 32),
        signature("k", "POST", "/release_memory", b"{}", 1700000000, "1" * 32),
    ]
    assert len({dict(other)["x-trtllm-runtime-control-auth"] for other in others} | {fields[next(iter(fields))]}) == 7
