"""SGLang's HTTP server. Facts: SGLang 0.5.6 to 0.5.23, python/sglang/srt/entrypoints/{http_server,v1_loads}.py,
managers/scheduler_update_weights_mixin.py, later managers/scheduler_components/weight_updater.py.

As in vLLM the KV cache is one pool, so a trim (/flush_cache) only empties books, and the pool is parked while requests
are refused anyway.

    park    pause_generation retract ─▶ flush_cache ─▶ release_memory_occupation kv_cache
    unload  the same, with weights
    load    resume weights ─▶ update_weights_from_disk ─▶ resume kv_cache ─▶ continue_generation

Dangers, and what is done about them:
- a release while anything runs or waits fails an assertion in the scheduler and ends the server (sglang#24123); so does
  a resume of what was not released. flush_cache asks the same question and answers 400: it goes first, and what is
  released is marked on the server itself (its weight version), so that neither a restart of it nor one of the bridge is
  missed;
- a pause in mode retract puts running requests into the queue, where they keep flush_cache from working (sglang#32153):
  the gate is drained before, and if it is refused all the same, generation goes on and nothing is released;
- without --enable-memory-saver a release says 200 and frees nothing; with --enable-weights-cpu-backup the weights would
  go to the host's memory, which is short; without it they come back as garbage: loaded again from disk.

Must not: release before flush_cache has said 200. Upstream: base, probes. Downstream: bridge.
"""

import re
from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server
from edgeguardd.bridges.calls import AwayError, RefusedError, ServerError
from edgeguardd.bridges.probes import offered

KV = "kv_cache"
WEIGHTS = "weights"
# Their memory is back, what was in it is not.
GARBAGE = "garbage"
# Behind the weight version that the operator has set; what follows is what is released.
MARK = "+edgeguardd-released:"

# Before, /pause_generation knew no mode and aborted (sglang#10071).
PAUSES_BY_MODE = (0, 5, 6)

PAUSE, CONTINUE, FLUSH = "/pause_generation", "/continue_generation", "/flush_cache"
RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"
VERSION, FROM_DISK = "/update_weight_version", "/update_weights_from_disk"

NO_SAVER = (
    "cannot release the KV cache or unload: SGLang runs without its memory saver, and a release would free nothing; "
    "start it with --enable-memory-saver"
)
NO_CALLS = (
    "cannot release the KV cache or unload: this SGLang lacks /pause_generation, /release_memory_occupation or "
    "/update_weight_version, or pauses by aborting; use 0.5.6 or newer"
)
BACKUP = (
    "cannot unload the weights: --enable-weights-cpu-backup would copy them to the host's memory; start it without, "
    "and they are loaded from disk again"
)
NO_LIMIT = "cannot lower --max-running-requests while SGLang runs; the gate's places do that: put the gate before it"


