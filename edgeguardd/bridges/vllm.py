"""vLLM's OpenAI server. Facts: vLLM 0.31 to 0.33, docs/features/sleep_mode.md and
vllm/entrypoints/serve/dev/{rlhf,sleep,cache,server_info}/api_router.py; EngineCore in vllm/v1/engine/core.py.

The KV cache is mapped at the start and never grows, so a trim (/reset_prefix_cache) only empties books. What gives
memory back is taking the mapping away, and then nothing can run: so the KV cache is parked while requests are refused
anyway, and the weights go when the model has to.

    park    pause?mode=wait ─▶ release_kv_cache_memory                                          (0.31 and newer)
    unload  pause?mode=wait ─▶ sleep?level=2
    load    wake_up?tags=weights ─▶ reload_weights ─▶ wake_up?tags=kv_cache ─▶ reset_prefix_cache ─▶ resume

Dangers, and what is done about them:
- sleep level 1, the default, copies the weights to the host's memory, which is the memory that is short: never used;
- after level 2 the weights are garbage until they are loaded again, and nothing says so (vllm#54235): always reloaded;
- a draft model's weights are not reloaded (vllm#52479): with speculative decoding only the KV cache is released;
- pause aborts running requests by default: mode=wait, after the gate has been drained; abort only for an unload, and
  late;
- resume does not look whether the memory is there, and a request would end the engine: resumed after all is back;
- without --enable-sleep-mode, sleep says 200 and frees nothing: found out by /server_info.

Must not: use level 1. Upstream: base, probes. Downstream: bridge.
"""

import re
from typing import Any, ClassVar

from edgeguardd.bridges.base import Look, Server, UndoneError
from edgeguardd.bridges.calls import AwayError, ServerError
from edgeguardd.bridges.probes import gauge_sum, offered, version_at

KV = "kv_cache"
WEIGHTS = "weights"

# The gate has been drained before, for much longer.
CUT_AFTER_S = 5.0

# The first versions with /pause (0.14) know only the second, and abort without it.
WAITING = "mode=wait&wait_for_inflight_requests=true"

RESET, PAUSE, RELEASE_KV = "/reset_prefix_cache", "/pause", "/release_kv_cache_memory"
SLEEP, WAKE, RPC = "/sleep", "/wake_up", "/collective_rpc"

NO_DEV_MODE = (
    "cannot drop the prefix cache, release the KV cache or unload: vLLM offers the calls only with "
    "VLLM_SERVER_DEV_MODE=1 in its environment; start it so, on loopback, since they have no password"
)
NO_SLEEP_MODE = (
    "cannot release the KV cache or unload: vLLM runs without its sleep mode; start it with --enable-sleep-mode"
)
UNKNOWN_SLEEP_MODE = (
    "cannot release the KV cache or unload: this vLLM does not say whether --enable-sleep-mode is on, and without it "
    "sleeping would free nothing; use one whose /server_info tells (0.11 and newer)"
)
NO_KV_RELEASE = (
    "cannot release the KV cache while requests are refused: this vLLM has no /pause or no /release_kv_cache_memory; "
    "0.31 and newer have both"
)
DRAFT = (
    "cannot unload the weights: with speculative decoding the draft model's would not come back (vllm#52479); the KV "
    "cache alone is released"
)
NO_WAKE = "cannot unload the weights: this vLLM lacks /sleep, /wake_up or /collective_rpc; use 0.11 or newer"
NO_LIMIT = "cannot lower --max-num-seqs while vLLM runs; the gate's places do that: put the gate before it"


