"""A stand-in for SGLang's HTTP server.

For: the tests of bridges.sglang. Upstream: restserver. What it answers is read in SGLang's source, v0.5.6 to v0.5.23:
entrypoints/http_server.py (routes, AuthLevel.ADMIN_OPTIONAL), entrypoints/v1_loads.py,
managers/scheduler_update_weights_mixin.py and scheduler_components/weight_updater.py (release_memory_occupation asserts
that the scheduler is idle, and an assertion there ends the server; resume without a release is a KeyError, which does
the same: sgl-project/sglang#24123). A pause in mode retract puts running requests back into the queue, and a flush is
refused while that is not empty (sgl-project/sglang#32153).
"""

from typing import Any

from tests.support.standin import Call, Reply
from tests.support.standins.restserver import RestServer, Table, Work

WEIGHT_BYTES = 600 << 20
KV_BYTES = 300 << 20
ALL = ("kv_cache", "weights", "cuda_graph")
FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)


class Sglang(RestServer):
    """One server. `new_names`: /server_info and /v1/loads beside the older /get_server_info and /get_load."""

    def __init__(
        self,
        *,
        version: str = "0.5.23",
        memory_saver: bool = True,
        weights_backup: bool = False,
        pausing: bool = True,
        memory_calls: bool = True,
        new_names: bool = True,
    ) -> None:
        super().__init__()
        self.version = version
        self.memory_saver = memory_saver
        self.weights_backup = weights_backup
        self.pausing = pausing
        self.memory_calls = memory_calls
        self.new_names = new_names
        self.admin_key: str | None = None
        self.work = Work()
        self.retracted = 0
        self.paused = False
        self.offloaded: set[str] = set()
        self.weights = "good"
        self.crashed = False
        self.cached_tokens = 1000
        self.weight_version = "default"

    @property
    def device_bytes(self) -> int:
        """What is mapped now; without --enable-memory-saver nothing ever leaves."""
        gone = self.offloaded if self.memory_saver else set()
        return (0 if "kv_cache" in gone else KV_BYTES) + (0 if "weights" in gone else WEIGHT_BYTES)

    def refuse(self, call: Call) -> Reply | None:
        if self.crashed:
            raise ConnectionError
        admin = call.path not in {"/generate", "/health", "/server_info", "/get_server_info", "/v1/loads", "/get_load"}
        if admin and self.admin_key is not None and call.headers.get("authorization") != f"Bearer {self.admin_key}":
            return Reply({"error": "Unauthorized"}, 401)
        return None

    def routes(self) -> Table:
        table: Table = {
            ("GET", "/health"): self._health,
            ("GET", "/get_server_info"): self._server_info,
            ("GET", "/get_load"): self._get_load,
            ("POST", "/generate"): self._generate,
            ("POST", "/flush_cache"): self._flush_cache,
            ("POST", "/update_weights_from_disk"): self._update_weights,
            ("POST", "/update_weight_version"): self._update_version,
            ("POST", "/abort_request"): self._abort,
        }
        if self.new_names:
            table |= {("GET", "/server_info"): self._server_info, ("GET", "/v1/loads"): self._loads}
        if self.pausing:
            table |= {
                ("POST", "/pause_generation"): self._pause,
                ("POST", "/continue_generation"): self._continue,
            }
        if self.memory_calls:
            table |= {
                ("POST", "/release_memory_occupation"): self._release,
                ("POST", "/resume_memory_occupation"): self._resume,
            }
        return table

    # Inference

    def _health(self, _: Call) -> Reply:
        # It generates a token: while paused that waits until its time is over.
        if self.paused:
            return Reply(b"", 503)
        return self._crash() if self.offloaded else Reply(b"")

    async def _generate(self, _: Call) -> Reply:
        how = await self.work.serve()
        if self.offloaded:
            return self._crash()
        text = "hello" if self.weights == "good" else "!!!!!!!!"
        return Reply({"text": text, "meta_info": {"finish_reason": {"type": how}}})

    def _server_info(self, _: Call) -> Reply:
        return Reply(
            {
                "model_path": "/models/m",
                "version": self.version,
                "enable_memory_saver": self.memory_saver,
                "enable_weights_cpu_backup": self.weights_backup,
                "max_running_requests": 16,
                "weight_version": self.weight_version,
                "admin_api_key": self.admin_key,
                "internal_states": [{}],
            }
        )

    def _loads(self, _: Call) -> Reply:
        counts = {"dp_rank": 0, "num_running_reqs": self._running, "num_waiting_reqs": self._waiting_requests}
        return Reply({"version": self.version, "loads": [counts]})

    def _get_load(self, _: Call) -> Reply:
        waiting = self._waiting_requests
        return Reply([{"dp_rank": 0, "num_reqs": self._running + waiting, "num_waiting_reqs": waiting}])

    @property
    def _running(self) -> int:
        return self.work.running - self.retracted

    @property
    def _waiting_requests(self) -> int:
        return self.retracted  # what comes while paused waits in the tokenizer manager, where nobody counts it

    # Administration

    async def _pause(self, call: Call) -> Reply:
        mode = call.json().get("mode", "abort")
        if mode not in ("abort", "in_place", "retract"):
            return Reply(
                {"detail": [{"loc": ["body", "mode"], "msg": "Input should be abort, retract or in_place"}]}, 422
            )
        self.paused = True
        self.work.shut()
        if mode == "abort":
            self.work.end("abort")
            await self.work.drained()
        elif mode == "retract":
            self.retracted = self.work.running
        return Reply({"message": "Generation paused successfully.", "status": "ok"})

    def _continue(self, _: Call) -> Reply:
        if self.offloaded & {"kv_cache", "weights"} and (self.retracted or self.work.queued):
            return self._crash()
        self.paused = False
        self.retracted = 0
        self.work.open()
        return Reply({"message": "Generation continued successfully.", "status": "ok"})

    def _flush_cache(self, _: Call) -> Reply:
        if self.work.running:
            return Reply(FLUSHED, 400)
        self.cached_tokens = 0
        return Reply(FLUSHED)

    def _release(self, call: Call) -> Reply:
        if self.work.running:
            return self._crash()
        self.offloaded |= set(call.json().get("tags") or ALL)
        if "weights" in self.offloaded and not self.weights_backup:
            self.weights = "garbage"
        return Reply(None)

    def _resume(self, call: Call) -> Reply:
        tags: Any = set(call.json().get("tags") or ALL)
        if not tags <= self.offloaded:
            return self._crash()
        self.offloaded -= tags
        return Reply(None)

    def _update_weights(self, call: Call) -> Reply:
        if "weights" in self.offloaded:
            return self._crash()
        if call.json().get("model_path") != "/models/m":
            return Reply({"success": False, "message": "Failed to get model", "num_paused_requests": 0}, 400)
        self.weights = "good"
        return Reply({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    def _update_version(self, call: Call) -> Reply:
        if call.json().get("abort_all_requests", True):
            self.work.end("abort")
        self.weight_version = call.json()["new_version"]
        return Reply({"success": True, "message": "Weight version updated", "new_version": self.weight_version})

    def _abort(self, call: Call) -> Reply:
        if call.json().get("abort_all"):
            self.work.end("abort")
        return Reply(b"")

    def _crash(self) -> Reply:
        self.crashed = True
        self.work.end("died")
        self.work.open()
        raise ConnectionError