class SglangServer(Server):
    """One server, whatever the number of its ranks."""

    name: ClassVar[str] = "sglang"
    # Not /health: it generates a token unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is off.
    harmless: ClassVar[frozenset[str]] = frozenset(
        {"/ready", "/metrics", "/v1/models", "/model_info", "/get_model_info", "/v1/loads", "/get_load"}
    )

    operators: ClassVar[frozenset[str]] = frozenset({PAUSE, CONTINUE, FLUSH, RELEASE, RESUME, VERSION, FROM_DISK})

    _weights_go = False

    async def look(self) -> Look:
        """By its arguments, which it tells, and which calls there are."""
        info = await self._info()
        calls = await offered(self.http, (PAUSE, RELEASE, VERSION, FROM_DISK))
        saves = info.get("enable_memory_saver") is True
        parks = saves and {PAUSE, RELEASE, VERSION} <= calls and not _is_older(info["version"], PAUSES_BY_MODE)
        backup = info.get("enable_weights_cpu_backup") is True
        self._weights_go = parks and not backup and FROM_DISK in calls and self.options.unload != KV
        cannot = [] if saves else [NO_SAVER]
        if saves:
            cannot += [] if parks else [NO_CALLS]
            cannot += [BACKUP] if backup else []
        places = info.get("max_running_requests")
        return Look(
            info["version"],
            places if isinstance(places, int) and places > 0 else None,
            trims=True,
            parks=parks,
            unloads=parks,
            cannot=(*cannot, NO_LIMIT),
            on_device=True,
        )

    async def trim(self) -> None:
        """Empty the prefix tree. Refused while anything runs or waits, at once."""
        try:
            await self.http.post(FLUSH)
        except RefusedError as error:
            why = "cannot flush SGLang's cache: requests run or wait; it works when they end"
            raise RefusedError(error.status, why) from None

    async def park(self) -> tuple[str, ...]:
        """Take the KV cache's mapping away; the weights stay."""
        return await self._release((KV,), cut=False)

    async def unload(self) -> tuple[str, ...]:
        """Take the weights' away as well, where they can be loaded again."""
        return await self._release((KV, WEIGHTS) if self._weights_go else (KV,), cut=True)

    async def deepen(self) -> tuple[str, ...] | None:
        """The weights, after the KV cache: it is paused and flushed already."""
        if not self._weights_go:
            return None
        await self._mark((KV, WEIGHTS))
        await self.http.post(RELEASE, {"tags": [WEIGHTS]}, within_s=self.patience_s)
        return (KV, WEIGHTS)

    async def _release(self, tags: tuple[str, ...], *, cut: bool) -> tuple[str, ...]:
        await self.http.post(PAUSE, {"mode": "retract"})
        try:
            await self._empty(cut)
            await self._mark(tags)
        except ServerError:
            await self.http.post(CONTINUE, {})
            raise
        try:
            await self.http.post(RELEASE, {"tags": list(tags)}, within_s=self.patience_s)
        except RefusedError:
            await self._mark(())
            await self.http.post(CONTINUE, {})
            raise
        if await self.running() is None:
            raise ServerError(
                "cannot say that SGLang survived the release: it does not count its requests; see its log"
            )
        return tags

    async def _empty(self, cut: bool) -> None:
        """Nothing runs, waits or is cached any more: those who have come past the gate are cut off if that may be."""
        try:
            await self.trim()
        except RefusedError:
            if not cut:
                raise
            await self.http.post("/abort_request", {"rid": "", "abort_all": True})
            await self.until(self._is_flushed, "SGLang has let its requests go")

    async def _is_flushed(self) -> bool:
        return (await self.http.ask("POST", FLUSH)).status == 200

    async def load(self, taken: tuple[str, ...]) -> None:  # noqa: ARG002 - the mark on the server tells
        """Map again what is marked as released, load the weights, and only then go on."""
        info = await self._info()
        released = _marked(info)
        kv = (KV,) if KV in released else ()
        if WEIGHTS in released:
            await self.http.post(RESUME, {"tags": [WEIGHTS]}, within_s=self.patience_s)
            await self._mark((*kv, GARBAGE))
        if released & {WEIGHTS, GARBAGE}:
            await self._load_weights(info)
            await self._mark(kv)
        if kv:
            await self.http.post(RESUME, {"tags": [KV]}, within_s=self.patience_s)
            await self._mark(())
        await self.http.post(CONTINUE, {})
        await self.until(self._is_healthy, "SGLang is ready")

    async def _load_weights(self, info: dict[str, Any]) -> None:
        reply = await self.http.post(
            FROM_DISK, {"model_path": info.get("model_path"), "abort_all_requests": False}, within_s=self.patience_s
        )
        if reply.field("success") is not True:
            raise ServerError("cannot load SGLang's weights again: it says no success; see its log, or restart it")

    async def running(self) -> int | None:
        """Running and waiting, of all ranks."""
        reply = await self.http.ask("GET", "/v1/loads?include=core")
        if reply.status == 200:
            loads = reply.field("loads", default=[])
            return _sum(loads, "num_running_reqs", "num_waiting_reqs")
        reply = await self.http.ask("GET", "/get_load")
        return _sum(reply.json(), "num_reqs") if reply.status == 200 else None

    async def _is_healthy(self) -> bool:
        try:
            return (await self.http.ask("GET", "/health")).status == 200
        except AwayError:
            return False

    async def _info(self) -> dict[str, Any]:
        """Its arguments. They hold its keys: never to be logged."""
        reply = await self.http.ask("GET", "/server_info")
        if reply.status == 404:
            reply = await self.http.get("/get_server_info")
        info = reply.json()
        if reply.status != 200 or not isinstance(info, dict) or not isinstance(info.get("version"), str):
            raise ServerError(f"cannot use {self.http.at}: its /server_info names no version; is that SGLang?")
        return info

    async def _mark(self, tags: tuple[str, ...]) -> None:
        """Say on the server what is released: it forgets that when it ends, and a bridge after this one can read it."""
        plain = str((await self._info()).get("weight_version") or "default").partition(MARK)[0]
        new = f"{plain}{MARK}{','.join(tags)}" if tags else plain
        await self.http.post(VERSION, {"new_version": new, "abort_all_requests": False})


def _is_older(version: str, than: tuple[int, int, int]) -> bool:
    """Of "0.5.23" and "0.5.6.post2"; a version of another form, as a build from source has, is not."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(int(number) for number in found.groups()) if found else (0, 0, 0)
    return (0, 0, 0) < numbers < than


def _marked(info: dict[str, Any]) -> frozenset[str]:
    _, found, tags = str(info.get("weight_version") or "").partition(MARK)
    return frozenset(tags.split(",")) & {KV, WEIGHTS, GARBAGE} if found else frozenset()


def _sum(ranks: object, *names: str) -> int | None:
    found = (
        [rank.get(name) for rank in ranks if isinstance(rank, dict) for name in names]
        if isinstance(ranks, list)
        else []
    )
    counts = [count for count in found if isinstance(count, int)]
    return sum(counts) if counts else None
