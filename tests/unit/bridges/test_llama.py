"""llama-server with one model, against a stand-in that behaves as it does: order of calls, busy slots, wrong flags."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edgeguardd.bridges.calls import AwayError, ServerError
from edgeguardd.bridges.llama import NO_KEEPER, NO_SLOT_SAVE_PATH, LlamaServer
from edgeguardd.bridges.works import Settings, SupersededError
from edgeguardd.client import Level, Logical, NoEffect, Released
from tests.support.faketree import MIB
from tests.support.gated import GROWN_BYTES, REST_BYTES, Gated
from tests.support.standin import Call, Reply
from tests.support.standins.llama import FakeLlama
from tests.support.wait import soon

ALL: dict[str, Any] = {"max_batch_ratio": 1.0, "accept_requests": True, "model_loaded": True}


@contextlib.asynccontextmanager
async def standing(
    directory: Path, settings: Settings | None = None, *, kept: bool = True, **flags: Any
) -> AsyncIterator[tuple[Gated, FakeLlama]]:
    """A bridge over a llama-server with these flags."""
    server = FakeLlama()
    for name, value in flags.items():
        setattr(server, name, value)
    async with Gated(directory, server).over(LlamaServer, settings, kept=kept) as bridged:
        yield bridged, server


def test_a_trim_below_the_release_level_erases_idle_slots_and_says_logical(tmp_path: Path) -> None:
    """Its cells are free, its pages stay: nobody is told that memory came back."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            bridged.grow()
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), Logical)
            erased = ["POST /slots/0?action=erase", "POST /slots/1?action=erase"]
            assert server.calls == ["GET /props", "GET /slots", *erased]
            assert [slot.tokens for slot in server.slots] == [0, 0]
            assert bridged.keeper.done == []

    asyncio.run(scene())


def test_a_trim_that_is_asked_for_again_gives_memory_back_whatever_the_level(tmp_path: Path) -> None:
    """The one before has not helped, or edgeguardd would not ask; after a restore it begins anew."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, _):
            bridged.grow()
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), Logical)
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), Released)
            bridged.grow()
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), Logical)
            await bridged.obey("restore", **ALL)
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), Logical)
            assert bridged.keeper.done == ["stop", "start"]

    asyncio.run(scene())


def test_a_busy_slot_is_left_alone_so_that_no_trim_waits_for_a_generation(tmp_path: Path) -> None:
    """The call would hang until the answer is through; ids are not guessed, as they wrap."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            server.go.clear()
            client = bridged.ask()
            await soon(lambda: server.running == 1)
            assert isinstance(await bridged.obey("trim_kv_cache", Level.ELEVATED), Logical)
            assert "POST /slots/0?action=erase" not in server.calls
            assert "POST /slots/1?action=erase" in server.calls
            server.go.set()
            assert await client == 200

    asyncio.run(scene())


def test_a_sleeping_model_is_not_woken_for_a_trim(tmp_path: Path) -> None:
    """/slots and erase would load it again to free what is not there."""

    async def scene() -> None:
        async with standing(tmp_path, sleeping=True) as (bridged, server):
            await bridged.obey("trim_kv_cache", Level.ELEVATED)
            assert (server.sleeping, server.woken) == (True, 0)
            assert server.calls == ["GET /props"]

    asyncio.run(scene())


def test_from_the_release_level_on_a_trim_is_shut_drain_restart_open(tmp_path: Path) -> None:
    """Who is inside gets its answer, who comes is refused, and what came back is measured in the cgroup."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            bridged.grow()
            server.go.clear()
            inside = bridged.ask()
            await soon(lambda: server.running == 1)
            trim = bridged.begin("trim_kv_cache")
            await soon(lambda: bridged.places.shut_by == ("release",))
            assert await bridged.ask() == 503
            assert bridged.keeper.done == []
            server.go.set()
            assert await inside == 200
            released = await trim
            assert isinstance(released, Released)
            assert released.bytes == GROWN_BYTES - REST_BYTES
            assert bridged.keeper.done == ["stop", "start"]
            assert server.calls[-1] == "GET /health"
            assert bridged.places.shut_by == ()
            assert await bridged.ask() == 200

    asyncio.run(scene())


def test_a_restarted_server_gets_no_request_before_it_has_loaded(tmp_path: Path) -> None:
    """It listens and answers 503 while it loads; so long the gate stays shut."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            bridged.grow()
            server.slot_save_path = False
            real_start = bridged.keeper.start

            async def slow_start() -> None:
                server.ready = False
                await real_start()

            bridged.keeper.start = slow_start  # type: ignore[method-assign]
            trim = bridged.begin("trim_kv_cache")
            await soon(lambda: server.calls[-2:] == ["GET /health", "GET /health"])
            assert bridged.places.shut_by == ("release",)
            server.ready = True
            assert isinstance(await trim, Released)

    asyncio.run(scene())


