"""A stand-in for vLLM's OpenAI server with its development endpoints.

For: the tests of bridges.vllm. Upstream: restserver. What it answers is read in vLLM's source and docs:
vllm/entrypoints/serve/dev/{rlhf,sleep,cache,server_info}/api_router.py and EngineCore.{pause_scheduler,sleep,wake_up,
release_kv_cache_memory} of v0.31 to v0.33, docs/features/sleep_mode.md.

Its memory is `device_bytes`: weights and KV cache as mapped now. What harms is kept: `engine_dead` (resumed on a cache
that is not there), `host_copy` (level 1), `weights` ("garbage" after level 2 until they are loaded again).
"""

from typing import Any

from tests.support.standin import Call, Reply
from tests.support.standins.restserver import RestServer, Table, Work

WEIGHT_BYTES = 600 << 20
KV_BYTES = 300 << 20
MODES = ("abort", "wait", "keep")


class Vllm(RestServer):
    """One engine. `kv_release`: has POST /release_kv_cache_memory, as from v0.31 (vllm-project/vllm#44890).

    `pause_modes`: /pause knows `mode`; v0.14 did not.
    """

    def __init__(
        self,
        *,
        version: str = "0.33.0",
        dev_mode: bool = True,
        sleep_mode: bool = True,
        pausing: bool = True,
        pause_modes: bool = True,
        kv_release: bool = True,
        json_config: bool = True,
        speculative: bool = False,
    ) -> None:
        super().__init__()
        self.version = version
        self.dev_mode = dev_mode
        self.sleep_mode = sleep_mode
        self.pausing = pausing
        self.pause_modes = pause_modes
        self.kv_release = kv_release
        self.json_config = json_config
        self.speculative = speculative
        self.api_key: str | None = None
        self.work = Work()
        self.paused = False
        self.discarded: set[str] = set()
        self.weights = "good"
        self.host_copy = False
        self.engine_dead = False
        self.prefix_blocks = 100

    @property
    def device_bytes(self) -> int:
        """What is mapped now."""
        kv = 0 if "kv_cache" in self.discarded else KV_BYTES
        return kv + (0 if "weights" in self.discarded else WEIGHT_BYTES)

    def refuse(self, call: Call) -> Reply | None:
        # vllm/entrypoints/serve/middleware/authenticate.py: only paths under /v1 ask for the key.
        given = call.headers.get("authorization")
        if self.api_key is not None and call.path.startswith("/v1") and given != f"Bearer {self.api_key}":
            return Reply({"error": "Unauthorized"}, 401)
        return None

    def routes(self) -> Table:
        table: Table = {
            ("GET", "/health"): lambda _: Reply(b"", 503 if self.engine_dead else 200),
            ("GET", "/version"): lambda _: Reply({"version": self.version}),
            ("GET", "/metrics"): self._metrics,
            ("POST", "/v1/completions"): self._complete,
        }
        if self.dev_mode:
            table |= {
                ("GET", "/server_info"): self._server_info,
                ("POST", "/reset_prefix_cache"): self._reset_prefix_cache,
                ("POST", "/sleep"): self._sleep,
                ("POST", "/wake_up"): self._wake_up,
                ("GET", "/is_sleeping"): lambda _: Reply({"is_sleeping": self.paused or bool(self.discarded)}),
                ("POST", "/collective_rpc"): self._collective_rpc,
            }
        if self.dev_mode and self.pausing:
            table |= {
                ("POST", "/pause"): self._pause,
                ("POST", "/resume"): self._resume,
                ("GET", "/is_paused"): lambda _: Reply({"is_paused": self.paused}),
            }
        if self.dev_mode and self.kv_release:
            table["POST", "/release_kv_cache_memory"] = self._release_kv_cache_memory
        return table

    # Inference

    async def _complete(self, _: Call) -> Reply:
        how = await self.work.serve()
        if self.discarded:
            self.engine_dead = True  # kernels run on pages that are not mapped
        if self.engine_dead:
            return Reply({"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError"}}, 500)
        text = "hello" if self.weights == "good" else "!!!!!!!!"  # vllm#54235
        return Reply({"choices": [{"text": text, "finish_reason": how}]})

    def _metrics(self, _: Call) -> Reply:
        labels = '{engine="0",model_name="m"}'
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(self.work.running)}",
            f"vllm:num_requests_waiting{labels} {float(self.work.queued)}",
            f"vllm:kv_cache_usage_perc{labels} 0.25",
        ]
        return Reply("\n".join([*lines, ""]))

    # Development mode

    def _server_info(self, call: Call) -> Reply:
        config: Any = {
            "model_config": {"model": "m", "enable_sleep_mode": self.sleep_mode},
            "scheduler_config": {"max_num_seqs": 8},
            "speculative_config": {"method": "mtp"} if self.speculative else None,
        }
        if not self.json_config or call.query.get("config_format") != "json":
            config = f"model='m', enable_prefix_caching=True, enable_sleep_mode={self.sleep_mode}"
        return Reply({"vllm_config": config, "vllm_env": {"VLLM_SERVER_DEV_MODE": True}, "system_env": {}})

    async def _pause(self, call: Call) -> Reply:
        mode = call.query.get("mode", "abort") if self.pause_modes else "abort"
        if call.query.get("wait_for_inflight_requests") == "true":
            mode = "wait"  # deprecated, and the only one that the first versions knew
        if mode not in MODES:
            return Reply(
                {"detail": [{"loc": ["query", "mode"], "msg": "Input should be 'abort', 'wait' or 'keep'"}]}, 422
            )
        await self._pause_in(mode)
        return Reply({"status": "paused"})

    async def _pause_in(self, mode: str) -> None:
        self.paused = True
        self.work.shut()  # all modes queue what is new
        if mode == "abort":
            self.work.end("abort")
        if mode != "keep":
            await self.work.drained()

    def _resume(self, _: Call) -> Reply:
        # EngineCore.resume_scheduler does not look whether the memory is there.
        self.paused = False
        if self.discarded and (self.work.queued or self.work.running):
            self.engine_dead = True
        self.work.open()
        return Reply({"status": "resumed"})

    def _reset_prefix_cache(self, _: Call) -> Reply:
        done = not self.work.running
        if done:
            self.prefix_blocks = 0
        return Reply({"success": done}) if self.kv_release else Reply(b"")  # older ones tell nothing

    def _release_kv_cache_memory(self, _: Call) -> Reply:
        if not self.paused or self.work.running:
            return self._failed("release_kv_cache_memory() requires a completed pause first")
        if self.discarded:
            return self._failed("release_kv_cache_memory() requires all executor memory to be resident")
        if not self.sleep_mode:
            return self._failed("KV cache memory is not managed by the sleep backend")
        self.prefix_blocks = 0
        self.discarded.add("kv_cache")
        return Reply({"status": "kv_cache_released"})

    async def _sleep(self, call: Call) -> Reply:
        level = int(call.query.get("level", "1"))
        if level not in (0, 1, 2):
            return Reply(
                {"detail": [{"loc": ["query", "level"], "msg": "Input should be less than or equal to 2"}]}, 422
            )
        await self._pause_in(call.query.get("mode", "abort"))
        if self.sleep_mode and level >= 1:
            self.discarded |= {"kv_cache", "weights"}
            self.host_copy = level == 1
            self.weights = "good" if level == 1 else "garbage"
        return Reply({"status": "sleeping", "level": level}) if self.kv_release else Reply(b"")

    def _wake_up(self, call: Call) -> Reply:
        tags = [call.query["tags"]] if "tags" in call.query else None
        self.discarded -= set(tags or ("kv_cache", "weights"))
        self.host_copy = False
        if not self.discarded:
            self.paused = False
            self.work.open()
        status = "sleeping" if self.discarded else "awake"
        return Reply({"status": status, "tags_woken": tags}) if self.kv_release else Reply(b"")

    def _collective_rpc(self, call: Call) -> Reply:
        if call.json().get("method") != "reload_weights":
            return self._failed(f"no such method: {call.json().get('method')}")
        if "weights" in self.discarded:
            self.engine_dead = True
            return self._failed("CUDA error: an illegal memory access was encountered")
        self.weights = "good"
        return Reply({"results": [None]})

    def _failed(self, why: str) -> Reply:
        return Reply({"error": {"message": why, "type": "InternalServerError", "param": None, "code": 500}}, 500)