class VllmServer(Server):
    """One engine behind one API server."""

    name: ClassVar[str] = "vllm"
    harmless: ClassVar[frozenset[str]] = frozenset({"/health", "/ping", "/metrics", "/version", "/load", "/v1/models"})
    # VLLM_SERVER_DEV_MODE=1 offers these to everybody; /collective_rpc calls any method of the workers.
    operators: ClassVar[frozenset[str]] = frozenset(
        {RESET, PAUSE, RELEASE_KV, SLEEP, WAKE, RPC, "/resume", "/is_paused", "/is_sleeping", "/server_info"}
        | {"/reset_mm_cache", "/reset_encoder_cache"}
    )

    _pauses = False
    _sleeps = False

    async def look(self) -> Look:
        """By /version, /server_info and which calls there are."""
        version = await version_at(self.http, "/version", "vLLM")
        calls = await offered(self.http, (RESET, PAUSE, RELEASE_KV, SLEEP, WAKE, RPC))
        if RESET not in calls:
            return Look(version, cannot=(NO_DEV_MODE, NO_LIMIT), on_device=True)
        config = await self._config()
        self._pauses = PAUSE in calls
        sleep_mode = config.get("enable_sleep_mode")
        parks = sleep_mode is True and {PAUSE, RELEASE_KV} <= calls
        draft = config.get("speculative") is not None
        self._sleeps = sleep_mode is True and {SLEEP, WAKE, RPC} <= calls and not draft and self.options.unload != KV
        cannot = [] if sleep_mode is True else [UNKNOWN_SLEEP_MODE if sleep_mode is None else NO_SLEEP_MODE]
        if sleep_mode is True:
            cannot += [] if parks else [NO_KV_RELEASE]
            cannot += [DRAFT] if draft else []
            cannot += [] if {SLEEP, WAKE, RPC} <= calls else [NO_WAKE]
        return Look(
            version,
            config.get("max_num_seqs"),
            trims=True,
            parks=parks,
            unloads=parks or self._sleeps,
            cannot=(*cannot, NO_LIMIT),
            on_device=True,
        )

    async def _config(self) -> dict[str, Any]:
        """Three facts of its configuration, as far as it tells."""
        config = (await self.http.get("/server_info?config_format=json", within_s=self.patience_s)).field("vllm_config")
        if isinstance(config, str):  # older ones know no format
            found = re.search(r"\benable_sleep_mode=(True|False)\b", config)
            return {"enable_sleep_mode": found.group(1) == "True"} if found else {}
        if not isinstance(config, dict):
            return {}
        model, scheduler = (_object(config.get(name)) for name in ("model_config", "scheduler_config"))
        seqs = scheduler.get("max_num_seqs")
        return {
            "enable_sleep_mode": model.get("enable_sleep_mode"),
            "max_num_seqs": seqs if isinstance(seqs, int) and seqs > 0 else None,
            "speculative": config.get("speculative_config"),
        }

    async def trim(self) -> None:
        """Forget cached prefixes. Blocks that running requests hold keep it from happening; newer ones say so."""
        reply = await self.http.post(RESET)
        if reply.body and reply.field("success") is False:
            raise ServerError("cannot reset vLLM's prefix cache: running requests hold blocks; it works when they end")

    async def park(self) -> tuple[str, ...]:
        """Take the KV cache's mapping away; the weights stay."""
        await self._pause(cut=False)
        try:
            await self.http.post(RELEASE_KV, within_s=self.patience_s)
        except ServerError:
            await self.http.post("/resume")
            raise
        return (KV,)

    async def unload(self) -> tuple[str, ...]:
        """Take everything away, and see that it sleeps."""
        if not self._sleeps:
            return await self.park()
        await self._pause(cut=True)
        await self.http.post(f"{SLEEP}?level=2", within_s=self.patience_s)
        if not await self._is_sleeping():
            raise ServerError("cannot say that vLLM sleeps: /is_sleeping denies it; see its log")
        return (WEIGHTS, KV)

    async def load(self, taken: tuple[str, ...]) -> None:
        """Map all again, load the weights where they were let go, and only then resume."""
        if await self._is_sleeping():
            if taken != (KV,):  # or a bridge that died in the middle: loading them once more harms nothing
                await self._wake(WEIGHTS)
                await self.http.post(RPC, {"method": "reload_weights"}, within_s=self.patience_s)
            await self._wake(KV)
            await self.http.post(RESET)
        if self._pauses:
            await self.http.post("/resume")
        if await self._is_sleeping():
            raise ServerError("cannot say that vLLM is awake: /is_sleeping denies it; see its log, or restart it")

    async def running(self) -> int | None:
        """Running and waiting, of all engines."""
        text = (await self.http.get("/metrics")).text()
        return gauge_sum(text, "vllm:num_requests_running", "vllm:num_requests_waiting")

    async def _pause(self, *, cut: bool) -> None:
        """Until nothing runs; those who have come past the gate are cut off after CUT_AFTER_S, or the pause is undone.

        Without /pause (before 0.14) only the gate keeps requests away.
        """
        if not self._pauses:
            return
        try:
            await self.http.post(f"{PAUSE}?{WAITING}", within_s=CUT_AFTER_S)
        except AwayError:
            if not cut:
                await self.http.post("/resume")
                raise UndoneError(
                    "cannot pause vLLM: requests still run that came past the gate; close that way"
                ) from None
            await self.http.post(f"{PAUSE}?mode=abort", within_s=self.patience_s)

    async def _wake(self, tag: str) -> None:
        await self.http.post(f"{WAKE}?tags={tag}", within_s=self.patience_s)

    async def _is_sleeping(self) -> bool:
        """Also while it is paused, from 0.31 on."""
        return (await self.http.get("/is_sleeping")).field("is_sleeping") is True


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