def test_a_second_trim_restarts_nothing_when_nothing_has_grown(tmp_path: Path) -> None:
    """The first restart tells what it needs at rest; a cached prompt more is not worth another one."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, _):
            bridged.grow()
            await bridged.obey("trim_kv_cache")
            bridged.grow(REST_BYTES + 31 * MIB)
            assert isinstance(await bridged.obey("trim_kv_cache"), Logical)
            assert bridged.keeper.done == ["stop", "start"]
            bridged.grow(REST_BYTES + 32 * MIB)
            assert isinstance(await bridged.obey("trim_kv_cache"), Released)

    asyncio.run(scene())


def test_memory_that_does_not_come_back_is_a_failure_and_service_goes_on(tmp_path: Path) -> None:
    """A child that lives on, say: the daemon hears "failed" and escalates, callers get in again."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, _):
            bridged.grow()
            bridged.keeper.leaks = GROWN_BYTES
            with pytest.raises(ServerError, match=r"419430400 bytes were needed before and 524288000 after"):
                await bridged.obey("trim_kv_cache")
            assert bridged.places.shut_by == ()
            assert await bridged.ask() == 200

    asyncio.run(scene())


def test_rejecting_goes_through_at_once_while_a_drain_is_under_way(tmp_path: Path) -> None:
    """No command waits for another one."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            bridged.grow()
            server.go.clear()
            inside = bridged.ask()
            await soon(lambda: server.running == 1)
            trim = bridged.begin("trim_kv_cache")
            await soon(lambda: "release" in bridged.places.shut_by)
            assert await bridged.obey("reject_requests", accept_requests=False) is None
            assert await bridged.obey("reduce_batch", max_batch_ratio=0.5) is None
            assert (bridged.places.shut_by, bridged.places.most) == (("release", "reject"), 1)
            assert not trim.done()
            server.go.set()
            assert await inside == 200
            await trim
            assert bridged.places.shut_by == ("reject",)

    asyncio.run(scene())


def test_those_inside_who_take_too_long_are_not_cut_off_by_a_trim(tmp_path: Path) -> None:
    """It fails with a sentence instead, and the next rung follows."""

    async def scene() -> None:
        async with standing(tmp_path, Settings(drain_s=0.05)) as (bridged, server):
            bridged.grow()
            server.go.clear()
            inside = bridged.ask()
            await soon(lambda: server.running == 1)
            with pytest.raises(ServerError, match=r"1 requests still run after 0\.05 s"):
                await bridged.obey("trim_kv_cache")
            assert (bridged.keeper.done, bridged.places.shut_by) == ([], ())
            server.go.set()
            assert await inside == 200

    asyncio.run(scene())


def test_unloading_stops_the_server_until_restored_and_nobody_is_let_in_meanwhile(tmp_path: Path) -> None:
    """In an emergency those who take too long are cut off: memory comes first."""

    async def scene() -> None:
        async with standing(tmp_path, Settings(drain_s=0.05, patience_s=5.0)) as (bridged, server):
            bridged.grow()
            server.go.clear()
            inside = bridged.ask()
            await soon(lambda: server.running == 1)
            released = await bridged.obey("unload_model", Level.EMERGENCY, model_loaded=False)
            assert released.bytes == GROWN_BYTES
            assert await inside == 502
            assert await bridged.ask() == 503
            assert bridged.keeper.done == ["stop"]
            assert isinstance(await bridged.obey("trim_kv_cache"), NoEffect)
            assert isinstance(await bridged.obey("unload_model", model_loaded=False), NoEffect)
            server.go.set()
            await bridged.obey("restore", **ALL)
            assert bridged.keeper.done == ["stop", "start"]
            assert await bridged.ask() == 200

    asyncio.run(scene())


def test_a_restore_ends_the_drain_of_an_unload_that_is_wanted_no_longer(tmp_path: Path) -> None:
    """The unload is told as failed; nothing was stopped, and the gate is open."""

    async def scene() -> None:
        async with standing(tmp_path, Settings(drain_s=60.0)) as (bridged, server):
            server.go.clear()
            inside = bridged.ask()
            await soon(lambda: server.running == 1)
            unload = bridged.begin("unload_model", model_loaded=False)
            await soon(lambda: bridged.places.shut_by == ("unloaded",))
            await bridged.obey("restore", **ALL)
            with pytest.raises(SupersededError):
                await unload
            assert (bridged.keeper.done, bridged.places.shut_by) == ([], ())
            server.go.set()
            assert await inside == 200

    asyncio.run(scene())


def test_a_restore_lifts_only_what_it_says(tmp_path: Path) -> None:
    """Capacity comes back step by step."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, _):
            await bridged.obey("reject_requests", accept_requests=False)
            await bridged.obey("reduce_batch", max_batch_ratio=0.25)
            assert bridged.places.most == 1
            await bridged.obey("restore", max_batch_ratio=0.5, accept_requests=False, model_loaded=True)
            assert "reject" in bridged.places.shut_by
            await bridged.obey("restore", **ALL)
            assert bridged.places.shut_by == ()
            assert bridged.places.most == 2

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("kept", "flags", "commands", "cannot"),
    [
        (True, {}, {"trim_kv_cache", "unload_model"}, ()),
        (True, {"slot_save_path": False}, {"trim_kv_cache", "unload_model"}, (NO_SLOT_SAVE_PATH,)),
        (False, {}, {"trim_kv_cache"}, (NO_KEEPER,)),
        (False, {"slot_save_path": False}, set(), (NO_SLOT_SAVE_PATH, NO_KEEPER)),
        (False, {"sleeping": True}, {"trim_kv_cache"}, (NO_KEEPER,)),
    ],
)
def test_what_its_flags_do_not_allow_is_said_and_not_claimed(
    tmp_path: Path, kept: bool, flags: dict[str, Any], commands: set[str], cannot: tuple[str, ...]
) -> None:
    """Found out without erasing, polling or waking anything."""

    async def scene() -> None:
        async with standing(tmp_path, kept=kept, **flags) as (bridged, server):
            assert bridged.bridge.handlers().keys() - {"reduce_batch", "reject_requests", "restore"} == commands
            assert bridged.bridge.look.cannot == cannot
            assert (bridged.bridge.look.version, bridged.bridge.full_places) == ("b6123-0c1e570", 2)
            assert [slot.tokens for slot in server.slots] == [100, 100]
            assert server.woken == 0

    asyncio.run(scene())


def test_a_flag_that_is_lost_with_a_restart_costs_only_the_erasing(tmp_path: Path) -> None:
    """501 where 200 was: said in the log, and the restart follows all the same."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            bridged.grow()
            server.slot_save_path = False
            assert isinstance(await bridged.obey("trim_kv_cache"), Released)
            with pytest.raises(ServerError, match="--slot-save-path"):
                await LlamaServer._erase(bridged.bridge.server, 0)  # type: ignore[arg-type]

    asyncio.run(scene())


def test_a_server_that_is_down_or_hangs_is_a_sentence_within_its_time(tmp_path: Path) -> None:
    """Every call ends; nothing is left shut."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            await server.down()
            with pytest.raises(AwayError, match=r"cannot GET /props at http://127\.0\.0\.1:\d+: connection refused"):
                await bridged.obey("trim_kv_cache", Level.ELEVATED)
            bridged.bridge.server.patience_s = 0.3
            bridged.keeper.may_stop.clear()
            bridged.bridge._works._settings = Settings(patience_s=0.05)
            await server.up()
            with pytest.raises(ServerError, match=r"did release memory: not within 0\.05 s"):
                await bridged.obey("trim_kv_cache")
            assert bridged.places.shut_by == ("unloaded",)
            await bridged.bridge.mend()
            assert bridged.keeper.done == ["stop", "start"]
            assert await bridged.ask() == 200

    asyncio.run(scene())


def test_a_bridge_that_is_stopped_in_the_middle_of_a_restart_starts_the_server_first(tmp_path: Path) -> None:
    """Whenever it ends, it leaves no server stopped."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, server):
            bridged.grow()
            bridged.keeper.may_stop.clear()
            trim = bridged.begin("trim_kv_cache")
            await soon(lambda: bridged.keeper.done == ["stop"])
            assert bridged.state_file.read_text() == "[]"
            await server.down()
            trim.cancel()
            await asyncio.gather(trim, return_exceptions=True)
            await bridged.bridge.close()
            assert bridged.keeper.done == ["stop", "start"]
            assert not bridged.state_file.exists()

    asyncio.run(scene())


def test_memory_comes_first_where_the_record_cannot_be_written(tmp_path: Path) -> None:
    """A full disk is no reason to be killed."""

    async def scene() -> None:
        async with standing(tmp_path) as (bridged, _):
            bridged.state_file.mkdir()
            released = await bridged.obey("unload_model", Level.EMERGENCY, model_loaded=False)
            assert released.bytes == REST_BYTES
            await bridged.obey("restore", **ALL)
            assert bridged.keeper.done == ["stop", "start"]

    asyncio.run(scene())


@pytest.mark.parametrize("count", ["inf", "nan", "many", "", "1e308\nllamacpp:requests_deferred 1e308"])
def test_what_is_no_count_of_requests_is_none(tmp_path: Path, count: str) -> None:
    """Then nobody knows how many run, and nothing is released; least of all does the bridge end."""

    class Odd(FakeLlama):
        async def answer(self, call: Call) -> Reply:
            if call.path == "/metrics":
                return Reply(f"llamacpp:requests_processing {count}\n")
            return await super().answer(call)

    async def scene() -> None:
        server = Odd()
        settings = Settings(drain_s=5.0, external=True)
        async with Gated(tmp_path, server).over(LlamaServer, settings, kept=True) as bridged:
            bridged.grow()
            await bridged.obey("reject_requests", accept_requests=False)
            with pytest.raises(ServerError, match="cannot release: some requests still run"):
                await bridged.obey("trim_kv_cache")
            assert bridged.keeper.done == []

    asyncio.run(scene())


def test_with_an_external_gate_memory_is_released_only_while_that_one_refuses(tmp_path: Path) -> None:
    """Nobody else would keep requests out of a server that restarts. What runs is read off /metrics."""

    async def scene() -> None:
        async with standing(tmp_path, Settings(drain_s=5.0, external=True)) as (bridged, server):
            bridged.grow()
            assert isinstance(await bridged.obey("trim_kv_cache"), Logical)
            assert isinstance(await bridged.obey("reject_requests", accept_requests=False), NoEffect)
            server.go.clear()
            inside = asyncio.create_task(server.http().post("/completion", {}))
            await soon(lambda: server.running == 1)
            trim = bridged.begin("trim_kv_cache")
            await soon(lambda: server.calls.count("GET /metrics") > 1)
            assert bridged.keeper.done == []
            server.go.set()
            await inside
            assert isinstance(await trim, Released)

    asyncio.run(scene())


def test_without_any_gate_only_what_disturbs_nobody_is_done(tmp_path: Path) -> None:
    """No command is claimed that nobody could carry out."""

    async def scene() -> None:
        settings = Settings(external=True, refuses=False)
        async with standing(tmp_path, settings) as (bridged, _):
            bridged.grow()
            assert bridged.bridge.handlers().keys() == {"trim_kv_cache", "unload_model", "restore"}
            assert isinstance(await bridged.obey("trim_kv_cache", Level.CRITICAL), Logical)
            assert isinstance(await bridged.obey("trim_kv_cache", Level.CRITICAL), Logical)
            assert bridged.keeper.done == []

    asyncio.run(scene())


def test_a_bridge_that_died_after_an_unload_is_followed_by_one_that_brings_the_model_back(tmp_path: Path) -> None:
    """A restart of the bridge must not leave the server stopped for ever."""

    async def scene() -> None:
        (tmp_path / "taken").write_text("[]")
        async with standing(tmp_path) as (bridged, _):
            assert bridged.keeper.done == ["start"]
            assert not bridged.state_file.exists()
            assert bridged.places.shut_by == ()
            await bridged.obey("unload_model", model_loaded=False)
            assert bridged.state_file.read_text() == "[]"
            await bridged.bridge.close()
            assert bridged.keeper.done == ["start", "stop", "start"]
            assert not bridged.state_file.exists()

    asyncio.run(scene())
